"""``precflow prune [RUN ...]``: show which finished stages no kept run needs, and delete them if ``--yes`` is given."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precflow.config.documents import display_path as _shown
from precflow.config.suggestions import did_you_mean
from precflow.config.units import parse_seconds
from precflow.errors import ConfigError, StoreError
from precflow.run import pruning
from precflow.run.find_dumps import RUNS
from precflow.run.manifest import MANIFEST_FILE
from precflow.run.pruning import PruneRequest, Pruning, StoreFolder
from precflow.verbs import parser, print_json, table, write

_NOT_DONE = 2
_DAY, _HOUR = 86400.0, 3600.0


def main(arguments: Sequence[str]) -> int:
    """Show what can be deleted, and with ``--yes`` delete it; return 0, or 2 if something could not be deleted.

    Raises:
        ConfigError: An age or a number cannot be read.
        StoreError: There is no such run folder or store, or a history is damaged.
    """
    options = parser("prune", "[RUN|STORE ...] [--older AGE] [--runs N] [--yes]")
    options.add_argument("places", nargs="*", metavar="RUN|STORE", help=f"run folders or stores; without: those of {RUNS}/")
    options.add_argument("--older", default="", metavar="AGE", help="only what was not used for so long: 30d, 12h")
    options.add_argument("--runs", default="", metavar="N", help="keep what the last N runs name, not what every run names")
    options.add_argument("--yes", action="store_true", help="delete; without it nothing is deleted")
    chosen = options.parse_args(arguments)
    wish = PruneRequest(older=_age(chosen.older), runs=_number(chosen.runs))
    folders, stores = _places(chosen.places)
    found = pruning.find_prunable(folders, stores, wish, witnesses=pruning.list_run_folders(RUNS))
    hindered: dict[Path, str] = {}
    if chosen.yes:
        # Finding takes time, for every file is measured; a run may have started to use one of the folders since.
        again = {
            one.store: one for one in pruning.find_prunable(folders, stores, wish, witnesses=pruning.list_run_folders(RUNS))
        }
        for one in found:
            hindered |= {rest.folder: why for rest, why in pruning.prune(one, again.get(one.store, one)) if why}
    if chosen.json:
        print_json(_plain(found, hindered, wish, deleted=chosen.yes))
    else:
        write(_screen(found, hindered, wish, deleted=chosen.yes))
        if not chosen.yes and any(one.goes for one in found):
            write(f" Nothing was deleted. To delete it:  {shlex.join(['precflow', 'prune', *arguments, '--yes'])}")
    # A folder that a run has come to use in the meantime rightly stays; only one that cannot be deleted is a failure.
    return _NOT_DONE if any(why.startswith("cannot") for why in hindered.values()) else 0


def _age(text: str) -> float | None:
    if not text:
        return None
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"--older {text}: {error}", next_step="such as  precflow prune --older 30d") from error


def _number(text: str) -> int | None:
    if text and not (text.isdigit() and int(text) > 0):
        raise ConfigError(f"--runs {text}: expected how many runs are kept, from 1", next_step="precflow prune --runs 3")
    return int(text) if text else None


def _places(texts: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the run folders, and the stores outside of run folders, that the words name; without words, all of ``runs/``."""
    if not texts:
        return pruning.list_run_folders(RUNS), []
    folders: list[Path] = []
    stores: list[Path] = []
    for text in texts:
        place = next((path for path in (Path(text).expanduser(), RUNS / text) if path.is_dir()), None)
        if place and (place.parent / MANIFEST_FILE).is_file() and place.name == "store":
            place = place.parent  # a run folder's own
        found = pruning.list_run_folders(place) if place else []
        if place is None or not (found or pruning.list_stores(place)):
            names = [folder.relative_to(RUNS).as_posix() for folder in pruning.list_run_folders(RUNS)]
            raise StoreError(
                f"{text} is no run folder and no store.{did_you_mean(text, names)}", next_step=f"runs here: {', '.join(names)}"
            )
        folders += found
        stores += [] if found else pruning.list_stores(place)
    return folders, stores


def _plain(found: Sequence[Pruning], hindered: Mapping[Path, str], wish: PruneRequest, *, deleted: bool) -> dict[str, Any]:
    def row(rest: StoreFolder) -> dict[str, Any]:
        """Return what ``--json`` says about one folder of a store."""
        age = round(max(0.0, wish.now - rest.used))
        return {"name": rest.name, "bytes": rest.bytes, "unused_seconds": age, "why": rest.why}

    stores = [
        {
            "store": str(one.store),
            "shared": one.shared,
            "goes": [{**row(rest), "hindered": hindered.get(rest.folder, "")} for rest in one.goes],
            "stays": [row(rest) for rest in one.stays],
            "foreign": list(one.foreign),
        }
        for one in found
    ]
    return {"deleted": deleted, "bytes": sum(_size(one.goes, hindered) for one in found), "stores": stores}


def _screen(found: Sequence[Pruning], hindered: Mapping[Path, str], wish: PruneRequest, *, deleted: bool) -> str:
    lines = []
    for one in found:
        lines += [f" {_shown(one.store)}{'   shared' if one.shared else ''}"]
        rows = [("  " + rest.name, _bytes(rest.bytes), _since(wish.now - rest.used), rest.why) for rest in one.goes]
        lines += [table(rows)] if rows else []
        lines += [f"   {rest.name} stays: {hindered[rest.folder]}" for rest in one.goes if rest.folder in hindered]
        lines += [f"   {text}" for text in _staying(one.stays)]
        if one.foreign:
            lines.append(
                f"   not made by precflow, and left alone: {', '.join(one.foreign[:5])}{'...' if one.foreign[5:] else ''}"
            )
        if one.shared and wish.older is None and one.stays:
            lines.append("   runs elsewhere may name what is in a shared store: --older 30d takes what nobody used for 30 days")
    count, total = sum(len(one.goes) for one in found) - len(hindered), sum(_size(one.goes, hindered) for one in found)
    lines += [f" {count} folders, {_bytes(total)} {'deleted' if deleted else 'can go'}"]
    return "\n".join(lines)


def _staying(stays: Sequence[StoreFolder]) -> list[str]:
    reasons = dict.fromkeys(rest.why for rest in stays)
    grouped = [(reason, [rest for rest in stays if rest.why == reason]) for reason in reasons]
    return [f"{len(rests)} stay ({_bytes(_size(rests, {}))}): {reason}" for reason, rests in grouped]


def _size(rests: Sequence[StoreFolder], hindered: Mapping[Path, str]) -> int:
    return sum(rest.bytes for rest in rests if rest.folder not in hindered)


def _bytes(size: int) -> str:
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if size >= one:
            return f"{size / one:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"


def _since(seconds: float) -> str:
    return f"{seconds / _DAY:.0f} days" if seconds >= 2 * _DAY else f"{max(0.0, seconds) / _HOUR:.0f} h"
