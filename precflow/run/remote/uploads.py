"""What lies in a remote store: finished stage instances of a recipe, each in folders of its own.

URL/RECIPE/dump.reference-1c9f20ab34-77aa01/7be2c1.../     the files of the instance, and one of
    uploaded.json   written last: the seal, and size and checksum of each file; without it the upload was never finished
    pinned.json     somebody asked that it stays: prune leaves it

The innermost folder has the name of the content. Two machines may make the same instance at the same time, and their dumps
differ at least in how long it took. So neither writes into the other's files, and every reader takes the one finished first.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, checksum_of
from precflow.errors import StoreError
from precflow.files import stays_below
from precflow.run.remote.filesystem import Address, explain_errors, open_filesystem
from precflow.run.remote.transfer import RemoteFile, RemoteFolder, download_files, put_bytes, upload_files
from precflow.run.store import Sealed, make_sealed
from precflow.stages import artifacts
from precflow.stages.artifacts import SEAL_FILE

MARKER, PIN = "uploaded.json", "pinned.json"
MARKER_SCHEMA = 1
_CONTENT_DIGITS = 12
_MOST_MARKERS = 1000  # that one look reads


@dataclass(frozen=True)
class Upload:
    """A stage instance in a remote store.

    Attributes:
        name: Such as ``dump.reference``.
        key: Its key.
        path: Its folder in the file system.
        seal: Its ``sealed.json`` as plain data; empty if the upload was never finished.
        files: Relative name -> size and checksum.
        uploaded: Seconds since the epoch; of an unfinished one, the newest of its files.
        recipe: The recipe that made it.
        pinned: Why it stays, ``""`` if it is not pinned.
        bytes: Size of its files.
    """

    name: str
    key: str
    path: str
    seal: Mapping[str, Any]
    files: Mapping[str, RemoteFile]
    uploaded: float
    recipe: str
    pinned: str = ""
    bytes: int = 0

    @property
    def finished(self) -> float:
        """When the instance was made, in seconds since the epoch."""
        return float(self.seal["finished"]) if self.seal else self.uploaded

    def as_sealed(self, folder: Path, url: str) -> Sealed | None:
        """Return it as an instance that is not here yet; ``None`` if its seal is not usable."""
        sealed = make_sealed(self.seal, folder)
        if sealed is None:
            return None
        return Sealed(**{**vars(sealed), "upload": f"{url}: {self.path}"})


class Uploads:
    """The stage instances of one recipe in a remote store.

    Args:
        address: The store.
        recipe: Name of the recipe.
    """

    def __init__(self, address: Address, recipe: str) -> None:
        self.url = f"{address.url.rstrip('/')}/{recipe}"
        self.address = address
        self.recipe = recipe
        self._filesystem, root = open_filesystem(address)
        self._root = f"{root}/{recipe}"

    def find(self, name: str, key: str) -> Upload | None:
        """Return the upload of an instance, the one that was made first if there are several; ``None`` if there is none.

        Raises:
            StoreError: The store fails, or holds something else under this key.
        """
        finished = [upload for upload in self._read_instance(f"{name}-{key}") if upload.seal]
        return min(finished, key=lambda upload: upload.finished, default=None)

    def search(self, name: str, prefix: str = "") -> list[Upload]:
        """Return all finished uploads of a name whose key starts with ``prefix``, newest first.

        Raises:
            StoreError: The store fails, or holds something else under such a key.
        """
        chosen = [folder for folder in self._list_names(self._root) if folder.startswith(f"{name}-{prefix}")]
        found = [upload for folder in chosen[:_MOST_MARKERS] for upload in self._read_instance(folder)]
        return sorted((one for one in found if one.seal and one.name == name), key=lambda one: -one.finished)

    def list_all(self) -> list[Upload]:
        """Return every upload, unfinished ones too."""
        return [upload for folder in self._list_names(self._root) for upload in self._read_instance(folder)]

    def upload(self, sealed: Sealed, tell: Callable[[int], None]) -> bool:
        """Upload an instance if it is not there yet; return whether anything was sent.

        Files that an earlier attempt sent are not sent again. The marker is written last, so that no reader finds a part.

        Raises:
            StoreError: The store fails, or a file here was changed since it was sealed.
        """
        if self.find(sealed.name, sealed.key) is not None:
            return False
        try:
            seal = artifacts.read_seal(sealed.folder)
            content = keys.digest(seal)[:_CONTENT_DIGITS]
            into = self._locate(f"{self._root}/{sealed.name}-{sealed.key}/{content}")
            files = upload_files(sealed.folder, [*seal["files"], SEAL_FILE], into, tell)
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {sealed.folder}: {error}", next_step="run the same command again") from error
        marker: dict[str, Any] = {
            "schema": MARKER_SCHEMA,
            "recipe": self.recipe,
            "uploaded": time.time(),
            "seal": seal,
            "files": {name: [file.bytes, file.etag, file.sha256] for name, file in files.items()},
        }
        marker = json.loads(json.dumps(marker))
        marker[CHECKSUM] = checksum_of(marker)
        put_bytes(into, MARKER, json.dumps(marker, ensure_ascii=False).encode())
        return True

    def download(self, upload: Upload, folder: Path, tell: Callable[[int], None]) -> dict[str, str]:
        """Download an instance's files; return what could not be downloaded: name -> why.

        Raises:
            StoreError: The store fails.
        """
        return download_files(self._locate(upload.path), upload.files, folder, tell)

    def pin(self, upload: Upload, because: str) -> None:
        """Ask that an upload stays whatever its age; ``because`` is shown by those who list the store."""
        since = datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="minutes")
        put_bytes(self._locate(upload.path), PIN, json.dumps({"because": because, "since": since}).encode())

    def unpin(self, upload: Upload) -> None:
        """Take the pin away."""
        with explain_errors(self.url):
            self._filesystem.rm_file(f"{upload.path}/{PIN}")

    def delete(self, upload: Upload) -> None:
        """Delete an upload: its marker first, so that no reader finds a part of it.

        Raises:
            StoreError: The store fails, or somebody has put another file there, which an upload never had.
        """
        with explain_errors(self.url):
            marker = f"{upload.path}/{MARKER}"
            if upload.seal:  # of one that was never finished nothing says what belongs to it
                named = {f"{upload.path}/{name}" for name in (MARKER, PIN, *upload.files)}
                foreign = sorted(path for path in self._filesystem.find(upload.path) if path not in named)
                if foreign:
                    raise StoreError(
                        f"{self.url}: {foreign[0]} belongs to no upload", next_step="move it elsewhere in the store"
                    )
            if self._filesystem.exists(marker):
                self._filesystem.rm_file(marker)
            self._filesystem.rm(upload.path, recursive=True)

    def _read_instance(self, folder: str) -> list[Upload]:
        """Return the uploads of one instance, ``NAME-KEY``."""
        name, _, key = folder.partition("-")
        found = []
        for content in self._list_names(f"{self._root}/{folder}"):
            path = f"{self._root}/{folder}/{content}"
            marker = self._read_json(f"{path}/{MARKER}")
            found.append(self._make_upload(folder, path, marker) if marker else self._describe_unfinished(name, key, path))
        return found

    def _locate(self, path: str) -> RemoteFolder:
        return RemoteFolder(self._filesystem, path, self.url)

    def _make_upload(self, folder: str, path: str, marker: Mapping[str, Any]) -> Upload:
        try:
            seal, files = _check_marker(marker)
            lies_there = f"{seal['name']}-{seal['key']} of recipe {marker['recipe']}"
            upload = Upload(
                name=seal["name"],
                key=seal["key"],
                path=path,
                seal=seal,
                files=files,
                uploaded=float(marker["uploaded"]),
                recipe=marker["recipe"],
                bytes=sum(file.bytes for file in files.values()),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{self.url}: {path}/{MARKER} is damaged: {error}", next_step=f"delete {path} in the store, and make it again"
            ) from error
        if lies_there != f"{folder} of recipe {self.recipe}":
            raise StoreError(
                f"{self.url}: under the key {folder} lies {lies_there}",
                next_step=f"somebody has moved folders in this store: delete {path} there, or name another store=",
            )
        pin = self._read_json(f"{path}/{PIN}")
        return replace(upload, pinned=str(pin.get("because") or "pinned")) if pin else upload

    def _describe_unfinished(self, name: str, key: str, path: str) -> Upload:
        with explain_errors(self.url):
            facts = self._filesystem.find(path, detail=True)
        times = [_read_time(fact) for fact in facts.values()]
        size = sum(int(fact.get("size") or 0) for fact in facts.values())
        return Upload(name, key, path, {}, {}, max(times, default=0.0), self.recipe, bytes=size)

    def _list_names(self, path: str) -> list[str]:
        """Return the names of the folders in a folder; none if it does not exist."""
        with explain_errors(self.url):
            try:
                entries: Iterable[Mapping[str, Any]] = self._filesystem.ls(path, detail=True, refresh=True)
            except FileNotFoundError:
                self._check_place()
                return []
        return sorted(str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")

    def _check_place(self) -> None:
        """Tell a store in which nothing was put yet from one that does not exist.

        Raises:
            StoreError: There is no such bucket.
        """
        if self.address.protocol not in {"s3", "s3a"}:
            return
        bucket = self._root.partition("/")[0]
        if not self._filesystem.exists(bucket):
            raise StoreError(f"{self.address.url}: there is no bucket {bucket}", next_step="make it, or name another store=")

    def _read_json(self, path: str) -> dict[str, Any]:
        """Return a small JSON file, ``{}`` if there is none.

        Raises:
            StoreError: It is no JSON object.
        """
        with explain_errors(self.url):
            try:
                data = self._filesystem.cat_file(path)
            except FileNotFoundError:
                return {}
        try:
            plain = intake.parse_json(data.decode("utf-8"), finite=True)
        except ValueError as error:
            raise StoreError(f"{self.url}: {path} is damaged: {error}", next_step="delete it in the store") from error
        if not isinstance(plain, dict):
            raise StoreError(f"{self.url}: {path} is damaged: no JSON object", next_step="delete it in the store")
        return plain


def _check_marker(marker: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, RemoteFile]]:
    """Return the seal and the files that a marker names.

    Raises:
        StoreError: A newer precflow wrote it.
        ValueError, KeyError, TypeError, AttributeError: It is not what was written.
    """
    if marker["schema"] > MARKER_SCHEMA:
        raise StoreError(f"an upload of a newer precflow (schema {marker['schema']})", next_step="update precflow")
    if marker[CHECKSUM] != checksum_of(marker):
        raise ValueError("it does not have the checksum that it was written with")
    files = {
        file: RemoteFile(intake.check_count(size, f"the size of {file}"), str(etag), str(sha256))
        for file, (size, etag, sha256) in marker["files"].items()
    }
    if not all(map(stays_below, files)):
        raise ValueError("it names a file outside of its folder")
    if not all(math.isfinite(float(when)) for when in (marker["uploaded"], marker["seal"]["finished"])):
        raise ValueError("it names a time that never was")
    return marker["seal"], files


def _read_time(fact: Mapping[str, Any]) -> float:
    when = fact.get("LastModified") or fact.get("mtime") or fact.get("created")
    if isinstance(when, datetime.datetime):
        return when.timestamp()
    return float(when) if isinstance(when, (int, float)) else 0.0
