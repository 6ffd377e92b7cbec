"""Which part of a training step is guilty: its data, forward, loss, backward, optimizer, or communication between ranks.

The parts of a step come one after the other, so an error that starts in one of them goes on into all that follow. The part that
it starts in is that of the first suspect, if there is one, else that of the first record over its limit. Every other part that
fails inherits the error, unless a record of it introduces one of its own. What comes before the guilty part is told by the
steps until then: the forward of a later step inherits what a backward did to the weights, and is aligned all the same. What a
script does to gradients before the optimizer's step belongs to the optimizer: it is what that is given.

A part is *aligned* only if all of its records were compared and most of them could have failed. Everything else is *not told*,
with the reason: it was not recorded, it is mostly blind, or nothing can be said because a side does not repeat itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from precflow.agent.contract import BACKWARD, FORWARD, OPTIMIZER, ROOT_MODULE, parse_identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.findings import Region
from precflow.diagnosis.training.gradient_changes import find_gradient_changes
from precflow.dumps.batches import find_given
from precflow.dumps.collectives import is_collective
from precflow.dumps.foreign import RANGE, kind_of
from precflow.dumps.header import Header
from precflow.dumps.origins import parse_name
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.dumps.views.derived import is_cut
from precflow.environment.reproduction import find_different
from precflow.judgement.coverage import tally
from precflow.judgement.curves import find_loss_line
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged, Verdict

DATA, LOSS, BACKWARD_PART, COMMUNICATION = "data", "loss", "backward", "communication"
PARTS = (DATA, FORWARD, LOSS, BACKWARD_PART, OPTIMIZER, COMMUNICATION)
"""In the order of a step, except that ranks communicate in any of them. The loss is a number of the first recorded step."""
STATES = ("aligned", "starts", "misaligned", "inherits", "not_told")
"""``starts``: the run's error starts in this part. ``misaligned``: it fails too, by an error of its own."""

_WORDS = {
    "aligned": "{} aligned",
    "starts": "{} misaligned, starts here",
    "misaligned": "{} misaligned too",
    "inherits": "{} inherits it",
    "not_told": "{} not told",
}
NOT_RECORDED = "nothing of it was recorded"
"""Why a part is not told, if no record of it was to be judged."""
_MOSTLY = 0.5  # a part is blind if more than this share of its compared records is
_CHANGED = "what the script does to gradients before the optimizer's step"
_PROVES_NOTHING = "records differ, and the verdict says why that proves nothing yet"


@dataclass(frozen=True)
class PhaseState:
    """What a run says about one part of the training step.

    Attributes:
        name: One of ``PARTS``.
        state: One of ``STATES``.
        why: How that is known, in words.
        record: Identity text of the first record of this part that fails; ``""`` if none does. The loss is no record.
    """

    name: str
    state: str
    why: str
    record: str = ""


@dataclass(frozen=True)
class _Row:
    """A record of one part: its measure, its status and its role in the graph."""

    measure: Measure
    judged: Judged
    role: str
    step: int

    @property
    def fails(self) -> bool:
        """Its status makes a run misaligned."""
        return self.judged.status in MISALIGNED_STATUSES


def describe_phases(states: Iterable[PhaseState]) -> str:
    """Return the states as one line; neighbours that are in the same state share it.

    >>> states = [("data", "aligned"), ("forward", "aligned"), ("backward", "starts")]
    >>> describe_phases(PhaseState(name, state, "") for name, state in states)
    'data, forward aligned · backward misaligned, starts here'
    """
    groups = [(outcome, [state.name for state in group]) for outcome, group in groupby(states, key=lambda state: state.state)]
    return " · ".join(_WORDS[state].format(", ".join(names)) for state, names in groups)


def find_guilty(states: Iterable[PhaseState]) -> str:
    """Return the part that the error starts in; ``""`` if none does, or if that cannot be told."""
    return next((state.name for state in states if state.state == "starts"), "")


def tell_phases(  # noqa: PLR0913  two dumps and what was made of them, each by its own name
    reference: Dump,
    target: Dump,
    *,
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    verdict: Verdict,
    region: Region,
    judge_input: JudgeInput | None = None,
) -> tuple[PhaseState, ...]:
    """Return the state of each part of the training step; empty for a run that trains nothing.

    Communication is left out unless operators that carry tensors between ranks were recorded.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        measures: Every pair of records.
        judged: Their statuses, in the same order.
        verdict: The verdict on them: unless it is ``misaligned``, records that fail prove nothing.
        region: Where the sides part, with the role of each record.
        judge_input: Judges an input of the model that has no equal bits; without it such an input is not told.
    """
    if not reference.header.losses and all(measure.phase == FORWARD for measure in measures):  # nothing is trained
        return ()
    roles = region.roles or {}
    rows: dict[str, list[_Row]] = {part: [] for part in PARTS}
    collectives = {
        record.text for run in (reference, target) for call in run.calls() if is_collective(call) for record in call.outputs
    }
    changes = _list_gradient_changes(reference, target)
    for measure, status in zip(measures, judged, strict=True):
        rows[find_part(measure.record, collectives, changes)].append(
            _Row(measure, status, roles.get(measure.record, "unknown"), parse_identity(measure.record).step)
        )
    data = _tell_data(reference, target, judge_input)
    proven = verdict.verdict == "misaligned"
    first = _find_first(rows, region) if proven else ""
    guilty = data.name if data.state == "starts" else find_part(first, collectives, changes) if first else ""
    if guilty == DATA and first and is_cut(target):  # what failed was computed before other data came
        data, guilty = replace(data, state="misaligned"), find_part(first, collectives, changes)
    loss = _compare_loss(reference.header, target.header, rows)
    if loss and loss.differs and loss.follows_forward and proven and guilty != DATA:
        guilty = LOSS
    parts = [part for part in PARTS[1:] if (rows[part] or part != COMMUNICATION) and (loss or part != LOSS)]
    until = parse_identity(first).step if first and guilty in parts else 0
    # What comes before the guilty part, until the step in which that fails.
    before = parts[: parts.index(guilty)] if guilty in parts else []
    told = {part: [row for row in rows[part] if part not in before or row.step <= until] for part in parts}
    why = region.suspects[0].why if first and region.suspects else ""
    states = [
        data,
        *(
            _tell_loss(loss, guilty=guilty if proven else "")
            if part == LOSS and loss
            else _tell_part(part, told[part], guilty=guilty, proven=proven, why=why)
            for part in parts
        ),
    ]
    if guilty == FORWARD and _follows_unrecorded_update(rows):
        states = [_explain_unrecorded_update(state, rows) for state in states]
    return tuple(states)


def begin_with_loss(region: Region, phases: Sequence[PhaseState]) -> Region:
    """Return where the sides part: at the loss where it differs, unless the first suspect is a call of backward.

    Gradients may be within their limits or not recorded: then an optimizer's step is the first record that fails.
    """
    is_guilty = any(phase.name == LOSS and phase.state == "starts" for phase in phases)
    if not is_guilty or not region.suspects or parse_identity(region.suspects[0].record).phase == BACKWARD:
        return region
    return replace(region, start=LOSS)


def find_part(record: str, collectives: Collection[str] = (), changes: Collection[str] = ()) -> str:
    """Return the part of the step that a record belongs to.

    >>> find_part("head/gradient.output.weight"), find_part("x/gather.0/forward.output.0", ["x/gather.0/forward.output.0"])
    ('backward', 'communication')

    Args:
        record: Identity text.
        collectives: Those of what collectives returned: ``gather`` and ``scatter`` are ordinary operators too.
        changes: Those of calls with which the script changes gradients before the optimizer's step.
    """
    if record in collectives:
        return COMMUNICATION
    if record in changes:
        return OPTIMIZER
    phase = parse_identity(record).phase
    return phase if phase in {FORWARD, OPTIMIZER} else BACKWARD_PART


def _list_gradient_changes(reference: Dump, target: Dump) -> set[str]:
    """Return the records of gradient changes; where both sides have a record, its place on the reference decides."""
    here, there = (
        {record.text for call in find_gradient_changes(run.calls()) for record in call.outputs} for run in (reference, target)
    )
    if there <= here:
        return here
    known = {record.text for call in reference.calls() for record in call.outputs}
    return here | (there - known)


def _find_first(rows: Mapping[str, Sequence[_Row]], region: Region) -> str:
    """Return the record of the first suspect; without suspects the first record that fails, in order of steps; ``""``: none."""
    if region.suspects:
        return region.suspects[0].record
    failing = [row for part in PARTS for row in rows[part] if row.fails]
    if not failing:
        return ""
    return min(failing, key=lambda row: (row.step, row.measure.order)).measure.record


def _tell_part(part: str, rows: Sequence[_Row], *, guilty: str, proven: bool, why: str) -> PhaseState:
    """Return the state of one part by its records.

    Args:
        part: Its name.
        rows: Its records.
        guilty: The part that the error starts in; ``""`` if that is not known.
        proven: The run is misaligned.
        why: Why the first suspect is one; ``""`` without one.
    """
    failing = [row for row in rows if row.fails]
    if part == OPTIMIZER and not failing and not _has_steps(rows):  # changes of gradients that agree say nothing of its steps
        rows = []
    if not failing and part == guilty:  # the first suspect is a call whose own records are not judged, such as a movement
        return PhaseState(part, "starts", f"the first suspect of the run is in it: {why}" if why else "it fails first")
    if not failing:
        return PhaseState(part, *_tell_unfailing(rows))
    own = [row for row in failing if row.role == "introduces"]
    total = _records(tally([row.judged for row in rows]).total)
    counted = f"{len(failing)} of {total} over their limits, first {failing[0].measure.name}"
    if part == OPTIMIZER and (own or failing)[0].measure.phase == FORWARD:
        counted = f"{counted}: {_CHANGED}"
    if not proven:
        state, counted = "not_told", _PROVES_NOTHING
    elif part == guilty:
        state = "starts"
    elif own and guilty:
        state, counted = "misaligned", f"{counted}; {len(own)} by an error of their own"
    else:
        state = "inherits"
    return PhaseState(part, state, counted, (own or failing)[0].judged.record)


def _tell_unfailing(rows: Sequence[_Row]) -> tuple[str, str]:
    """Return state and reason of a part in which nothing fails: aligned only if that means something."""
    counted = tally([row.judged for row in rows])
    if not counted.total:
        return "not_told", NOT_RECORDED
    if not counted.compared:
        return "not_told", f"none of its {_records(counted.total)} was compared"
    missing = [row for row in rows if row.judged.status in INCOMPLETE_STATUSES | {"sampled_out", "not_comparable"}]
    if missing:
        why = missing[0].judged.reason or missing[0].measure.reason or missing[0].judged.status
        return "not_told", f"{len(missing)} of its {_records(counted.total)} could not be compared: {why}"
    if counted.counts.get("blind", 0) > _MOSTLY * counted.compared:
        return "not_told", f"mostly blind: {counted.counts['blind']} of {_records(counted.compared)} could not have failed"
    return "aligned", f"{_records(counted.compared)} within their limits"


def _records(count: int) -> str:
    return f"{count} record{'s' * (count != 1)}"


# Data: what the model was given


def _tell_data(reference: Dump, target: Dump, judge_input: JudgeInput | None) -> PhaseState:
    """Compare what the model was given: the workload's inputs before any cast, and those of each recorded step."""
    headers = (reference.header, target.header)
    if all(header.inputs.digest for header in headers) and headers[0].inputs.digest != headers[1].inputs.digest:
        names = find_different(headers[0].inputs, headers[1].inputs)
        return PhaseState(DATA, "starts", f"the inputs differ: {', '.join(names[:5])}")
    # Calls that are given what the model made before, and so differ without being given other data.
    made = {(parts.step, parts.rank, parts.call) for name in find_given(target).made if (parts := parse_name(name)) is not None}
    # What the root module's forward was given, by step, rank, call and index.
    here, there = (
        {
            (call.step, call.rank, call.call, record.index): record
            for call in run.calls()
            if call.module == ROOT_MODULE and not call.operator and call.phase == FORWARD
            for record in call.inputs
            if not record.weight
        }
        for run in (reference, target)
    )
    same_type = headers[0].dtype == headers[1].dtype
    unknown = 0
    for (step, rank, call, index), record in here.items():
        other = there.get((step, rank, call, index))
        if (step, rank, call) in made:
            continue
        verdict = _compare_input(record, other, judge_input, same_type=same_type)
        if verdict == "differs":
            where = f" on rank {rank}" if rank else ""
            return PhaseState(
                DATA, "starts", f"the sides were fed different batches from step {step}{where}: {index}", record.text
            )
        unknown += verdict == "unknown"
    known = [header.inputs.digest for header in headers if header.inputs.digest]
    if len(known) == 2 and any(
        kind_of(entry.content) == RANGE for header in headers for entry in header.inputs.entries.values()
    ):
        return PhaseState(DATA, "not_told", "the smallest and the largest value of the inputs agree; nothing else was kept")
    if len(known) == 2 or (here and not unknown):
        steps = len({step for step, *_ in here})
        return PhaseState(DATA, "aligned", "the inputs are the same" + (f" in {steps} steps" if steps > 1 else ""))
    return PhaseState(
        DATA, "not_told", "the inputs of the model were not recorded" if not here else "inputs differ in their bits"
    )


def _compare_input(record: Record, other: Record | None, judge_input: JudgeInput | None, *, same_type: bool) -> str:
    """Return ``same``, ``differs`` or ``unknown``."""
    if other is None or not record.known or not other.known or bool(record.content) != bool(other.content):
        return "unknown"
    if record.known == other.known:
        return "same"
    if record.shape != other.shape:
        return "differs"
    floating = "float" in record.dtype or "float" in other.dtype
    if not floating:
        return "differs"
    if record.dtype != other.dtype or not same_type or judge_input is None:
        return "unknown"  # the same batch in another type has other bits
    # Inputs that the script itself computes on the device (a noised image) may differ by rounding.
    return "differs" if judge_input(record, other).status in MISALIGNED_STATUSES else "same"


# Loss: what follows the forward, which many runs record as a number only


@dataclass(frozen=True)
class _Loss:
    """The loss of the first recorded step on both sides.

    Attributes:
        text: Both values and how far they are apart.
        differs: They are further apart than what passed of the forward explains; ``None`` if neither is finite.
        follows_forward: The step's forward was compared and no record of it fails: a difference starts with the loss itself.
    """

    text: str
    differs: bool | None
    follows_forward: bool


def _compare_loss(reference: Header, target: Header, rows: Mapping[str, Sequence[_Row]]) -> _Loss | None:
    """Compare the losses of the first recorded step; ``None`` if a side has none."""
    step = min((row.step for part in PARTS for row in rows[part]), default=0)
    left, right = (header.loss_of_step.get(step) for header in (reference, target))
    if left is None or right is None:
        return None
    forward = [(row.measure, row.judged) for row in rows[FORWARD]]
    of_step = [row for row in rows[FORWARD] if row.step == step]
    follows = bool(tally([row.judged for row in of_step]).compared) and not any(row.fails for row in of_step)
    if not (math.isfinite(left) or math.isfinite(right)):
        return _Loss("it is finite on neither side", None, follows)
    line = find_loss_line(forward, step, (reference.dtype, target.dtype))
    return _Loss(describe_losses(left, right), not line.explains(left, right), follows)


def describe_losses(left: float, right: float) -> str:
    """Return two losses and how far they are apart, relative to the larger one.

    >>> describe_losses(2.0, 1.0), describe_losses(0.5, 0.5)
    ('2 and 1, 0.5 apart', '0.5 and 0.5, 0 apart')
    """
    apart = abs(left - right) / max(abs(left), abs(right)) if left != right else 0.0
    return f"{left:.7g} and {right:.7g}, {apart:.2g} apart"


def _tell_loss(loss: _Loss, *, guilty: str) -> PhaseState:
    if loss.differs is None:
        return PhaseState(LOSS, "not_told", loss.text)
    if not loss.differs:
        return PhaseState(LOSS, "aligned", loss.text)
    if guilty == LOSS:
        return PhaseState(LOSS, "starts", f"{loss.text}, though the forward agrees")
    if guilty:
        return PhaseState(LOSS, "inherits", loss.text)
    if not loss.follows_forward:
        return PhaseState(LOSS, "not_told", f"{loss.text}, and the forward before it was not compared")
    return PhaseState(LOSS, "not_told", f"{loss.text}: {_PROVES_NOTHING}")


# A forward that fails only after an update of the weights that nobody recorded


def _follows_unrecorded_update(rows: Mapping[str, Sequence[_Row]]) -> bool:
    """Tell whether the forward fails from a later step on only, and no optimizer's step was recorded in between."""
    if _has_steps(rows[OPTIMIZER]):
        return False
    first = min((row.step for part in PARTS for row in rows[part]), default=0)
    failing = min((row.step for row in rows[FORWARD] if row.fails), default=first)
    backward = min((row.step for row in rows[BACKWARD_PART] if row.fails), default=failing)
    return first < failing <= backward


def _has_steps(rows: Sequence[_Row]) -> bool:
    return any(row.measure.phase == OPTIMIZER for row in rows)


def _explain_unrecorded_update(state: PhaseState, rows: Mapping[str, Sequence[_Row]]) -> PhaseState:
    if state.name not in {FORWARD, OPTIMIZER}:
        return state
    failing = min(row.step for row in rows[FORWARD] if row.fails)
    why = f"aligned until the update before step {failing}, which was not recorded: capture.phase with optimizer would show it"
    kept = "inherits" if state.name == FORWARD else "not_told"
    return PhaseState(state.name, kept, why, state.record)
