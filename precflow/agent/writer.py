"""The writer of a dump: record lines as they come, tensors in shards of bounded size, and the header last."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from precflow.agent.contract import DIGEST_SIZE, ERROR_FILE, HEADER_FILE
from precflow.agent.digest import byte_count, to_host
from precflow.agent.failures import AgentError
from precflow.agent.shard import Entry, Written, entry, storable, write_shard

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 64 << 20

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)


class WriteError(AgentError):
    """A dump cannot be written any further; what is already written stays readable.

    ``kind`` is ``disk_full``, ``read_only``, ``budget`` or ``unwritable``; the message names the folder and the bytes that
    were needed.
    """


class Writer:
    """Writes one dump into a folder that exists.

    Lines are appended and reach the file at once. Tensors wait in memory until a shard is full, so that at most
    ``shard_bytes`` (and one tensor more) are held; each content is stored once in the whole dump.

    Args:
        folder: Where the dump goes.
        shard_bytes: A shard is closed when its tensors take this many bytes; a larger tensor has a shard of its own.
        budget_bytes: Most bytes that lines and tensors may take together; 0 sets no bound.

    Attributes:
        folder: Where the dump goes.
        counts: ``calls``, ``records``, ``tensors`` and ``bytes`` (of tensors) so far.
        failure: What stopped the writer, for callers whose exception was swallowed on its way.
    """

    def __init__(self, folder: str, shard_bytes: int = SHARD_BYTES, budget_bytes: int = 0) -> None:
        self.folder = str(folder)
        self.failure: Optional[WriteError] = None
        self.counts = {"calls": 0, "records": 0, "tensors": 0, "bytes": 0}
        self._shard_bytes = shard_bytes
        self._budget_bytes = budget_bytes
        self._line_bytes = 0
        self._files: Dict[str, Written] = {}
        self._stored: Set[str] = set()
        self._finished: Set[Tuple[int, int]] = set()
        self._step: Optional[_Step] = None

    def open_step(self, step: int, rank: int) -> None:
        """Begin a step's files and close those of the step before; nothing happens when this step is open already.

        Raises:
            ValueError: The step has been written and closed.
            WriteError: The folder cannot be written to.
        """
        if self._step is not None and self._step.key == (step, rank):
            return
        if (step, rank) in self._finished:
            raise ValueError("step %d of rank %d is in the dump already" % (step, rank))
        if self._step is not None:
            self.close_step(*self._step.key)
        with self._explained(0):
            self._step = _Step(self.folder, step, rank)

    def call(self, line: Mapping[str, Any]) -> None:
        """Append one call to the records of the open step.

        Raises:
            WriteError: Disk full, read-only folder, or over the budget; the line is then not in the file.
        """
        data = (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        self._afford(len(data))
        with self._explained(len(data)):
            self._open().append(data)
        self._line_bytes += len(data)
        self.counts["calls"] += 1
        self.counts["records"] += len(line["inputs"]) + len(line["outputs"])

    def stored(self, content: str) -> bool:
        """Tell whether the dump holds this content."""
        return content in self._stored

    def tensor(self, content: str, tensor: torch.Tensor) -> bool:
        """Store a tensor under its content id, unless the dump has it; return whether it has it now.

        An element type that safetensors does not know is not stored.

        Raises:
            WriteError: Disk full, read-only folder, or over the budget.
        """
        if content in self._stored:
            return True
        if not storable(tensor.dtype):
            return False
        size = byte_count(tensor)
        self._afford(size)
        if size > self._shard_bytes:
            self._write_shard([entry(content, to_host(tensor), copied=False)])
        else:
            self._keep(entry(content, to_host(tensor), copied=True))
        self._stored.add(content)
        self.counts["tensors"] += 1
        self.counts["bytes"] += size
        return True

    def close_step(self, step: int, rank: int) -> None:
        """Write the last shard of a step and close its files; nothing happens when another step is open, or none.

        Raises:
            WriteError: Disk full or read-only folder.
        """
        if self._step is None or self._step.key != (step, rank):
            return
        self._flush()
        records = self._step.close()
        self._files[self._step.records] = records
        self._finished.add(self._step.key)
        self._step = None

    def seal(self, header: Mapping[str, Any]) -> Dict[str, Any]:
        """Close everything and write the header with ``counts``, ``files`` and ``content``; return it as written.

        Raises:
            WriteError: Disk full or read-only folder; the dump then stays without a seal.
        """
        if self._step is not None:
            self.close_step(*self._step.key)
        files = {name: {"bytes": facts.bytes, "blake2b": facts.blake2b} for name, facts in sorted(self._files.items())}
        sealed: Dict[str, Any] = dict(header)
        sealed["counts"] = dict(self.counts)
        sealed["files"] = files
        sealed["content"] = evidence_id(sealed)
        self._write_json(HEADER_FILE, sealed)
        return sealed

    def abandon(self, error: Mapping[str, Any]) -> bool:
        """Close the files so that what is there can be read, and write the error in the header's place.

        This is the way out of a failure, so it never raises.

        Returns:
            Whether everything that was captured, and the error, could still be written; false on a full disk.
        """
        complete = True
        try:
            if self._step is not None:
                self._flush()
        except WriteError:
            complete = False
        if self._step is not None:
            self._step.close()
            self._step = None
        try:
            self._write_json(ERROR_FILE, error)
        except WriteError:
            complete = False
        return complete

    def _open(self) -> _Step:
        if self._step is None:
            raise ValueError("no step is open: call open_step first")
        return self._step

    def _keep(self, kept: Entry) -> None:
        step = self._open()
        if step.pending_bytes + kept.size > self._shard_bytes:
            self._flush()
        step.pending.append(kept)
        step.pending_bytes += kept.size

    def _flush(self) -> None:
        step = self._open()
        pending, step.pending, step.pending_bytes = step.pending, [], 0
        if pending:
            self._write_shard(pending)

    def _write_shard(self, entries: List[Entry]) -> None:
        name = self._open().next_shard()
        with self._explained(sum(each.size for each in entries)):
            self._files[name] = write_shard(os.path.join(self.folder, name), entries)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        data = (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace")
        path = os.path.join(self.folder, name)
        with self._explained(len(data)):
            with open(path + ".part", "wb") as file:
                file.write(data)
            os.replace(path + ".part", path)

    def _afford(self, size: int) -> None:
        spent = self.counts["bytes"] + self._line_bytes
        if self._budget_bytes and spent + size > self._budget_bytes:
            message = "the dump in %s would exceed its budget: %s allowed, %s written, %s more needed" % (
                self.folder,
                bytes_text(self._budget_bytes),
                bytes_text(spent),
                bytes_text(size),
            )
            self.failure = WriteError(
                "budget", message, "raise capture.budget, narrow capture.scope, or take capture.level=[module]"
            )
            raise self.failure

    @contextmanager
    def _explained(self, needed: int) -> Iterator[None]:
        """Turn what the operating system says into a sentence that names the folder and the bytes that were needed."""
        try:
            yield
        except OSError as problem:
            self.failure = _write_error(problem, self.folder, needed)
            raise self.failure from problem


class _Step:
    """The files of one step: its record lines, and the tensors that wait for their shard."""

    def __init__(self, folder: str, step: int, rank: int) -> None:
        self.key = (step, rank)
        self.place = "rank%d/step%d" % (rank, step)
        self.records = self.place + "/records-0.jsonl"
        self.pending: List[Entry] = []
        self.pending_bytes = 0
        self._shards = 0
        self._size = 0
        self._checksum = hashlib.blake2b(digest_size=DIGEST_SIZE)
        os.makedirs(os.path.join(folder, self.place), exist_ok=True)
        self._file = open(os.path.join(folder, self.records), "wb", buffering=0)  # noqa: SIM115  open as long as the step

    def next_shard(self) -> str:
        """Return the name of the next shard, relative to the dump."""
        name = "%s/tensors-%d.safetensors" % (self.place, self._shards)
        self._shards += 1
        return name

    def append(self, data: bytes) -> None:
        """Write one line whole, or not at all."""
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._checksum.update(data)
        self._size += len(data)

    def close(self) -> Written:
        """Close the record lines and return what the header says about them."""
        self._file.close()
        return Written(self._size, self._checksum.hexdigest())


def evidence_id(header: Mapping[str, Any]) -> str:
    """Return the identity of a dump's evidence: without times, paths and facts of the machine.

    blake2b-128 over the compact JSON, keys sorted, of ``schema``, ``dtype``, the name of ``device``, the digests of
    ``weights`` and ``inputs``, and ``files``. What a header lacks counts as ``null``.
    """
    evidence = {
        "schema": header.get("schema"),
        "dtype": header.get("dtype"),
        "device": header.get("device", {}).get("name"),
        "weights": header.get("weights", {}).get("digest"),
        "inputs": header.get("inputs", {}).get("digest"),
        "files": header.get("files"),
    }
    text = json.dumps(evidence, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8"), digest_size=DIGEST_SIZE).hexdigest()


def bytes_text(count: int) -> str:
    """Return a number of bytes as people read it, in powers of 1000: ``64.0 MB``."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return "%d bytes" % count if unit == "bytes" else "%.1f %s" % (value, unit)


def _write_error(problem: OSError, folder: str, needed: int) -> WriteError:
    if problem.errno in _FULL:
        message = "no space left in %s: %s needed, %s free" % (folder, bytes_text(needed), _free_text(folder))
        return WriteError("disk_full", message, "free space there, name another store, or take less: capture.level=[module]")
    if problem.errno in _REFUSED:
        message = "%s cannot be written to (%s): %s needed" % (folder, problem.strerror, bytes_text(needed))
        return WriteError("read_only", message, "make the folder writable or name another store")
    message = "writing %s to %s failed: %s" % (bytes_text(needed), folder, problem)
    return WriteError("unwritable", message, "look at the disk, or name another store")


def _free_text(folder: str) -> str:
    try:
        return bytes_text(shutil.disk_usage(folder).free)
    except OSError:
        return "an unknown number of bytes"
