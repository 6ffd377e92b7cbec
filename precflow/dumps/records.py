"""The judge's view of calls and records: a call of a module or operator, and what is known of each of its tensors.

These are frozen values, but of msgspec: a dump has up to millions of them, and a frozen dataclass takes ten times as long to
create. ``gc=False`` hides them from the garbage collector, which is safe because none refers back to itself. Numbers are
``int`` where the file has an integer, so that sums of integer tensors stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from precflow.agent.contract import Identity, identity_text
from precflow.dumps.record_names import name_call, name_place, name_record

LARGEST_SUM = 10**300  # of integers: float64 ends at 1.8e308, and no tensor has a sum near it

# Bounds for numbers of a file that may be damaged or made up: each fits into an int64, and a shape has few dimensions.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Statistics(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Counts and sums of the elements of one tensor, in the order of ``contract.STATISTICS``.

    The first four are over ordinary elements (neither mask fill, NaN nor infinite), and ``None`` if there are none.

    Attributes:
        minimum: Smallest.
        maximum: Largest.
        sum: Their sum.
        square: Sum of their squares.
        nan: Number of elements that are NaN.
        positive_infinity: Number of +inf.
        negative_infinity: Number of -inf.
        sentinel: Number of mask fills, such as the -1e9 of an attention mask.
        zero: Number of zeros; ``None`` if the agent did not count them.
        saturated: Number of elements with the largest finite magnitude of their type.
        high: Number of mask fills that are positive; ``None`` if the agent did not count them separately.
        places: Checksum of the positions of elements that are not ordinary; ``None`` if the agent did not compute it.
        fill: The one constant of all mask fills, rounded to the type; ``None`` if there are none, or of several constants.
        spread: Largest distance of a mask fill from ``fill``.
        rounding: Of statistics that another tool made: error of ``sum`` and of the norm, relative to the norm. The counts then
            say only whether there are such elements (1) or not (0), and mask fills are among the ordinary ones. ``None``: ours.
    """

    minimum: int | float | None
    maximum: int | float | None
    sum: int | float | None
    square: int | float | None
    nan: Count
    positive_infinity: Count
    negative_infinity: Count
    sentinel: Count
    zero: Count | None
    saturated: Count
    high: Count | None = None
    places: Count | None = None
    fill: float | None = None
    spread: float | None = None
    rounding: float | None = None

    def __post_init__(self) -> None:
        """Refuse integers that are too large for a float: JSON allows any number of digits."""
        for number in (self.minimum, self.maximum, self.sum, self.square):
            if type(number) is int and not -LARGEST_SUM < number < LARGEST_SUM:
                raise ValueError("a sum has more than 300 digits")

    @property
    def nonfinite(self) -> int:
        """Number of elements that are NaN or infinite."""
        return self.nan + self.positive_infinity + self.negative_infinity


class CallRole(NamedTuple):
    """The call that a record belongs to, and whether the record is an input or an output of it.

    All inputs of a call share one such value, and so do all outputs, which saves memory. Apart from ``order``, the fields are
    those of ``Identity``.

    Attributes:
        order: Number of the call in its step, in order of completion.
    """

    module: str
    call: int
    operator: str
    ordinal: int
    phase: str
    role: str
    step: int
    rank: int
    order: int


class Record(msgspec.Struct, frozen=True, gc=False):
    """One tensor of one call.

    Attributes:
        whose: Its call, and whether it is an input or an output.
        index: Path of the tensor in the nested arguments or outputs, such as ``0`` or ``last_hidden_state``.
        dtype: Name of the element type, such as ``bfloat16``.
        shape: Sizes.
        content: Content id (see ``docs/record-identity.md``); ``""`` if the tensor has no plain bytes or only statistics were
            kept.
        stored: A shard of the dump holds the tensor, or the part that was kept.
        source: ``(order, index)`` of the call whose output this tensor is; ``None`` if no recorded call made it.
        weight: Name of the parameter or buffer; ``""`` if it is neither.
        statistics: Counts and sums; ``None`` if the dump's detail does not include them.
        share: Share of the elements that was kept (stored, sketched or counted); below 1 for slices and samples.
        part: Name of the slice or sample that was kept; ``""`` for the whole tensor.
        mark: Stands in for the content id if only statistics were kept: a checksum of the sums that they were made of.
        row_norms: ``(key, first, count)``: the norms of its rows are this slice of an array that many records share. ``None``
            if they are stored under a key of their own, or not at all.
    """

    whose: CallRole
    index: str
    dtype: str
    shape: Shape
    content: str
    stored: bool
    source: tuple[Count, str] | None
    weight: str
    statistics: Statistics | None = None
    share: Share = 1.0
    part: str = ""
    mark: str = ""
    row_norms: tuple[str, Count, Count] | None = None

    @classmethod
    def of(cls, identity: Identity, order: int, *tensor: Any, **facts: Any) -> Record:
        """Return a record with a given identity.

        Args:
            identity: The identity.
            order: Number of the call in its step.
            tensor: The attributes from ``dtype`` on, in order.
            facts: Further attributes by name.
        """
        module, call, operator, ordinal, phase, role, index, step, rank = identity
        return cls(CallRole(module, call, operator, ordinal, phase, role, step, rank, order), index, *tensor, **facts)

    @property
    def identity(self) -> Identity:
        """The identity, which is the same on every side; created on access, because most records are never asked for it."""
        module, call, operator, ordinal, phase, role, step, rank, _ = self.whose
        return Identity(module, call, operator, ordinal, phase, role, self.index, step, rank)

    @property
    def order(self) -> int:
        """Number of the call in its step, in order of completion."""
        return self.whose.order

    @property
    def known(self) -> str:
        """The content id, or the mark without one: within one dump, records of equal bits have the same."""
        return self.content or self.mark

    @property
    def key(self) -> str:
        """The key under which a shard stores the tensor: content id or mark, followed by the name of the part, if any."""
        return f"{self.known}.{self.part}" if self.part else self.known

    @property
    def text(self) -> str:
        """The identity as one line of text."""
        return identity_text(self.identity)

    @property
    def name(self) -> str:
        """The name shown to users (``record_names.name_record``)."""
        return name_record(self.identity)


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call of a module or an operator, with its tensors.

    Attributes:
        order: Number in its step, in order of completion.
        level: ``module``, ``api`` or ``operator``.
        module: Qualified name of the innermost running module.
        class_name: Class of that module.
        call: How often the module was entered before.
        operator: Canonical operator name; ``""`` for the module itself.
        ordinal: How often this operator ran before in this module call.
        phase: ``forward``, ``backward``, ``gradient`` or ``optimizer``.
        step: Step of the run, from 0.
        rank: Rank of the process, from 0.
        site: Line of the source that called it, ``file:line in function <- ...``; ``""`` if unknown.
        movement: The operator only moves values, such as a transpose.
        compiled: The module is compiled, so what ran inside it was not recorded.
        arguments: Arguments that are not tensors, as ``repr``.
        inputs: Records of its input tensors.
        outputs: Records of its output tensors.
        forward: For a call of the backward pass: ``order`` of the forward calls whose gradient it computes, if known.
    """

    order: int
    level: str
    module: str
    class_name: str
    call: int
    operator: str
    ordinal: int
    phase: str
    step: int
    rank: int
    site: str
    movement: bool
    compiled: bool
    arguments: Mapping[str, str]
    inputs: tuple[Record, ...]
    outputs: tuple[Record, ...]
    forward: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name shown to users (``record_names.name_call``)."""
        index = self.outputs[0].index if self.outputs else ""
        return name_call(
            Identity(self.module, self.call, self.operator, self.ordinal, self.phase, "output", index, self.step, self.rank)
        )

    @property
    def place(self) -> str:
        """``module / operator``, or only the module: the name without number, phase, step and rank."""
        return name_place(self.module, self.call, self.operator)
