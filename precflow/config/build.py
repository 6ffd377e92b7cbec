"""Builds frozen dataclasses from the plain data of a YAML file, and collects everything that is wrong on the way.

Recipes are built by it, and every other kind of file: rules, what-ifs, standards.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from precflow.agent.contract import CHECKED, UNCHECKED
from precflow.config import key_tree, units
from precflow.config.documents import Document, DottedPath, Mark, dotted, explain_yaml_trap
from precflow.config.layers import COMMAND_LINE
from precflow.config.schema import Numbers, RunConfig, key_of
from precflow.config.suggestions import did_you_mean
from precflow.errors import Problem

_WRONG = object()  # stands for a value that cannot be used; None may be a value
# What people who know YAML's booleans mean where a word is wanted.
_MEANT = {
    ("Determinism.algorithms", False): "native",
    ("Determinism.algorithms", True): "warn",
    ("Determinism.dropout", False): "removed",
    ("Determinism.observer", False): UNCHECKED,
    ("Determinism.observer", True): CHECKED,
    ("Determinism.as_is", False): UNCHECKED,
    ("Determinism.as_is", True): CHECKED,
}
_TYPED = ("Workload.arguments", "Side.arguments")  # words of a command line, whose numbers stay as they were written
_EMPTY: tuple[Any, ...] = (None, "", [], {})  # what stands for nothing where a key must have a value
_BOOLEANS = {**dict.fromkeys(("off", "no", "false"), False), **dict.fromkeys(("on", "yes", "true"), True)}  # of YAML 1.1
_SUGGESTIONS = 20  # unknown keys that get a did-you-mean
_NO_WORDS: Mapping[str, tuple[str, ...]] = {}

Built = TypeVar("Built")


def build_document(
    document: Document, kind: type[Built], words: Mapping[str, tuple[str, ...]] = _NO_WORDS, **given: Any
) -> tuple[Built | None, list[Problem]]:
    """Build what a file of another kind than a recipe says.

    Args:
        document: The file.
        kind: The dataclass; its fields without a default are keys that the file must have.
        words: ``Dataclass.field`` -> the words that it may take.
        given: Fields that are no keys of the file.

    Returns:
        The value, or ``None`` if a key that it must have is missing or wrong; and everything that is wrong.
    """
    builder = Builder(document.mark, words.get, _suggest_beside)
    built = builder.build_section(kind, document.data, (), given)
    return (built if isinstance(built, kind) else None), builder.problems


def _suggest_beside(kind: type, path: DottedPath) -> str:
    known = list(key_tree.fields(kind))
    return did_you_mean(path[-1], known) or f" There are {', '.join(known)}"


class Builder:
    """Builds one configuration.

    Args:
        mark: Returns the mark of a path: its file and line, and the text that was written there.
        words: Returns the words that ``Dataclass.field`` may take; ``None`` for any text.
        suggest: Returns what to say of an unknown key in a section, by the section's type and the path of the key.

    Attributes:
        problems: What is wrong, in order of the data.
    """

    def __init__(
        self,
        mark: Callable[[DottedPath], Mark],
        words: Callable[[str], tuple[str, ...] | None],
        suggest: Callable[[type, DottedPath], str] = lambda _, path: key_tree.suggest_key(path, len(path) - 1),
    ) -> None:
        self._mark, self._words, self._suggest = mark, words, suggest
        self._members = self._unknown = 0
        self.problems: list[Problem] = []

    def build(self, data: Mapping[str, Any]) -> RunConfig:
        """Return the configuration. It is usable only if ``problems`` is empty afterwards."""
        config = self.build_section(RunConfig, data, ())
        return config if isinstance(config, RunConfig) else RunConfig()

    def say(self, path: DottedPath, message: str) -> Any:
        """Note one problem at a path."""
        self.problems.append(Problem(self._mark(path).place, dotted(path), message))
        return _WRONG

    def build_section(self, kind: type, data: Any, path: DottedPath, given: Mapping[str, Any] = _NO_WORDS) -> Any:
        """Return one section; no such value if a key that it must have is missing or wrong.

        Args:
            kind: Its dataclass.
            data: What was written.
            path: Where.
            given: Values of fields that are no keys.
        """
        if not isinstance(data, Mapping):
            keys = ", ".join(list(key_tree.fields(kind))[:4])
            instead = "it is empty: leave it out" if data is None else f"not one value: {_shorten(data)}"
            return self.say(path, f"is a section with keys ({keys}...), {instead}")
        values = dict(given)
        needed = [key_of(one.name) for one in dataclasses.fields(kind) if _is_needed(one) and one.name not in given]
        for key in (key for key in needed if data.get(key) in _EMPTY):
            self.say((*path, key), "is missing")
        for key, value in data.items():
            here = (*path, str(key))
            if key not in key_tree.fields(kind) or key in given:
                self._unknown += 1  # a near key takes milliseconds to find
                self.say(here, "no such key." + (self._suggest(kind, here) if self._unknown <= _SUGGESTIONS else ""))
            elif key in needed and value in _EMPTY:
                continue
            elif value is None and self._mark(here).raw in (None, "null"):
                continue  # an explicit null takes an inherited value away
            else:
                built = self._build_value(key_tree.fields(kind)[key], value, here, f"{kind.__name__}.{key}")
                if built is not _WRONG:
                    values[key] = built
        if not values.keys() >= set(needed):
            return _WRONG
        return kind(**{key_tree.attribute(key): value for key, value in values.items()})

    def _build_value(self, hint: Any, value: Any, path: DottedPath, field: str) -> Any:
        kind = key_tree.without_none(hint)
        origin = typing.get_origin(kind)
        if key_tree.is_section(kind):
            return self.build_section(kind, value, path)
        if kind is Any:
            return self._build_open(value, path, field)
        if kind is Numbers:
            return self._build_numbers(value, path)
        if origin is tuple:
            return self._build_list(key_tree.item(kind), value, path, field)
        if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
            return self._build_map(key_tree.item(kind), value, path, field)
        return self._build_scalar(kind, value, path, field)

    def _build_list(self, kind: Any, value: Any, path: DottedPath, field: str) -> Any:
        if not isinstance(value, (list, tuple)):
            if key_tree.is_section(kind) or isinstance(value, Mapping) or value is None:
                keys = f" of entries with {', '.join(key_tree.fields(kind))}" if key_tree.is_section(kind) else ""
                return self.say(path, f"expected a list{keys}, got {_shorten(value)}")
            built = self._build_value(kind, value, path, field)
            return _WRONG if built is _WRONG else (built,)
        items = [self._build_value(kind, item, (*path, str(number)), field) for number, item in enumerate(value)]
        return _WRONG if any(item is _WRONG for item in items) else tuple(items)

    def _build_numbers(self, value: Any, path: DottedPath) -> Any:
        """Return whole numbers from 0, each once and ascending, of numbers and ranges in any order."""
        if isinstance(value, (list, tuple)):
            ranges = [self._parse_range(item, (*path, str(number))) for number, item in enumerate(value)]
        else:
            ranges = [self._parse_range(value, path)]
        return (
            _WRONG if any(part is _WRONG for part in ranges) else tuple(sorted({number for part in ranges for number in part}))
        )

    def _parse_range(self, value: Any, path: DottedPath) -> Any:
        trap = explain_yaml_trap(value, self._raw(path))
        if trap:
            return self.say(path, trap)
        try:
            numbers = units.parse_numbers(value)
        except ValueError as error:
            return self.say(path, f"{error}, got {_quote(value, self._raw(path))}")
        # Counted over the whole recipe: a thousand short lines of "0-99999" would fill the memory as well as one long list.
        self._members += len(numbers)
        if self._members > units.MOST_NUMBERS:
            return self.say(path, f"makes more than {units.MOST_NUMBERS} numbers of all ranges together")
        return numbers

    def _build_map(self, kind: Any, value: Any, path: DottedPath, field: str) -> Any:
        if not isinstance(value, Mapping):
            return self.say(path, f"expected `name: value` lines, got {_shorten(value)}")
        items = {
            str(key): self._build_value(kind, item, (*path, str(key)), field) for key, item in value.items() if item is not None
        }
        return _WRONG if any(item is _WRONG for item in items.values()) else items

    def _build_open(self, value: Any, path: DottedPath, field: str) -> Any:
        """Accept any value, except one that YAML changed against expectation."""
        if isinstance(value, Mapping):
            return {str(key): self._build_open(item, (*path, str(key)), field) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._build_open(item, (*path, str(number)), field) for number, item in enumerate(value)]
        if field in _TYPED and self._raw(path) is not None and type(value) in (int, float):
            return self._raw(path)  # words of a command line, which reach the script as they were written: 1e-4 and not 0.0001
        trap = "" if self._mark(path).place == COMMAND_LINE else explain_yaml_trap(value, self._raw(path))
        return self.say(path, trap) if trap else value

    def _build_scalar(self, kind: Any, value: Any, path: DottedPath, field: str) -> Any:
        if isinstance(value, (Mapping, list, tuple)):
            return self.say(path, f"expected one value, got {_shorten(value)}")
        if kind in units.PARSERS:
            return self._build_number(kind, value, path)
        if kind is bool or kind is int:
            wrong = explain_yaml_trap(value, self._raw(path))
            if kind is bool and not isinstance(value, bool):
                wrong = wrong or f"expected true or false, got {_shorten(value)}"
            elif kind is int and (not isinstance(value, int) or isinstance(value, bool)):
                wrong = f"expected a whole number, got {_quote(value, self._raw(path))}"
            elif kind is int and abs(value) >= 2**63:
                wrong = wrong or f"expected a whole number below 2^63, got {_shorten(value)}"
            return self.say(path, wrong) if wrong else value
        return self._build_text(value, path, field)

    def _build_number(self, kind: Any, value: Any, path: DottedPath) -> Any:
        trap = explain_yaml_trap(value, self._raw(path))
        if trap:
            return self.say(path, trap)
        try:
            return units.PARSERS[kind](value)
        except ValueError as error:
            return self.say(path, f"{error}, got {_quote(value, self._raw(path))}")

    def _build_text(self, value: Any, path: DottedPath, field: str) -> Any:
        words, mark = self._words(field), self._mark(path)
        raw = self._raw(path)
        if not isinstance(value, str):
            # `title=2027` is a text on the command line, where nobody quotes; and an int that reads back as it was written
            # is no surprise in a file. `3.10` (read as 3.1) and `off` (read as false) are, and go the other way.
            as_typed = raw if mark.place == COMMAND_LINE or (type(value) is int and raw == str(value)) else None
            if as_typed is None:
                return self.say(path, _explain_misread_word(value, raw, words, field))
            value = as_typed
        if words is not None and value not in words:
            shown = ", ".join(word for word in words if word)
            meant = _MEANT.get((field, _BOOLEANS[value.casefold()])) if value.casefold() in _BOOLEANS else ""
            if meant:
                return self.say(path, f"YAML reads `{value}` as a boolean. Use {meant} (one of {shown})")
            return self.say(path, f"{_shorten(value)} is not one of {shown}.{did_you_mean(value, filter(None, words))}")
        return value

    def _raw(self, path: DottedPath) -> str | None:
        return self._mark(path).raw


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _explain_misread_word(value: Any, raw: str | None, words: tuple[str, ...] | None, field: str) -> str:
    """Say what YAML made of a word: a boolean, a number or nothing."""
    if value is None:
        return 'is empty: write "" or leave the key out'
    reading = str(value).lower() if isinstance(value, bool) else f"the number {value}"
    misread = f"YAML reads `{raw if raw is not None else value}` as {reading}."
    if words:
        meant = _MEANT.get((field, value), "") if isinstance(value, bool) else ""
        others = ", ".join(word for word in words if word and word != meant)
        return f"{misread} Use {meant} (also: {others})" if meant else f"{misread} Use one of {others}"
    return f"{misread} Put it in quotes"


def _shorten(value: Any) -> str:
    text = str(value)
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"


def _quote(value: Any, raw: str | None) -> str:
    return _shorten(raw if raw is not None else value)
