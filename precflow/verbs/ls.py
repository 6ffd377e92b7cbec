"""``precflow ls [GROUP]``: list the names in a group with their titles.

The YAML files are read without composing them, so that it takes a fraction of a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precflow.config import search_path
from precflow.config.documents import Document, read
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError
from precflow.metrics import LIMITED, METRICS
from precflow.verbs import parser, print_json, table, write

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}")  # a place that Jinja fills in, {{ ... }} or {% ... %}


@dataclass(frozen=True)
class Entry:
    """One line of the listing.

    Attributes:
        name: What to type.
        title: What it is, in one line.
        owner: Who is responsible for it.
        origin: Where it comes from: precflow, or a folder of a user or team.
    """

    name: str
    title: str
    owner: str
    origin: str


def main(arguments: Sequence[str]) -> int:
    """Print the names of one group; return 0.

    Raises:
        ConfigError: There is no such group, or a folder of recipes is missing.
    """
    options = parser("ls", "[GROUP]")
    options.add_argument("group", nargs="?", default="recipe", help=f"one of {', '.join(_GROUPS)}")
    chosen = options.parse_args(arguments)
    # `ls recipes` is the same as `ls recipe`.
    group = chosen.group if chosen.group in _GROUPS else chosen.group.removesuffix("s")
    if group not in _GROUPS:
        raise ConfigError(f"no such group: {chosen.group}.{did_you_mean(chosen.group, _GROUPS)}   Groups: {', '.join(_GROUPS)}")
    entries = entries_of(group, chosen.config_dir)
    if chosen.json:
        print_json({"group": group, "entries": [asdict(entry) for entry in entries]})
    elif entries:
        write(table([(entry.name, entry.title, entry.owner, entry.origin) for entry in entries]))
    else:
        write(f" no {group} yet")
    return 0


def entries_of(group: str, config_dirs: Sequence[Path] = ()) -> list[Entry]:
    """Return the entries of a group, sorted by name."""
    return sorted(_GROUPS[group](group, config_dirs), key=lambda entry: entry.name)


def _placed(group: str, config_dirs: Sequence[Path]) -> list[Entry]:
    found = search_path.list_names(group, search_path.list_folders(config_dirs))
    return [_entry(read(place.folder / f"{name}.yaml", group, name), place.origin) for name, place in found.items()]


def _metrics(_: str, __: Sequence[Path]) -> list[Entry]:
    limited = (METRICS[name] for name in LIMITED)
    return [Entry(metric.name, f"{metric.meaning}: {metric.direction}", "", "precflow") for metric in limited]


_GROUPS: Mapping[str, Callable[[str, Sequence[Path]], list[Entry]]] = {
    "recipe": _placed,
    "site": _placed,
    "emulate": _placed,
    "capture": _placed,
    "executor": _placed,
    "standard": _placed,
    "metric": _metrics,
    "rule": _placed,
}


def _entry(document: Document, origin: str) -> Entry:
    if document.problems:
        problem = document.problems[0]
        return Entry(document.name, f"not usable: {problem.message}   ({problem.place})", "", origin)
    about = document.data.get("about")
    title = _text(about, "title") or _text(document.data, "title")
    if not title or _TEMPLATE.search(title):  # the title of a rule has places for evidence, and here there is no evidence
        title = _first_comment(document) or _TEMPLATE.sub("...", title)
    return Entry(document.name, title, _text(about, "owner"), origin)


def _text(data: Any, key: str) -> str:
    value = data.get(key) if isinstance(data, Mapping) else None
    return " ".join(value.split()) if isinstance(value, str) else ""


def _first_comment(document: Document) -> str:
    comments = (
        line.lstrip("#").strip() for line in document.path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    return next((comment for comment in comments if comment and not comment.startswith("@package")), "")
