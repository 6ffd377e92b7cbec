"""Lists the finished stages of a store, a folder or a URL, over all recipes: how large, how old, pinned or never finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precflow.config.schema import RunConfig
from precflow.config.sections.store_address import is_address
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError, StoreError
from precflow.run.find_dumps import RUNS
from precflow.run.pruning import list_run_folders, list_stores
from precflow.run.remote.filesystem import Address
from precflow.run.remote.listing import open_recipes
from precflow.run.remote.uploads import Upload, Uploads
from precflow.run.store import read_seal


@dataclass(frozen=True)
class Stored:
    """One stage instance in a store.

    Attributes:
        recipe: The recipe, or the folder of the store where that is not known.
        name: Such as ``dump.reference``.
        key: Its key.
        bytes: Size of its files.
        finished: When it was made, seconds since the epoch.
        state: ``""``, ``pinned: WHY`` or ``never finished``.
        upload: The upload and its recipe's uploads, for a store behind a URL.
    """

    recipe: str
    name: str
    key: str
    bytes: int
    finished: float
    state: str = ""
    upload: tuple[Uploads, Upload] | None = None

    @property
    def instance(self) -> str:
        """Its folder's name, ``NAME-KEY``."""
        return f"{self.name}-{self.key}"


def choose_place(text: str, config: RunConfig) -> str | Address:
    """Return the store that a text names; without one that of the configuration, else the folder of runs.

    Args:
        text: A folder or a URL, or ``""``.
        config: Says with which profile and endpoint a URL is opened.
    """
    named = text or config.store or config.site.store or str(RUNS)
    if is_address(named):
        return Address(named, config.site.store_profile, config.site.store_endpoint)
    return named


def list_stored(place: str | Address) -> list[Stored]:
    """Return all stage instances of a store, by recipe and the newest first.

    Raises:
        StoreError: There is no such store, or it fails.
    """
    stored = _list_remote(place) if isinstance(place, Address) else _list_folder(Path(place).expanduser())
    return sorted(stored, key=lambda one: (one.recipe, -one.finished))


def find_upload(place: Address, text: str) -> tuple[Uploads, Upload]:
    """Return the finished upload that a text names: ``NAME-KEY`` or its beginning, with or without ``RECIPE/``.

    Raises:
        StoreError: None has that name, or several have.
    """
    every = [one for one in list_stored(place) if one.upload and one.upload[1].seal]
    found = [one for one in every if one.instance.startswith(text) or f"{one.recipe}/{one.instance}".startswith(text)]
    if len(found) == 1 and found[0].upload:
        return found[0].upload
    if not found:
        near = did_you_mean(text, [one.instance for one in every])
        raise StoreError(
            f"{place.url} has no finished {text}.{near}", next_step=f"precflow ls store {place.url}   lists what it has"
        )
    names = ", ".join(f"{one.recipe}/{one.instance}" for one in found[:4])
    raise StoreError(f"{text} names {len(found)} of them: {names}", next_step="name one in full")


def refuse_folder(place: str | Address) -> Address:
    """Return a store behind a URL; pins are for stores that many machines share.

    Raises:
        ConfigError: It is a folder.
    """
    if isinstance(place, Address):
        return place
    raise ConfigError(
        f"{place} is a folder: only uploads in a store behind a URL are pinned",
        next_step="what a run names stays in a folder anyway (precflow prune); name a URL, or +site=NAME with site.store",
    )


def _list_remote(address: Address) -> list[Stored]:
    stored = []
    for recipe in open_recipes(address):
        for upload in recipe.list_all():
            state = f"pinned: {upload.pinned}" if upload.pinned else "" if upload.seal else "never finished"
            stored.append(
                Stored(recipe.recipe, upload.name, upload.key, upload.bytes, upload.finished, state, (recipe, upload))
            )
    return stored


def _list_folder(folder: Path) -> list[Stored]:
    if not folder.is_dir():
        raise StoreError(
            f"there is no store at {folder}", next_step="name a folder or a URL:  precflow ls store s3://BUCKET/FOLDER"
        )
    roots = dict.fromkeys([*(run / "store" for run in list_run_folders(folder)), *list_stores(folder)])
    return [one for root in roots if root.is_dir() for one in _list_instances(root, folder)]


def _list_instances(root: Path, above: Path) -> Sequence[Stored]:
    recipe = root.parent if root.name == "store" else root
    label = recipe.relative_to(above).as_posix() if recipe != above and recipe.is_relative_to(above) else recipe.name
    every = [sealed for path in sorted(root.iterdir()) if path.is_dir() and (sealed := read_seal(path))]
    return [Stored(label, sealed.name, sealed.key, sealed.bytes, sealed.finished) for sealed in every]
