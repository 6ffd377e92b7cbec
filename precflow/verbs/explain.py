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
from precflow.config.schema import SIDES, Bytes, Limits, Numbers, RunConfig, Seconds, Seed, Share, Ulp, key_of, plain
from precflow.config.vocabulary import allowed_words
from precflow.errors import ConfigError
from precflow.language import ENGLISH, said, spoken
from precflow.streams import count_cells
from precflow.verbs import Verb, make_parser, print_json, write, write_table

VERB = Verb(
    20,
    "what a key of a recipe takes, what it means, who may set it",
    "explain tolerance.standards",
    other_words=("keys", "key", "describe"),
)

_WIDTH = 88
_FACT = 8  # columns of a label
_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    bool: "true or false",
    float: "number such as 0.001 or 2^-10",
    Share: "share of one such as 0.999, 1% or 2^-10",
    Ulp: "units in the last place such as 8ulp",
    Bytes: "size with its unit such as 2GB",
    Seconds: "duration with its unit such as 45m",
    Seed: "whole number, or `script`",
    Numbers: 'whole numbers and ranges such as 0, [0, 2] or "0-3"',
}
_LIMITS = frozenset(key_of(field.name) for field in dataclasses.fields(Limits))
_NAMED = frozenset({"curves", "reduce", "task_metrics"})  # maps of sections: the user chooses the names
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
    options = make_parser("explain", "[KEY] [--markdown]")
    options.add_argument(
        "key", nargs="?", default="", metavar="KEY", help="a key or a section, such as target.dtype or tolerance"
    )
    options.add_argument("--markdown", action="store_true", help="all keys as the page docs/keys.md")
    chosen = options.parse_args(arguments)
    if chosen.markdown:
        write(format_page(), folded=False)
        return 0
    explained = [explain(chosen.key)] if chosen.key else list_sections()
    if chosen.json:
        print_json({"keys": [dataclasses.asdict(entry) for entry in explained]})
    elif not chosen.key:
        write_table([(entry.key, _first_sentence(entry.meaning)) for entry in explained], typed={0})
        write("\n One section or one key:  precflow explain SECTION  or  precflow explain SECTION.KEY")
    else:
        _show(explained[0])
    return 0


def list_sections() -> tuple[Explained, ...]:
    """Return the descriptions of all sections and of the keys at the top, in the order of a recipe."""
    return _explain_keys(RunConfig, "")


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
        same = [entry for entry in list_all() if _last_part(entry) == key]
        meant = f" Did you mean  {', '.join(entry.key for entry in same)} ?" if len(same) > 1 else ""
        raise ConfigError(
            f"{key}: {'no such key.' + meant if meant else wrong}", next_step="precflow explain  lists the sections"
        )
    here, entry = list_sections(), None
    for part in (part for part in path if not part.isdigit()):
        inner = next((entry for entry in here if _last_part(entry) == part), None)
        if inner is None and entry is not None and entry.key in _NAMED:
            continue  # a name that the user chose; keys follow it
        if inner is None:
            break  # a name in an open map
        here, entry = inner.keys, inner
    assert entry is not None, f"{key} is in the schema and is not explained"
    return entry


def list_all() -> Iterator[Explained]:
    """Yield every key and section, outer ones first."""
    waiting = list(list_sections())
    while waiting:
        entry = waiting.pop(0)
        yield entry
        waiting = [*entry.keys, *waiting]


def format_page() -> str:
    """Return the text of docs/keys.md: every section with a table of its keys."""
    lines = [_HEAD]
    tops = [entry for entry in list_sections() if not entry.keys]
    lines += ["## At the top", "", *_format_markdown_table(tops)]
    # All sides have the same keys, so the table of the first one is for all of them.
    for entry in (entry for entry in list_all() if entry.keys and entry.key.partition(".")[0] not in SIDES[1:]):
        title = _entry_key(entry.key) if entry.takes else ", ".join(SIDES) if entry.key in SIDES else entry.key
        lines += [
            f"## {title}",
            "",
            entry.meaning,
            "",
            *_format_markdown_table([inner for inner in _select_keys(entry) if inner.takes]),
        ]
        lines += [_AND_LIMITS, ""] if len(_select_keys(entry)) < len(entry.keys) else []
    return "\n".join(lines).rstrip("\n")


def _select_keys(entry: Explained) -> list[Explained]:
    """Return the keys to list for a section. Limits, which several sections have, are listed for ``tolerance`` only."""
    limits = [inner for inner in entry.keys if _last_part(inner) in _LIMITS and entry.key not in _NAMED]
    return [inner for inner in entry.keys if inner not in limits] + (limits if entry.key == "tolerance" else [])


def _format_markdown_table(keys: list[Explained]) -> list[str]:
    lines = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for entry in keys:
        set_by = f"Set by: {entry.set_by}." if entry.set_by != _EVERYBODY else ""
        example = f"Example: `{entry.example}`" if entry.example else ""
        default = f"`{entry.default}`" if entry.default else ""
        cells = (f"`{entry.key}`", entry.takes, default, " ".join(filter(None, [entry.meaning, set_by, example])))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _show(entry: Explained) -> None:
    """Print the screen of a key or a section: keys, and their values in a recipe, stay as they are typed."""
    if not entry.takes:
        write(f" {entry.key}: {said(entry.meaning)}\n", translated=True)
        _show_keys(entry)
        return
    facts = [("takes", entry.takes), ("default", entry.default or "none"), ("set by", entry.set_by)]
    width = max(_FACT, *(count_cells(said(name)) for name, _ in facts))
    lines = [f" {entry.key}"]
    for name, text in facts:
        if text:
            padding = " " * (width - count_cells(said(name)))
            lines.append(f"   {said(name)}{padding}  {text if name == 'default' else said(text)}")
    meaning = [said(entry.meaning)] if spoken() != ENGLISH else textwrap.wrap(entry.meaning, _WIDTH)
    lines += ["", *(f" {line}" for line in meaning)]
    lines += ["", *(f"   {line}" for line in entry.in_recipe.splitlines())]
    lines += ["", f"   {entry.on_command_line}"] if entry.on_command_line else []
    write("\n".join(lines), translated=True)
    if entry.keys:
        write("")
        _show_keys(entry)


def _show_keys(entry: Explained) -> None:
    keys = _select_keys(entry)
    write_table([(inner.key, inner.default or "-", _first_sentence(inner.meaning)) for inner in keys], typed={0, 1})
    if len(keys) < len(entry.keys):
        write(f" {_AND_LIMITS}")


def _explain_keys(kind: type, prefix: str) -> tuple[Explained, ...]:
    hints = key_tree.fields(kind)
    fields = {key_of(field.name): field for field in dataclasses.fields(kind)}
    return tuple(_explain_field(kind, fields[name], hints[name], f"{prefix}.{name}".lstrip(".")) for name in hints)


def _explain_field(kind: type, field: dataclasses.Field[Any], hint: Any, key: str) -> Explained:
    inner = key_tree.without_none(hint)
    item = key_tree.item(inner)
    if key == "recipe":
        set_by = "command line"
    else:  # what belongs to one machine is not for recipes
        set_by = _EVERYBODY if trust.may_set(tuple(key.replace("[]", "").split("."))) else "site, command line"
    if key_tree.is_section(inner) and not field.metadata:
        meaning = " ".join((inner.__doc__ or "").partition("\n\n")[0].split())
        return Explained(key, "", "", set_by, meaning, "", keys=_explain_keys(inner, key))
    of_entry = item if key_tree.is_section(item) else inner if key_tree.is_section(inner) else None
    name = f"{kind.__name__}.{key_of(field.name)}"
    default = {} if field.default is dataclasses.MISSING else field.default
    words = allowed_words(name) or ()
    return Explained(
        key=key,
        takes=_describe_type(inner, words),
        default=_format_default(inner, default),
        set_by=set_by,
        meaning=field.metadata["meaning"],
        example=field.metadata["example"],
        keys=_explain_keys(of_entry, _entry_key(key) if of_entry is item else key) if of_entry else (),
    )


def _entry_key(key: str) -> str:
    """Return how the keys inside a list or a map of sections begin."""
    return f"{key}.NAME" if key in _NAMED else f"{key}[]"


def _describe_type(hint: Any, words: tuple[str, ...]) -> str:
    """Return what a value of a type looks like, in words."""
    item = key_tree.item(hint)
    one_of = ", ".join(word for word in words if word)
    if hint is Numbers:
        return _TYPES[Numbers]
    if typing.get_origin(hint) is tuple:
        plural = "sections" if key_tree.is_section(item) else "texts" if item is str else _TYPES.get(item, "maps")
        return f"list of {one_of or plural}"
    if item is not None:
        if key_tree.is_section(item):
            return "map of `name: section`"
        return "map of `name: value`" + ("" if item in (Any, str) or item not in _TYPES else f", each a {_TYPES[item]}")
    if key_tree.is_section(hint):
        return "section"
    return f"one of {one_of}" if words else _TYPES[hint]


def _format_default(hint: Any, value: Any) -> str:
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


def _last_part(entry: Explained) -> str:
    return entry.key.rpartition(".")[2]


def _first_sentence(text: str) -> str:
    return said(text).partition(". ")[0].partition("。")[0].rstrip(".")
