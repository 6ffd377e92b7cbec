"""A record and a call as the judge sees them: what one tensor was, and which call it belonged to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precflow.agent.contract import Identity, identity_text, module_text


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor of one call.

    Attributes:
        identity: Who it is, the same on every side.
        order: Number of the call in its step, in order of completion.
        dtype: Name of the stored element type, such as ``bfloat16``.
        shape: Sizes.
        content: Content id (see ``docs/record-identity.md``).
        stored: A shard of the dump holds the tensor.
        source: ``(order, index)`` of the call whose output this is; ``None`` from outside.
        weight: Name of the parameter or buffer, or ``""``.
    """

    identity: Identity
    order: int
    dtype: str
    shape: tuple[int, ...]
    content: str
    stored: bool
    source: tuple[int, str] | None
    weight: str

    @property
    def text(self) -> str:
        """The identity as one line of text."""
        return identity_text(self.identity)


@dataclass(frozen=True, slots=True)
class Call:
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

    @property
    def name(self) -> str:
        """``module / operator``, as screens show it; the module alone for module calls."""
        place = module_text(self.module, self.call)
        return f"{place} / {self.operator}" if self.operator else place
