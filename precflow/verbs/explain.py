"""``precflow explain [KEY]``: say what a key takes, what it means and who may set it. docs/keys.md says it for all keys."""

from __future__ import annotations

import dataclasses
import re
import shlex
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from precflow.config import key_tree, overrides, trust, units
from precflow.config.schema import SIDES, Bytes, Limits, Numbers, RunConfig, Seconds, Share, Ulp, key_of, plain
from precflow.config.vocabulary import allowed_words
from precflow.errors import ConfigError
from precflow.verbs import parser, print_json, table, write

_WIDTH = 88
_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    bool: "true or false",
    float: "number such as 0.001 or 2^-10",
    Share: "share of one such as 0.999, 1% or 2^-10",
    Ulp: "units in the last place such as 8ulp",
    Bytes: "size with its unit such as 2GB",
    Seconds: "duration with its unit such as 45m",
    Numbers: 'whole numbers and ranges such as 0, [0, 2] or "0-3"',
}
_LIMITS = frozenset(key_of(field.name) for field in dataclasses.fields(Limits))
_AND_LIMITS = "And the limits that `tolerance` has, by the same names."
_EVERYBODY = "recipe, site, command line"
_HEAD = """# All keys of a recipe

`precflow explain KEY` says the same about one key. This page is made by `precflow explain --markdown > docs/keys.md`, and a
test compares the two. Values carry units: `1%`, `2^-10`, `8ulp`, `2GB`, `45m`. On the command line a key is written with dots:
`target.dtype=float16`, `tolerance.rules.0.match=...`.

"Set by" names who may set a key where not everybody may: facts of a machine come from a site file or the command line and are
refused in a recipe. Precedence: command line, site, recipe, default.
"""


@dataclass(frozen=True)
class Explained:
    """The description of one key or section.

    Attributes:
        key: Dotted, with ``[]`` for each entry of a list: ``tolerance.rules[].match``.
        takes: What kind of value it takes, in words; ``""`` for a section.
        default: As YAML; ``""`` if there is none.
        set_by: Who may set it.
        meaning: In sentences.
        example: A value as YAML; ``""`` for a section.
        keys: The keys inside a section, or inside each entry of a list.
    """

    key: str
    takes: str
    default: str
    set_by: str
    meaning: str
    example: str
    keys: tuple[Explained, ...] = ()

    @property
    def in_recipe(self) -> str:
        """The example as lines of a recipe or a site file, with all sections around it."""
        lines: list[str] = []
        indent, dash = 0, ""
        *outer, last = self.key.split(".")
        for part in outer:
            lines.append(f"{' ' * indent}{dash}{part.removesuffix('[]')}:")
            indent += 2 + len(dash)
            dash = "- " if part.endswith("[]") else ""
        return "\n".join([*lines, f"{' ' * indent}{dash}{last}: {self.example}"])

    @property
    def on_command_line(self) -> str:
        """The example as a command line; ``""`` for maps, lists of maps and keys inside a list."""
        value = yaml.safe_load(self.example) if self.example else None
        nested = isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value))
        if value is None or nested or "[]" in self.key:
            return ""
        text = self.example if isinstance(value, list) else self.example.strip("\"'")
        text = overrides.put_in_quotes(text) if isinstance(value, str) and "," in text else text  # a comma is a sweep
        word = f"{'+' if self.key == 'recipe' else ''}{self.key}={text}"
        return f"precflow {'' if self.key == 'recipe' else '+recipe=NAME '}{shlex.quote(word)}"


def main(arguments: Sequence[str]) -> int:
    """Print the description of a key or a section, or a list of all sections; return 0.

    Raises:
        ConfigError: There is no such key.
    """
    options = parser("explain", "[KEY] [--markdown]")
    options.add_argument(
        "key", nargs="?", default="", metavar="KEY", help="a key or a section, such as target.dtype or tolerance"
    )
    options.add_argument("--markdown", action="store_true", help="all keys as the page docs/keys.md")
    chosen = options.parse_args(arguments)
    if chosen.markdown:
        write(page())
        return 0
    found = explain(chosen.key) if chosen.key else None
    if chosen.json:
        print_json({"keys": [dataclasses.asdict(one) for one in ([found] if found else sections())]})
    elif found is None:
        write(table([(one.key, _first_sentence(one.meaning)) for one in sections()]))
        write("\n One section or one key:  precflow explain SECTION  or  precflow explain SECTION.KEY")
    else:
        write(_screen(found))
    return 0


def sections() -> tuple[Explained, ...]:
    """Return the descriptions of all sections and of the keys at the top, in the order of a recipe."""
    return _keys(RunConfig, "")


def explain(key: str) -> Explained:
    """Return the description of one key; for a name in an open map (``workload.model.layers``), that of the map.

    Args:
        key: Dotted, as on the command line or in a message: ``target.dtype``, ``tolerance.rules[0].match``.

    Raises:
        ConfigError: There is no such key; the message names keys that may be meant.
    """
    path = tuple(part for part in re.sub(r"\[\d*\]", ".0", key).lstrip("+~").split(".") if part)
    wrong = key_tree.explain_problem(path) if path else "no such key."
    if wrong:
        same = [one for one in every() if _name(one) == key]
        meant = f" Did you mean  {', '.join(one.key for one in same)} ?" if len(same) > 1 else ""
        raise ConfigError(
            f"{key}: {'no such key.' + meant if meant else wrong}", next_step="precflow explain  lists the sections"
        )
    here, found = sections(), None
    for part in (part for part in path if not part.isdigit()):
        inner = next((one for one in here if _name(one) == part), None)
        if inner is None:
            break  # a name in an open map
        here, found = inner.keys, inner
    assert found is not None, f"{key} is in the schema and is not explained"
    return found


def every() -> Iterator[Explained]:
    """Yield every key and section, outer ones first."""
    waiting = list(sections())
    while waiting:
        one = waiting.pop(0)
        yield one
        waiting = [*one.keys, *waiting]


def page() -> str:
    """Return the text of docs/keys.md: every section with a table of its keys."""
    lines = [_HEAD]
    tops = [one for one in sections() if not one.keys]
    lines += ["## At the top", "", *_rows(tops)]
    # All sides have the same keys, so the table of the first one is for all of them.
    for one in (one for one in every() if one.keys and one.key.partition(".")[0] not in SIDES[1:]):
        title = f"{one.key}[]" if one.takes else ", ".join(SIDES) if one.key in SIDES else one.key
        lines += [f"## {title}", "", one.meaning, "", *_rows([inner for inner in _listed(one) if inner.takes])]
        lines += [_AND_LIMITS, ""] if len(_listed(one)) < len(one.keys) else []
    return "\n".join(lines).rstrip("\n")


def _listed(one: Explained) -> list[Explained]:
    """Return the keys to list for a section. Limits, which several sections have, are listed for ``tolerance`` only."""
    limits = [inner for inner in one.keys if _name(inner) in _LIMITS]
    return [inner for inner in one.keys if inner not in limits] + (limits if one.key == "tolerance" else [])


def _rows(found: list[Explained]) -> list[str]:
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for one in found:
        told = [one.meaning, f"Set by: {one.set_by}." if one.set_by != _EVERYBODY else ""]
        example = f"Example: `{one.example}`" if one.example else ""
        default = f"`{one.default}`" if one.default else ""
        cells = (f"`{one.key}`", one.takes, default, " ".join(filter(None, [*told, example])))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _screen(one: Explained) -> str:
    if not one.takes:
        return "\n".join([f" {one.key}: {one.meaning}", "", _listing(one)])
    facts = [("takes", one.takes), ("default", one.default or "none"), ("set by", one.set_by)]
    lines = [f" {one.key}", *(f"   {name:<8}  {text}" for name, text in facts if text), ""]
    lines += [f" {line}" for line in textwrap.wrap(one.meaning, _WIDTH)]
    lines += ["", *(f"   {line}" for line in one.in_recipe.splitlines())]
    lines += ["", f"   {one.on_command_line}"] if one.on_command_line else []
    return "\n".join([*lines, *(["", _listing(one)] if one.keys else [])])


def _listing(one: Explained) -> str:
    rows = [(inner.key, inner.default or "-", _first_sentence(inner.meaning)) for inner in _listed(one)]
    return table(rows) + (f"\n {_AND_LIMITS}" if len(rows) < len(one.keys) else "")


def _keys(kind: type, prefix: str) -> tuple[Explained, ...]:
    hints = key_tree.fields(kind)
    fields = {key_of(field.name): field for field in dataclasses.fields(kind)}
    return tuple(_explained(kind, fields[name], hints[name], f"{prefix}.{name}".lstrip(".")) for name in hints)


def _explained(kind: type, field: dataclasses.Field[Any], hint: Any, key: str) -> Explained:
    inner = key_tree.without_none(hint)
    item = key_tree.item(inner)
    set_by = _set_by(key)
    if key_tree.is_section(inner) and not field.metadata:
        return Explained(key, "", "", set_by, _meaning(inner), "", keys=_keys(inner, key))
    of_entry = item if key_tree.is_section(item) else inner if key_tree.is_section(inner) else None
    name = f"{kind.__name__}.{key_of(field.name)}"
    default = {} if field.default is dataclasses.MISSING else field.default
    words = allowed_words(name) or ()
    return Explained(
        key=key,
        takes=_takes(inner, words),
        default=_default(inner, default),
        set_by=set_by,
        meaning=field.metadata["meaning"],
        example=field.metadata["example"],
        keys=_keys(of_entry, f"{key}[]" if of_entry is item else key) if of_entry else (),
    )


def _takes(hint: Any, words: tuple[str, ...]) -> str:
    """Return what a value of a type looks like, in words."""
    item = key_tree.item(hint)
    one_of = ", ".join(word for word in words if word)
    if hint is Numbers:
        return _TYPES[Numbers]
    if typing.get_origin(hint) is tuple:
        return f"list of {one_of}" if words else "list of sections" if key_tree.is_section(item) else f"list of {_plural(item)}"
    if item is not None:
        return "map of `name: value`" + ("" if item in (Any, str) or item not in _TYPES else f", each a {_TYPES[item]}")
    if key_tree.is_section(hint):
        return "section"
    return f"one of {one_of}" if words else _TYPES[hint]


def _plural(item: Any) -> str:
    return "texts" if item is str else _TYPES.get(item, "maps")


def _default(hint: Any, value: Any) -> str:
    if value is None:
        return ""
    written = units.format_value(hint, value) if hint in units.PARSERS else plain(value)
    # PyYAML writes a lone scalar as "1\n...\n", and would fold long values into several lines.
    text = (
        yaml.safe_dump(written, default_flow_style=True, width=10**9, allow_unicode=True)
        .removesuffix("\n")
        .removesuffix("\n...")
    )
    return '""' if text == "''" else text.replace("'", '"')


def _set_by(key: str) -> str:
    """Return who may set a key: a recipe may not set what belongs to one machine."""
    if key == "recipe":
        return "command line"
    return _EVERYBODY if trust.may_set(tuple(key.replace("[]", "").split("."))) else "site, command line"


def _name(one: Explained) -> str:
    return one.key.rpartition(".")[2]


def _meaning(kind: type) -> str:
    text = (kind.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.split())


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")
