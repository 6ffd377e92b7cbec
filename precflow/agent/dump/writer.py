"""The writer of a dump: record lines as they come, tensors in shards of bounded size, a seal per step, and the header last."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from precflow.agent import redaction
from precflow.agent.contract import DIGEST_SIZE, DUMP_SCHEMA, EMPTY_HEADER, ERROR_FILE, HEADER_FILE
from precflow.agent.dump.background import Background
from precflow.agent.dump.finished_steps import FinishedStep, FinishedSteps
from precflow.agent.dump.last_call import LastCall
from precflow.agent.dump.last_steps import Alarm, is_finite
from precflow.agent.dump.lock import WriterLock
from precflow.agent.dump.shard import TensorEntry, storable
from precflow.agent.dump.step_files import StepFiles, json_bytes, write_json, write_sealed
from precflow.agent.dump.write_errors import WriteError, incomplete_rank, over_budget, write_error
from precflow.agent.measure.transfer import byte_count, to_host

if TYPE_CHECKING:
    import torch

__all__ = ["WriteError", "Writer"]

SHARD_BYTES = 256 << 20  # of the first shard of a step; each further one takes twice as many, so few files hold a large step


class Writer:
    """Writes one dump into an existing folder; a second writer of the same rank is refused.

    Record lines reach their file at once. Tensors go to a shard, and equal contents are stored once in the whole dump. Memory
    is bounded: a shard holds back at most 8 MiB, and the background thread at most its queue. The bytes of a dump are the same
    with and without the thread.

    Args:
        folder: Folder of the dump.
        shard_bytes: Bytes of tensors in the first shard of a step; each further shard takes twice as many.
        budget_bytes: Most bytes that lines and tensors may take together; 0 sets no limit.
        rank: Number of this process.
        resume: Continue after the last finished step that was written for the same ``declared``; else start from scratch.
        declared: Hash of everything that the dump depends on.
        queue_bytes: Store tensors in a thread while the model runs on, for which so many bytes of them may wait; a caller with
            more blocks. 0: store them at once.
        keep_last: Keep only so many finished steps, plus those of :meth:`hold`; 0 keeps all.

    Attributes:
        folder: Folder of the dump.
        counts: ``calls``, ``records``, ``tensors`` and ``bytes`` (of tensors) of the steps that are kept.
        failure: The error that stopped the writer. The model's code may have swallowed the exception, so callers look here.
        sites: Call sites so far; a line refers to one by its index. The code that numbers new sites appends to this list.

    Raises:
        WriteError: Another process writes this dump, or the folder cannot be written to.
    """

    def __init__(  # noqa: PLR0913  settings of a request, all but the folder by name
        self,
        folder: str,
        shard_bytes: int = SHARD_BYTES,
        budget_bytes: int = 0,
        *,
        rank: int = 0,
        resume: bool = False,
        declared: str = "",
        queue_bytes: int = 0,
        keep_last: int = 0,
    ) -> None:
        self.folder = str(folder)
        self.failure: Optional[WriteError] = None
        self._finished = FinishedSteps(self.folder, keep_last)
        self.counts = self._finished.counts
        self.sites: List[str] = []
        self._shard_bytes = shard_bytes
        self._budget_bytes = budget_bytes
        self._declared = declared
        self._queue_bytes = queue_bytes
        self._background = Background(self._store, queue_bytes) if queue_bytes else None
        self._stored: Set[str] = set()
        self._alarm = Alarm() if keep_last else None
        self._step: Optional[StepFiles] = None
        self._locks: Dict[int, WriterLock] = {}
        self._rank = rank
        self._begin(rank, resume=resume)
        self._last_call = LastCall(self.folder, rank)

    def note_running(self, text: str) -> None:
        """Note a call that begins now; the judge reads it if this process never comes to its end."""
        self._last_call.note(text)

    def open_step(self, step: int, rank: int) -> None:
        """Start the files of a step and close the step before it; does nothing if this step is open already.

        Raises:
            ValueError: The step has been written and closed.
            WriteError: The folder cannot be written to, or another process writes this rank.
        """
        if self._step is not None and self._step.key == (step, rank):
            return
        if self.complete(step, rank):
            raise ValueError("step %d of rank %d is in the dump already" % (step, rank))
        if self._step is not None:
            self.close_step(*self._step.key)
        if rank not in self._locks:
            self._begin(rank, resume=False)
        if self._finished.drops_steps:
            # A step may be dropped later, with the tensors in its shards. So with keep_last every step stores its own
            # tensors again, except those that are in a step held for good.
            self._stored = self._finished.contents
        with self._explaining(0):
            self._step = StepFiles(self.folder, step, rank, self._shard_bytes)

    def complete(self, step: int, rank: int) -> bool:
        """Tell whether a step is in the dump or has been dropped from it: in both cases it need not be recorded again."""
        return self._finished.has((step, rank))

    def lines(self, step: int, rank: int) -> Iterator[Dict[str, Any]]:
        """Return the record lines of a step that is in the dump; nothing for one that was dropped."""
        return self._finished.read_lines((step, rank))

    def call(self, line: Mapping[str, Any]) -> None:
        """Append the line of one call to the records of the open step, see :meth:`append`."""
        data = (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        self.append(data, 1, len(line["inputs"]) + len(line["outputs"]))

    def append(self, data: bytes, calls: int, records: int) -> None:
        """Append calls to the records of the open step.

        Args:
            data: Their lines, JSON in UTF-8, each ending with a newline.
            calls: Number of calls.
            records: Number of records in these calls.

        Raises:
            WriteError: Disk full, read-only folder, or over the budget, now or for an earlier tensor; none of the lines is in
                the file then.
        """
        # The thread may have failed to store a tensor that these lines refer to.
        if self._background is not None and self.failure is not None:
            raise self.failure
        step = self._require_step()
        self._check_budget(len(data))
        with self._explaining(len(data)):
            step.append(data)
        self._finished.line_bytes += len(data)
        self._count({"calls": calls, "records": records})
        if self._alarm is not None:
            for line in data.split(b"\n")[:-1]:
                if self._alarm.rings(json.loads(line)):
                    self.hold()

    def stored(self, key: str) -> bool:
        """Tell whether the dump holds this content already; the answer is valid while the current step is open."""
        return key in self._stored

    def tensor(self, key: str, tensor: torch.Tensor, *, owned: bool = False) -> bool:
        """Store a tensor unless the dump holds it already; return whether the dump holds it now.

        A tensor whose element type safetensors does not know is not stored.

        Args:
            key: Content id, followed by ``.sketch``, ``.rows`` or the name of a part if it is not the whole content.
            tensor: The tensor, on any device.
            owned: Nobody writes to the tensor any more, so it can be queued without a copy.

        Raises:
            WriteError: Disk full, read-only folder, or over the budget, now or for an earlier tensor.
        """
        if key in self._stored:
            return True
        if not storable(tensor.dtype):
            return False
        self._require_step()
        self._check_budget(byte_count(tensor))
        host = to_host(tensor)
        # to_host returns the same memory if nothing had to be moved or reordered; only then can the model still write to it.
        entry = TensorEntry(key, host, owned or host.data_ptr() != tensor.data_ptr())
        if self._background is None:
            self._store(entry)
        elif entry.size > self._queue_bytes:
            # Queueing means copying, and a copy of this size is what the queue's limit is there to prevent. Store it here;
            # drain first, so that the tensors are in the file in the same order as without the thread.
            self._background.drain()
            self._store(entry)
        else:
            self._background.put(entry.freeze())
        self._stored.add(key)
        self._count({"tensors": 1, "bytes": byte_count(host)})
        if self._alarm is not None and not is_finite(host):
            self._alarm.note_content(key)
        return True

    def hold(self) -> None:
        """Keep the last steps for good, including the open one; without ``keep_last`` every step is kept anyway."""
        self._finished.hold(self._step.key if self._step is not None else None)

    def close_step(self, step: int, rank: int) -> None:
        """Write the last shard of a step, close its files and seal it; does nothing unless this step is open.

        Raises:
            WriteError: Disk full or read-only folder, now or for an earlier tensor; the step then has no seal.
        """
        if self._step is None or self._step.key != (step, rank):
            return
        if self._background is not None:
            self._background.drain()
        files = self._step
        with self._explaining(files.waiting):
            files.finish_shard()
            files.finish_records()
            facts = {"schema": DUMP_SCHEMA, "declared": self._declared, "sites": list(self.sites)}
            seal = files.seal({**facts, **self._finished.describe_others(files.key)})
            self._step = None
            self._finished.add(rank, FinishedStep(step, seal, set(self._stored) if self._finished.drops_steps else set()))

    def finish(self) -> None:
        """Close the open step and release the lock without writing a header: the writer of another rank seals for all ranks.

        Raises:
            WriteError: Disk full or read-only folder; the step then has no seal.
        """
        if self._step is not None:
            self.close_step(*self._step.key)
        self._release()

    def seal(self, header: Mapping[str, Any], ranks: Sequence[int] = ()) -> Dict[str, Any]:
        """Close everything and write the header with ``counts``, ``files``, ``content`` and a checksum; return it as written.

        Args:
            header: Facts that the writer does not know; keys left out get the empty value of ``contract.EMPTY_HEADER``.
            ranks: Other ranks that wrote into the same folder and have finished; this header covers their steps too.

        Raises:
            WriteError: Disk full or read-only folder, or another rank is still writing, failed, or lacks a step; the dump
                then has no header.
        """
        if self._step is not None:
            self.close_step(*self._step.key)
        sealed: Dict[str, Any] = {**EMPTY_HEADER, **header}
        sealed["sites_of_ranks"] = {str(rank): self._adopt(rank) for rank in ranks}
        sealed["counts"] = dict(self.counts)
        sealed["dropped"] = self._finished.dropped
        sealed["files"] = self._finished.files
        sealed["content"] = evidence_id(sealed)
        with self._explaining(len(json_bytes(sealed))):  # last of all files: a dump without a header is incomplete
            sealed = write_sealed(os.path.join(self.folder, HEADER_FILE), sealed)
        self._release()
        return sealed

    def abandon(self, error: Mapping[str, Any]) -> bool:
        """Close the files so that they can be read, and write ``error.json`` instead of the header.

        Called after a failure, so it never raises. The open step gets no seal.

        Returns:
            Whether the error and everything captured so far could be written; false on a full disk, for example.
        """
        complete = True
        try:
            if self._background is not None:
                self._background.drain()
        except Exception:  # noqa: BLE001  already raised by an earlier call, or the very error the caller is giving up for
            complete = False
        try:
            if self._step is not None:
                with self._explaining(0):
                    self._step.finish_records()
                    self._step.finish_shard()
        except WriteError:
            complete = False
        self._step = None
        try:
            plain = redaction.redact(error)
            with self._explaining(len(json_bytes(plain))):
                write_json(os.path.join(self.folder, ERROR_FILE), plain)
        except WriteError:
            complete = False
        self._release()
        return complete

    def _begin(self, rank: int, *, resume: bool) -> None:
        """Lock a rank and prepare its folder. An old header is removed: it would call a half-written dump complete."""
        with self._explaining(0):
            self._locks[rank] = WriterLock(os.path.join(self.folder, "writer-rank%d.lock" % rank))
            for name in (HEADER_FILE, ERROR_FILE):
                with suppress(FileNotFoundError):  # another rank may begin at the same moment
                    os.remove(os.path.join(self.folder, name))
            if resume:
                self.sites += self._finished.resume(rank, self._declared)
                self._stored |= self._finished.contents
            else:
                self._finished.clear(rank)

    def _adopt(self, rank: int) -> List[str]:
        """Adopt the finished steps of another rank; return the call sites that its lines refer to."""
        failed = os.path.exists(os.path.join(self.folder, ERROR_FILE))
        with self._explaining(0):
            self._locks[rank] = WriterLock(os.path.join(self.folder, "writer-rank%d.lock" % rank))
            sites = self._finished.resume(rank, self._declared)
        written, wanted = self._finished.numbers(rank), self._finished.numbers(self._rank)
        if failed or written != wanted:
            self.failure = incomplete_rank(self.folder, rank, written, wanted)
            raise self.failure
        return sites

    def _store(self, entry: TensorEntry) -> None:
        """Add an entry to the open step's shard; runs in the background thread if there is one."""
        with self._explaining(entry.size):
            self._require_step().store(entry)

    def _require_step(self) -> StepFiles:
        if self._step is None:
            raise ValueError("no step is open: call open_step first")
        return self._step

    def _count(self, more: Mapping[str, int]) -> None:
        step = self._require_step()
        for name, count in more.items():
            self.counts[name] += count
            step.counts[name] += count

    def _release(self) -> None:
        self._last_call.close()
        if self._background is not None:
            self._background.close()
        for lock in self._locks.values():
            lock.release()

    def _check_budget(self, size: int) -> None:
        spent = self.counts["bytes"] + self._finished.line_bytes
        if self._budget_bytes and spent + size > self._budget_bytes:
            self.failure = over_budget(self.folder, self._budget_bytes, spent, size)
            raise self.failure

    @contextmanager
    def _explaining(self, needed: int) -> Iterator[None]:
        """Turn an ``OSError`` into a :class:`WriteError` that names the folder and the bytes that were needed."""
        try:
            yield
        except OSError as problem:
            self.failure = write_error(problem, self.folder, needed)
            raise self.failure from problem


def evidence_id(header: Mapping[str, Any]) -> str:
    """Return a hash of the recorded numbers: two dumps have the same one if they recorded the same, whenever and wherever.

    blake2b-128 over the compact JSON, keys sorted, of ``schema``, ``dtype``, the name of ``device``, the digests of
    ``weights`` and ``inputs``, and ``files``; without times, paths and facts of the machine. A missing key counts as ``null``.
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
