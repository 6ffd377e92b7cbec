"""Moves the files of one folder to a store and back: resumable, and verified by checksum in both directions.

The ETag of a file is what S3 computes itself over what has arrived: MD5 of a small file, and MD5 over the MD5s of the parts of
a large one. So an upload is verified by asking, and nothing is read back. A store that tells no ETag is verified by reading.
A download is verified by SHA-256, of the file or of its parts in the same way, which processors compute faster than MD5.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.agent import intake
from precflow.errors import StoreError
from precflow.run.remote.filesystem import S3, explain_errors

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

PART = 50 << 20  # bytes: s3fs sends files of two parts or more in parts of this size
_WORKERS = 8  # of small files; the parts of a large one are sent side by side too, so large ones go one after the other
_HASHERS = 2  # threads that compute checksums
_READ_AHEAD = 4  # parts of a large file that are fetched side by side
_UNFINISHED = ".part"
# Object stores show a file whole or not at all. Elsewhere a file is written under another name first.
_ATOMIC = frozenset({*S3, "gs", "gcs", "az", "abfs", "abfss", "oss", "obs", "memory"})

Tell = Callable[[int], None]
"""Called with the number of bytes that were moved, or found to be there, since the last call; from several threads."""


@dataclass(frozen=True)
class RemoteFile:
    """Size of a file in bytes, the ETag that S3 would give it, and its SHA-256, both as this module computes them."""

    bytes: int
    etag: str
    sha256: str


@dataclass(frozen=True)
class RemoteFolder:
    """A folder in a remote store.

    Attributes:
        filesystem: The file system it is in.
        path: Its path there.
        url: The store, for messages.
    """

    filesystem: AbstractFileSystem
    path: str
    url: str


def describe_file(path: Path) -> RemoteFile:
    """Return size and checksums of a file: hex digits, or ``HEX-PARTS`` of a file of two parts or more.

    Raises:
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    pieces = intake.read_pieces(path, PART) if size >= 2 * PART else [b"".join(intake.read_pieces(path, 1 << 20))]
    digests = [(_md5(piece).digest(), hashlib.sha256(piece).digest()) for piece in pieces]
    return RemoteFile(size, _join(_md5, [md5 for md5, _ in digests]), _join(hashlib.sha256, [sha for _, sha in digests]))


def _join(digest: Callable[[bytes], Any], parts: list[bytes]) -> str:
    """Return the checksum of a file from those of its parts."""
    return parts[0].hex() if len(parts) == 1 else f"{digest(b''.join(parts)).hexdigest()}-{len(parts)}"


def _md5(data: bytes) -> Any:
    return hashlib.md5(data, usedforsecurity=False)


def upload_files(folder: Path, names: Iterable[str], into: RemoteFolder, tell: Tell) -> dict[str, RemoteFile]:
    """Upload files, skip those that are there already, and verify each; return size and checksum by name.

    Args:
        folder: Where the files are.
        names: Relative names.
        into: Where to.
        tell: Is told of progress.

    Raises:
        StoreError: The store fails, or has other bytes after the upload.
        OSError: A file cannot be read.
    """

    def send(name: str) -> tuple[str, RemoteFile]:
        """Upload one file unless the store has its bytes; return its name, size and checksum."""
        path, told = folder / name, _Told(tell)
        file = hashing.submit(describe_file, path)
        # What is surely not there is sent while it is hashed.
        if name not in there or not _holds(into, name, file.result(), there[name]):
            _put(into.filesystem, path, f"{into.path}/{name}", told)
            sent.append(name)
        told.finish(file.result().bytes)
        return name, file.result()

    with explain_errors(into.url), ThreadPoolExecutor(_HASHERS) as hashing:
        # Two listings take the place of two questions for each file: a dump may have thousands of small ones.
        there, sent = _list_files(into), list[str]()
        files: dict[str, RemoteFile] = dict(_run_all(send, names, lambda name: (folder / name).stat().st_size))
        arrived = _list_files(into) if sent else {}
        broken = [name for name in sent if not _holds(into, name, files[name], arrived.get(name))]
    if broken:
        raise StoreError(
            f"{into.url}: {into.path}/{broken[0]} has other bytes than were sent",
            next_step="run the same command again: what has arrived whole is not sent again",
        )
    return files


def _list_files(into: RemoteFolder) -> dict[str, Mapping[str, Any]]:
    """Return relative name -> facts of every file in a folder; none if it does not exist."""
    found: Mapping[str, Mapping[str, Any]] = into.filesystem.find(into.path, detail=True)
    start = into.filesystem._strip_protocol(into.path).rstrip("/") + "/"  # noqa: SLF001  the only way that fsspec has
    return {name[len(start) :]: facts for name, facts in found.items() if name.startswith(start)}


def _holds(into: RemoteFolder, name: str, file: RemoteFile, facts: Mapping[str, Any] | None) -> bool:
    """Tell whether a store has a file with these bytes; it is read only if the store tells no such ETag."""
    if facts is None or facts["size"] != file.bytes:
        return False
    told = str(facts.get("ETag", "")).strip('"')
    # The same bytes, sent in other parts or encrypted with a key, have another ETag; then only the bytes tell.
    return told == file.etag or _read_etag(into.filesystem, f"{into.path}/{name}", file.bytes) == file.etag


def _read_etag(filesystem: AbstractFileSystem, path: str, size: int) -> str:
    return _join(_md5, [_md5(filesystem.cat_file(path, start=start, end=end)).digest() for start, end in _split(size)])


def _split(size: int) -> list[tuple[int, int]]:
    """Return where the parts of a file begin and end: one part for a small file."""
    if size < 2 * PART:
        return [(0, size)]
    return [(start, min(start + PART, size)) for start in range(0, size, PART)]


class _Told:
    """Tells of the bytes of one file, each once: while they move as far as the client library says so, then the rest."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._bytes = 0

    def move(self, size: int) -> None:
        """Report more bytes."""
        self._bytes += size
        self._tell(size)

    def finish(self, total: int) -> None:
        """Report the bytes that were not reported yet."""
        self._tell(total - self._bytes)


def _put(filesystem: AbstractFileSystem, path: Path, there: str, told: _Told) -> None:
    from fsspec.callbacks import Callback  # noqa: PLC0415  only runs with a remote store need it

    protocols = _protocols_of(filesystem)
    if protocols & _ATOMIC:
        watch = Callback()
        watch.relative_update = lambda inc=1: told.move(int(inc))
        filesystem.put_file(str(path), there, callback=watch, **({"chunksize": PART} if protocols & S3 else {}))
        return
    filesystem.makedirs(there.rpartition("/")[0], exist_ok=True)
    aside = f"{there}.{os.getpid()}-{threading.get_ident()}{_UNFINISHED}"
    filesystem.put_file(str(path), aside)
    filesystem.mv(aside, there)


def put_bytes(into: RemoteFolder, name: str, data: bytes) -> None:
    """Write a small file, whole or not at all.

    Raises:
        StoreError: The store fails.
    """
    filesystem, path = into.filesystem, f"{into.path}/{name}"
    with explain_errors(into.url):
        if _protocols_of(filesystem) & _ATOMIC:
            filesystem.pipe_file(path, data)
            return
        filesystem.makedirs(into.path, exist_ok=True)
        aside = f"{path}.{os.getpid()}-{threading.get_ident()}{_UNFINISHED}"
        filesystem.pipe_file(aside, data)
        filesystem.mv(aside, path)


def _protocols_of(filesystem: AbstractFileSystem) -> set[str]:
    return {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)


def download_files(source: RemoteFolder, files: Mapping[str, RemoteFile], folder: Path, tell: Tell) -> dict[str, str]:
    """Download files into a folder and verify each; return what could not be downloaded: name -> why.

    A file that is there already with the right bytes stays, and the parts of a large one are not fetched twice.

    Args:
        source: Where from.
        files: Relative name -> size and checksum.
        folder: Where to.
        tell: Is told of progress.

    Raises:
        StoreError: The store fails in another way than by not having a file.
        OSError: A file cannot be written.
    """

    def fetch(name: str) -> tuple[str, str]:
        """Download one file unless it is here; return its name and why it could not be downloaded, ``""`` if it was."""
        path, file = folder / name, files[name]
        problem, told = "", _Told(tell)
        if not (path.is_file() and path.stat().st_size == file.bytes and describe_file(path) == file):
            problem = _fetch(source, name, file, path, told)
        told.finish(file.bytes)
        return name, problem

    outcomes = _run_all(fetch, files, lambda name: files[name].bytes)
    return {name: problem for name, problem in outcomes if problem}


def _fetch(source: RemoteFolder, name: str, file: RemoteFile, path: Path, told: _Told) -> str:
    """Fetch one file; return why it could not be had, ``""`` if it could."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + _UNFINISHED)
    for _ in range(2):  # bytes that came over broken are fetched once more
        try:
            checksum = _fetch_parts(source, name, file.bytes, part, told)
        except FileNotFoundError:
            part.unlink(missing_ok=True)
            return "is missing"
        if checksum == file.sha256:
            part.replace(path)
            return ""
        part.unlink(missing_ok=True)
    return "has other bytes than were uploaded"


def _fetch_parts(source: RemoteFolder, name: str, size: int, part: Path, told: _Told) -> str:
    """Fetch the parts that ``part`` lacks, in order; return the checksum of all of them."""
    filesystem, there = source.filesystem, f"{source.path}/{name}"
    have = part.stat().st_size // PART if part.exists() and size >= 2 * PART else 0
    pieces = islice(intake.read_pieces(part, PART), have) if have else ()
    digests = [hashlib.sha256(piece).digest() for piece in pieces]
    with part.open("r+b" if have else "wb") as stream, ThreadPoolExecutor(_READ_AHEAD) as pool:
        stream.seek(have * PART)
        stream.truncate()

        def read(span: tuple[int, int]) -> tuple[bytes, bytes]:
            """Return the bytes of a span of the file and their digest; an empty span only asks whether the file exists."""
            with explain_errors(source.url):
                data: bytes = filesystem.cat_file(there, start=span[0], end=span[1]) if span[1] else b""
                if span == (0, 0) and not filesystem.exists(there):
                    raise FileNotFoundError(there)
            return data, hashlib.sha256(data).digest()

        waiting = iter(_split(size)[have:])
        ahead = [pool.submit(read, span) for span in islice(waiting, _READ_AHEAD)]
        while ahead:
            data, digest = ahead.pop(0).result()
            stream.write(data)
            told.move(len(data))
            digests.append(digest)
            ahead += [pool.submit(read, span) for span in islice(waiting, 1)]
    return _join(hashlib.sha256, digests)


def _run_all(work: Callable[[str], Any], names: Iterable[str], size: Callable[[str], int]) -> Iterator[Any]:
    """Yield ``work(name)`` for all names: small files side by side, large ones one after the other."""
    every = sorted(names)
    large = [name for name in every if size(name) >= 2 * PART]
    with ThreadPoolExecutor(_WORKERS) as pool:
        futures = [pool.submit(work, name) for name in every if name not in set(large)]
        try:
            for name in large:
                yield work(name)
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
