"""The overrides of a command line: as typed, as Hydra reads them, and which key each of them sets.

``key=value``, ``+key=value`` and ``++key=value`` mean the same: precflow checks keys against its schema, so the user need not
know, as with Hydra alone, whether a key exists already. ``~key`` removes a key. The order of the words has no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override

from precflow.config import quoting
from precflow.config.documents import DottedPath, Mark
from precflow.config.key_tree import explain_problem
from precflow.config.layers import COMMAND_LINE
from precflow.config.search_path import GROUPS, SearchFolder, is_file, list_folders, list_names, locate_recipe_file
from precflow.config.suggestions import find_near
from precflow.errors import ConfigError, Problem

_MOST_SHOWN = 100  # problems that one error lists
_KEY = re.compile(r"[^\W\d][\w-]*(\.[\w-]+)*")


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
    found, problems = [], []
    for typed in words:
        word = _read(typed, within)
        if isinstance(word, Problem):
            problems.append(word)
        else:
            found.append(word)
    return found, _align_keys(problems)


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


def _read(typed: str, within: Sequence[SearchFolder]) -> Word | Problem:
    prefix, key, value = quoting.split_word(typed)
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
        return Problem(COMMAND_LINE, f"{prefix}{key}", f"{wrong}   (no + needed)" if prefix else wrong)
    return _read_assignment(typed, group or key, value or "", within, group=group)


def _read_assignment(typed: str, key: str, value: str, within: Sequence[SearchFolder], *, group: str) -> Word | Problem:
    # With ++ Hydra sets a key whether it exists or not. A group has no prefix, because conf/config.yaml has all groups in its
    # defaults already.
    text = f"{'' if group else '++'}{key}={quoting.quote(value, many=True)}"
    override = quoting.parse_override(text)
    if override is None:
        return Problem(COMMAND_LINE, typed, "cannot be read as key=value, not even in quotes")
    if group and not _names_group(override):
        return Problem(COMMAND_LINE, typed, f"expected the name of a {group}, or a list of names such as {group}=[a,b]")
    parsed = override.value()
    several = override.is_sweep_override()
    raw = None if several or isinstance(parsed, (list, dict)) else parsed if isinstance(parsed, str) else value
    choices = _expand_choices(override, group, within) if several else (format_override(text, group),)
    return Word(typed, text, key, None if several else parsed, raw, group, choices=choices)


def _names_group(override: Override) -> bool:
    if override.is_sweep_override():
        return True
    value = override.value()
    several = isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
    return several or (isinstance(value, (str, int, float)) and not isinstance(value, bool))


def _expand_choices(override: Override, group: str, within: Sequence[SearchFolder]) -> tuple[str, ...]:
    pattern: Any = override.value()
    if isinstance(pattern, Glob):
        chosen = pattern.filter(list(list_names(group, within)))
        return tuple(f"+{group}={quoting.quote(name)}" for name in chosen)
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


def _align_keys(problems: Sequence[Problem]) -> list[Problem]:
    """Indent keys without a plus by one space if others have one, so that the names stand below each other."""
    if not any(problem.key.startswith("+") for problem in problems):
        return list(problems)
    return [
        problem if problem.key.startswith("+") else Problem(problem.place, f" {problem.key}", problem.message)
        for problem in problems
    ]


def resolve_recipe_files(words: Sequence[Word]) -> tuple[list[Word], list[SearchFolder]]:
    """Turn ``+recipe=some/where.yaml`` into a name and the folder to look it up in."""
    found: list[Word] = []
    extra: list[SearchFolder] = []
    for word in words:
        if (
            word.group == "recipe"
            and isinstance(word.value, str)
            and word.value.endswith(".yaml")
            and is_file(Path(word.value))
        ):
            name, place = locate_recipe_file(Path(word.value))
            extra.append(place)
            word = Word(word.typed, f"recipe={quoting.quote(name)}", word.key, name, name, "recipe", choices=word.choices)  # noqa: PLW2901  # the same word, said as Hydra wants it
        found.append(word)
    return found, extra


def list_chosen(words: Sequence[Word], group: str) -> list[str]:
    """Return the names that the command line chose in a group; the last word wins."""
    values = [word.value for word in words if word.group == group]
    last = values[-1] if values else []
    return [str(item) for item in last] if isinstance(last, list) else [str(last)]


def mark_word(word: Word) -> Mark:
    """Return the mark of a value that was typed."""
    return Mark(COMMAND_LINE, word.raw)
