"""The files of one step: record lines, written as they come; shards of tensors; and a seal once the step is finished."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from typing import Any, Dict, Mapping, Optional

from precflow.agent.contract import CHECKSUM, DIGEST_SIZE, STEP_FILE, checksum_of
from precflow.agent.dump.shard import ShardFile, TensorEntry

_OF_STEP = re.compile(r"(records-\d+\.jsonl|tensors-\d+\.safetensors|%s)(\.part)?" % re.escape(STEP_FILE))
_LARGEST_SHARD = 16 << 30  # bytes; each shard may be twice as large as the one before, so that a step of any size has few files


class StepFiles:
    """Writes the files of one step. Lines and tensors may come from different threads.

    Args:
        folder: The dump.
        step: Number of the step.
        rank: Number of the process.
        shard_bytes: Bytes of tensors in the first shard; each further shard takes twice as many as the one before, up to
            16 GiB, so that a step has few files whatever its size.

    Attributes:
        key: Step and rank.
        place: Its folder, relative to the dump.
        counts: ``calls``, ``records``, ``tensors`` and ``bytes`` (of tensors) so far.
        line_bytes: Bytes of its lines so far.
        files: Size and checksum of every finished file, by its path in the dump.
    """

    def __init__(self, folder: str, step: int, rank: int, shard_bytes: int) -> None:
        self.key = (step, rank)
        self.place = "rank%d/step%d" % self.key[::-1]
        self.counts = {"calls": 0, "records": 0, "tensors": 0, "bytes": 0}
        self.line_bytes = 0
        self.files: Dict[str, Dict[str, Any]] = {}
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._shards = 0
        self._shard: Optional[ShardFile] = None
        self._checksum = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._records = self.place + "/records-0.jsonl"
        remove_step(os.path.join(folder, self.place))  # left by a writer that was stopped in this step
        os.makedirs(os.path.join(folder, self.place))
        self._file = open(os.path.join(folder, self._records), "wb", buffering=0)  # noqa: SIM115  open as long as the step

    def append(self, data: bytes) -> None:
        """Write lines completely or not at all; they are in the file when this returns, even if the process is killed then.

        Raises:
            OSError: The file cannot be written.
        """
        left = memoryview(data)
        try:
            while left:  # the file is unbuffered, and a raw write may write only a part of what it is given
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self.line_bytes)
            self._file.seek(self.line_bytes)
            raise
        self._checksum.update(data)
        self.line_bytes += len(data)

    def store(self, entry: TensorEntry) -> None:
        """Add a tensor to the current shard, or to a new one if the current shard is full.

        Raises:
            OSError: A file cannot be written.
        """
        if self._shard is not None and not self._shard.fits(entry):
            self.finish_shard()
        if self._shard is None:
            limit = min(self._shard_bytes << self._shards, _LARGEST_SHARD)
            name = "%s/tensors-%d.safetensors" % (self.place, self._shards)
            self._shard = ShardFile(os.path.join(self._folder, name), limit)
        self._shard.add(entry)

    def finish_shard(self) -> None:
        """Close the current shard, if there is one.

        Raises:
            OSError: It cannot be written; the shard is lost then.
        """
        shard, self._shard = self._shard, None
        if shard is not None:
            written = shard.close()
            self.files[os.path.relpath(shard.path, self._folder).replace(os.sep, "/")] = written._asdict()
            self._shards += 1

    def finish_records(self) -> None:
        """Close the file of record lines; a second call changes nothing."""
        self._file.close()
        self.files[self._records] = {"bytes": self.line_bytes, "blake2b": self._checksum.hexdigest()}

    @property
    def waiting(self) -> int:
        """Bytes of tensors that are in no file yet."""
        return self._shard.waiting if self._shard is not None else 0

    def seal(self, facts: Mapping[str, Any]) -> Dict[str, Any]:
        """Write the seal of the step, with ``facts`` added to it, and return it. Only now does the step count as finished.

        Raises:
            OSError: The seal cannot be written.
        """
        step, rank = self.key
        plain = {"step": step, "rank": rank, "counts": self.counts, "files": dict(sorted(self.files.items())), **facts}
        return write_sealed(os.path.join(self._folder, self.place, STEP_FILE), plain)


def remove_step(place: str) -> None:
    """Remove the folder of a step if there is one: the files that a writer makes, and nothing else.

    Raises:
        OSError: It holds something else (``EEXIST``), which may be dear to somebody; nothing was removed then. It, or the
            folder of its rank, is a link (``ELOOP``). A file cannot be removed.
    """
    for folder in (os.path.dirname(place), place):
        if os.path.islink(folder):
            raise OSError(errno.ELOOP, "it is a link, and a dump is written to folders of its own", folder)
    if not os.path.isdir(place):
        return
    names = os.listdir(place)
    for name in names:
        path = os.path.join(place, name)
        if not _OF_STEP.fullmatch(name) or os.path.islink(path) or os.path.isdir(path):
            raise OSError(errno.EEXIST, "it is no file of a dump: move it away", path)
    for name in names:
        os.remove(os.path.join(place, name))
    os.rmdir(place)


def write_sealed(path: str, value: Mapping[str, Any]) -> Dict[str, Any]:
    """Write plain data with a checksum over all of it, and return it as a reader will get it.

    Raises:
        OSError: The file cannot be written.
    """
    # JSON turns {0: ...} into {"0": ...}, and 10 sorts before 9 as text. The reader computes the checksum from the texts, so
    # the writer must do so too.
    plain: Dict[str, Any] = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace"))
    plain[CHECKSUM] = checksum_of(plain)
    write_json(path, plain)
    return plain


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write plain data as JSON under a temporary name, then rename it, so that ``path`` is never half written.

    Raises:
        OSError: The file cannot be written.
    """
    with open(path + ".part", "wb") as file:
        file.write(json_bytes(value))
    os.replace(path + ".part", path)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return plain data as indented JSON in UTF-8."""
    # A file name that is not UTF-8 reaches Python with lone surrogates, which UTF-8 cannot encode: written as "\udc80".
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace")
