"""Evidence about several ranks: whether a collective computes what it should of what all ranks gave, and which rank errs first.

What all ranks gave a collective is known where their tensors were kept. So it can be computed again, in float64, by every
reduction: that which gives what a rank has got is the one that was computed, whatever the call said.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import BACKWARD, FORWARD, OPTIMIZER, ROOT_MODULE, parse_identity
from precflow.diagnosis.collectives import describe_lone, find_givers, find_lone
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.places import describe_border
from precflow.diagnosis.evidence.tensors import WHOLE
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.nodes import key_of
from precflow.dumps.collectives import REDUCING, is_collective, read_group
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.derived import count_parts
from precflow.dumps.views.joined_ranks import JoinedRanks
from precflow.errors import DumpError
from precflow.judgement.covered import UNPAIRED
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

Floats = npt.NDArray[np.float64]

_REDUCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "sum": lambda given: given.sum(axis=0),
    "mean": lambda given: given.mean(axis=0),
    "maximum": lambda given: given.max(axis=0),
    "minimum": lambda given: given.min(axis=0),
    "product": lambda given: given.prod(axis=0),
}
_FITS = {"float64": 2.0**-40, "float32": 2.0**-18, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Relative L2 error up to which a reduction explains an output: some units of rounding, whatever the order of the sum."""
_SKETCHED = 0.2  # error of a product that was taken of sketches, relative to its size; 509 sums leave about 0.05
_FITS_PART = 1e-2  # relative error up to which the factor of a rank's part is that of its size
_APART = 16.0  # how many times worse every other reduction has to fit

EVIDENCE_OF_RUN = {
    "ranks": Evidence("ranks", "Number of processes; only if there are several."),
    "read_early": Evidence(
        "results that are read too early",
        "Collectives whose result the target uses before it has arrived; the reference waits for it.",
    ),
    "first_rank": Evidence("rank of the first suspect", "Only if there are several."),
    "only_rank": Evidence(
        "only this rank", "All suspects are on one rank, and no other fails before its first collective of that step."
    ),
    "uneven_parts": Evidence(
        "parts of the batch", "Samples of each rank, where they are uneven and the other side is a single process."
    ),
    "uneven_factors": Evidence(
        "gradients of the parts, over those of the single process", "At the model's output, for each rank."
    ),
    "uneven_explains": Evidence("explained by their sizes", "The factor of each rank is that of its part's size."),
    "collectives_missing": Evidence(
        "collectives that the target does not call",
        "With what they carry, if a suspect depends on it; absent if there are none.",
    ),
    "collectives_extra": Evidence("collectives that only the target calls", "The same of the reference."),
    "gradients_unreduced": Evidence(
        "they carry gradients", "Whether these collectives carry gradients of parameters; absent without such collectives."
    ),
}
EVIDENCE_OF_SUSPECT = {
    "collective": Evidence("collective", "Name of the suspect, if it carries tensors between ranks."),
    "lost_result": Evidence(
        "collective whose result is lost in part",
        "Its result agrees, and what takes it differs by exactly the missing part; absent if there is none.",
    ),
    "lost_share": Evidence("lost", "Share of that result that is zeros in its place.", unit="%"),
    "lost_of": Evidence("counted in", "`elements`, or `energy` where only sketches were kept."),
    "lost_where": Evidence("lost at", "At which end of which axis; empty if at none."),
    "uncalled": Evidence("not called on the target", "The suspect is a collective that the target does not call; else absent."),
    "ranks_agree": Evidence(
        "every rank contributes the same on both sides",
        "The inputs of the collective have the same bits on every rank of its group.",
    ),
    "reductions": Evidence(
        "computed reduction", "Of the reference and of the target, where they differ: the one that explains what a rank got."
    ),
    "groups": Evidence("ranks that take part", "Of the reference and of the target, where they differ."),
    "left_out": Evidence("left out on the target", "Ranks without which the reduction explains what the target's rank got."),
}


def gather(reference: Dump, target: Dump, call: Call, partner: Call | None) -> dict[str, Any]:
    """Return the evidence about a suspect that is a collective, by the names of ``names.EVIDENCE``; empty for other calls.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        call: The suspect on the reference.
        partner: The same call on the target.
    """
    if not is_collective(call):
        return {}
    evidence: dict[str, Any] = {"collective": call.operator.removeprefix("aten.")}
    if partner is None:
        return {**evidence, "uncalled": True}
    groups = [read_group(one) for one in (call, partner)]
    if all(groups) and groups[0] != groups[1]:
        evidence["groups"] = [_list_ranks(group) for group in groups]
    here, there = _Computed(reference, call), _Computed(target, partner)
    agree = _count_equal(here.givers, there.givers)
    if agree is not None:
        evidence["ranks_agree"] = agree
    if here.reduction and there.reduction and here.reduction != there.reduction:
        evidence["reductions"] = [here.reduction, there.reduction]
    if there.left_out and not here.left_out:
        evidence["left_out"] = _list_ranks(there.left_out)
    return evidence


def gather_run(reference: Dump, target: Dump, suspects: Sequence[Suspect], judged: Sequence[Judged]) -> dict[str, Any]:
    """Return the evidence about the ranks of the whole run, by the names of ``names.EVIDENCE``; empty for one process."""
    calls, others = reference.calls(), target.calls()
    ranks = {call.rank for call in calls} | {call.rank for call in others}
    if len(ranks) == 1:
        return find_uneven_parts(reference, target)
    early = [{call.place: None for call in side if call.arguments.get("read")} for side in (calls, others)]
    evidence: dict[str, Any] = {"ranks": len(ranks), "read_early": [name for name in early[1] if name not in early[0]]}
    if suspects:
        first = parse_identity(suspects[0].record).rank
        evidence["first_rank"] = first
        evidence["only_rank"] = _starts_alone(calls, suspects, judged, first)
        evidence |= _find_missing(calls, others, suspects)
    return evidence


def find_uneven_parts(reference: Dump, target: Dump) -> dict[str, Any]:
    """Return how uneven the ranks' parts of the batch are, for several ranks that are seen as one process.

    The loss of a rank is a mean over its part, and the average over the ranks is a mean of means. If the parts are uneven, a
    sample of a small part counts more: its gradient is ``n / (ranks * part)`` times that of the single process. That is looked
    for in what arrives at the model's backward.
    """
    for dump, single in ((target, reference), (reference, target)):
        if not isinstance(dump, JoinedRanks) or count_parts(dump) > 1:
            continue
        step = next((step for step, sizes in sorted(dump.shares.items()) if len(set(sizes)) > 1), None)
        if step is None:
            continue
        sizes = dump.shares[step]
        factors = [_fit_part(dump, single, step, rank) for rank in range(len(sizes))]
        expected = [sum(sizes) / (len(sizes) * size) for size in sizes]
        known = [
            factor is not None and abs(factor - one) <= _FITS_PART * one for factor, one in zip(factors, expected, strict=True)
        ]
        return {
            "uneven_parts": f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}",
            "uneven_factors": ", ".join("unknown" if factor is None else f"{factor:.4g}" for factor in factors),
            "uneven_explains": all(known),
        }
    return {}


def _fit_part(dump: JoinedRanks, single: Dump, step: int, rank: int) -> float | None:
    """Return how many times too large the gradient of a rank's samples is at the model's output; ``None`` if unknown."""
    joined, whole = _find_arriving(dump.calls(), step), _find_arriving(single.calls(), step)
    if joined is None or whole is None or joined.shape != whole.shape:
        return None
    samples, count = dump.list_samples(step, rank), sum(dump.shares[step])
    try:
        there, here = (_read(side, record).reshape(count, -1)[samples] for side, record in ((dump, joined), (single, whole)))
    except (DumpError, ValueError):  # not kept, or its first axis is not made of samples
        return None
    square = float(np.sum(here * here))
    factor = float(np.sum(here * there)) / square if square else 0.0
    return factor if factor and _distance(factor * here, there) <= _FITS_PART else None


def _find_arriving(calls: Sequence[Call], step: int) -> Record | None:
    """Return the gradient of a model's output that its only backward of a step was given."""
    backwards = [
        call
        for call in calls
        if call.step == step and call.phase == BACKWARD and call.module == ROOT_MODULE and not call.operator
    ]
    return backwards[0].inputs[0] if len(backwards) == 1 and len(backwards[0].inputs) == 1 else None


def _find_missing(calls: Sequence[Call], others: Sequence[Call], suspects: Sequence[Suspect]) -> dict[str, Any]:
    """Return which collectives one side does not call, as far as a suspect depends on them.

    Args:
        calls: Calls of the reference.
        others: Calls of the target.
        suspects: A suspect that such a collective comes before is one itself, or has it in the interval before it.
    """
    records = {suspect.record for suspect in suspects}
    stepped = {
        (identity.rank, identity.step, f"{identity.module}.{identity.index}".lstrip("."))
        for identity in map(parse_identity, records)
        if identity.phase == OPTIMIZER
    }
    evidence: dict[str, Any] = {}
    for name, own, other, between in (
        ("collectives_missing", calls, others, {each for suspect in suspects for each in suspect.between_reference}),
        ("collectives_extra", others, calls, {each for suspect in suspects for each in suspect.between_target}),
    ):
        lone = [
            one
            for one in find_lone(own, other)
            if one.call.name in between
            or any(record.text in records for record in one.call.outputs)
            or any((one.call.rank, one.call.step, each) in stepped for each in one.parameters)
        ]
        if lone:
            evidence[name] = describe_lone(lone)
            evidence["gradients_unreduced"] = any(one.parameters for one in lone)
    return evidence


def find_lost(reference: Dump, target: Dump, suspect: Suspect) -> dict[str, Any]:
    """Return which collective's result has become zeros in part on its way to where the error of a suspect is seen.

    The target has to call it too, with a result that agrees. A rank that never sums holds its own part alone, and the rest is
    zeros there as well if parts do not overlap, as those of a vocabulary. The input that the error came with, or else the
    suspect's output, differs from the reference by exactly the zeros. Without tensors their sketches tell.
    """
    seen = suspect.arrives or suspect.record
    here, there = (_find_record(dump.calls(), seen) for dump in (reference, target))
    if here is None or there is None or here[0].phase != FORWARD or here[1].shape != there[1].shape or is_collective(here[0]):
        return {}
    (call, one), (_, other) = here, there
    earlier = (
        each for each in reference.calls() if (each.rank, each.step) == (call.rank, call.step) and each.order < call.order
    )
    collectives = [each for each in earlier if each.phase == FORWARD and is_collective(each)]
    before = [(each, record) for each in collectives for record in each.outputs if record.shape == one.shape]
    theirs = [each for each in target.calls() if before and is_collective(each)]
    made = {record.identity: record for each in theirs for record in each.outputs}
    for each, record in before:
        if not _agree(reference, record, target, made.get(record.identity)):
            continue
        share = _measure_lost(reference, target, (one, other), record)
        if share is not None:
            return {"lost_result": each.name, **share}
    return {}


def _agree(reference: Dump, here: Record, target: Dump, there: Record | None) -> bool:
    """Tell whether both sides got the same from a collective, as far as it was kept."""
    if there is None or (here.dtype, here.shape) != (there.dtype, there.shape):
        return False
    try:
        return _distance(_read(reference, here), _read(target, there)) <= _FITS[here.dtype]
    except (DumpError, ValueError):  # one of them was not kept
        one, other = _read_sketch(reference, here), _read_sketch(target, there)
        return one is not None and other is not None and one.shape == other.shape and _distance(one, other) <= _SKETCHED


def _measure_lost(reference: Dump, target: Dump, taken: tuple[Record, Record], result: Record) -> dict[str, Any] | None:
    """Return how much of a collective's result an input has lost; ``None`` if it differs from the reference by something else.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        taken: The input on both sides.
        result: The result on the reference.
    """
    try:
        error = _read(target, taken[1]) - _read(reference, taken[0])
        lost, given = error != 0.0, _read(reference, result)
        if not lost.any() or _distance(-given[lost], error[lost]) > _FITS[result.dtype]:
            return None
        where = describe_border(error.reshape(result.shape), is_known=True)
        return {"lost_share": float(np.mean(lost)), "lost_of": "elements", "lost_where": where}
    except (DumpError, ValueError):  # one of them was not kept
        sketches = [
            _read_sketch(dump, record) for dump, record in ((target, taken[1]), (reference, taken[0]), (reference, result))
        ]
    there, here, made = sketches
    if there is None or here is None or made is None or not there.shape == here.shape == made.shape:
        return None
    # What is lost is a part of the result: the result's product with it is its own square. Sketches keep products.
    error = there - here
    square, product, whole = (float(one @ two) for one, two in ((error, error), (error, made), (made, made)))
    if not square or not whole or abs(product + square) > _SKETCHED * square:
        return None
    return {"lost_share": min(1.0, square / whole), "lost_of": "energy", "lost_where": ""}


def _read_sketch(dump: Dump, record: Record) -> Floats | None:
    read = getattr(dump, "sketch", None)  # a dump that was made by hand has none
    sketch = None if read is None else read(record)
    return None if sketch is None else np.asarray(sketch, dtype=np.float64).ravel()


def _find_record(calls: Sequence[Call], text: str) -> tuple[Call, Record] | None:
    """Return a record by its identity, with its call."""
    name = parse_identity(text)
    for call in calls:
        if (call.module, call.operator, call.step, call.rank) == (name.module, name.operator, name.step, name.rank):
            for record in (*call.inputs, *call.outputs):
                if record.identity == name:
                    return call, record
    return None


class _Computed:
    """What one side's collective computes of what all ranks gave.

    Attributes:
        givers: The calls whose inputs it is made of.
        reduction: The only one that explains the output; ``""`` if none does, or several do.
        left_out: Ranks without which a sum or a mean explains the output, and with which it does not.
    """

    def __init__(self, dump: Dump, call: Call) -> None:
        self.givers: tuple[Call, ...] = find_givers([other for other in dump.calls() if is_collective(other)]).get(
            key_of(call), ()
        )
        self.reduction, self.left_out = "", tuple[int, ...]()
        if call.operator.removeprefix("aten.") not in REDUCING or not call.outputs or len(self.givers) < 2:
            return
        given, got = self._read(dump, call)
        if given is None or got is None:
            return
        line = _FITS.get(call.outputs[0].dtype, 0.0)
        errors = {name: _distance(reduce(given), got) for name, reduce in _REDUCTIONS.items()}
        best = min(errors, key=errors.__getitem__)
        if errors[best] <= line and all(
            errors[name] > _APART * max(errors[best], line / _APART) for name in errors if name != best
        ):
            self.reduction = best
        elif errors[best] > line:
            self.left_out = self._find_left_out(given, got, line)

    def _read(self, dump: Dump, call: Call) -> tuple[Floats | None, Floats | None]:
        """Return what each rank gave, as one row a rank, and what this rank got; ``None`` if it was not kept."""
        size = sum(int(np.prod(record.shape)) for giver in self.givers for record in giver.inputs)
        if size > WHOLE:
            return None, None
        try:
            rows = [np.concatenate([_read(dump, record) for record in giver.inputs]) for giver in self.givers]
            got = np.concatenate([_read(dump, record) for record in call.outputs])
        except (DumpError, ValueError):  # not kept, or a rank gave nothing
            return None, None
        if len({row.size for row in rows}) > 1:
            return None, None
        given = np.stack(rows)
        if "scatter" in call.operator:  # each rank gets its share of the result
            own = next((place for place, giver in enumerate(self.givers) if giver.rank == call.rank), 0)
            given = given[:, own * got.size : (own + 1) * got.size]
        return (given, got) if given.shape[1] == got.size else (None, None)

    def _find_left_out(self, given: Floats, got: Floats, line: float) -> tuple[int, ...]:
        places = range(len(self.givers))
        for kept in self._list_subsets(len(places)):
            for reduce in (_REDUCTIONS["sum"], _REDUCTIONS["mean"]):
                # A mean over all ranks of which some gave nothing divides by the number of all of them.
                whole = reduce(given[list(kept)])
                if min(_distance(whole, got), _distance(whole * len(kept) / len(places), got)) <= line:
                    return tuple(self.givers[place].rank for place in places if place not in kept)
        return ()

    @staticmethod
    def _list_subsets(count: int) -> Iterator[tuple[int, ...]]:
        """Yield all but one rank, then one rank alone: what a wrong group or a rank that is left out gives."""
        yield from itertools.combinations(range(count), count - 1)
        if count > 2:
            yield from itertools.combinations(range(count), 1)


def _read(dump: Dump, record: Record) -> Floats:
    if not record.stored or record.dtype not in _FITS:
        raise ValueError(record.text)
    return np.asarray(dump.tensor(record), dtype=np.float64).ravel()


def _distance(expected: Floats, got: Floats) -> float:
    """Return the relative L2 error of what was got; infinity if it is not finite."""
    size = float(np.linalg.norm(expected))
    error = float(np.linalg.norm(got - expected))
    if not np.isfinite(error):
        return float("inf")
    return error / size if size else (0.0 if not error else float("inf"))


def _count_equal(here: Sequence[Call], there: Sequence[Call]) -> bool | None:
    """Tell whether every rank gave the same bits on both sides; ``None`` if that is not known."""
    partners: Mapping[int, Call] = {call.rank: call for call in there}
    if not here or any(call.rank not in partners for call in here):
        return None
    pairs = [pair for call in here for pair in zip(call.inputs, partners[call.rank].inputs, strict=False)]
    if not pairs or not all(one.content and other.content for one, other in pairs):
        return None
    return all(one.content == other.content for one, other in pairs)


def _starts_alone(calls: Sequence[Call], suspects: Sequence[Suspect], judged: Sequence[Judged], rank: int) -> bool:
    """Tell whether only one rank errs until it meets the others: no record of another fails before a collective that does.

    Nor does another rank lack records, or have more of them: one that leaves a layer out gives the others what is wrong. What a
    rank gets from a collective may be what another one gave: then the other one errs, as where its labels are not its own.
    """
    if any(suspects[0].record in {record.text for record in call.outputs} for call in calls if is_collective(call)):
        return False
    failing = {parse_identity(record.record)[-2:] for record in judged if record.status in MISALIGNED_STATUSES}
    first_step = parse_identity(suspects[0].record).step
    if any(parse_identity(suspect.record).rank != rank for suspect in suspects):
        return False
    uneven = (parse_identity(record.record) for record in judged if record.status in UNPAIRED)
    if any(step < first_step for step, _ in failing) or any(one.step <= first_step and one.rank != rank for one in uneven):
        return False
    texts = {record.record for record in judged if record.status in MISALIGNED_STATUSES}
    for other in {call.rank for call in calls} - {rank}:
        for call in sorted(
            (call for call in calls if (call.rank, call.step) == (other, first_step)), key=lambda call: call.order
        ):
            if any(record.text in texts for record in call.outputs):
                if is_collective(call):
                    break
                return False
    return True


def _list_ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
