"""Measuring tensors for records: content id, statistics, sketch, or the tensor itself, many with one copy to the host.

On a device nothing may be waited for. A tensor is copied there, in its own order with what the model computes, and a ticket is
given out; at a flush all waiting copies of one size are measured together, and the results come to the host in one piece. On
the CPU small tensors go the same way, because there the calls cost more than the work; larger ones are read where they are.

The detail ``statistics`` has no content id, which costs several times what statistics do. A mark stands in for it within one
dump: a checksum of the sums of all rows, which equal bits have in common.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.contract import DETAIL_FACTS, DIGEST_SIZE
from precflow.agent.measure import sketch, statistics
from precflow.agent.measure.checksums import BLOCK as BLOCK_WORDS
from precflow.agent.measure.checksums import PIECE_BYTES, block_lanes, joinable, lanes, words_of, wraps
from precflow.agent.measure.content_id import byte_count, bytes_of, dtype_name, named
from precflow.agent.measure.parts import Kept, taken
from precflow.agent.measure.row_norms import RowNorms, shared_row
from precflow.agent.measure.sketch import Sketches
from precflow.agent.measure.transfer import to_hosts

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.statistics import Rows, Statistics, Sums
    from precflow.agent.measure.value_classes import Cleaning

# Marks: what equal tensors have in common within one dump where no content id was taken.


def mark_of(sums: bytes) -> str:
    """Return the mark of an ordinary tensor, 32 hex digits, from the extremes, sums and norms of its rows."""
    return hashlib.blake2b(sums, digest_size=DIGEST_SIZE).hexdigest()


def mark_of_statistics(known: Optional[Statistics]) -> str:
    """Return the mark of any other tensor, from its statistics; ``""`` without any."""
    return "" if known is None else mark_of(repr(known).encode("ascii"))


SMALL_BYTES = 32 << 10  # on the CPU larger tensors are not copied
WAITING_BYTES = 4 << 20  # copies that wait for a flush
WAITING_BYTES_ON_DEVICES = 256 << 20
WAITING_TICKETS = 1024

_FLOATS = frozenset("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split())
_WHOLE = frozenset("int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split())
_FLOATING = frozenset(getattr(torch, name) for name in _FLOATS if hasattr(torch, name))
_NOTHING: Statistics = [None, None, None, None, 0, 0, 0, 0, 0, 0, 0, 0]


class Ticket:
    """What will be known of a tensor once it is measured.

    Attributes:
        detail: One of ``contract.DETAILS``: what was asked for.
        kept: The part that all but the content id speaks of; ``None`` is the whole tensor.
        content: Content id; ``""`` until the flush, and for good where there are no plain bytes, or only statistics.
        mark: Checksum of the sums of its rows, where statistics are all that was asked for.
        statistics: In the order of ``contract.STATISTICS``, where they were asked for and its type has them.
        stored: The dump holds the tensor, or the part.
        row_norms: Key, first place and number of the norms of rows, where statistics are all that was asked for.
        text: A detail, and what a record line of that detail says of the tensor, for whoever writes lines.
    """

    __slots__ = ("content", "detail", "kept", "mark", "row_norms", "statistics", "stored", "text")

    def __init__(self, detail: str, kept: Optional[Kept]) -> None:
        self.detail = detail
        self.kept = kept
        self.content = ""
        self.mark = ""
        self.row_norms: Optional[Tuple[str, int, int]] = None
        self.text = ("", "")
        self.statistics: Optional[Statistics] = None
        self.stored = False

    @property
    def known(self) -> str:
        """What equal bits have in common: the content id, or the mark."""
        return self.content or self.mark

    def covers(self, detail: str, kept: Optional[Kept]) -> bool:
        """Tell whether it holds what a record of this detail and part needs."""
        if detail != self.detail and detail not in DETAIL_FACTS[self.detail].covers:
            return False
        return detail == "digest" or kept is self.kept  # a content id speaks of the whole tensor


class _Whole(NamedTuple):
    """What the content id of a tensor is made of, where only a part of it is kept."""

    shape: Tuple[int, ...]
    checksums: Optional[torch.Tensor]


class _Job(NamedTuple):
    """A tensor on its way, or the part that is kept; ``private`` where nobody else has it."""

    ticket: Ticket
    tensor: torch.Tensor
    private: bool
    whole: Optional[_Whole] = None


class _Group(NamedTuple):
    """Equally long tensors of one type that are measured together."""

    jobs: List[_Job]
    flat: List[torch.Tensor]
    checksums: Optional[torch.Tensor]
    rows: Optional[Rows]
    row: int


class Measuring:
    """Measures tensors and stores what is to be kept of them.

    Args:
        writer: Where tensors, sketches and norms of rows go; ``None`` keeps none.
        fine: Sketches keep high and low parts apart.
    """

    def __init__(self, writer: Optional[Writer], *, fine: bool = False) -> None:
        self._writer = writer
        self._fine = fine
        self._waiting: List[_Job] = []
        self._summed: List[Tuple[Ticket, Sums]] = []
        self._row_norms = RowNorms()
        self._sketches = Sketches(writer)
        self._bytes = 0
        self._limit = 0

    @property
    def full(self) -> bool:
        """So much waits that it should be flushed."""
        return len(self._waiting) + len(self._summed) >= WAITING_TICKETS or self._bytes > self._limit

    @property
    def waiting(self) -> int:
        """Number of tensors that wait."""
        return len(self._waiting) + len(self._summed)

    def measure(self, tensor: torch.Tensor, detail: str, kept: Optional[Kept] = None) -> Ticket:
        """Take a tensor as it is now; the ticket is filled in at once or at the next flush.

        Args:
            tensor: With plain bytes (``digest.readable``); it may be written to as soon as this returns.
            detail: One of ``contract.DETAILS``.
            kept: The part that is kept, where it is not the whole.

        Raises:
            WriteError: It could not be stored.
        """
        ticket = Ticket(detail, kept)
        size, on_host = tensor.numel() * tensor.element_size(), tensor.device.type == "cpu"
        if kept is None and size <= (SMALL_BYTES if on_host else PIECE_BYTES):
            self._wait(_Job(ticket, _copied(tensor.detach()), private=True), size, on_host=on_host)
            return ticket
        whole = tensor.detach()
        if kept is None and on_host and detail in ("statistics", "sketch") and tensor.dtype in _FLOATING:
            if detail == "statistics":
                self._sum_up(ticket, whole)
            else:
                self._sketch(ticket, whole)
            return ticket
        with torch.no_grad():
            if kept is None:
                self._finish([_Job(ticket, whole, private=False)])
            else:
                part = taken(whole, kept)
                checksums = lanes(whole) if detail != "statistics" else None
                job = _Job(ticket, part, private=True, whole=_Whole(whole.shape, checksums))
                self._wait(job, byte_count(part), on_host=on_host)
        return ticket

    def _sum_up(self, ticket: Ticket, whole: torch.Tensor) -> None:
        """Read a tensor of the host where it is, for its statistics and norms of rows alone."""
        flat = _flat_of(whole)
        row = shared_row(whole.shape, flat.numel())
        sums = statistics.at_once(flat, row)
        if sums is None:
            ticket.statistics = statistics.of_any(flat)
            ticket.mark = mark_of_statistics(ticket.statistics)
            return
        self._summed.append((ticket, sums))
        self._row_norms.add(ticket, sums.norms, whole.shape, flat.numel(), row)

    def _sketch(self, ticket: Ticket, whole: torch.Tensor) -> None:
        """Read a tensor of the host where it is, for its content id, statistics, sketch and norms of rows."""
        flat = _flat_of(whole)
        ticket.content = named(whole.dtype, whole.shape, bytes_of(lanes(whole)))
        length, row = sketch.row_length(whole.shape, flat.numel()), shared_row(whole.shape, flat.numel())
        sums = statistics.at_once(flat, row)
        if sums is None:
            ticket.statistics = statistics.of_any(flat)
            self._add_sketch(_Job(ticket, whole, private=False), flat)
            return
        self._summed.append((ticket, sums))
        if self._sketches.lacks(ticket.content):
            rows = sketch.joined(sums.norms, length // row) if row else sketch.row_norms(flat, length)
            largest = max(-sums.low, sums.high) if self._fine else 0.0
            self._sketches.add(ticket.content, sketch.sketch(flat, largest=largest), rows)

    def flush(self) -> None:
        """Fill in every ticket.

        Raises:
            WriteError: A tensor could not be stored.
        """
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        summed, self._summed = self._summed, []
        for (ticket, _), (known, data) in zip(summed, statistics.of_sums([sums for _, sums in summed])):
            ticket.statistics = known
            if ticket.detail == "statistics":
                ticket.mark = mark_of(data)
        if jobs:
            with torch.no_grad():
                self._finish(jobs)
        self._row_norms.store(self._writer)
        self._sketches.store()

    def _wait(self, job: _Job, size: int, *, on_host: bool) -> None:
        self._waiting.append(job)
        self._bytes += size
        self._limit = WAITING_BYTES if on_host else WAITING_BYTES_ON_DEVICES

    def _finish(self, jobs: Sequence[_Job]) -> None:
        groups = [_enqueued(each) for each in _groups(jobs)]
        fetched = iter(to_hosts([each for group in groups for each in _results(group)]))
        for group in groups:
            checksums = None if group.checksums is None else next(fetched)
            self._fill(group, checksums, None if group.rows is None else next(fetched))

    def _fill(self, group: _Group, checksums: Optional[torch.Tensor], sums: Optional[torch.Tensor]) -> None:
        """Fill in the tickets of a group, and store or sketch what is to be kept of its tensors."""
        known: Sequence[Optional[Statistics]] = [None] * len(group.jobs)
        if group.rows is not None and sums is not None:
            known = statistics.of_rows(group.rows._replace(sums=sums))
        data, marks = (b"" if each is None else bytes_of(each) for each in (checksums, sums))
        size, width = len(data) // len(group.jobs), len(marks) // len(group.jobs)
        for number, job in enumerate(group.jobs):
            ticket = job.ticket
            shape = job.tensor.shape if job.whole is None else job.whole.shape
            if ticket.detail == "statistics":
                ticket.statistics = known[number] or _statistics(group.flat[number])
                mine = b"" if known[number] is None else marks[number * width : (number + 1) * width]
                ticket.mark = mark_of(mine) if mine else mark_of_statistics(ticket.statistics)
                if job.whole is None and sums is not None and known[number] is not None:
                    norms = sums[number, 1 + sums.shape[1] // 2 :]
                    self._row_norms.add(ticket, norms, shape, group.flat[number].numel(), group.row)
                continue
            ticket.content = named(job.tensor.dtype, shape, data[number * size : (number + 1) * size])
            if ticket.detail == "sketch":
                ticket.statistics = known[number] or _statistics(group.flat[number])
            if self._whole(job):
                ticket.stored = self._store(_key(job), job)
            elif ticket.detail == "sketch" and dtype_name(group.flat[number].dtype) in _FLOATS:
                self._add_sketch(job, group.flat[number])

    def _add_sketch(self, job: _Job, flat: torch.Tensor) -> None:
        """Sketch what the dump has no sketch of yet."""
        if self._sketches.lacks(_key(job)):
            clean = _cleaning(job, flat)
            sums = sketch.sketch(flat, clean, largest=_largest(job, clean) if self._fine else 0.0)
            rows = sketch.row_norms(flat, sketch.row_length(job.tensor.shape, flat.numel()), clean)
            self._sketches.add(_key(job), sums, rows, clean)

    def _whole(self, job: _Job) -> bool:
        """Tell whether the tensor itself is kept."""
        return job.ticket.detail == "tensors" or (job.ticket.detail == "sketch" and job.tensor.numel() <= sketch.STORED_WHOLE)

    def _store(self, key: str, job: _Job) -> bool:
        return self._writer is not None and self._writer.tensor(key, job.tensor, owned=job.private)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in C order, without a pending conjugation."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return joinable(tensor).clone(memory_format=torch.contiguous_format).view(tensor.dtype)


def _groups(jobs: Sequence[_Job]) -> Iterable[List[_Job]]:
    """Sort jobs by device, type, size and length of rows; those with a part, and large ones, stay alone."""
    found: Dict[object, List[_Job]] = {}
    for job in jobs:
        alone = id(job) if job.whole is not None or byte_count(job.tensor) > PIECE_BYTES else 0
        found.setdefault((job.tensor.device, job.tensor.dtype, job.tensor.numel(), _row(job), alone), []).append(job)
    return found.values()


def _row(job: _Job) -> int:
    """Return the length of rows that norms are to be had of, 0 where none are."""
    if job.ticket.detail != "statistics" or job.whole is not None:
        return 0
    return shared_row(job.tensor.shape, job.tensor.numel() * (2 if job.tensor.is_complex() else 1))


def _enqueued(jobs: List[_Job]) -> _Group:
    """Enqueue everything that can be known of a group without looking at it."""
    flat = [_flat_of(job.tensor) for job in jobs]
    counted = any(job.ticket.detail in ("statistics", "sketch") for job in jobs)
    floating = dtype_name(flat[0].dtype) in _FLOATS and flat[0].numel() > 0
    rows, row = None, _row(jobs[0])
    batch = flat[0].unsqueeze(0) if len(flat) == 1 else torch.stack([joinable(each) for each in flat]).view(flat[0].dtype)
    if counted and floating:
        rows = statistics.in_rows(batch, row)
    if all(job.ticket.detail == "statistics" for job in jobs):
        return _Group(jobs, flat, None, rows, row)
    if len(jobs) > 1:
        return _Group(jobs, flat, _batch_lanes(batch), rows, row)
    whole = jobs[0].whole
    checksums = lanes(jobs[0].tensor) if whole is None or whole.checksums is None else whole.checksums
    return _Group(jobs, flat, checksums.unsqueeze(0), rows, row)


def _batch_lanes(batch: torch.Tensor) -> torch.Tensor:
    """Return the checksums of each row of a batch, int32 ``[rows, blocks, 2]``."""
    count, length = batch.shape
    batch = joinable(batch)
    if not wraps(batch.device):
        batch = batch.cpu()
    missing = -length * batch.element_size() % 4 // batch.element_size()
    if missing:
        batch = torch.cat([batch, batch.new_zeros((count, missing))], 1)
    words = words_of(batch).view(count, -1)
    blocks = [block_lanes(words[:, start : start + BLOCK_WORDS]) for start in range(0, words.shape[1], BLOCK_WORDS)]
    return torch.stack(blocks, 1) if blocks else torch.empty((count, 0, 2), dtype=torch.int32)


def _results(group: _Group) -> List[torch.Tensor]:
    found = (group.checksums, None if group.rows is None else group.rows.sums)
    return [each for each in found if each is not None]


def _flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in one row; the parts of complex ones one behind the other."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    flat = tensor.reshape(-1)
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _statistics(flat: torch.Tensor) -> Optional[Statistics]:
    """Return the statistics of one tensor, of whichever kind; waits for it."""
    if not flat.numel():
        return list(_NOTHING)
    if dtype_name(flat.dtype) in _FLOATS:
        return statistics.of_any(flat)
    return statistics.of_integers(flat) if dtype_name(flat.dtype) in _WHOLE else None


def _cleaning(job: _Job, flat: torch.Tensor) -> Optional[Cleaning]:
    """Return what makes the values fit for sums, ``None`` where they are as they are."""
    found = job.ticket.statistics
    if found is None:
        return None
    clean = statistics.cleaning(flat.dtype, found[0], found[1])
    return clean if clean.exponent or any(found[4:8]) else None


def _largest(job: _Job, clean: Optional[Cleaning]) -> float:
    """Return the largest magnitude of what is sketched, 0 where nothing is ordinary."""
    known = job.ticket.statistics or _NOTHING
    return math.ldexp(max(-(known[0] or 0.0), known[1] or 0.0), -clean.exponent if clean is not None else 0)


def _key(job: _Job) -> str:
    """Return the key of what is kept of a tensor."""
    kept = job.ticket.kept
    return job.ticket.content if kept is None else "%s.%s" % (job.ticket.content, kept.name)
