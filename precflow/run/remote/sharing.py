"""Connects a run's local store with the remote one: what is finished here is uploaded, what is missing here is downloaded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace

import filelock

from precflow import keys
from precflow.dumps import layout
from precflow.errors import StoreError
from precflow.run.remote.filesystem import Address
from precflow.run.remote.uploads import Upload, Uploads
from precflow.run.store import FETCHING, Sealed, Store, explain_disk_errors
from precflow.stages.artifacts import SEAL_FILE
from precflow.stages.dump import is_given

Say = Callable[[int, int], None]
"""Called with the bytes that were moved so far, and with all that are to be moved."""


class Remote:
    """The remote store of one recipe, beside the local store that a run works in.

    Args:
        address: The remote store. Nothing is connected to before it is needed.
        recipe: Name of the recipe.
        store: The local store.
    """

    def __init__(self, address: Address, recipe: str, store: Store) -> None:
        self._address = address
        self._recipe = recipe
        self._store = store
        self._opened: Uploads | None = None

    @property
    def url(self) -> str:
        """Where the instances of this recipe lie, for people."""
        return f"{self._address.url.rstrip('/')}/{self._recipe}"

    @property
    def uploads(self) -> Uploads:
        """The uploads of the recipe."""
        if self._opened is None:
            self._opened = Uploads(self._address, self._recipe)
        return self._opened

    def find(self, name: str, key: str) -> Sealed | None:
        """Return an instance of which the remote store has an upload; its files are not here yet.

        Raises:
            StoreError: The store fails, or holds something else under this key.
        """
        upload = self.uploads.find(name, key)
        return self._describe(upload) if upload else None

    def search(self, name: str, prefix: str = "") -> list[Sealed]:
        """Return all uploaded instances of a name whose key starts with ``prefix``, newest first.

        Raises:
            StoreError: The store fails.
        """
        return [sealed for upload in self.uploads.search(name, prefix) if (sealed := self._describe(upload))]

    def bring(self, sealed: Sealed, say: Say) -> Sealed:
        """Download an instance into the local store, unless it is there, and return it as it is here.

        What was downloaded before an interruption is not downloaded again. A dump whose shards are missing in the store, or
        have other bytes than were uploaded, is returned without them and is marked as damaged: their records are unreadable.

        Raises:
            StoreError: The store fails, or has lost a file without which nothing can be read.
        """
        if not sealed.upload:
            return sealed
        upload = self.uploads.find(sealed.name, sealed.key)
        if upload is None:
            raise StoreError(
                f"{self.url} had {sealed.name}-{sealed.key} a moment ago, and has it no more",
                next_step="somebody deleted it; the same command makes what is missing, or says where",
            )
        here = self._store.root / FETCHING / f"{sealed.name}-{sealed.key}-{upload.path.rpartition('/')[2]}"
        with explain_disk_errors(self._store.root):
            here.parent.mkdir(parents=True, exist_ok=True)
            # Another run may be downloading the same; it is waited for, because it does the same work.
            with filelock.FileLock(here.with_name(f"{here.name}.lock")):
                whole = self._store.find(sealed.name, sealed.key)
                if whole is not None and not whole.damaged:
                    return whole
                here.mkdir(exist_ok=True)
                lost = self.uploads.download(upload, here, _count(say, upload.bytes))
                if lost:
                    return self._accept_losses(replace(sealed, folder=here, upload=""), lost)
        return self._store.take_in(here, sealed.name, sealed.key)

    def share(self, sealed: Sealed, say: Say) -> bool:
        """Upload an instance unless the remote store has it; return whether anything was sent.

        A result of damaged input stays here, and so does the user's own dump, of which the instance has only the path.

        Raises:
            StoreError: The store fails. The instance stays in the local store.
        """
        if sealed.upload or sealed.damaged or is_given(sealed.folder):
            return False
        total = sealed.bytes + (sealed.folder / SEAL_FILE).stat().st_size
        return self.uploads.upload(sealed, _count(say, total))

    def _describe(self, upload: Upload) -> Sealed | None:
        return upload.as_sealed(self._store.root / f"{upload.name}-{upload.key}", self.url)

    def _accept_losses(self, sealed: Sealed, lost: dict[str, str]) -> Sealed:
        fatal = [name for name in lost if not (layout.is_own(name) and name.endswith(".safetensors"))]
        first = (fatal or list(lost))[0]
        if fatal:
            raise StoreError(
                f"{self.url}: {first} of {sealed.name}-{sealed.key} {lost[first]}",
                next_step="delete this upload (precflow prune), and make it again where it came from",
            )
        # Results of what is left have keys of their own, and are never taken for those of the whole dump.
        seal = keys.digest([sealed.seal, json.dumps(sorted(lost.items()))])
        note = f"{sealed.note}; in the store {first} {lost[first]}{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}"
        return replace(sealed, seal=seal, note=note, damaged=True)


def _count(say: Say, total: int) -> Callable[[int], None]:
    """Return a function that adds up bytes, from several threads, and tells the sum."""
    lock, moved = threading.Lock(), [0]

    def tell(size: int) -> None:
        """Add the bytes that moved; more than all of them (parts that were sent again) is not shown."""
        with lock:
            moved[0] += size
            say(min(moved[0], total), total)

    return tell
