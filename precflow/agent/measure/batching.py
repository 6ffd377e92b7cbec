"""Measuring tensors for records: content id, statistics, sketch, or the tensor itself, many with one copy to the host.

A device must not be waited for: it would stand still while the program reads a tensor. So a tensor is copied there, in its own
order with what the model computes, and a ticket is given out; at a flush all waiting copies of one size are measured together,
and the results come to the host in one piece. On the CPU small tensors go the same way, because there the calls cost more than
the work; larger ones are read where they are, before this returns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.measure import sketch, statistics
from precflow.agent.measure.checksums import BLOCK, as_joinable, block_checksums, row_checksums, words_of, wraps
from precflow.agent.measure.content_id import content_id_from, dtype_name
from precflow.agent.measure.parts import KeptPart, copy_part
from precflow.agent.measure.pending import PendingRowNorms, PendingSketches
from precflow.agent.measure.sketch import shared_row_length
from precflow.agent.measure.ticket import Ticket, mark_of_statistics, mark_of_sums
from precflow.agent.measure.transfer import PIECE_BYTES, byte_count, bytes_of, to_hosts

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.statistics import BatchSums, Statistics, TensorSums

SMALL_BYTES = 32 << 10  # on the CPU larger tensors are not copied
WAITING_BYTES = 4 << 20  # copies that wait for a flush
WAITING_BYTES_ON_DEVICES = 256 << 20  # the same on other devices, which a flush has to wait for
WAITING_TICKETS = 1024  # tensors that wait for a flush, however small

_FLOATS = frozenset("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split())
_WHOLE_NUMBERS = frozenset("int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split())
_FLOATING = frozenset(getattr(torch, name) for name in _FLOATS if hasattr(torch, name))
_NOTHING: Statistics = [None, None, None, None, 0, 0, 0, 0, 0, 0, 0, 0]  # of a tensor without elements


class _WholeTensor(NamedTuple):
    """What the content id of a tensor is made of, where only a part of it is kept."""

    shape: Tuple[int, ...]
    checksums: Optional[torch.Tensor]


class _Job(NamedTuple):
    """A tensor to be measured, or the part of it that is kept; ``private`` if it is a copy that nobody else writes to."""

    ticket: Ticket
    tensor: torch.Tensor
    private: bool
    whole: Optional[_WholeTensor] = None


class _Group(NamedTuple):
    """Equally long tensors of one type that are measured together.

    Attributes:
        jobs: The tensors.
        flat: Each as ``[elements]``.
        checksums: ``[tensors, blocks, 2]``; ``None`` where nobody asked for a content id.
        sums: What statistics are made of; ``None`` where nobody asked for them, or the type has none.
        row: Length of the rows that were added up, if norms of them are kept; else 0.
    """

    jobs: List[_Job]
    flat: List[torch.Tensor]
    checksums: Optional[torch.Tensor]
    sums: Optional[BatchSums]
    row: int


class BatchMeasurer:
    """Measures tensors and stores what is to be kept of them.

    Args:
        writer: Where tensors, sketches and norms of rows go; ``None`` keeps none.
        fine: Sketches keep high and low parts apart.
    """

    def __init__(self, writer: Optional[Writer], *, fine: bool = False) -> None:
        self._writer = writer
        self._fine = fine
        self._waiting: List[_Job] = []
        self._summed: List[Tuple[Ticket, TensorSums]] = []
        self._row_norms = PendingRowNorms()
        self._sketches = PendingSketches(writer)
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

    def measure(self, tensor: torch.Tensor, detail: str, kept: Optional[KeptPart] = None) -> Ticket:
        """Take a tensor as it is now; the ticket is filled in at once or at the next flush.

        Args:
            tensor: With plain bytes (``content_id.has_plain_bytes``); it may be written to as soon as this returns.
            detail: One of ``contract.DETAILS``.
            kept: The part that is kept, where it is not the whole.

        Raises:
            WriteError: It could not be stored.
        """
        ticket = Ticket(detail, kept)
        size, on_host = tensor.numel() * tensor.element_size(), tensor.device.type == "cpu"
        # Small enough: a copy now, measured with others of its size at the next flush.
        if kept is None and size <= (SMALL_BYTES if on_host else PIECE_BYTES):
            self._wait(_Job(ticket, _copy(tensor.detach()), private=True), size, on_host=on_host)
            return ticket
        # Large, on the host, and nothing of it is stored: read where it is, in one pass.
        whole = tensor.detach()
        if kept is None and on_host and detail in ("statistics", "sketch") and tensor.dtype in _FLOATING:
            if detail == "statistics":
                self._measure_statistics(ticket, whole)
            else:
                self._measure_sketch(ticket, whole)
            return ticket
        # All others are measured at once and without a copy; of a tensor of which a part is kept, the part is copied and waits.
        with torch.no_grad():
            if kept is None:
                self._finish([_Job(ticket, whole, private=False)])
            else:
                part = copy_part(whole, kept)
                checksums = block_checksums(whole) if detail != "statistics" else None
                job = _Job(ticket, part, private=True, whole=_WholeTensor(whole.shape, checksums))
                self._wait(job, byte_count(part), on_host=on_host)
        return ticket

    def _measure_statistics(self, ticket: Ticket, whole: torch.Tensor) -> None:
        """Read a tensor of the host where it is, for its statistics and norms of rows alone."""
        flat = _flat_of(whole)
        row = shared_row_length(whole.shape, flat.numel())
        sums = statistics.reduce_on_host(flat, row)
        if sums is None:
            ticket.statistics = statistics.measure_any(flat)
            ticket.mark = mark_of_statistics(ticket.statistics)
            return
        self._summed.append((ticket, sums))
        self._row_norms.add(ticket, sums.norms, whole.shape, flat.numel(), row)

    def _measure_sketch(self, ticket: Ticket, whole: torch.Tensor) -> None:
        """Read a tensor of the host where it is, for its content id, statistics, sketch and norms of rows."""
        flat = _flat_of(whole)
        ticket.content = content_id_from(whole.dtype, whole.shape, bytes_of(block_checksums(whole)))
        length, row = sketch.row_length(whole.shape, flat.numel()), shared_row_length(whole.shape, flat.numel())
        sums = statistics.reduce_on_host(flat, row)
        if sums is None:
            ticket.statistics = statistics.measure_any(flat)
            self._add_sketch(_Job(ticket, whole, private=False), flat)
            return
        self._summed.append((ticket, sums))
        if self._sketches.lacks(ticket.content):
            rows = sketch.join_rows(sums.norms, length // row) if row else sketch.row_norms(flat, length)
            largest = max(-sums.low, sums.high) if self._fine else 0.0
            self._sketches.add(ticket.content, sketch.sketch(flat, largest=largest), rows)

    def flush(self) -> None:
        """Fill in every ticket.

        Raises:
            WriteError: A tensor could not be stored.
        """
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        summed, self._summed = self._summed, []
        for (ticket, _), (known, data) in zip(summed, statistics.finish_tensors([sums for _, sums in summed])):
            ticket.statistics = known
            if ticket.detail == "statistics":
                ticket.mark = mark_of_sums(data)
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
        """Measure jobs, those of one device, type, size and length of rows together, and fill in their tickets."""
        alike: Dict[object, List[_Job]] = {}
        for job in jobs:
            # A part stays alone because it brings the checksums of its whole tensor along; a large tensor, because stacking
            # would copy it.
            alone = id(job) if job.whole is not None or byte_count(job.tensor) > PIECE_BYTES else 0
            key = (job.tensor.device, job.tensor.dtype, job.tensor.numel(), _row_length(job), alone)
            alike.setdefault(key, []).append(job)
        # All groups are started before the first result is asked for: the device is waited for once, not once a group.
        groups = [_enqueue(members) for members in alike.values()]
        results = [(group.checksums, None if group.sums is None else group.sums.sums) for group in groups]
        fetched = iter(to_hosts([tensor for pair in results for tensor in pair if tensor is not None]))
        for group, (checksums, sums) in zip(groups, results):
            self._fill(group, None if checksums is None else next(fetched), None if sums is None else next(fetched))

    def _fill(self, group: _Group, checksums: Optional[torch.Tensor], sums: Optional[torch.Tensor]) -> None:
        """Fill in the tickets of a group, and store or sketch what is to be kept of its tensors."""
        known: Sequence[Optional[Statistics]] = [None] * len(group.jobs)
        if group.sums is not None and sums is not None:
            known = statistics.finish_batch(group.sums._replace(sums=sums))
        # Cut into equal pieces, one for each tensor: all tensors of a group have as many blocks and rows.
        data, marks = (b"" if each is None else bytes_of(each) for each in (checksums, sums))
        size, width = len(data) // len(group.jobs), len(marks) // len(group.jobs)
        for number, job in enumerate(group.jobs):
            ticket = job.ticket
            shape = job.tensor.shape if job.whole is None else job.whole.shape
            if ticket.detail == "statistics":
                ticket.statistics = known[number] or _sort_values(group.flat[number])
                sum_bytes = b"" if known[number] is None else marks[number * width : (number + 1) * width]
                ticket.mark = mark_of_sums(sum_bytes) if sum_bytes else mark_of_statistics(ticket.statistics)
                if job.whole is None and sums is not None and known[number] is not None:
                    norms = sums[number, 1 + sums.shape[1] // 2 :]
                    self._row_norms.add(ticket, norms, shape, group.flat[number].numel(), group.row)
                continue
            ticket.content = content_id_from(job.tensor.dtype, shape, data[number * size : (number + 1) * size])
            if ticket.detail == "sketch":
                ticket.statistics = known[number] or _sort_values(group.flat[number])
            is_small = job.tensor.numel() <= sketch.STORED_WHOLE
            if ticket.detail == "tensors" or (ticket.detail == "sketch" and is_small):
                ticket.stored = self._writer is not None and self._writer.tensor(_key(job), job.tensor, owned=job.private)
            elif ticket.detail == "sketch" and dtype_name(group.flat[number].dtype) in _FLOATS:
                self._add_sketch(job, group.flat[number])

    def _add_sketch(self, job: _Job, flat: torch.Tensor) -> None:
        """Sketch what the dump has no sketch of yet."""
        if not self._sketches.lacks(_key(job)):
            return
        known = job.ticket.statistics or _NOTHING
        least, most = known[0], known[1]
        cleaning = statistics.choose_cleaning(flat.dtype, least, most)
        # Most values are fit to be added up as they are: without NaN, infinities and fills, and in range.
        clean = cleaning if cleaning.exponent or any(known[4:8]) else None
        largest = math.ldexp(max(-(least or 0.0), most or 0.0), -cleaning.exponent) if self._fine else 0.0
        sums = sketch.sketch(flat, clean, largest=largest)
        rows = sketch.row_norms(flat, sketch.row_length(job.tensor.shape, flat.numel()), clean)
        self._sketches.add(_key(job), sums, rows, clean)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in C order, without a pending conjugation."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return as_joinable(tensor).clone(memory_format=torch.contiguous_format).view(tensor.dtype)


def _row_length(job: _Job) -> int:
    """Return the row length used for row norms; 0 if norms are not kept."""
    if job.ticket.detail != "statistics" or job.whole is not None:
        return 0
    return shared_row_length(job.tensor.shape, job.tensor.numel() * (2 if job.tensor.is_complex() else 1))


def _enqueue(jobs: List[_Job]) -> _Group:
    """Start everything that can be computed of a group without waiting for the device."""
    flat = [_flat_of(job.tensor) for job in jobs]
    counted = any(job.ticket.detail in ("statistics", "sketch") for job in jobs)
    floating = dtype_name(flat[0].dtype) in _FLOATS and flat[0].numel() > 0
    sums, row = None, _row_length(jobs[0])
    batch = (
        flat[0].unsqueeze(0)
        if len(flat) == 1
        else torch.stack([as_joinable(elements) for elements in flat]).view(flat[0].dtype)
    )
    if counted and floating:
        sums = statistics.reduce_batch(batch, row)
    if all(job.ticket.detail == "statistics" for job in jobs):
        return _Group(jobs, flat, None, sums, row)
    if len(jobs) > 1:
        return _Group(jobs, flat, _batch_checksums(batch), sums, row)
    whole = jobs[0].whole
    checksums = block_checksums(jobs[0].tensor) if whole is None or whole.checksums is None else whole.checksums
    return _Group(jobs, flat, checksums.unsqueeze(0), sums, row)


def _batch_checksums(batch: torch.Tensor) -> torch.Tensor:
    """Return the checksums of each row of a batch, int32 ``[rows, blocks, 2]``."""
    count, length = batch.shape
    batch = as_joinable(batch)
    if not wraps(batch.device):
        batch = batch.cpu()
    # Words have four bytes: each tensor is filled up with zeros, as a single one is.
    missing = -length * batch.element_size() % 4 // batch.element_size()
    if missing:
        batch = torch.cat([batch, batch.new_zeros((count, missing))], 1)
    words = words_of(batch).view(count, -1)
    blocks = [row_checksums(words[:, start : start + BLOCK]) for start in range(0, words.shape[1], BLOCK)]
    return torch.stack(blocks, 1) if blocks else torch.empty((count, 0, 2), dtype=torch.int32)


def _flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as ``[elements]``; a complex one is two, its real and its imaginary part."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    flat = tensor.reshape(-1)
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _sort_values(flat: torch.Tensor) -> Optional[Statistics]:
    """Return the statistics of one tensor of any kind, by sorting its values into classes; waits for the device."""
    if not flat.numel():
        return list(_NOTHING)
    if dtype_name(flat.dtype) in _FLOATS:
        return statistics.measure_any(flat)
    return statistics.measure_integers(flat) if dtype_name(flat.dtype) in _WHOLE_NUMBERS else None


def _key(job: _Job) -> str:
    """Return the key under which a tensor, or its part, is stored."""
    kept = job.ticket.kept
    return job.ticket.content if kept is None else "%s.%s" % (job.ticket.content, kept.name)
