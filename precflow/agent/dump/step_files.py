"""The files of one step: record lines as they come, tensors in shards of bounded size, and the seal when it is finished."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import Any, Dict, Mapping, Optional

from precflow.agent.contract import CHECKSUM, DIGEST_SIZE, STEP_FILE, checksum_of
from precflow.agent.dump.shard import ShardFile, TensorEntry

_LARGEST_SHARD = 16 << 30


class StepFiles:
    """What one step writes. Lines and tensors may come from different threads.

    Args:
        folder: The dump.
        step: Number of the step.
        rank: Number of the process.
        shard_bytes: Bytes of tensors in the first shard; each one behind it takes twice as many as the one before, up to
            16 GiB, so that a step has few files whatever its size.

    Attributes:
        key: Step and rank.
        place: Its folder, relative to the dump.
        counts: ``calls``, ``records``, ``tensors`` and ``bytes`` (of tensors) so far.
        line_bytes: Bytes of its lines so far.
        files: Seal of every finished file, by its name in the dump.
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
        shutil.rmtree(os.path.join(folder, self.place), ignore_errors=True)  # of a writer that was stopped here
        os.makedirs(os.path.join(folder, self.place))
        self._file = open(os.path.join(folder, self._records), "wb", buffering=0)  # noqa: SIM115  open as long as the step

    def append(self, data: bytes) -> None:
        """Write one line whole, or not at all; it is in the file when this returns.

        Raises:
            OSError: The file cannot be written.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self.line_bytes)
            self._file.seek(self.line_bytes)
            raise
        self._checksum.update(data)
        self.line_bytes += len(data)

    def store(self, entry: TensorEntry) -> None:
        """Put a tensor into the shard under way, or into the next one where it is full.

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
        """Close the shard under way, if there is one.

        Raises:
            OSError: It cannot be written; it is gone then.
        """
        shard, self._shard = self._shard, None
        if shard is not None:
            written = shard.close()
            self.files[os.path.relpath(shard.path, self._folder).replace(os.sep, "/")] = written._asdict()
            self._shards += 1

    def finish_records(self) -> None:
        """Close the record lines; nothing happens the second time."""
        self._file.close()
        self.files[self._records] = {"bytes": self.line_bytes, "blake2b": self._checksum.hexdigest()}

    @property
    def waiting(self) -> int:
        """Bytes of tensors that no file has yet."""
        return self._shard.waiting if self._shard is not None else 0

    def seal(self, facts: Mapping[str, Any]) -> Dict[str, Any]:
        """Write the seal of the step with what else is to stand in it, and return it: only now is the step finished.

        Raises:
            OSError: It cannot be written.
        """
        step, rank = self.key
        plain = {"step": step, "rank": rank, "counts": self.counts, "files": dict(sorted(self.files.items())), **facts}
        return write_sealed(os.path.join(self._folder, self.place, STEP_FILE), plain)


def write_sealed(path: str, value: Mapping[str, Any]) -> Dict[str, Any]:
    """Write plain data with a checksum over all of it, and return it as whoever reads it gets it.

    Raises:
        OSError: It cannot be written.
    """
    plain: Dict[str, Any] = json.loads(json_bytes(value))  # its keys are texts now, as they are for the reader
    plain[CHECKSUM] = checksum_of(plain)
    write_json(path, plain)
    return plain


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write plain data as JSON under a temporary name, then rename.

    Raises:
        OSError: It cannot be written.
    """
    with open(path + ".part", "wb") as file:
        file.write(json_bytes(value))
    os.replace(path + ".part", path)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return plain data as people can read it."""
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace")
