"""Tensors that are not what their maker returned: something that is not recorded wrote to them in between.

An agent knows which call made a tensor by its memory, and that memory was written to by torch's counter of in-place writes.
Collectives in place (``all_reduce``), kernels of other libraries and NumPy write without being counted: the record of whoever
takes the tensor then names its maker, and has another content. One dump shows that by itself, free of any noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precflow.diagnosis.edges import Place, key_of
from precflow.dumps.records import Call, Record

Outputs = Mapping[Place, tuple[Call, Record]]


@dataclass(frozen=True)
class Change:
    """A tensor that changed on its way to a call.

    Attributes:
        record: What arrived, or what a module returned.
        maker: The call that made it, by name.
        site: Where that was called, ``""`` where unknown.
    """

    record: Record
    maker: str
    site: str

    @property
    def text(self) -> str:
        """Which tensor, who made it, and the innermost line of where."""
        what, line = f"{self.record.whose.role} {self.record.index}", self.site.partition(" <- ")[0]
        return f"{what} after {self.maker} returned it{f' ({line})' if line else ''}"


def outputs_of(calls: Iterable[Call]) -> Outputs:
    """Return every output of a dump by its place."""
    return {(key_of(call), record.index): (call, record) for call in calls for record in call.outputs}


def change(record: Record, outputs: Outputs) -> Change | None:
    """Return how a record differs from the output that it is; ``None`` where it does not, or nothing tells.

    Args:
        record: Of a call in the same dump.
        outputs: All outputs of the dump.
    """
    if record.source is None or record.weight or _is_transposable(record.shape):
        return None
    identity = record.identity
    found = outputs.get(((identity.rank, identity.step, record.source[0]), record.source[1]))
    if found is None:
        return None
    call, made = found
    alike = (made.dtype, made.shape, made.part) == (record.dtype, record.shape, record.part)
    if not alike or _equal(made, record):
        return None
    return Change(record, call.name, call.site)


def _equal(one: Record, other: Record) -> bool:
    """Tell whether two records have the same bits, as far as what was kept tells."""
    if one.content and other.content:
        return one.content == other.content
    return not (one.mark and other.mark) or one.mark == other.mark


def _is_transposable(shape: tuple[int, ...]) -> bool:
    """Tell whether a transposed view, which is no call where it is an attribute (``x.T``), has the same shape."""
    return len(shape) > 1 and (shape == shape[::-1] or shape[-1] == shape[-2])
