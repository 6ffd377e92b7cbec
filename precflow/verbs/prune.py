"""``precflow prune [RUN ...]``: show which finished stages no kept run needs, and delete them if ``--yes`` is given."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.config.documents import display_path
from precflow.config.sections.store_address import is_address
from precflow.config.suggestions import did_you_mean
from precflow.config.units import parse_seconds
from precflow.errors import ConfigError, StoreError
from precflow.run import pruning
from precflow.run.find_dumps import RUNS
from precflow.run.manifest import MANIFEST_FILE
from precflow.run.pruning import PruneRequest, Pruning, StoreFolder
from precflow.verbs import Verb, compose_site, format_table, make_parser, print_json, write

if TYPE_CHECKING:
    from precflow.run.remote.uploads import Upload

VERB = Verb(150, "free space: what no kept run needs; deletes with --yes", "prune runs/minilm", deletes=True)

_NOT_DONE = 2
_DAY, _HOUR = 86400.0, 3600.0


def main(arguments: Sequence[str]) -> int:
    """Show what can be deleted, and with ``--yes`` delete it; return 0, or 2 if something could not be deleted.

    Raises:
        ConfigError: An age or a number cannot be read.
        StoreError: There is no such run folder or store, or a history is damaged.
    """
    options = make_parser("prune", "[RUN|STORE ...] [--older AGE] [--runs N] [--yes]")
    options.add_argument(
        "places", nargs="*", metavar="RUN|STORE", help=f"run folders, stores, or the URL of one; without: those of {RUNS}/"
    )
    options.add_argument("--older", default="", metavar="AGE", help="only what was not used for so long: 30d, 12h")
    options.add_argument("--runs", default="", metavar="N", help="keep what the last N runs name, not what every run names")
    options.add_argument("--yes", action="store_true", help="delete; without it nothing is deleted")
    chosen = options.parse_args(arguments)
    if chosen.runs and not (chosen.runs.isdigit() and int(chosen.runs) > 0):
        raise ConfigError(f"--runs {chosen.runs}: expected how many runs are kept, from 1", next_step="precflow prune --runs 3")
    wish = PruneRequest(older=_read_age(chosen.older), runs=int(chosen.runs) if chosen.runs else None)
    if any(is_address(text) or text.startswith("+site=") for text in chosen.places):
        return _prune_remote(chosen, wish)
    folders, stores = _locate(chosen.places)
    prunings = pruning.find_prunable(folders, stores, wish, witnesses=pruning.list_run_folders(RUNS))
    hindered: dict[Path, str] = {}
    if chosen.yes:
        # Finding takes time, for every file is measured; a run may have started to use one of the folders since.
        again = pruning.find_prunable(folders, stores, wish, witnesses=pruning.list_run_folders(RUNS))
        still = {store.store: store for store in again}
        if any(store.goes for store in prunings):
            _keep_history(folders)
        for store in prunings:
            hindered |= {rest.folder: why for rest, why in pruning.prune(store, still.get(store.store, store)) if why}
    if chosen.json:
        print_json(_as_json(prunings, hindered, wish, deleted=chosen.yes))
    else:
        write(_format_screen(prunings, hindered, wish, deleted=chosen.yes))
        if not chosen.yes and any(store.goes for store in prunings):
            write(f" Nothing was deleted. To delete it:  {shlex.join(['precflow', 'prune', *arguments, '--yes'])}")
    # A folder that a run has come to use in the meantime rightly stays; only one that cannot be deleted is a failure.
    return _NOT_DONE if any(why.startswith("cannot") for why in hindered.values()) else 0


def _keep_history(folders: Sequence[Path]) -> None:
    """Keep what ``precflow history`` shows of each run, while its results are still there."""
    from precflow.run.history import keep_summaries

    for folder in folders:
        keep_summaries(folder)


def _prune_remote(chosen: argparse.Namespace, wish: PruneRequest) -> int:
    """Show what can be deleted from a store behind a URL, and delete it if that is asked for."""
    from precflow.run.remote import listing
    from precflow.run.stored import choose_place, refuse_folder

    names = [text for text in chosen.places if is_address(text) and "=" not in text]
    words = [text for text in chosen.places if "=" in text]
    if len(names) + len(words) < len(chosen.places) or len(names) > 1:
        raise ConfigError(
            "one store behind a URL is pruned at a time", next_step="precflow prune s3://BUCKET/FOLDER --older 30d"
        )
    place = refuse_folder(choose_place(names[0] if names else "", compose_site(words, chosen.config_dir)))
    goes, stays = [], Counter[str]()
    for recipe in listing.open_recipes(place):
        decisions = listing.decide(recipe.list_all(), wish)
        outcomes = listing.prune(recipe, decisions, wish) if chosen.yes else ((one, "") for one in decisions if one.goes)
        goes += [_describe_upload(recipe.recipe, one.upload, why or one.why, hindered=bool(why)) for one, why in outcomes]
        stays.update(one.why for one in decisions if not one.goes)
    freed = sum(row["bytes"] for row in goes if not row["hindered"])
    if chosen.json:
        print_json({"store": place.url, "deleted": chosen.yes, "bytes": freed, "goes": goes, "stays": dict(stays)})
    else:
        _show_remote(chosen, place.url, goes, stays, wish.now)
    return _NOT_DONE if any(row["why"].startswith("cannot") for row in goes) else 0


def _describe_upload(recipe: str, upload: Upload, why: str, *, hindered: bool) -> dict[str, Any]:
    instance = f"{upload.name}-{upload.key}"
    return {
        "recipe": recipe,
        "instance": instance,
        "bytes": upload.bytes,
        "uploaded": upload.uploaded,
        "why": why,
        "hindered": hindered,
    }


def _show_remote(
    chosen: argparse.Namespace, url: str, goes: Sequence[Mapping[str, Any]], stays: Mapping[str, int], now: float
) -> None:
    write(f" {url}   shared")
    rows = [
        (row["recipe"], row["instance"], _format_bytes(row["bytes"]), _format_age(now - row["uploaded"]), row["why"])
        for row in goes
    ]
    write("\n".join([*([format_table(rows)] if rows else []), *(f"   {count} stay: {why}" for why, count in stays.items())]))
    gone = [row for row in goes if not row["hindered"]]
    total = _format_bytes(sum(row["bytes"] for row in gone))
    write(f" {len(gone)} uploads, {total} {'deleted' if chosen.yes else 'can go'}")
    if rows and not chosen.yes:
        older = ["--older", chosen.older] if chosen.older else []
        write(f" Nothing was deleted. To delete it:  {shlex.join(['precflow', 'prune', *chosen.places, *older, '--yes'])}")


def _read_age(text: str) -> float | None:
    if not text:
        return None
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"--older {text}: {error}", next_step="such as  precflow prune --older 30d") from error


def _locate(texts: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the run folders, and the stores outside of run folders, that the words name; without words, all of ``runs/``."""
    if not texts:
        return pruning.list_run_folders(RUNS), []
    folders: list[Path] = []
    stores: list[Path] = []
    for text in texts:
        place = next((path for path in (Path(text).expanduser(), RUNS / text) if path.is_dir()), None)
        if place and (place.parent / MANIFEST_FILE).is_file() and place.name == "store":
            place = place.parent  # a run folder's own
        run_folders = pruning.list_run_folders(place) if place else []
        if place is None or not (run_folders or pruning.list_stores(place)):
            names = [folder.relative_to(RUNS).as_posix() for folder in pruning.list_run_folders(RUNS)]
            raise StoreError(
                f"{text} is no run folder and no store.{did_you_mean(text, names)}", next_step=f"runs here: {', '.join(names)}"
            )
        folders += run_folders
        stores += [] if run_folders else pruning.list_stores(place)
    return folders, stores


def _as_json(prunings: Sequence[Pruning], hindered: Mapping[Path, str], wish: PruneRequest, *, deleted: bool) -> dict[str, Any]:
    def row(rest: StoreFolder) -> dict[str, Any]:
        """Return what ``--json`` says about one folder of a store."""
        age = round(max(0.0, wish.now - rest.used))
        return {"name": rest.name, "bytes": rest.bytes, "unused_seconds": age, "why": rest.why}

    stores = [
        {
            "store": str(store.store),
            "shared": store.shared,
            "goes": [{**row(rest), "hindered": hindered.get(rest.folder, "")} for rest in store.goes],
            "stays": [row(rest) for rest in store.stays],
            "foreign": list(store.foreign),
        }
        for store in prunings
    ]
    return {"deleted": deleted, "bytes": sum(_sum_bytes(store.goes, hindered) for store in prunings), "stores": stores}


def _format_screen(prunings: Sequence[Pruning], hindered: Mapping[Path, str], wish: PruneRequest, *, deleted: bool) -> str:
    lines = []
    for store in prunings:
        lines += [f" {display_path(store.store)}{'   shared' if store.shared else ''}"]
        rows = [
            ("  " + rest.name, _format_bytes(rest.bytes), _format_age(wish.now - rest.used), rest.why) for rest in store.goes
        ]
        lines += [format_table(rows)] if rows else []
        lines += [f"   {rest.name} stays: {hindered[rest.folder]}" for rest in store.goes if rest.folder in hindered]
        for reason in dict.fromkeys(rest.why for rest in store.stays):
            same = [rest for rest in store.stays if rest.why == reason]
            lines.append(f"   {len(same)} stay ({_format_bytes(_sum_bytes(same, {}))}): {reason}")
        if store.foreign:
            names = f"{', '.join(store.foreign[:5])}{'...' if store.foreign[5:] else ''}"
            lines.append(f"   not made by precflow, and left alone: {names}")
        if store.shared and wish.older is None and store.stays:
            lines.append("   runs elsewhere may name what is in a shared store: --older 30d takes what nobody used for 30 days")
    count = sum(len(store.goes) for store in prunings) - len(hindered)
    total = sum(_sum_bytes(store.goes, hindered) for store in prunings)
    lines += [f" {count} folders, {_format_bytes(total)} {'deleted' if deleted else 'can go'}"]
    return "\n".join(lines)


def _sum_bytes(rests: Sequence[StoreFolder], hindered: Mapping[Path, str]) -> int:
    return sum(rest.bytes for rest in rests if rest.folder not in hindered)


def _format_bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"


def _format_age(seconds: float) -> str:
    return f"{seconds / _DAY:.0f} days" if seconds >= 2 * _DAY else f"{max(0.0, seconds) / _HOUR:.0f} h"
