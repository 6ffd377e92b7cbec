"""Parameters that one side trains and the other does not: frozen, unknown to the optimizer, or with an update that is lost.

A weight that does not move leaves no record of its own that fails: the forward of the next step is the first to show it, on
all that reads the weight. So what moved is a fact of each dump (``updates`` of its header), taken whatever is recorded. A
weight *stands still* on a side if not a bit of it moves there, and by at least a unit in the last place on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from precflow.agent.contract import (
    BACKWARD,
    FORWARD,
    GRADIENT,
    OPTIMIZER,
    OUTPUT,
    Identity,
    identity_text,
    join_names,
    parse_identity,
)
from precflow.comparison.measure import Measure
from precflow.diagnosis.evidence.overflows.overflow import trace_sides
from precflow.diagnosis.evidence.overflows.skipped_steps import find_skipped_steps, list_noted
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.training.gradient_changes import find_gradient_changes
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.dumps.header import Header, ParameterUpdates
from precflow.dumps.protocol import Dump
from precflow.dumps.record_names import name_call
from precflow.dumps.records import Call

FROZEN, NOT_HELD, NO_GRADIENT, ROUNDED, LOST = "frozen", "not held", "no gradient", "rounded", "lost"
WORDS: Mapping[str, str] = {
    FROZEN: "frozen on the {side} (requires_grad is False)",
    NOT_HELD: "in no optimizer that steps on the {side}",
    NO_GRADIENT: "without a gradient when the {side}'s optimizer steps",
    ROUNDED: "rounded away on the {side}, where the update is less than half a unit of {dtype}",
    LOST: "lost on the {side}: the update does not reach it",
}
"""Why a weight stands still on a side -> the same in words."""
_AFTER_ALL = 1 << 60  # order of a step of the optimizer that the reference did not record: behind all calls of its step

EVIDENCE = {
    "still": Evidence(
        "not updated on one side",
        "Which parameters, or tensors of the optimizer's state, move on one side only, and why; absent if none does.",
    ),
    "still_why": Evidence("why it is not updated", "frozen, not held, no gradient, rounded or lost."),
    "still_state": Evidence(
        "tensor of the state that stands still", "Though its weight moves; empty where the weight itself stands still."
    ),
    "still_side": Evidence("it stands still on", "reference or target."),
    "still_where": Evidence("step that moves nothing", "The optimizer's step of the first of them, as records are named."),
    "still_parameters": Evidence("they stand still", "Parameters of the earliest step, all for the same reason."),
    "still_states": Evidence("so does the state", "Tensors of the optimizer's state that one side alone changes."),
    "still_starts": Evidence("the error starts there", "Nothing fails before the update that is missing."),
}


@dataclass(frozen=True)
class StillParameter:
    """A parameter, or a tensor of its optimizer's state, that moves on one side only.

    Attributes:
        parameter: Name of the parameter, ``blocks.0.weight``.
        rank: Rank of the process.
        step: First step in which it stands still.
        side: Side on which it does.
        why: A key of ``WORDS``.
        state: Tensor of the state that stands still though its weight moves; ``""`` for the weight itself.
        dtype: Element type of the weight on that side.
    """

    parameter: str
    rank: int
    step: int
    side: str
    why: str
    state: str = ""
    dtype: str = ""

    @property
    def name(self) -> str:
        """The weight, or the tensor of its state."""
        return f"{self.parameter}.{self.state}" if self.state else self.parameter

    @property
    def reason(self) -> str:
        """Why it stands still, in words."""
        return WORDS[self.why].format(side=self.side, dtype=self.dtype)

    @property
    def record(self) -> str:
        """Identity text of the record that the optimizer's step has, or would have."""
        module, _, index = self.parameter.rpartition(".")
        index = f"{index}.{self.state}" if self.state else index
        return identity_text(Identity(module, 0, "", 0, OPTIMIZER, OUTPUT, index, self.step, self.rank))


def find_still_parameters(reference: Dump, target: Dump, measures: Sequence[Measure]) -> list[StillParameter]:
    """Return what moves on one side only, those of the earliest step first, in the reference's order.

    A parameter whose module did not run in that step on that side, such as an expert that nothing was sent to, follows from
    what decided so and is left out. So is a step that a loss scaler skips. Where a rank makes fewer steps of as many
    micro batches, its steps are other iterations behind the one that it leaves out: a gradient that is missing says nothing.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        measures: All pairs; they tell where gradients are not finite.
    """
    here, there = reference.header.updates, target.header.updates
    names = [name for name in here if name in there]
    last = min((step for updates in (here, there) for step in [_find_last(updates)]), default=-1)
    found = []
    for name in names:
        for still, moving, side in ((there[name], here[name], "target"), (here[name], there[name], "reference")):
            one = _find_first(name, still, moving, side, last=last)
            found += [one] if one is not None else _find_still_state(name, still, moving, side)
    if not found:
        return []
    runs = {"reference": _list_running(reference), "target": _list_running(target)}
    skipped = find_skipped_steps(
        *trace_sides(reference, target, measures), noted=(list_noted(reference.header), list_noted(target.header))
    )
    left_out = {"reference": skipped.reference, "target": skipped.target}
    fewer_steps = {
        "reference": _list_fewer_steps(reference.header, target.header),
        "target": _list_fewer_steps(target.header, reference.header),
    }

    def is_own(one: StillParameter) -> bool:
        """Tell whether a parameter stands still by itself: its module ran, and the whole step was not skipped."""
        place = (one.parameter.rpartition(".")[0], one.step, one.rank)
        ran = place in runs[one.side] or place not in runs[_other(one.side)]
        if one.why == NO_GRADIENT and one.rank in fewer_steps[one.side]:
            return False
        return ran and (one.rank, one.step) not in left_out[one.side]

    return sorted(filter(is_own, found), key=lambda one: one.step)


def keep_whatever_data(found: Sequence[StillParameter]) -> list[StillParameter]:
    """Return those that stand still for a reason that no other batch and no other weight gives: they are told in any run."""
    return [one for one in found if one.why in {FROZEN, NOT_HELD, ROUNDED}]


def describe_still(found: Sequence[StillParameter]) -> dict[str, list[str]]:
    """Return a sentence for those of the earliest step, by side and reason, and the records of the optimizer that it is about.

    >>> one = StillParameter("head.weight", 0, 0, "target", "not held")
    >>> list(describe_still([one]))
    ['head.weight moves on the reference only, from step 0 on: in no optimizer that steps on the target']
    """
    return {_describe_group(group): [one.record for one in group] for group in group_still(found)}


def _describe_group(group: Sequence[StillParameter]) -> str:
    first = group[0]
    kind = "tensors of the optimizer's state" if first.state else "parameters"
    subject = f"{_name(first)} moves" if len(group) == 1 else f"{len(group)} {kind}, first {_name(first)}, move"
    return f"{subject} on the {_other(first.side)} only, from step {first.step} on: {first.reason}"


def _other(side: str) -> str:
    return "target" if side == "reference" else "reference"


def group_still(found: Sequence[StillParameter]) -> list[list[StillParameter]]:
    """Return those that stand still from the earliest step on, on one side and for one reason each; weights before states."""
    groups: dict[tuple[bool, str, str], list[StillParameter]] = {}
    for one in found:
        if one.step == found[0].step:
            groups.setdefault((bool(one.state), one.side, one.why), []).append(one)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def blame_still(
    region: Region, found: Sequence[StillParameter], calls: Sequence[Call], *, kept: Collection[str] = ()
) -> Region:
    """Return a region that begins at the update of weights that stand still, where nothing fails before it.

    Suspects of later steps follow from these weights and are left out. Where a side trains fewer parameters, so do the steps of
    all others: their gradients are clipped by another norm. So what the script computes of gradients comes behind.

    Args:
        region: The region by first divergence.
        found: What stands still.
        calls: Calls of the reference.
        kept: Records of suspects that are wrong by themselves, at their own inputs. Gradients that are never cleared are, too.
    """
    if not found:
        return region
    step, rank = found[0].step, found[0].rank
    still = [one for group in group_still(found) for one in group if not one.state or not _has_weights(found)]
    records = {one.record for one in still}
    before: list[Suspect] = []
    behind: list[Suspect] = []
    has_fewer = still[0].why in {FROZEN, NO_GRADIENT}
    changed = {record.text for call in find_gradient_changes(calls) for record in call.outputs} if has_fewer else set()
    own = {(one.parameter, one.rank) for one in still} if has_fewer else set()
    for suspect in region.suspects:
        identity = parse_identity(suspect.record)
        is_behind = identity.step > step or (identity.step == step and identity.phase == OPTIMIZER)
        is_own = identity.phase == GRADIENT and (join_names(identity.module, identity.index), identity.rank) in own
        is_later = suspect.record in changed or is_own  # behind the update that is missing, and not dropped
        follows = identity.step > step or (is_behind and still[0].why in {FROZEN, NOT_HELD, NO_GRADIENT})
        if suspect.record in records or (follows and (suspect.record not in kept or _is_uncleared(identity, found))):
            continue
        (behind if is_behind or is_later else before).append(suspect)
    orders = {record.text: call for call in calls if call.phase == OPTIMIZER for record in call.outputs}
    first = still[0]
    suspect = _suspect(first, orders.get(first.record), len(still))
    suspects = (*before, suspect, *behind)
    left_out = {one.record for one in region.suspects} - {one.record for one in suspects}
    roles = {
        record: "inherits" if role == "introduces" and record in left_out else role
        for record, role in (region.roles or {}).items()
    }
    note = f"what stands still on rank {rank}" if rank else "what stands still"
    dropped = len(left_out - records)
    notes = [f"{dropped} calls that differ later follow from {note} in step {step}"] if dropped else []
    roles |= dict.fromkeys(records & roles.keys(), "introduces")
    return replace(region, start=suspects[0].name, suspects=suspects, roles=roles, notes=(*notes, *region.notes))


def _is_uncleared(gradient: Identity, found: Sequence[StillParameter]) -> bool:
    """Tell whether a gradient is that of a parameter that no optimizer holds since an earlier step.

    An optimizer clears what it holds: on that side each step's gradient is added to those before it, and is wrong by itself.
    """
    return gradient.phase == GRADIENT and any(
        one.why == NOT_HELD
        and one.step < gradient.step
        and (one.parameter, one.rank) == (join_names(gradient.module, gradient.index), gradient.rank)
        for one in found
    )


def gather_still(found: Sequence[StillParameter], region: Region) -> dict[str, Any]:
    """Return the evidence about parameters that stand still, by the names of ``names.EVIDENCE``; nothing without any."""
    if not found:
        return {}
    first = group_still(found)[0]
    start = region.suspects[0].record if region.suspects else ""
    return {
        "still": list(describe_still(found)),
        "still_why": first[0].why,
        "still_state": first[0].state,
        "still_side": first[0].side,
        "still_where": name_call(parse_identity(first[0].record)),
        "still_parameters": [_name(one) for one in first],
        "still_states": [_name(one) for one in found if one.state],
        "still_starts": start in {one.record for one in first},
    }


def explain_missing(found: Sequence[StillParameter]) -> Callable[[str], bool]:
    """Return what tells whether a record is missing on one side because that does not train its parameter.

    Where parameters are frozen, gradients are not computed back to them either.

    >>> is_explained = explain_missing([StillParameter("emb.weight", 0, 0, "target", "frozen")])
    >>> [is_explained(f"{name}.output.weight") for name in ("emb/gradient", "head/gradient", "head/backward")]
    [True, False, True]
    """
    weights = {(one.parameter, one.rank) for one in found if not one.state}
    some_frozen = any(one.why == FROZEN for one in found)

    def is_explained(record: str) -> bool:
        """Tell whether a record is missing because of these parameters."""
        identity = parse_identity(record)
        name = identity.index.partition(".")[0] if identity.phase == OPTIMIZER else identity.index
        is_own = (join_names(identity.module, name), identity.rank) in weights
        return (identity.phase == BACKWARD and some_frozen) or (identity.phase in {GRADIENT, OPTIMIZER} and is_own)

    return is_explained


def _find_last(updates: Mapping[str, ParameterUpdates]) -> int:
    """Return the last step in which an optimizer stepped anything; -1 without any."""
    return max((last for one in updates.values() for _, last in one.given), default=-1)


def _find_first(name: str, still: ParameterUpdates, moving: ParameterUpdates, side: str, *, last: int) -> StillParameter | None:
    """Return the first step in which a weight stands still on a side and not on the other; ``None`` without one."""
    rank, parameter = _read_name(name)
    smallest = 2.0 ** -float_facts(moving.dtype).digits if moving.dtype in FLOATS else 0.0
    # A weight that never moves in all recorded steps, though each of them may move the other side's by little.
    never = not still.moved_in_all and not any(still.moved.values()) and moving.moved_in_all >= smallest > 0.0
    steps = [
        step
        for step in sorted(still.moved.keys() & moving.moved.keys())
        if not still.moved[step] and (moving.moved[step] >= smallest or (never and moving.moved[step]))
    ]
    given = sorted({*_list_steps(moving)} - {*_list_steps(still)})
    both_step = moving.given and still.given  # and not the optimizer of one side alone, or of a framework's own kind
    unrecorded = [step for step in given if both_step and step <= last and step not in still.moved]
    if not smallest or not (steps or unrecorded):
        return None
    step = min((*steps, *unrecorded))
    amount = moving.moved.get(step, 0.0)
    if moving.trained and not still.trained:
        why = FROZEN
    elif moving.held and not still.held:
        why = NOT_HELD
    elif step in given:
        why = NO_GRADIENT
    elif still.dtype in FLOATS and still.dtype != moving.dtype and amount < 2.0 ** -float_facts(still.dtype).digits:
        why = ROUNDED
    else:
        why = LOST
    return StillParameter(parameter, rank, step, side, why, dtype=still.dtype)


def _find_still_state(name: str, still: ParameterUpdates, moving: ParameterUpdates, side: str) -> list[StillParameter]:
    rank, parameter = _read_name(name)
    found = []
    for key, steps in moving.state.items():
        # All steps: rounding may leave a small change out in one of them.
        shared = [step for step in steps if step in still.moved and step in _list_steps(still)]
        if key in still.state and shared and not set(shared) & set(still.state[key]):
            found.append(StillParameter(parameter, rank, min(shared), side, LOST, key, still.dtype))
    return found


def _list_steps(updates: ParameterUpdates) -> list[int]:
    return list(chain.from_iterable(range(first, last + 1) for first, last in updates.given))


def _list_fewer_steps(header: Header, other: Header) -> set[int]:
    """Return the ranks that run all of their micro batches in fewer steps than on the other side."""
    pairs = enumerate(zip(header.ran, other.ran, strict=False))
    return {rank for rank, (own, there) in pairs if own.steps < there.steps and own.micro_batches >= there.micro_batches > 0}


def _list_running(dump: Dump) -> set[tuple[str, int, int]]:
    return {(call.module, call.step, call.rank) for call in dump.calls() if call.phase == FORWARD and not call.operator}


def _read_name(name: str) -> tuple[int, str]:
    """Return rank and parameter of a name in a header: ``rank1.emb.weight``.

    >>> _read_name("rank12.emb.weight"), _read_name("rank.weight")
    ((12, 'emb.weight'), (0, 'rank.weight'))
    """
    first, _, rest = name.partition(".")
    number = first.removeprefix("rank")
    return (int(number), rest) if first.startswith("rank") and number.isdigit() and rest else (0, name)


def _name(one: StillParameter) -> str:
    return f"{one.name} on rank {one.rank}" if one.rank else one.name


def _has_weights(found: Sequence[StillParameter]) -> bool:
    return any(not one.state and one.step == found[0].step for one in found)


def _suspect(first: StillParameter, call: Call | None, count: int) -> Suspect:
    more = f", and {count - 1} more like it" if count > 1 else ""
    why = f"{_name(first)} moves on the {_other(first.side)} only{more}: {first.reason}"
    if call is not None:
        return Suspect.of(call, first.record, 1.0, why)
    identity = parse_identity(first.record)
    name, module = name_call(identity), identity.module
    return Suspect(record=first.record, name=name, module=module, operator="", order=_AFTER_ALL, ratio=1.0, why=why)
