"""What a whole remote store holds, of all recipes, and what of it can be deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.errors import StoreError
from precflow.run.pruning import PruneRequest
from precflow.run.remote.filesystem import Address, explain_errors, open_filesystem
from precflow.run.remote.uploads import Upload, Uploads

_INSTANCE = re.compile(r".+-[0-9a-f]{10}(-[0-9a-f]{6})?")  # NAME-KEY
_DEEPEST = 4  # folders of a store above its instances: the name of a recipe may have slashes
_DAY = 86400.0


@dataclass(frozen=True)
class Decision:
    """An upload, whether it can be deleted, and why or why not."""

    upload: Upload
    goes: bool
    why: str


def list_recipes(address: Address) -> list[str]:
    """Return the recipes of which a store has uploads; an address may name the folder of one recipe, which is then ``""``.

    Raises:
        StoreError: The store fails, or does not exist.
    """
    filesystem, root = open_filesystem(address)
    with explain_errors(address.url):
        try:
            return sorted(set(_find_recipes(filesystem, root, "", _DEEPEST)))
        except FileNotFoundError as error:
            raise StoreError(f"{address.url} does not exist", next_step="name a store, as in store=URL") from error


def _find_recipes(filesystem: Any, root: str, below: str, depth: int) -> Iterator[str]:
    for entry in filesystem.ls(f"{root}/{below}".rstrip("/"), detail=True, refresh=True):
        name = str(entry["name"]).rstrip("/").rpartition("/")[2]
        if entry["type"] != "directory":
            continue
        if _INSTANCE.fullmatch(name):
            yield below
        elif depth:
            yield from _find_recipes(filesystem, root, f"{below}/{name}".lstrip("/"), depth - 1)


def open_recipes(address: Address) -> list[Uploads]:
    """Return the uploads of every recipe in a store.

    Raises:
        StoreError: The store fails, or does not exist.
    """
    opened = []
    for recipe in list_recipes(address):
        if recipe:
            opened.append(Uploads(address, recipe))
        else:  # the address is that of one recipe: the store is the folder above it
            url, _, name = address.url.rstrip("/").rpartition("/")
            opened.append(Uploads(Address(url, address.profile, address.endpoint), name))
    return opened


def decide(uploads: Sequence[Upload], wish: PruneRequest) -> list[Decision]:
    """Return what can be deleted of one recipe's uploads, and why; runs anywhere may name them, so only age decides.

    Args:
        uploads: All of them, unfinished ones too.
        wish: What the user wants to have deleted; without an age only what nobody can use.
    """
    finished = [upload for upload in uploads if upload.seal]
    finished.sort(key=lambda upload: upload.finished)
    newest = {upload.name: upload for upload in finished}
    first = {(upload.name, upload.key): upload for upload in reversed(finished)}
    return [_decide(upload, wish, first, newest) for upload in uploads]


def _decide(
    upload: Upload, wish: PruneRequest, first: Mapping[tuple[str, str], Upload], newest: Mapping[str, Upload]
) -> Decision:
    age = wish.now - upload.uploaded
    is_finished = bool(upload.seal)
    is_double = is_finished and first[upload.name, upload.key].path != upload.path
    # The first that applies decides.
    rules = (
        (bool(upload.pinned), False, f"pinned: {upload.pinned}"),
        (not is_finished and age <= _DAY, False, "being uploaded, or cut within the last day"),
        (not is_finished, True, "never finished"),
        (is_double and age > _DAY, True, "another upload of the same was first"),
        (wish.older is None, False, "in a shared store: runs elsewhere may name it"),
        (wish.older is not None and age <= wish.older, False, "younger than asked for"),
        (newest.get(upload.name) is upload, False, "the newest of its name"),
    )
    goes, why = next(((goes, why) for applies, goes, why in rules if applies), (True, "older than asked for"))
    return Decision(upload, goes=goes, why=why)


def prune(recipe: Uploads, decisions: Sequence[Decision], wish: PruneRequest) -> Iterator[tuple[Decision, str]]:
    """Delete what can be deleted; yield each with the reason why it was left, ``""`` if it is gone.

    The store is looked at once more before: what was pinned or finished since then stays.
    """
    still = {one.upload.path for one in decide(recipe.list_all(), wish) if one.goes}
    for decision in decisions:
        if not decision.goes:
            continue
        if decision.upload.path not in still:
            yield decision, "it was pinned or finished in the meantime"
            continue
        try:
            recipe.delete(decision.upload)
            yield decision, ""
        except StoreError as error:
            yield decision, f"cannot be deleted: {error.message}"
