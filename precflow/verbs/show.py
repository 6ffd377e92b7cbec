"""``precflow show RECIPE [key=value...] [SECTION]``: print the composed recipe, with the origin of each line in the margin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from precflow.agent import redaction
from precflow.config.documents import Document, display_path
from precflow.config.search_path import DATA_GROUPS, GROUPS, describe_not_found, find, list_folders
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError
from precflow.streams import printable
from precflow.verbs import make_parser, print_json, write

_GREY, _PLAIN = "\033[90m", "\033[0m"


def main(arguments: Sequence[str]) -> int:
    """Print a composed recipe, or one file such as ``standard/NAME``; return 0.

    Raises:
        ConfigError: The recipe does not compose, has no such section, or there is no such file.
    """
    from precflow.config.composition import compose
    from precflow.config.recipe_yaml import fill_defaults

    options = make_parser("show", "RECIPE|+recipe=NAME [key=value ...] [SECTION]  |  GROUP/NAME")
    options.add_argument("words", nargs="+", metavar="RECIPE|key=value|SECTION")
    chosen = options.parse_args(arguments)
    document = _find_file(chosen.words, chosen.config_dir)
    if document is not None:
        file = display_path(document.path)
        if chosen.json:
            print_json({"group": document.group, "name": document.name, "file": file, "data": document.data})
        else:
            write(f"# {file}\n{document.path.read_text(encoding='utf-8', errors='replace').rstrip()}")
        return 0
    overrides, section = as_overrides(chosen.words)
    composed = compose(overrides, config_dirs=chosen.config_dir, complete=False)
    data = redaction.redact(fill_defaults(composed.data))
    if chosen.json:
        print_json({"recipe": composed.config.recipe, "config": data, "provenance": dict(composed.provenance)})
        return 0
    rows = _select_lines(data, composed.provenance, section)
    if not rows:
        raise ConfigError(f"nothing is set in {section}.{did_you_mean(section, data)}   Sections: {', '.join(data)}")
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    write(_add_margin(rows, colour=colour), styled=colour)
    return 0


def _find_file(words: Sequence[str], config_dirs: Sequence[Path]) -> Document | None:
    """Return the file that ``standard/NAME``, ``rule/NAME``, ``emulate/NAME``... names; ``None`` if the words name a recipe.

    Raises:
        ConfigError: There is no such name in the group.
    """
    group, _, name = words[0].partition("/")
    if len(words) > 1 or not name or group not in (*GROUPS, *DATA_GROUPS) or group == "recipe":
        return None
    within = list_folders(config_dirs)
    document = find(group, name, within)
    if document is None and find("recipe", words[0], within) is None:
        raise ConfigError(f"{words[0]}: {describe_not_found(group, name, within)}")
    return document


def as_overrides(words: Sequence[str]) -> tuple[list[str], str]:
    """Split words into overrides and a section, ``""`` for none.

    Words without ``=`` are the recipe, unless ``+recipe=NAME`` is among the overrides, and after it the section::

        minilm target.dtype=float16 tolerance  ->  ["+recipe=minilm", "target.dtype=float16"], "tolerance"

    Raises:
        ConfigError: There is more than one section.
    """
    overrides = [word for word in words if "=" in word or word[:1] in "+~"]
    bare = [word for word in words if word not in overrides]
    if bare and not any(word.lstrip("+").startswith("recipe=") for word in overrides):
        overrides.insert(0, f"+recipe={bare.pop(0)}")
    if len(bare) > 1:
        raise ConfigError(f"one section at a time: {', '.join(bare)}")
    return overrides, bare[0] if bare else ""


def _select_lines(data: dict[str, object], provenance: Mapping[str, str], section: str) -> list[tuple[str, str]]:
    from precflow.config.documents import dotted
    from precflow.config.recipe_yaml import describe_place, format_lines

    inside = (section, f"{section}.", f"{section}[")
    rows = [(describe_place(path, provenance), line, dotted(path)) for path, line in format_lines(data)]
    return [(place, line) for place, line, key in rows if not section or key == section or key.startswith(inside[1:])]


def _add_margin(rows: Sequence[tuple[str, str]], *, colour: bool) -> str:
    # A long place is shown without its outer folders: the last two parts are enough to find it.
    short = [place if len(place) <= 48 else "..." + str(Path(*Path(place).parts[-2:])) for place, _ in rows]
    places = [printable(place) for place in short]
    width = max(len(place) for place in places)
    on, off = (_GREY, _PLAIN) if colour else ("", "")
    return "\n".join(f"{on}{place:>{width}}{off}  {printable(line)}" for place, (_, line) in zip(places, rows, strict=True))
