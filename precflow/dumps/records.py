"""A record and a call as the judge sees them: what one tensor was, and which call it belonged to.

They are frozen values like dataclasses, but of msgspec: a dump has up to millions, and a frozen dataclass takes ten times as
long to make. Numbers are ``int`` where the file has an integer, so that sums of integer tensors stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from precflow.agent.contract import Identity, identity_text, module_text

LARGEST_SUM = 10**300  # of integers; a float64 holds no larger ones, and none is added up from a tensor

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Statistics(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What an agent counted and added up of one tensor, in the order of ``contract.STATISTICS``.

    The first four are over ordinary elements (neither mask fill, NaN nor infinite), ``None`` where there are none.

    Attributes:
        minimum: Smallest.
        maximum: Largest.
        sum: Their sum.
        square: Sum of their squares.
        nan: How many elements are NaN.
        positive_infinity: How many are +inf.
        negative_infinity: How many are -inf.
        sentinel: How many are mask fills.
        zero: How many are 0; ``None`` where the agent did not count them.
        saturated: How many have the largest finite magnitude of their type.
        high: How many of the mask fills are at the upper end; ``None`` where the agent did not tell them apart.
        places: Checksum of where elements stand that are not ordinary; ``None`` where it was not taken.
        fill: The constant that all mask fills are of, as rounded to the type; ``None`` where there are none, or of several.
        spread: Largest distance of a fill from it.
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

    def __post_init__(self) -> None:
        """Refuse integers that no float holds, which JSON can have."""
        for number in (self.minimum, self.maximum, self.sum, self.square):
            if type(number) is int and not -LARGEST_SUM < number < LARGEST_SUM:
                raise ValueError("a sum has more than 300 digits")

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or infinite."""
        return self.nan + self.positive_infinity + self.negative_infinity


class CallRole(NamedTuple):
    """What all records of a call that went in, or all that came out, have in common; they share it.

    All but ``order`` is as in an ``Identity``, which says it of one record.

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
        whose: Which call and role it belongs to.
        index: Path of the tensor in what went in or came out.
        dtype: Name of the stored element type, such as ``bfloat16``.
        shape: Sizes.
        content: Content id (see ``docs/record-identity.md``); ``""`` where there are no plain bytes, or only statistics.
        stored: A shard of the dump holds the tensor.
        source: ``(order, index)`` of the call whose output this is; ``None`` from outside.
        weight: Name of the parameter or buffer, or ``""``.
        statistics: What was counted and added up, where the dump's detail has it.
        share: Share of the elements that was kept (stored, sketched or counted); below 1 for slices and samples.
        part: Name of the way in which that part was taken, ``""`` for the whole tensor.
        mark: Where only statistics were kept: checksum of the sums that they were made of.
        row_norms: Where the norms of its rows lie among those of a flush: key, first place, number; ``None`` where they have an
            entry of their own, or none were kept.
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
        """Return the record of an identity.

        Args:
            identity: Who it is.
            order: Number of the call in its step.
            tensor: What its tensor is: the attributes from ``dtype`` on, in order.
            facts: Attributes by name.
        """
        module, call, operator, ordinal, phase, role, index, step, rank = identity
        return cls(CallRole(module, call, operator, ordinal, phase, role, step, rank, order), index, *tensor, **facts)

    @property
    def identity(self) -> Identity:
        """Who it is, the same on every side; made when it is asked for, which few records of a large dump are."""
        module, call, operator, ordinal, phase, role, step, rank, _ = self.whose
        return Identity(module, call, operator, ordinal, phase, role, self.index, step, rank)

    @property
    def order(self) -> int:
        """Number of the call in its step, in order of completion."""
        return self.whose.order

    @property
    def known(self) -> str:
        """What records of equal bits have in common within one dump: the content id, or the mark."""
        return self.content or self.mark

    @property
    def key(self) -> str:
        """The key of what a shard stores of it: the content id (or the mark), and the part where it is one."""
        return f"{self.known}.{self.part}" if self.part else self.known

    @property
    def text(self) -> str:
        """The identity as one line of text."""
        return identity_text(self.identity)


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call of a module or an operator, with its tensors.

    Attributes:
        order: Number in its step, in order of completion.
        level: ``module``, ``api`` or ``operator``.
        module: Qualified name of the innermost running module.
        class_name: Class of that module.
        call: How often the module was entered before.
        operator: Canonical operator name, ``""`` for the module itself.
        ordinal: How often this operator ran before in this module call.
        phase: ``forward``...
        step: From 0.
        rank: From 0.
        site: Where it was called, ``file:line in function <- ...``; ``""`` where unknown.
        movement: The operator only moves values.
        compiled: The module is compiled; its inside was not recorded.
        arguments: Arguments that are not tensors, as ``repr``.
        inputs: Records that went in.
        outputs: Records that came out.
        forward: For what runs inside backward: the orders of the forward calls that made it, where they are known.
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
        """``module / operator``, as screens show it; the module alone for module calls; with the phase where not forward."""
        place = module_text(self.module, self.call)
        shown = f"{place} / {self.operator}" if self.operator else place
        return shown if self.phase == "forward" else f"{shown} ({self.phase})"
