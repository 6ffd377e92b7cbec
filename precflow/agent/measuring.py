"""Measuring tensors for records: content id, statistics, sketch, or the tensor itself, many with one copy to the host.

On a device nothing may be waited for. A tensor is copied there, in its own order with what the model computes, and a ticket is
given out; at a flush all waiting copies of one size are measured together, and the results come to the host in one piece. On
the CPU small tensors go the same way, because there the calls cost more than the work; larger ones are read where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent import sketch, statistics
from precflow.agent.digest import byte_count, dtype_name, named
from precflow.agent.lanes import BLOCK as BLOCK_WORDS
from precflow.agent.lanes import PIECE_BYTES, block_lanes, lanes, words_of, wraps
from precflow.agent.parts import Kept, taken

if TYPE_CHECKING:
    from precflow.agent.fills import Cleaning
    from precflow.agent.statistics import Rows, Statistics
    from precflow.agent.writer import Writer

SMALL_BYTES = 32 << 10  # on the CPU larger tensors are not copied
WAITING_BYTES = {"cpu": 4 << 20}  # copies that wait for a flush
_WAITING_BYTES_ON_DEVICES = 256 << 20
WAITING_TICKETS = 1024
STORED_WHOLE = 1024  # elements of a tensor that is not larger than its sketch

DETAILS = ("digest", "statistics", "sketch", "tensors")

_FLOATS = frozenset("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split())
_WHOLE = frozenset("int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split())
_NOTHING: Statistics = [None, None, None, None, 0, 0, 0, 0, 0, 0, 0, 0]


class Ticket:
    """What will be known of a tensor once it is measured.

    Attributes:
        detail: One of ``DETAILS``: what was asked for.
        kept: The part that all but the content id speaks of; ``None`` is the whole tensor.
        content: Content id; ``""`` until the flush, and for good where there are no plain bytes.
        statistics: In the order of ``contract.STATISTICS``, where they were asked for and its type has them.
        stored: The dump holds the tensor, or the part.
    """

    __slots__ = ("content", "detail", "kept", "statistics", "stored")

    def __init__(self, detail: str, kept: Optional[Kept]) -> None:
        self.detail = detail
        self.kept = kept
        self.content = ""
        self.statistics: Optional[Statistics] = None
        self.stored = False

    def covers(self, detail: str, kept: Optional[Kept]) -> bool:
        """Tell whether it holds what a record of this detail and part needs."""
        if detail == "digest" or (detail == self.detail and kept is self.kept):
            return True
        return detail == "statistics" and self.detail == "sketch" and kept is self.kept


class _Job(NamedTuple):
    """A tensor on its way: ``tensor`` is the kept part; ``checksums`` those of the whole where that is larger."""

    ticket: Ticket
    tensor: torch.Tensor
    dtype: torch.dtype
    shape: Tuple[int, ...]
    private: bool
    checksums: Optional[torch.Tensor]


class _Group(NamedTuple):
    """Equally long tensors of one type that are measured together."""

    jobs: List[_Job]
    flat: List[torch.Tensor]
    checksums: torch.Tensor
    rows: Optional[Rows]


class Measuring:
    """Measures tensors and stores what is to be kept of them.

    Args:
        writer: Where tensors, sketches and norms of rows go; ``None`` keeps none.
    """

    def __init__(self, writer: Optional[Writer]) -> None:
        self._writer = writer
        self._waiting: List[_Job] = []
        self._bytes = 0
        self._limit = 0

    @property
    def full(self) -> bool:
        """So much waits that it should be flushed."""
        return len(self._waiting) >= WAITING_TICKETS or self._bytes > self._limit

    @property
    def waiting(self) -> int:
        """Number of tensors that wait."""
        return len(self._waiting)

    def measure(self, tensor: torch.Tensor, detail: str, kept: Optional[Kept] = None) -> Ticket:
        """Take a tensor as it is now; the ticket is filled in at once or at the next flush.

        Args:
            tensor: With plain bytes (``digest.readable``); it may be written to as soon as this returns.
            detail: One of ``DETAILS``.
            kept: The part that is kept, where it is not the whole.

        Raises:
            WriteError: It could not be stored.
        """
        ticket = Ticket(detail, kept)
        with torch.no_grad():
            self._take(ticket, tensor.detach())
        return ticket

    def flush(self) -> None:
        """Fill in every ticket.

        Raises:
            WriteError: A tensor could not be stored.
        """
        jobs, self._waiting, self._bytes = self._waiting, [], 0
        if jobs:
            with torch.no_grad():
                self._finish(jobs)

    def _take(self, ticket: Ticket, tensor: torch.Tensor) -> None:
        on_host, size = tensor.device.type == "cpu", byte_count(tensor)
        at_once = size > SMALL_BYTES if on_host else size > PIECE_BYTES
        checksums = lanes(tensor) if ticket.kept is not None else None
        part = tensor if ticket.kept is None else taken(tensor, ticket.kept)
        job = _Job(ticket, part, tensor.dtype, tuple(tensor.shape), ticket.kept is not None, checksums)
        if at_once and checksums is None:
            self._finish([job])
            return
        if not job.private:
            job = job._replace(tensor=_copied(tensor), private=True)
        self._waiting.append(job)
        self._bytes += byte_count(job.tensor)
        self._limit = WAITING_BYTES.get(tensor.device.type, _WAITING_BYTES_ON_DEVICES)

    def _finish(self, jobs: Sequence[_Job]) -> None:
        groups = [_enqueued(each) for each in _groups(jobs)]
        fetched = iter(to_hosts([each for group in groups for each in _results(group)]))
        later: List[Tuple[_Job, torch.Tensor]] = []
        for group in groups:
            later += self._fill(group, next(fetched), None if group.rows is None else next(fetched))
        self._keep_sketches(later)

    def _fill(self, group: _Group, checksums: torch.Tensor, sums: Optional[torch.Tensor]) -> List[Tuple[_Job, torch.Tensor]]:
        """Fill in the tickets of a group; return what is to be sketched."""
        known: Sequence[Optional[Statistics]] = [None] * len(group.jobs)
        if group.rows is not None and sums is not None:
            known = statistics.of_rows(group.rows._replace(sums=sums))
        wanted: List[Tuple[_Job, torch.Tensor]] = []
        for number, job in enumerate(group.jobs):
            ticket = job.ticket
            ticket.content = named(job.dtype, job.shape, checksums[number])
            if ticket.detail in ("statistics", "sketch"):
                ticket.statistics = known[number] or _statistics(job, group.flat[number])
            if self._whole(job):
                ticket.stored = self._store(_key(job), job)
            elif ticket.detail == "sketch" and dtype_name(_real(job.dtype)) in _FLOATS:
                wanted.append((job, group.flat[number]))
        return wanted

    def _whole(self, job: _Job) -> bool:
        """Tell whether the tensor itself is kept."""
        return job.ticket.detail == "tensors" or (job.ticket.detail == "sketch" and job.tensor.numel() <= STORED_WHOLE)

    def _store(self, key: str, job: _Job) -> bool:
        return self._writer is not None and self._writer.tensor(key, job.tensor, owned=job.private)

    def _keep_sketches(self, wanted: Iterable[Tuple[_Job, torch.Tensor]]) -> None:
        """Store the sketches and norms of rows that the dump does not have yet."""
        writer = self._writer
        if writer is None:
            return
        made: List[torch.Tensor] = []
        keys: List[Tuple[str, Optional[Cleaning]]] = []
        for job, flat in wanted:
            key = _key(job)
            if writer.stored(key + ".sketch") or any(key == other for other, _ in keys):
                continue
            clean = _cleaning(job, flat)
            keys.append((key, clean))
            made.append(sketch.sketch(flat, clean))
            made.append(sketch.row_norms(flat, sketch.row_length(job.tensor.shape, flat.numel()), clean))
        fetched = iter(to_hosts(made))
        for key, clean in keys:
            for what, found in (("sketch", sketch.added(next(fetched), clean)), ("rows", sketch.sized(next(fetched), clean))):
                if bool(torch.isfinite(found).all()):
                    writer.tensor("%s.%s" % (key, what), found, owned=True)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in C order, without a pending conjugation."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return tensor.clone(memory_format=torch.contiguous_format)


def _groups(jobs: Sequence[_Job]) -> Iterable[List[_Job]]:
    """Sort jobs by device, type and size; those with a part, and large ones, stay alone."""
    found: Dict[object, List[_Job]] = {}
    for job in jobs:
        alone = id(job) if job.checksums is not None or byte_count(job.tensor) > PIECE_BYTES else 0
        found.setdefault((job.tensor.device, job.tensor.dtype, job.tensor.numel(), alone), []).append(job)
    return found.values()


def _enqueued(jobs: List[_Job]) -> _Group:
    """Enqueue everything that can be known of a group without looking at it."""
    flat = [_flat(job) for job in jobs]
    counted = any(job.ticket.detail in ("statistics", "sketch") for job in jobs)
    floating = dtype_name(flat[0].dtype) in _FLOATS and flat[0].numel() > 0
    rows = None
    batch = flat[0].unsqueeze(0) if len(flat) == 1 else torch.stack(flat)
    if counted and floating:
        rows = statistics.in_rows(batch)
    if len(jobs) == 1:
        checksums = lanes(jobs[0].tensor) if jobs[0].checksums is None else jobs[0].checksums
        return _Group(jobs, flat, checksums.unsqueeze(0), rows)
    return _Group(jobs, flat, _batch_lanes(batch), rows)


def _batch_lanes(batch: torch.Tensor) -> torch.Tensor:
    """Return the checksums of each row of a batch, int32 ``[rows, blocks, 2]``."""
    count, length = batch.shape
    if not wraps(batch.device):
        batch = batch.cpu()
    missing = -length * batch.element_size() % 4 // batch.element_size()
    if missing:
        batch = torch.cat([batch, batch.new_zeros((count, missing))], 1)
    words = words_of(batch).view(count, -1)
    blocks = [block_lanes(words[:, start : start + BLOCK_WORDS]) for start in range(0, words.shape[1], BLOCK_WORDS)]
    return torch.stack(blocks, 1) if blocks else torch.empty((count, 0, 2), dtype=torch.int32)


def _results(group: _Group) -> List[torch.Tensor]:
    return [group.checksums] if group.rows is None else [group.checksums, group.rows.sums]


def to_hosts(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Return tensors on the CPU; all that lie on one device come in one copy."""
    found: List[torch.Tensor] = list(tensors)
    devices = {each.device for each in tensors if each.device.type != "cpu"}
    for device in devices:
        places = [place for place, each in enumerate(tensors) if each.device == device]
        words = torch.cat([tensors[place].contiguous().view(-1).view(torch.int32) for place in places]).cpu()
        start = 0
        for place in places:
            one = tensors[place]
            size = one.numel() * one.element_size() // 4
            found[place] = words[start : start + size].clone().view(one.dtype).view(one.shape)
            start += size
    return found


def _flat(job: _Job) -> torch.Tensor:
    """Return the elements in one row; the parts of complex ones one behind the other."""
    tensor = job.tensor.resolve_conj().resolve_neg()
    flat = tensor.contiguous().view(-1)
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


def _statistics(job: _Job, flat: torch.Tensor) -> Optional[Statistics]:
    """Return the statistics of one tensor, of whichever kind; waits for it."""
    if not flat.numel():
        return list(_NOTHING)
    if dtype_name(flat.dtype) in _FLOATS:
        return statistics.of_any(flat)
    return statistics.of_integers(flat) if dtype_name(job.dtype) in _WHOLE else None


def _cleaning(job: _Job, flat: torch.Tensor) -> Optional[Cleaning]:
    """Return what makes the values fit for sums, ``None`` where they are as they are."""
    found = job.ticket.statistics
    if found is None:
        return None
    clean = statistics.cleaning(flat.dtype, found[0], found[1])
    return clean if clean.exponent or any(found[4:8]) else None


def _key(job: _Job) -> str:
    """Return the key of what is kept of a tensor."""
    kept = job.ticket.kept
    return job.ticket.content if kept is None else "%s.%s" % (job.ticket.content, kept.name)


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype
