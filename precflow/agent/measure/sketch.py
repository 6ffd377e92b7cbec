"""Sketches: 509 sums of signed values, from two of which the norm of the difference of two tensors is estimated.

The sketch is linear, so that ``sketch(a) - sketch(b) = sketch(a - b)``, and the norm of that is the norm of ``a - b`` with an
error of ``1 / sqrt(2 * 509)``, 3.1 %. Values go round robin into a prime number of sums, each with a sign that is read from one
vector at an offset hashed from the number of the block: a row length or a period of the data falls into step with neither.
The signs are made of integers only and so are the same on every device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.measure.checksums import mix32, mix32_of
from precflow.agent.measure.scratch import host_memory
from precflow.agent.measure.statistics import wide
from precflow.agent.measure.transfer import to_hosts
from precflow.agent.measure.value_classes import Cleaning

if TYPE_CHECKING:
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.value_classes import Cleaning

SUMS = 509  # prime, so that it has no factor in common with the length of a row
BLOCK = (65536 // SUMS) * SUMS  # values that share one offset
BLOCKS_OF_STRETCH = 16
STRETCH = BLOCKS_OF_STRETCH * BLOCK  # values that are summed up at once: 4 MB
MOST_ROWS = 1024  # norms of rows that are kept
STORED_WHOLE = 1024  # elements of a tensor that is not larger than what would be kept of it
FINE_BITS = 12  # of the grid that high and low parts are split on

_OFFSETS = 1 << 20
_ROWS_OF_PIECE = 256  # that are added up in float32
_STRETCHES_KEPT = 4  # whose signs are kept: 16 MB
_AT_ONCE = 1 << 18  # values that are squared at once: they stay in the cache
_MOST_JUDGED_ROWS = 1 << 20  # beyond it the judge takes neighbouring rows for one

_signs: Dict[torch.device, torch.Tensor] = {}
_stretches: Dict[Tuple[int, torch.device], torch.Tensor] = {}


def sketch(values: torch.Tensor, clean: Optional[Cleaning] = None, *, largest: float = 0.0) -> torch.Tensor:
    """Return the sketch, ``[1, pieces, SUMS]`` or ``[2, pieces, SUMS]``, to be added up over the pieces: :func:`added`.

    Args:
        values: Floating point, ``[elements]``; a contiguous tensor.
        clean: Given where not all values are ordinary, and of a size that can be squared.
        largest: Largest magnitude of the (cleaned) values, where sums of high and low parts are to be kept apart. They hold
            differences of 3e-8 of a tensor without float64 on the device; a single float32 sum holds 3e-7.
    """
    whole = len(range(0, values.numel(), STRETCH))
    pieces = [_stretch(values[number * STRETCH : (number + 1) * STRETCH], number, clean, largest) for number in range(whole)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


def added(parts: torch.Tensor, clean: Optional[Cleaning] = None) -> torch.Tensor:
    """Return a sketch as it is stored, float32 ``[1 or 2, SUMS]`` on the host.

    Args:
        parts: What :func:`sketch` returned, on the host.
        clean: What it was given.
    """
    return sized(parts.sum(1, dtype=torch.float64), clean)


def sized(numbers: torch.Tensor, clean: Optional[Cleaning]) -> torch.Tensor:
    """Return sums or norms of cleaned values in the size of the values, as float32 on the host."""
    if clean is None or not clean.exponent:
        return numbers.to(torch.float32)
    return torch.ldexp(numbers.double(), torch.tensor(clean.exponent)).to(torch.float32)


def _stretch(some: torch.Tensor, number: int, clean: Optional[Cleaning], largest: float) -> torch.Tensor:
    """Return the sums of one stretch, ``[1 or 2, pieces, SUMS]``.

    Each half of the pieces is a half of the memory: a thread of the CPU adds up what it has multiplied, and takes nothing from
    another one's cache.
    """
    count = some.numel()
    pieces = 2 * max(1, -(-count // (2 * SUMS * _ROWS_OF_PIECE)))
    padded = _scratch(-(-count // (pieces * SUMS)) * pieces * SUMS, wide(some.dtype), some.device)
    padded[count:] = 0
    if clean is not None or some.element_size() == 1:  # float8 takes part in no arithmetic
        some = some.to(padded.dtype)
    if clean is not None:
        some = clean(some)
    torch.mul(some, _signs_of(number, some.device)[:count], out=padded[:count])
    table = padded.view(pieces, -1, SUMS)
    if not largest:
        return table.sum(1).unsqueeze(0)
    step = 2.0 ** (math.frexp(largest)[1] - FINE_BITS)
    high = (table / step).round_().mul_(step)
    return torch.stack([high.sum(1), (table - high).sum(1)])


def _scratch(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory to work in; on the CPU the same each time, for fresh pages cost more."""
    if device.type != "cpu" or dtype != torch.float32:
        return torch.empty(count, dtype=dtype, device=device)
    return host_memory("signed values", (count,), torch.float32, STRETCH + 2 * _ROWS_OF_PIECE * SUMS)


def _signs_of(number: int, device: torch.device) -> torch.Tensor:
    """Return the signs of the values of a stretch, float32 ``[STRETCH]``; made once for the first ones of a tensor."""
    key = (number, device)
    known = _stretches.get(key)
    if known is None:
        signs = _signs_on(device)
        offsets = [mix32_of(number * BLOCKS_OF_STRETCH + block) % _OFFSETS for block in range(BLOCKS_OF_STRETCH)]
        with torch.inference_mode(mode=False):
            known = torch.cat([signs[offset : offset + BLOCK] for offset in offsets])
        if number < _STRETCHES_KEPT:
            _stretches[key] = known
    return known


def _signs_on(device: torch.device) -> torch.Tensor:
    """Return the vector that signs are read from, float32, made once a device: 4 MB."""
    if device not in _signs:
        with torch.inference_mode(mode=False):
            bits = mix32(torch.arange(_OFFSETS + BLOCK, dtype=torch.int32)) & 1
            _signs[device] = (1 - 2 * bits).to(torch.float32).to(device)
    return _signs[device]


def row_length(shape: Sequence[int], count: int) -> int:
    """Return how many values one norm speaks of: a row is the last axis; neighbours share a norm beyond ``MOST_ROWS``.

    Args:
        shape: Of the tensor.
        count: Its values; of a complex tensor there are two an element.

    >>> row_length([3, 77, 768], 3 * 77 * 768), row_length([2048, 4], 2048 * 4), row_length([5], 5)
    (768, 8, 5)
    """
    size = math.prod(shape)
    length = max(shape[-1] if len(shape) > 1 else size, 1)
    length *= max(1, -(-size // (length * _MOST_JUDGED_ROWS)))
    length *= max(1, count // max(1, size))
    return length * max(1, -(-count // (length * MOST_ROWS)))


def row_norms(values: torch.Tensor, length: int, clean: Optional[Cleaning] = None) -> torch.Tensor:
    """Return the norms of rows of ``length``, the last of which may be shorter; float32, or float64 of float64 values.

    Args:
        values: Floating point, ``[elements]``; a contiguous tensor.
        length: Of a row.
        clean: Given where not all values are ordinary, and of a size that can be squared.
    """
    whole = values.numel() // length * length
    parts: List[torch.Tensor] = []
    if whole:
        rows = values[:whole].view(-1, length)
        step = max(1, _AT_ONCE // length)
        parts += [_norms(rows[start : start + step], clean) for start in range(0, rows.shape[0], step)]
    if whole < values.numel():
        parts.append(_norms(values[whole:].view(1, -1), clean))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def joined(norms: torch.Tensor, number: int) -> torch.Tensor:
    """Return the norms of rows of which each is ``number`` of these."""
    return norms if number == 1 else (norms.view(-1, number).double() ** 2).sum(1).sqrt()


def _norms(rows: torch.Tensor, clean: Optional[Cleaning]) -> torch.Tensor:
    """Return the norm of each row, long ones in pieces."""
    squares = [_squares(rows[:, start : start + _AT_ONCE], clean) for start in range(0, rows.shape[1], _AT_ONCE)]
    whole = squares[0] if len(squares) == 1 else torch.stack(squares, 1).sum(1)
    return whole.sqrt()


def _squares(rows: torch.Tensor, clean: Optional[Cleaning]) -> torch.Tensor:
    rows = rows.to(wide(rows.dtype))
    if clean is not None:
        rows = clean(rows)
    return (rows * rows).sum(1)


# Sketches on their way into a dump: those of all tensors of a flush are finished together, with one copy to the host.


class _Gathered(NamedTuple):
    """What :func:`sketch.make_sketch` gave for a tensor, the norms of its rows, and what its values were cleaned with."""

    parts: torch.Tensor
    rows: torch.Tensor
    clean: Optional[Cleaning]


class Sketches:
    """Gathers sketches until the next flush.

    Args:
        writer: Where they go; ``None`` keeps none.
    """

    def __init__(self, writer: Optional[Writer]) -> None:
        self._writer = writer
        self._gathered: Dict[str, _Gathered] = {}

    def lacks(self, key: str) -> bool:
        """Tell whether a sketch of this content, or part of it, is still to be made."""
        return self._writer is not None and key not in self._gathered and not self._writer.stored(key + ".sketch")

    def add(self, key: str, parts: torch.Tensor, rows: torch.Tensor, clean: Optional[Cleaning] = None) -> None:
        """Take a sketch that the dump lacks.

        Args:
            key: Content id, with the name of a part behind it where it is not the whole content.
            parts: What :func:`sketch.make_sketch` returned, on any device.
            rows: Norms of the rows.
            clean: What both were given.
        """
        self._gathered[key] = _Gathered(parts, rows, clean)

    def store(self) -> None:
        """Write all that is gathered, where it can be held in float32.

        Raises:
            WriteError: They could not be stored.
        """
        gathered, self._gathered = self._gathered, {}
        writer = self._writer
        if not gathered or writer is None:
            return
        hosts = to_hosts([each for one in gathered.values() for each in (one.parts, one.rows)])
        pairs = zip(gathered.values(), hosts[::2], hosts[1::2])
        finished = _added([_Gathered(parts, rows, one.clean) for one, parts, rows in pairs])
        for (key, one), sums, rows in zip(gathered.items(), finished, hosts[1::2]):
            for what, found in (("sketch", sums), ("rows", sized(rows, one.clean))):
                if math.isfinite(found.sum(dtype=torch.float64).item()):
                    writer.tensor("%s.%s" % (key, what), found, owned=True)


def _added(gathered: List[_Gathered]) -> List[torch.Tensor]:
    """Return each sketch as it is stored; those of one form are added up together."""
    alike: Dict[Tuple[object, ...], List[int]] = {}
    for place, one in enumerate(gathered):
        alone = place if one.clean is not None and one.clean.exponent else -1
        alike.setdefault((one.parts.shape, one.parts.dtype, alone), []).append(place)
    found: Dict[int, torch.Tensor] = {}
    for places in alike.values():
        if len(places) == 1:
            found[places[0]] = added(gathered[places[0]].parts, gathered[places[0]].clean)
        else:
            together = torch.stack([gathered[place].parts for place in places]).sum(2, dtype=torch.float64).to(torch.float32)
            found.update(zip(places, together.unbind(0)))
    return [found[place] for place in range(len(gathered))]
