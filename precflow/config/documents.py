"""Reads one YAML file: its values, the line of each of them, and what is wrong with it.

YAML 1.1 changes unquoted words: ``off`` becomes false, ``3.10`` becomes 3.1, ``12:30`` becomes 750. A :class:`Mark` keeps
what was written, so that a message can say so.

A file may come from a stranger. Only plain scalars, lists and maps are constructed, so reading runs no code. Size, depth and
number of values are bounded. Each use of an alias counts, because some lines of aliases of aliases can make billions of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from precflow.errors import Problem
from precflow.files import open_regular

DottedPath = tuple[str, ...]
PathProblems = Iterator[tuple[DottedPath, str]]  # (path of a value, what is wrong with it)

# What one file may have at most.
LARGEST_FILE = 1 << 20  # bytes
MOST_VALUES = 50_000  # those that aliases repeat included
DEEPEST = 32  # maps and lists in one another
LONGEST_TEXT = 1 << 16  # characters of one value
LONGEST_NUMBER = 64  # characters of a number: Python needs minutes to read one of some 100 000
LONGEST_KEY = 200  # characters

_HEADER = re.compile(r"^#\s*@package\s+(?P<package>\S+)\s*$", re.MULTILINE)
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TRUE_FALSE = ("true", "false")
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # one of two classes, by what is installed
    """YAML as OmegaConf reads it: ``1e-3`` is a number, dates stay text."""


# YAML 1.1 wants a dot and a signed exponent, so PyYAML reads `1e-3` and `1.0e3` as text. This is OmegaConf's pattern. Dates,
# which PyYAML would turn into datetime.date, are left out below and stay text.
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


@dataclass(frozen=True)
class Mark:
    """Where a value comes from and how it was written.

    Attributes:
        place: ``file:line``, or ``command line``.
        raw: The text of an unquoted scalar; ``None`` for quoted ones, lists and maps.
        group: Config group of the file (``recipe``, ``site``...), ``""`` for the command line.
    """

    place: str
    raw: str | None = None
    group: str = ""


@dataclass(frozen=True, eq=False)  # hashed by identity: equal texts of one file give the same document
class Document:
    """The content of one file.

    Attributes:
        path: The file.
        group: Config group that it is in.
        name: Its name in that group.
        package: The word after ``# @package``; ``""`` if there is no such line.
        data: Plain data, without ``defaults``.
        defaults: The entries of its ``defaults`` list.
        marks: Path -> mark, for every value, list and map.
        problems: What is wrong with the file as YAML.
    """

    path: Path
    group: str
    name: str
    package: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    defaults: tuple[Any, ...] = ()
    marks: Mapping[DottedPath, Mark] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def mark(self, path: DottedPath) -> Mark:
        """Return the mark of a value. Of one that is not there it has the line of what it should be in, or only the file."""
        if path in self.marks:
            return self.marks[path]
        around = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in self.marks), None)
        return Mark(self.marks[around].place if around else display_path(self.path), group=self.group)


def display_path(path: Path) -> str:
    """Return a path for a message: relative if it is inside the working directory."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def dotted(path: DottedPath) -> str:
    """Return ``tolerance.rules[0].match`` for ``("tolerance", "rules", "0", "match")``."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).removeprefix(".")


def explain_yaml_trap(value: Any, raw: str | None) -> str:
    """Return a warning if YAML read an unquoted scalar as something else than people expect, else ``""``.

    >>> explain_yaml_trap(750, "12:30")
    'YAML reads `12:30` as 750: put it in quotes'
    """
    if raw is None:
        return ""
    if isinstance(value, bool) and raw.lower() not in _TRUE_FALSE:
        return f"YAML reads `{raw}` as {str(value).lower()}: write {str(value).lower()}, or put it in quotes"
    sexagesimal = isinstance(value, (int, float)) and ":" in raw
    if sexagesimal or (isinstance(value, int) and not isinstance(value, bool) and not _DECIMAL.fullmatch(raw)):
        return f"YAML reads `{raw}` as {value:g}: put it in quotes"
    return ""


def read(path: Path, group: str, name: str) -> Document:
    """Read one file. Nothing is raised: what is wrong with the file is in the ``problems`` of the result."""
    where = display_path(path)
    try:
        with open_regular(path) as stream:
            raw = stream.read(LARGEST_FILE + 1)  # one byte more than allowed shows that the file is too large
        text = raw.decode() if len(raw) <= LARGEST_FILE else ""
    except UnicodeDecodeError as error:
        return Document(path, group, name, problems=(Problem(where, "", f"is not UTF-8 text ({error.reason})"),))
    except OSError as error:
        return Document(path, group, name, problems=(Problem(where, "", f"cannot be read: {error.strerror}"),))
    if len(raw) > LARGEST_FILE:
        return Document(path, group, name, problems=(Problem(where, "", f"is larger than {LARGEST_FILE} bytes"),))
    return _parse(path, group, name, where, text)


@lru_cache(maxsize=512)  # composing reads a file several times, and a run the 76 rules: to check its recipe, and to give advice
def _parse(path: Path, group: str, name: str, where: str, text: str) -> Document:
    try:
        _check_bounds(text)
        walk = _Walk(_Loader(text), where, group)
        data = walk.document()
    except _TooMuchError as error:
        return Document(path, group, name, problems=(Problem(f"{where}:{error.line}", "", f"is {error}: no recipe is"),))
    except yaml.MarkedYAMLError as error:
        return Document(path, group, name, problems=(_describe_syntax_error(error, text, where),))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Document(path, group, name, problems=(Problem(where, "", f"is not YAML: {str(error).splitlines()[0]}"),))
    if group == "recipe" and not data and not walk.problems:
        walk.problems.append(Problem(f"{where}:1", "", "is empty: a recipe says what is run, or what it inherits"))
    defaults, package = data.pop("defaults", None) or [], _HEADER.search(text)
    if not isinstance(defaults, list):
        walk.problems.append(Problem(walk.marks[("defaults",)].place, "defaults", "expected a list"))
        defaults = []
    return Document(
        path=path,
        group=group,
        name=name,
        package=package["package"] if package else "",
        data=data,
        defaults=tuple(defaults),
        marks=walk.marks,
        problems=tuple(walk.problems),
    )


class _TooMuchError(Exception):
    """A file is over one of the limits above.

    Args:
        message: Which one, such as "nested deeper than 32 levels".
        line: Counted from 1.
    """

    def __init__(self, message: str, line: int = 1) -> None:
        super().__init__(message)
        self.line = line


def _check_bounds(text: str) -> None:
    """Check the size of a file token by token, before anything is built from it.

    Raises:
        _TooMuchError: It is nested too deep, has a value that is too long, or has too many values.
    """
    depth = count = 0
    # The parser does not follow an alias, so each counts as one here. _Walk counts again, what they repeat included.
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        count += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_TEXT:
            raise _TooMuchError(f"too long in one value: {len(event.value)} characters of at most {LONGEST_TEXT}", line)
        if depth > DEEPEST:
            raise _TooMuchError(f"nested deeper than {DEEPEST} levels", line)
        if count > 2 * MOST_VALUES:  # keys are nodes too
            raise _TooMuchError(f"made of more than {MOST_VALUES} values", line)


def _describe_syntax_error(error: yaml.MarkedYAMLError, text: str, where: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    whole = text.splitlines()[line] if line < len(text.splitlines()) else ""
    written, hint = whole.strip(), ""
    if re.match(r" *\t", whole):
        return Problem(f"{where}:{line + 1}", "", "is not YAML: a tab before the text. YAML is indented with spaces")
    if re.search(r"(?:[:\-\[,]\s*|^)[*&%@`!]", written):
        hint = ". A value that starts with one of * & % @ ` ! must be in quotes"
    return Problem(f"{where}:{line + 1}", "", f"is not YAML: {error.problem or error.context}{hint}")


class _Walk:
    """Builds plain data from YAML nodes and notes the line of each.

    PyYAML's own constructor would lose the lines, take the last of two equal keys in silence, and not count aliases.
    """

    def __init__(self, loader: Any, where: str, group: str) -> None:
        self.loader, self.where, self.group = loader, where, group
        self.marks: dict[DottedPath, Mark] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def document(self) -> dict[str, Any]:
        """Return the only document of the file as a map."""
        node = self.loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            self.problems.append(Problem(f"{self.where}:1", "", "expected `key: value` lines"))
            return {}
        return self._build_map(node, ())

    def _build_value(self, node: yaml.Node, path: DottedPath) -> Any:
        self._count(node, path)
        self.marks[path] = self._mark(node)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            self._say(node, path, f"is not YAML of a recipe: no value has a tag such as {node.tag[:60]}")
        if isinstance(node, yaml.MappingNode):
            return self._build_map(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._build_value(item, (*path, str(number))) for number, item in enumerate(node.value)]
        value = self._construct(node, path)
        if not isinstance(value, (str, int, float)) and value is not None:
            self._say(node, path, f"{type(value).__name__} is not a kind of value that recipes have")
        return value

    def _count(self, node: yaml.Node, path: DottedPath) -> None:
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > MOST_VALUES:
            raise _TooMuchError(f"made of more than {MOST_VALUES} values by aliases that repeat themselves", line)
        if len(path) > DEEPEST:
            raise _TooMuchError(f"not YAML of a recipe: nested deeper than {DEEPEST} levels by aliases of itself", line)

    def _build_map(self, node: yaml.MappingNode, path: DottedPath, depth: int = 0) -> dict[str, Any]:
        """Return a map. Keys of maps that it merges (``<<``) come first; its own keys win."""
        if depth > DEEPEST:
            raise _TooMuchError(f"merged deeper than {DEEPEST} levels", node.start_mark.line + 1)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                # Of several merged maps (`<<: [*a, *b]`) YAML prefers the earlier one, so it is written last.
                for merged in reversed(value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]):
                    self._count(merged, path)
                    if isinstance(merged, yaml.MappingNode):
                        result.update(self._build_map(merged, path, depth + 1))
                    else:
                        self._say(key_node, (*path, "<<"), "merges a map, or a list of maps")
        own = set()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self._read_key(key_node, path)
            if key in own:
                self._say(key_node, (*path, key), "is written twice")
            own.add(key)
            result[key] = self._build_value(value_node, (*path, key))
            if not isinstance(value_node, yaml.ScalarNode):  # a map starts at its first key, a line below its own key
                self.marks[(*path, key)] = self._mark(key_node, raw=False)
        return result

    def _read_key(self, node: yaml.Node, path: DottedPath) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._say(node, path, "has a key that is a map or a list; expected a word")
            return "?"
        text = str(node.value)
        if len(text) > LONGEST_KEY:
            raise _TooMuchError(
                f"too long in one key: {len(text)} characters of at most {LONGEST_KEY}", node.start_mark.line + 1
            )
        key = self._construct(node, (*path, text))
        if isinstance(key, (bool, float)) or key is None:
            self._say(node, (*path, text), f"YAML reads the key `{text}` as {key}: put it in quotes")
            return text
        return str(key)

    def _construct(self, node: yaml.Node, path: DottedPath) -> Any:
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            self._say(node, path, f"is a number of {len(node.value)} characters; the longest has {LONGEST_NUMBER}")
            return 0
        try:
            return self.loader.construct_object(node, deep=True)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):  # `!!bool maybe` and the like
            self._say(node, path, f"is not of the kind that {node.tag[:60]} says")
            return None

    def _say(self, node: yaml.Node, path: DottedPath, message: str) -> None:
        self.problems.append(Problem(self._mark(node).place, dotted(path), message))

    def _mark(self, node: yaml.Node, *, raw: bool = True) -> Mark:
        # A plain scalar has no style (None, or '' from the parser in C); others have the character they begin with: ' " | or >.
        unquoted = raw and isinstance(node, yaml.ScalarNode) and not node.style
        text = str(node.value) if unquoted else None
        return Mark(f"{self.where}:{node.start_mark.line + 1}", text, self.group)


def walk_scalars(value: Any, path: DottedPath = ()) -> Iterator[tuple[DottedPath, Any]]:
    """Yield ``(path, scalar)`` of nested plain data, in the order of the data."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_scalars(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from walk_scalars(item, (*path, str(number)))
    else:
        yield path, value
