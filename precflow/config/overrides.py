"""The overrides of a command line: as typed, as Hydra reads them, and which key each of them sets.

``key=value``, ``+key=value`` and ``++key=value`` mean the same: precflow checks keys against its schema, so the user need not
know, as with Hydra alone, whether a key exists already. ``~key`` removes a key. The order of the words has no meaning.

Hydra's grammar refuses values that people type: ``2^-10``, ``s3://桶/模型``, ``~/x``, ``/data/a=b``, ``/data/x(1)``. These are
put in double quotes. Values that it can read stay as they are, so that lists, maps and sweeps keep working.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from precflow.config.documents import DottedPath, Mark
from precflow.config.key_tree import explain_problem
from precflow.config.layers import COMMAND_LINE
from precflow.config.search_path import GROUPS, SearchFolder, is_file, list_folders, list_names, locate_recipe_file
from precflow.config.suggestions import find_near
from precflow.errors import ConfigError, Problem

_MOST_SHOWN = 100  # problems that one error lists
_KEY = re.compile(r"[^\W\d][\w-]*(\.[\w-]+)*")
_ONE_OF = frozenset({"capture", "executor"})  # groups whose files say different things about the same keys
_WORD = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=]*?)(?:=(?P<value>.*))?", re.DOTALL)
_OPENING = {"[": "]", "{": "}", "(": ")"}
_PARSER = OverridesParser.create()


@dataclass(frozen=True)
class Word:
    """One override.

    Attributes:
        typed: As it was typed.
        text: As Hydra reads it: quoted if needed, with the prefix that Hydra wants.
        key: Dotted key such as ``tolerance.rules.0.match``, or the name of a group.
        value: The parsed value.
        raw: The text after the ``=`` if the value is one plain scalar, else ``None``.
        group: One of ``GROUPS``, or ``""`` for a key.
        removes: It removes the key.
        choices: The overrides of the jobs that a sweep over this word starts; a single one if it is no sweep.
    """

    typed: str
    text: str
    key: str
    value: Any = None
    raw: str | None = None
    group: str = ""
    removes: bool = False
    choices: tuple[str, ...] = ()

    @property
    def path(self) -> DottedPath:
        """The key as a path."""
        return tuple(self.key.split("."))


def read(words: Sequence[str], *, within: Sequence[SearchFolder] = ()) -> tuple[list[Word], list[Problem]]:
    """Return the usable overrides, and a problem for each of the others, unknown keys included.

    Args:
        words: As typed.
        within: Folders, for ``glob(...)`` over names of a group.
    """
    read = [_read_word(typed, within) for typed in words]
    problems = [word for word in read if isinstance(word, Problem)]
    if any(problem.key.startswith("+") for problem in problems):
        # One space before the keys without a plus, so that the names stand below each other.
        problems = [problem if problem.key.startswith("+") else replace(problem, key=f" {problem.key}") for problem in problems]
    return [word for word in read if isinstance(word, Word)], problems


def resolve_recipe_files(words: Sequence[Word]) -> tuple[list[Word], list[SearchFolder]]:
    """Turn ``+recipe=some/where.yaml`` into a name and the folder to look it up in."""
    named: list[Word] = []
    extra: list[SearchFolder] = []
    for word in words:
        file = word.value if word.group == "recipe" and isinstance(word.value, str) else ""
        if file.endswith(".yaml") and is_file(Path(file)):
            name, folder = locate_recipe_file(Path(file))
            extra.append(folder)
            named.append(replace(word, text=f"recipe={quote(name)}", value=name, raw=name))
        else:
            named.append(word)
    return named, extra


def list_chosen(words: Sequence[Word], group: str) -> list[str]:
    """Return the names that the command line chose in a group; the last word wins."""
    values = [word.value for word in words if word.group == group]
    last = values[-1] if values else []
    return [str(item) for item in last] if isinstance(last, list) else [str(last)]


def mark_word(word: Word) -> Mark:
    """Return the mark of a value that was typed."""
    return Mark(COMMAND_LINE, word.raw)


def find_sweeps(words: Sequence[Word]) -> list[Problem]:
    """Return a problem for each word that gives several values to a single run."""
    message = "gives several values: add -m to run each of them, or write a list as [a,b]"
    return [Problem(COMMAND_LINE, word.typed.partition("=")[0], message) for word in words if len(word.choices) > 1]


def expand_sweep(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> list[tuple[str, ...]]:
    """Return the overrides of every job of ``-m``, in the order of Hydra's basic sweeper: the last word changes fastest.

    Raises:
        ConfigError: The words are not usable.
    """
    words, problems = read(overrides, within=list_folders(config_dirs))
    empty = [
        Problem(COMMAND_LINE, word.typed, "matches nothing, so there is nothing to run") for word in words if not word.choices
    ]
    if problems or empty:
        raise build_error([*problems, *empty], overrides)
    return list(product(*(word.choices for word in words)))


def build_error(problems: Sequence[Problem], overrides: Sequence[str]) -> ConfigError:
    """Return the error that lists all problems at once, and the command that checks again without running."""
    count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    only_typed = all(problem.place == COMMAND_LINE for problem in problems)
    where = "in the command line" if only_typed else "in the configuration"
    shown = [Problem("" if only_typed else problem.place, problem.key, problem.message) for problem in problems[:_MOST_SHOWN]]
    if len(problems) > _MOST_SHOWN:
        shown.append(Problem("", "", f"and {len(problems) - _MOST_SHOWN} more"))
    recipe = next((word for word in overrides if word.lstrip("+").startswith("recipe=")), "")
    again = f"Check again without running:  precflow validate {recipe} ..." if recipe else ""
    return ConfigError(f"{count} {where}, nothing was run", problems=shown, next_step=again)


def _read_word(typed: str, within: Sequence[SearchFolder]) -> Word | Problem:
    prefix, key, value = split_word(typed)
    key = re.sub(r"\[(\d+)\]", r".\1", key).strip()  # `rules[0].match`, as messages write it, is `rules.0.match` for Hydra
    if value is None and prefix != "~":
        return Problem(COMMAND_LINE, typed, _explain_bare_word(typed, within))
    if not _KEY.fullmatch(key.removeprefix("/")):
        return Problem(COMMAND_LINE, typed, "expected key=value with a dotted key")
    if key.startswith("hydra.") or key == "hydra":
        return Problem(
            COMMAND_LINE,
            key,
            "precflow keeps Hydra's own settings: folders of recipes come by --config-dir or PRECFLOW_RECIPES",
        )
    if prefix == "~":
        wrong = "cannot be taken away" if key in GROUPS else explain_problem(tuple(key.split(".")))
        return Problem(COMMAND_LINE, typed, wrong) if wrong else Word(typed, f"~{key}", key, removes=True, choices=(typed,))
    group = key.removeprefix("/") if key.removeprefix("/") in GROUPS else ""
    wrong = "" if group else explain_problem(tuple(key.split(".")))
    if wrong:
        no_plus = prefix and not find_near(key, GROUPS, most=1)  # of `+recpie=NAME` the + is right
        return Problem(COMMAND_LINE, f"{prefix}{key}", f"{wrong}   (no + needed)" if no_plus else wrong)
    return _read_assignment(typed, group or key, value or "", within, group=group)


def _read_assignment(typed: str, key: str, value: str, within: Sequence[SearchFolder], *, group: str) -> Word | Problem:
    # With ++ Hydra sets a key whether it exists or not. A group has no prefix, because conf/config.yaml has all groups in its
    # defaults already.
    text = f"{'' if group else '++'}{key}={quote(value, many=True)}"
    override = parse_override(text)
    if override is None:
        return Problem(COMMAND_LINE, typed, "cannot be read as key=value, not even in quotes")
    parsed = override.value()
    several = override.is_sweep_override()
    names = parsed if isinstance(parsed, list) else [parsed]
    # `recipe=7` may be a name; in a list every entry has to be text.
    kinds = str if isinstance(parsed, list) else (str, int, float)
    is_name = bool(names) and all(isinstance(name, kinds) and not isinstance(name, bool) for name in names)
    if group and not several and not is_name:
        return Problem(COMMAND_LINE, typed, f"expected the name of a {group}, or a list of names such as {group}=[a,b]")
    if group in _ONE_OF and isinstance(parsed, list) and len(parsed) > 1:
        return Problem(COMMAND_LINE, typed, f"is one {group}: of several only the last would be in force")
    raw = None if several or isinstance(parsed, (list, dict)) else parsed if isinstance(parsed, str) else value
    choices = _expand_choices(override, group, within) if several else (format_override(text, group),)
    return Word(typed, text, key, None if several else parsed, raw, group, choices=choices)


def _expand_choices(override: Override, group: str, within: Sequence[SearchFolder]) -> tuple[str, ...]:
    pattern: Any = override.value()
    if isinstance(pattern, Glob):
        chosen = pattern.filter(list(list_names(group, within)))
        return tuple(f"+{group}={quote(name)}" for name in chosen)
    left = (override.input_line or "").partition("=")[0]
    return tuple(format_override(f"{left}={text}", group) for text in override.sweep_string_iterator())


def format_override(text: str, group: str) -> str:
    """Return an override as people write it: ``+recipe=NAME``, ``key=value``."""
    return f"+{text}" if group else text.removeprefix("++")


def _explain_bare_word(typed: str, within: Sequence[SearchFolder]) -> str:
    recipes = list_names("recipe", within or list_folders())
    if typed in recipes:
        return f"is a recipe: +recipe={typed}"
    like = find_near(typed, recipes, most=1)
    hint = f" Did you mean  +recipe={like[0]} ?" if like else ""
    return f"is not an override; those are key=value.{hint}"


def split_word(word: str) -> tuple[str, str, str | None]:
    """Return prefix (``+``, ``++``, ``~`` or ``""``), key and value of one word; the value is ``None`` without an ``=``."""
    match = _WORD.fullmatch(word)
    if match is None:  # the pattern takes any text
        return "", word, None
    return match["prefix"] or "", match["key"], match["value"]


def parse_override(word: str) -> Override | None:
    """Return one word as parsed by Hydra, or ``None`` if its grammar refuses it."""
    try:
        return _PARSER.parse_override(word)
    except (HydraException, ValueError):  # the second: a number of more digits than Python reads
        return None


def quote(value: str, *, many: bool = False) -> str:
    """Return a value in a form that Hydra's grammar accepts and reads as the same text.

    Args:
        value: The text after the ``=``.
        many: Commas separate the values of a sweep.

    >>> quote("2^-10"), quote("[a,--config=b.yaml]"), quote("0.5")
    ('"2^-10"', '[a,"--config=b.yaml"]', '0.5')
    """
    if _is_readable(value):
        return value
    # Only the entries that Hydra cannot read are quoted, so that a list stays a list: [a,2^-10] becomes [a,"2^-10"].
    candidates = []
    if value.startswith("[") and value.endswith("]"):
        candidates.append("[" + ",".join(quote(item.strip()) for item in split_at_commas(value[1:-1])) + "]")
    if value.startswith("{") and value.endswith("}"):
        entries = (item.partition(":") for item in split_at_commas(value[1:-1]))
        candidates.append(
            "{" + ",".join(f"{key}:{quote(item.strip())}" if colon else key for key, colon, item in entries) + "}"
        )
    if many and "," in value:
        candidates.append(",".join(quote(item) for item in split_at_commas(value)))
    return next(filter(_is_readable, candidates), None) or put_in_quotes(value)


def put_in_quotes(text: str) -> str:
    r"""Return text in double quotes, with the escapes of Hydra's grammar.

    >>> put_in_quotes('say "hi"')
    '"say \\"hi\\""'
    """
    # In Hydra's grammar backslashes are escapes only before a quote. Those before an inner or the closing quote are doubled;
    # all others stay.
    inner = re.sub(r'(\\*)"', lambda match: match[1] * 2 + '\\"', text)
    trailing = len(inner) - len(inner.rstrip("\\"))
    return f'"{inner}{chr(92) * trailing}"'


def format_value(value: Any) -> str:
    r"""Return plain data as the value of an override.

    >>> format_value(["a,b", 2, True]), format_value({"lr": None})
    ('["a,b",2,true]', '{"lr":null}')
    """
    if isinstance(value, str):
        return put_in_quotes(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{put_in_quotes(str(key))}:{format_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def split_at_commas(text: str) -> Iterator[str]:
    """Yield the parts between commas; a comma in brackets or quotes does not count."""
    level, start, closing, escaped = 0, 0, "", False
    for number, character in enumerate(text):
        if escaped or (closing and character != closing):
            escaped = character == "\\" and not escaped
        elif character in "\"'":
            closing = "" if closing else character
        elif character in _OPENING:
            level += 1
        elif character in _OPENING.values():
            level -= 1
        elif character == "," and level == 0:
            yield text[start:number]
            start = number + 1
    if text:
        yield text[start:]


def _is_readable(value: str) -> bool:
    return parse_override(f"key={value}") is not None
