"""``precflow ls [GROUP]``: list the names in a group with their titles.

``precflow ls runs``: the runs of each run folder. ``precflow ls store``: what a store holds.

The YAML files are read without composing them, so that it takes a fraction of a second.
"""

from __future__ import annotations

import argparse
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precflow.config import search_path
from precflow.config.documents import Document, read
from precflow.config.sections.standard_sections import describe_origin
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError
from precflow.metrics import LIMITED, METRICS
from precflow.verbs import Verb, compose_site, format_table, make_parser, print_json, write, write_table

VERB = Verb(
    10,
    "recipes, or another group: ls site, ls standard; ls runs: what ran here",
    "ls runs",
    other_words=("list", "dir", "recipes"),
    phrases={"runs": "ls runs", "status": "ls runs", "log": "ls runs"},
)

_STORE, _RUNS = "store", "runs"
_NEWEST = 10  # runs of each folder, where no folder is named
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
    options = make_parser("ls", "[GROUP]   or   precflow ls runs [FOLDER]   or   precflow ls store [URL|FOLDER] [+site=NAME]")
    options.add_argument("group", nargs="?", default="recipe", help=f"one of {', '.join([*_GROUPS, _RUNS, _STORE])}")
    options.add_argument(
        "words",
        nargs="*",
        metavar="PLACE",
        help="of ls runs: a run folder, whose runs are all shown, or a folder of run folders;"
        " of ls store: a folder, a URL, or +site=NAME; default runs/",
    )
    chosen = options.parse_args(arguments)
    if chosen.group == _STORE:
        return _list_store(chosen)
    if chosen.group == _RUNS:
        return _list_runs(chosen)
    if chosen.words:
        raise ConfigError(f"precflow ls takes one group, and {' '.join(chosen.words)} is one too many")
    # `ls recipes` is the same as `ls recipe`.
    group = chosen.group if chosen.group in _GROUPS else chosen.group.removesuffix("s")
    if group not in _GROUPS:
        raise ConfigError(
            f"no such group: {chosen.group}.{did_you_mean(chosen.group, [*_GROUPS, _RUNS, _STORE])}"
            f"   Groups: {', '.join([*_GROUPS, _RUNS, _STORE])}"
        )
    entries = list_entries(group, chosen.config_dir)
    if chosen.json:
        print_json({"group": group, "entries": [asdict(entry) for entry in entries]})
    elif entries:
        write_table([(entry.name, entry.title, entry.owner, entry.origin) for entry in entries], typed={0, 2, 3})
    else:
        write(f" no {group} yet")
    return 0


def _list_runs(chosen: argparse.Namespace) -> int:
    """Print the newest runs of each run folder, or all runs of the one that is named; return 0.

    Raises:
        ConfigError: Several folders are named.
        StoreError: The folder is not there, or a history is damaged.
    """
    from precflow.errors import StoreError
    from precflow.run.find_dumps import RUNS
    from precflow.run.find_runs import describe_outcome
    from precflow.run.manifest import MANIFEST_FILE, Manifest
    from precflow.run.pruning import list_run_folders

    if len(chosen.words) > 1:
        raise ConfigError(f"precflow ls runs takes one folder, got {' '.join(chosen.words)}")
    place = Path(chosen.words[0] if chosen.words else RUNS).expanduser()
    if chosen.words and not place.exists() and (RUNS / place).exists():
        place = RUNS / place
    if chosen.words and not place.is_dir():
        raise StoreError(f"no folder {place}", next_step="precflow ls runs lists those of runs/")
    whole = (place / MANIFEST_FILE).is_file()
    shown, rows, left_out = [], [], 0
    for folder in list_run_folders(place):
        entries = Manifest(folder).entries()
        newest = entries if whole or chosen.json else entries[-_NEWEST:]
        left_out += len(entries) - len(newest)
        words = [shlex.split(entry.command)[1:] for entry in newest]
        shared = set(words[0]).intersection(*words) if len(words) > 1 else set[str]()
        for entry, own in zip(newest, words, strict=True):
            name = f"{folder}@{entry.number}"
            outcome = describe_outcome(entry, folder)
            row = {"name": name, "started": entry.started, "outcome": outcome, "exit_code": entry.exit_code}
            shown.append({**row, "seconds": entry.seconds, "command": entry.command})
            rows.append(
                (name, entry.started[:16].replace("T", " "), outcome, " ".join(word for word in own if word not in shared))
            )
    if chosen.json:
        print_json({"runs": shown})
        return 0
    write(format_table(rows) if rows else f" no runs in {place}/ yet")
    if left_out:
        write(f" and {left_out} earlier: precflow ls runs FOLDER shows all of one folder")
    return 0


def _list_store(chosen: argparse.Namespace) -> int:
    from precflow import numbers
    from precflow.report import wording
    from precflow.report.screens.paper import format_size
    from precflow.run import stored

    named = [word for word in chosen.words if "=" not in word]
    config = compose_site([word for word in chosen.words if "=" in word], chosen.config_dir)
    place = stored.choose_place(named[0] if named else "", config)
    every = stored.list_stored(place)
    shown = place if isinstance(place, str) else place.url
    if chosen.json:
        keys = ("recipe", "name", "key", "bytes", "finished", "state")
        print_json({"store": shown, "instances": [{key: getattr(one, key) for key in keys} for one in every]})
        return 0
    rows = [
        (
            one.recipe,
            one.instance,
            format_size(one.bytes),
            wording.describe_age(time.time() - one.finished) or "within the last hour",
            one.state,
        )
        for one in every
    ]
    write(format_table(rows) if rows else f" nothing finished in {shown} yet")
    write(f" {numbers.plural(len(every), 'stage')}, {format_size(sum(one.bytes for one in every))} in {shown}")
    return 0


def list_entries(group: str, config_dirs: Sequence[Path] = ()) -> list[Entry]:
    """Return the entries of a group, sorted by name."""
    return sorted(_GROUPS[group](group, config_dirs), key=lambda entry: entry.name)


def _list_files(group: str, config_dirs: Sequence[Path]) -> list[Entry]:
    places = search_path.list_names(group, search_path.list_folders(config_dirs))
    return [_make_entry(read(place.folder / f"{name}.yaml", group, name), place.origin) for name, place in places.items()]


def _list_metrics(_: str, __: Sequence[Path]) -> list[Entry]:
    limited = (METRICS[name] for name in LIMITED)
    return [Entry(metric.name, f"{metric.meaning}: {metric.direction}", "", "precflow") for metric in limited]


_GROUPS: Mapping[str, Callable[[str, Sequence[Path]], list[Entry]]] = {
    "recipe": _list_files,
    "site": _list_files,
    "emulate": _list_files,
    "capture": _list_files,
    "executor": _list_files,
    "standard": _list_files,
    "metric": _list_metrics,
    "rule": _list_files,
    "whatif": _list_files,
    "scan": _list_files,
    "known_issue": _list_files,
    "compatibility": _list_files,
}


def _make_entry(document: Document, origin: str) -> Entry:
    if document.problems:
        problem = document.problems[0]
        return Entry(document.name, f"not usable: {problem.message}   ({problem.place})", "", origin)
    about = document.data.get("about")
    title = _get_text(about, "title") or _get_text(document.data, "title")
    if document.group == "standard":
        title = ": ".join(text for text in (title, _describe_origin(document.data)) if text)
    if not title or _TEMPLATE.search(title):  # the title of a rule has places for evidence, and here there is no evidence
        title = _read_first_comment(document) or _TEMPLATE.sub("...", title)
    return Entry(document.name, title, _get_text(about, "owner"), origin)


def _describe_origin(data: Mapping[str, Any]) -> str:
    """Return source, date and last day of a standard, as verdict and report show them."""
    return describe_origin(*(_get_text(data, key) for key in ("source", "date", "until")))


def _get_text(data: Any, key: str) -> str:
    value = data.get(key) if isinstance(data, Mapping) else None
    return " ".join(value.split()) if isinstance(value, str) else ""


def _read_first_comment(document: Document) -> str:
    comments = (
        line.lstrip("#").strip() for line in document.path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    return next((comment for comment in comments if comment and not comment.startswith("@package")), "")
