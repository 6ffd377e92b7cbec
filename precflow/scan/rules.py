"""The rules of a scan: one YAML file a kind of finding in ``conf/scan/``, and in a folder ``scan/`` of a team.

All files are read and checked before any is used. To add a rule, add an entry to a file, or a file: a title, and entries with
the keys of :class:`ScanRule`. What a rule looks for is one or several of its matchers; each of them is enough.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precflow import language, resources
from precflow.config.data_files import Checked, check_document, load_files
from precflow.config.documents import Document, DottedPath, PathProblems, display_path, read
from precflow.errors import Problem
from precflow.scan.expressions import read_expression

GROUP = "scan"
STOPS, LOOK, NUMBERS = WEIGHTS = ("stops", "look", "numbers")
"""It does not run there as it is; somebody has to look whether it does; it runs, and decides which numbers come out."""
_MATCHERS = (
    "packages",
    "names",
    "calls",
    "methods",
    "attributes",
    "definitions",
    "variables",
    "strings",
    "items",
    "text",
    "files",
    "given",
    "expressions",
)
_REGULAR = ("strings", "items", "text")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class ScanTexts:
    """The texts of a rule in another language.

    Attributes:
        why: Why it matters on the other device. ``{found}`` is what was found.
        do: What to do about it; ``""`` where it says nothing but names.
    """

    why: str
    do: str = ""


@dataclass(frozen=True)
class ScanRule:
    """One rule. Names are dotted as torch documents them, whatever they are imported as; ``*`` stands for anything.

    Attributes:
        why: Why it matters on the other device. ``{found}`` is what was found.
        do: What to do about it. ``{found}`` as above.
        weight: ``stops``: it does not run there as it is; ``look``: it may not, or has no effect; ``numbers``: it runs, and
            decides which numbers come out.
        packages: Modules that are imported, by the name before the first dot or more, and packages that are required: in
            requirements, ``setup.py``, ``pyproject.toml``, environments of conda, and what scripts install.
        names: Dotted names that are used or imported.
        calls: Dotted names that are called.
        methods: Methods that are called on anything but a module.
        attributes: Attributes of anything but a module that are read.
        definitions: Methods that a class defines.
        variables: Environment variables, in Python and in scripts.
        strings: Regular expression that a whole string of Python must fit; a field of an f-string is ``{}``.
        items: The same for a string that something is looked up by, as in ``state["cuda"]`` or ``{"cuda": 1}``, which is no
            string otherwise.
        text: Regular expression that is looked for in each line of other files, without their comments.
        files: Names of files, such as ``*.cu``. Of a rule with `text` those that are read; else the file itself is found.
        given: Arguments that a call must have: name, or position from 0, to a regular expression for its value as it is
            written, or for ``int NAME`` where a name holds a whole number. Without `calls` and `methods` it may be any call,
            and a dict in which arguments are collected.
        without: Arguments that the call must not have.
        not_in: Dotted names and methods in whose arguments a string or a call means something else.
        not_named: Names that a string means something else for: what it is given to, is the default of, or is compared with.
        unordered: The call counts only where something hangs on the order of the list that it returns.
        expressions: Expressions of Python in which a capital letter stands for any expression, and the same letter for the same
            one: ``X * torch.rsqrt(V + E)``. Names are dotted as above, and ``...`` stands for any further arguments.
        within: Functions by their names, with ``*``: what `expressions` describe counts only inside of one of them.
        replace: Words to replace in what was found, such as ``{cuda: npu}``: that is the patch. Without it there is none.
        replace_module: The same for the module of an import, such as ``{torch.cuda: torch_npu.npu}``.
        replace_value: What to put in place of the argument's value, where ``{}`` is the value as it was written.
        zh: The texts in Chinese.
        id: Kind and name, such as ``device.text``; no key of the file.
        kind: Name of the file; no key of it.
        order: Of two rules for the same place the lower one counts; no key of the file.
    """

    why: str
    do: str
    weight: str = STOPS
    packages: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    strings: str = ""
    items: str = ""
    text: str = ""
    files: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    not_in: tuple[str, ...] = ()
    not_named: tuple[str, ...] = ()
    unordered: bool = False
    expressions: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    replace_module: Mapping[str, str] = field(default_factory=dict)
    replace_value: str = ""
    zh: ScanTexts | None = None
    id: str = ""
    kind: str = ""
    order: int = 0


@dataclass(frozen=True)
class Takes:
    """The element types that some functions take on the other device.

    Attributes:
        takes: Types as torch calls them, such as ``bfloat16``.
        names: Dotted names of the functions.
    """

    takes: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class FileTexts:
    """The text of a file in another language.

    Attributes:
        title: What the findings of this kind are called.
    """

    title: str


@dataclass(frozen=True)
class RuleFile:
    """One file.

    Attributes:
        title: What the findings of this kind are called.
        rules: Name -> rule.
        types: Which functions take which element types: a call that asks for another one is found.
        sources: Where the knowledge comes from.
        zh: The title in Chinese.
    """

    title: str
    rules: Mapping[str, ScanRule]
    types: tuple[Takes, ...] = ()
    sources: tuple[str, ...] = ()
    zh: FileTexts | None = None


TYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex64",
    "complex128",
)
_SPELLINGS = {"float16": "half", "float32": "float", "float64": "double", "complex64": "cfloat", "complex128": "cdouble"}
_WORDS = {"ScanRule.weight": WEIGHTS}
_OURS = ("id", "kind", "order")  # fields that are no keys of a file


@dataclass(frozen=True)
class RuleSet:
    """All rules, in the order in which they count, those of a team first.

    Attributes:
        rules: The rules.
        titles: Kind -> title.
        types: Dotted name of a function -> the element types that it takes there, where a file says so.
    """

    rules: tuple[ScanRule, ...]
    titles: Mapping[str, str]
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load_rules(team: Sequence[Path] = (), dtype: str = "") -> RuleSet:
    """Read all rules: those of the team's folders and the shipped ones.

    Args:
        team: Folders of a team's files.
        dtype: The element type that the source is going to compute in: functions that do not take it are found, too.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    files = load_files(
        (*team, resources.directory("conf") / GROUP), check_file, "rules of the scan", "nothing was scanned", _find_same_names
    )
    language.read_also(team)
    named = [(path, name, rule) for path, file in files for name, rule in file.rules.items()]
    of_types = [(path, name, rule) for path, file in files for name, rule in _list_rules_of_types(file.types, dtype)]
    # What is known of a function and a type says more than a rule about all of that type.
    of_team = [each for each in named if each[0].parent in team]
    ordered = [*of_team, *of_types, *(each for each in named if each[0].parent not in team)]
    rules = [
        replace(rule, id=f"{path.stem}.{name}", kind=path.stem, order=number)
        for number, (path, name, rule) in enumerate(ordered)
    ]
    types = {name: each.takes for _, file in reversed(files) for each in file.types for name in each.names}
    return RuleSet(tuple(rules), {path.stem: file.title for path, file in files}, types)


def _list_rules_of_types(types: Sequence[Takes], dtype: str) -> Iterator[tuple[str, ScanRule]]:
    """Yield a rule for each element type that a call may ask for by `dtype=`, and one for the type that is computed in."""
    for wanted in TYPES if types else ():
        names = tuple(name for each in types if wanted not in each.takes for name in each.names)
        if not names:
            continue
        why = f"The published list of its element types does not name {wanted}."
        do = "ask for a type that it takes, or compute this part on the CPU"
        given = {"dtype": rf"(\w+\.)?({'|'.join(filter(None, (wanted, _SPELLINGS.get(wanted))))})"}
        # torch.cumsum is the method `cumsum` too; what lives deeper is not.
        methods = tuple(name.partition(".")[2] for name in names if name.count(".") == 1)
        yield wanted, ScanRule(why, do, LOOK, calls=names, methods=methods, given=given)
        if wanted == dtype:
            yield f"computes_{wanted}", ScanRule(why, do, LOOK, names=names)


def _find_same_names(files: Sequence[tuple[Path, RuleFile]]) -> Iterator[Problem]:
    names: set[str] = set()
    for path, _ in files:
        if path.stem in names:
            yield Problem(display_path(path), path.stem, "is the name of another file of rules too: rename one")
        names.add(path.stem)


def check_file(path: Path) -> Checked[RuleFile]:
    """Return what is wrong with one file, and its rules if nothing is."""
    return check_document(read(path, GROUP, path.stem), RuleFile, _find_problems, _WORDS)


def _find_problems(document: Document, built: RuleFile | None) -> PathProblems:
    """Yield what is wrong with values that have the right form: expressions, and what belongs together."""
    for number, each in enumerate(built.types if built else ()):
        unknown = [name for name in each.takes if name not in TYPES]
        if unknown:
            yield ("types", str(number), "takes"), f"{unknown[0]} is no element type: one of {', '.join(TYPES)}"
    rules = document.data.get("rules")
    for name, rule in rules.items() if isinstance(rules, Mapping) else ():
        if isinstance(rule, Mapping):
            for path, message in _find_problems_of_rule(str(name), rule):
                yield ("rules", str(name), *path), message


def _find_problems_of_rule(name: str, rule: Mapping[str, Any]) -> PathProblems:
    if not _NAME.fullmatch(name):
        yield (), "expected a name of small letters, digits and underscores"
    if not any(rule.get(key) for key in _MATCHERS):
        yield (), f"looks for nothing: give it one of {', '.join(_MATCHERS)}"
    yield from (((key,), "no such key: it comes from the names of file and rule") for key in _OURS if key in rule)
    yield from _find_problems_of_texts(rule)
    given = rule.get("given")
    expressions: list[tuple[DottedPath, Any]] = [((key,), rule.get(key)) for key in _REGULAR]
    expressions += [(("given", str(key)), value) for key, value in given.items()] if isinstance(given, Mapping) else []
    for path, text in expressions:
        yield from ((path, message) for message in (_check_expression(text) if isinstance(text, str) else ()))
    if rule.get("text") and not rule.get("files"):
        yield ("text",), "is looked for in files: name them under `files`"
    for text in rule.get("expressions") or ():
        if isinstance(text, str) and (problem := _check_pattern(text)):
            yield ("expressions",), problem
    if rule.get("within") and not rule.get("expressions"):
        yield ("within",), "says where expressions count: name them under `expressions`"
    if rule.get("replace_value") and not given:
        yield ("replace_value",), "replaces an argument: name it under `given`"


def _find_problems_of_texts(rule: Mapping[str, Any]) -> PathProblems:
    """Yield where a text in another language has ``{found}`` and the English has not, or the other way round."""
    texts = rule.get(language.CHINESE)
    for key, text in texts.items() if isinstance(texts, Mapping) else ():
        if isinstance(text, str) and text and ("{found}" in text) != ("{found}" in str(rule.get(key))):
            yield (language.CHINESE, str(key)), f"expected {{found}} where `{key}` has it, and only there"


def _check_pattern(text: str) -> str:
    try:
        pattern = read_expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{text} is no expression of Python: {error}"
    return f"{text} would be found everywhere" if isinstance(pattern, (ast.Name, ast.Constant)) else ""


def _check_expression(text: str) -> list[str]:
    try:
        found = re.compile(text).search("")
    except re.error as error:
        return [f"is no regular expression: {error}"]
    return ["fits an empty text, so it would be found everywhere"] if found else []
