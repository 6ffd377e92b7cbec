"""Joins records of both sides, and says what is known of each pair before a tensor is read.

Records are joined by identity (module, operator, call, phase...), never by their position in the whole run: one more operator
on a side would shift all later ones.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from precflow.agent.contract import Identity
from precflow.comparison.measure import NOTHING, Measure
from precflow.dumps.dtypes import is_floating
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.paired import NAME, SEQUENCE

ABSENT = "(absent)"  # an argument that only the other side was given
A_TENSOR = "(a tensor)"  # an argument that is none on the other side
# Operators that choose elements and return which, most of them beside the chosen values.
CHOOSING = frozenset(
    "argmax argmin argsort topk sort msort max min kthvalue median nanmedian mode cummax cummin unique unique_consecutive "
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices "
    "fractional_max_pool2d fractional_max_pool2d_with_indices fractional_max_pool3d fractional_max_pool3d_with_indices "
    "searchsorted bucketize frexp histogram".split()
)
# id() of an output record -> its call: hashing a record would go through all of its fields. The dump keeps its records, so that
# no id is used twice.
CallsOfRecords = Mapping[int, Call]


@dataclass(frozen=True, slots=True)
class Pair:
    """A record of each side; ``None`` where a side has no such record, never on both.

    Attributes:
        reference: The reference's.
        target: The target's.
        in_order: A side has several records of this name, which were joined in their order.
    """

    reference: Record | None
    target: Record | None
    in_order: bool = False


def pair_records(reference: Iterable[Record], target: Iterable[Record]) -> list[Pair]:
    """Join records of both sides by identity.

    Records of one side that share an identity are joined in their order; what is left over stays unpaired.

    Args:
        reference: Records of the reference, in order.
        target: Records of the target, in order.

    Returns:
        Every record once: in the reference's order, then those that only the target has, in the target's.
    """
    waiting: dict[Identity, deque[Record]] = defaultdict(deque)
    targets = list(target)
    for record in targets:
        waiting[record.identity].append(record)
    several = {identity for identity, partners in waiting.items() if len(partners) > 1}
    pairs = []
    for record in reference:
        identity = record.identity
        partners = waiting.get(identity)
        if partners is not None and not partners:  # an earlier record of the reference took the only partner
            several.add(identity)
        pairs.append(Pair(record, partners.popleft() if partners else None))
    if several:
        pairs = [replace(pair, in_order=pair.reference is not None and pair.reference.identity in several) for pair in pairs]
    alone = {id(record) for partners in waiting.values() for record in partners}
    return pairs + [Pair(None, record) for record in targets if id(record) in alone]


def find_calls(*dumps: Dump) -> CallsOfRecords:
    """Return the call of every output record of some dumps."""
    return {id(record): call for dump in dumps for call in dump.calls() for record in call.outputs}


def describe_pair(joined: Pair, owners: CallsOfRecords, rules: Mapping[Identity, str] = MappingProxyType({})) -> Measure:
    """Return the measure of a pair, still without numbers; for an unpaired record this is all of it.

    Args:
        joined: The pair.
        owners: The calls of both records.
        rules: Identity -> the pairing rule that gave a record its name or its tensor.
    """
    left, right = joined.reference, joined.target
    if left is not None and right is not None:
        how = rules.get(left.identity, "") if rules else ""
        how = how or (SEQUENCE if joined.in_order else NAME)
        return _describe_paired(left, right, owners[id(left)], owners[id(right)], how)
    if left is not None:
        call = owners[id(left)]
        return _describe_unpaired(
            left, call, "reference", reference_dtype=left.dtype, reference_shape=left.shape, site=call.site
        )
    if right is None:
        raise ValueError("a pair has a record of one side at least")
    call = owners[id(right)]
    return _describe_unpaired(right, call, "target", target_dtype=right.dtype, target_shape=right.shape, target_site=call.site)


def _describe_unpaired(record: Record, call: Call, side: str, **facts: Any) -> Measure:
    other = "target" if side == "reference" else "reference"
    return Measure(
        **_name_record(record, call),
        join=f"unpaired_{side}",
        reason=f"only the {side} has it: the {other} ran no such call, or got no such output from it",
        movement=call.movement,
        judged=not call.movement and is_floating(record.dtype),
        # Masks and indices are made in other ways by other implementations; what a module returns is what both have to return.
        exact=not call.operator and not is_floating(record.dtype),
        **facts,
    )


def _name_record(record: Record, call: Call) -> dict[str, Any]:
    """Return the attributes of a measure that name the record and its call."""
    return {
        "record": record.text,
        "name": record.name,
        "module": call.module,
        "operator": call.operator,
        "level": call.level,
        "phase": call.phase,
        "order": call.order,
    }


def _describe_paired(left: Record, right: Record, call: Call, other: Call, how: str) -> Measure:
    movement = call.movement or other.movement
    floating = is_floating(left.dtype) or is_floating(right.dtype)
    return Measure(
        **_name_record(left, call),
        **compare_facts(left, right),
        movement=movement,
        judged=not movement and floating,
        exact=not movement and not floating and has_exact_integers(call),
        site=call.site,
        target_site=other.site,
        arguments=NOTHING if call.arguments == other.arguments else find_different_arguments(call, other),
        pairing=how,
    )


def find_different_arguments(reference: Call, target: Call) -> dict[str, tuple[str, str]]:
    """Return the arguments that are not tensors on both sides and differ, as name -> what each side gave."""
    names = {**reference.arguments, **target.arguments}
    values = {name: (_show_argument(reference, name), _show_argument(target, name)) for name in names}
    return {name: both for name, both in values.items() if both[0] != both[1]}


def _show_argument(call: Call, name: str) -> str:
    """Return an argument's text; a mask that is ``None`` on the other side may be an input here."""
    if name in call.arguments:
        return call.arguments[name]
    return A_TENSOR if any(record.index == name or record.index.startswith(f"{name}.") for record in call.inputs) else ABSENT


def has_exact_integers(call: Call) -> bool:
    """Tell whether integer and boolean outputs of a call mean the same on every device, and so have to be equal.

    A module's do, and those of an operator that returns nothing else: token ids, indices, masks. Beside floating point outputs
    they do if the operator chooses, as ``topk`` does. Otherwise they are the operator's own business, such as the state of a
    random generator that a fused attention returns.
    """
    return (
        not call.operator
        or call.operator.removeprefix("aten.") in CHOOSING
        or not any(is_floating(record.dtype) for record in call.outputs)
    )


def compare_facts(left: Record, right: Record) -> dict[str, Any]:
    """Return what follows from two records alone, as attributes of a :class:`Measure`: join, types, shapes, equal bits."""
    shapes = "" if left.shape == right.shape else f"{list(left.shape)} on the reference, {list(right.shape)} on the target"
    return {
        "join": "shape" if shapes else "paired",
        "reason": shapes,
        "reference_dtype": left.dtype,
        "target_dtype": right.dtype,
        "reference_shape": left.shape,
        "target_shape": right.shape,
        "share": left.share,
        "equal": bool(left.content) and left.content == right.content and left.dtype == right.dtype,
    }
