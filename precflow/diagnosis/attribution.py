"""Who is to blame: the region by first divergence, corrected by what each operator was seen to do in place.

First divergence names the first calls whose outputs fail although their inputs agree. It is blind to a second fault behind the
first, it names innocent calls that make a small error large, and in low precision it sees little at all. Introduced errors
(:mod:`precflow.diagnosis.introduced`) have none of these faults, but only say something about calls that were stored whole,
and nothing about calls that compute rightly and should not have been made like this. So together:

1. Every call that introduces an error is a suspect, in order of steps and of the graph, whether its record fails or not.
2. A call that was made differently on the two sides (argument, source of an input) is one too.
3. A suspect by first divergence that was evaluated and is clean is cleared: its error arrived with its inputs, or was there
   between the calls. It stays only if nothing else explains the difference, or if the sides gave it different data, such as
   labels: that is the explanation then.
4. A suspect by first divergence that could not be evaluated stays, unless a suspect of 1 or 2 leads to it. A fault in the
   forward leads to everything in the backward pass, the gradients and the optimizer of its step and of later ones: they are
   computed from what the forward left, through the loss. (Level ``operator`` records what the backward pass runs, so that its
   operators are evaluated like any other, and a second fault there is named too.)
5. Where nothing of this explains a difference, and all that fails is a little over a limit that nobody has set or measured
   (a noise floor was asked for and is missing), behind inputs that use most of theirs, it is accumulated rounding as far as can
   be told. So is what is a little over a measured limit, where the call itself makes far less of the difference than came with
   its inputs. Such records are undecided, and no call is blamed for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, OPTIMIZER, parse_identity
from precflow.diagnosis.calls_differ import DifferentCall
from precflow.diagnosis.evaluation import PairedCall
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.gradients.linear import is_product
from precflow.diagnosis.introduced import IntroducedError, find_classes, group_by_call
from precflow.diagnosis.nodes import CallKey, CallNode
from precflow.dumps.records import Call, Record
from precflow.judgement import lines
from precflow.judgement.coverage import tally
from precflow.judgement.floors import MAIN_METRIC
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged, Verdict

METRIC = "introduced_error"
"""What a record's status names if its operator introduces an error that its own limits do not show."""
_BY_ITSELF = "other"  # kind of calls that neither add up nor move: the size of their output is that of their terms
_BY_ITSELF_WRONG = frozenset({"dtype", "shape"})  # statuses of a call that need no number
_KEPT = frozenset({"accepted", "unreadable", "shape", "dtype", "nonfinite", "fail"})  # statuses that say more already


@dataclass(frozen=True)
class Attribution:
    """The diagnosis with introduced errors taken into account.

    Attributes:
        region: Where the sides part, with the suspects of :func:`attribute`.
        judged: Statuses; a record whose operator introduces an error fails by it.
        verdict: ``misaligned`` if an operator introduces an error.
    """

    region: Region
    judged: list[Judged]
    verdict: Verdict


def attribute(  # noqa: PLR0913  what earlier stages found, each by its own name
    nodes: Mapping[CallKey, CallNode],
    before: Attribution,
    *,
    pairs: Sequence[PairedCall],
    found: Sequence[IntroducedError],
    different: Sequence[DifferentCall],
    left_out: int = 0,
    guessed: Collection[str] = (),
) -> Attribution:
    """Return region, statuses and verdict with introduced errors taken into account.

    Args:
        nodes: The reference's graph.
        before: The region by first divergence, statuses and verdict by limits.
        pairs: The calls that were evaluated.
        found: What was found about their outputs.
        different: Calls that the sides made differently.
        left_out: Calls that could have been evaluated, but were too many.
        guessed: Standards that measure their limits, and fall back to fixed ones for records without a floor.
    """
    region, judged, verdict = before.region, before.judged, before.verdict
    statuses = {one.record: one for one in judged}
    by_call = group_by_call(found)
    calls = {pair.name: pair.reference for pair in pairs}
    wrong = {name: one for name, one in by_call.items() if one.is_fault and not _is_accepted(calls[name], statuses)}
    wrong = _without_own_backwards(wrong, calls)
    classes = find_classes({name: _kind_of(calls[name]) for name in by_call}, wrong)
    named = [_suspect_error(calls[name], one, classes, statuses) for name, one in wrong.items()]
    suspected = {suspect.record for suspect in named}
    # A call that was made differently explains a difference only where there is one: both sides may spell a default.
    failing = [
        one
        for one in different
        if one.pair.name not in wrong and any(_fails(record, statuses) for record in one.pair.reference.outputs)
    ]
    failing += _find_earlier(failing, different, wrong, judged)
    reasons = [suspect for one in failing if (suspect := _suspect_difference(one, by_call, statuses)).record not in suspected]
    cleared = _find_cleared(found, by_call, calls)
    # A call that computes rightly what it was given is not wrong, but other labels or weights than the reference's explain what
    # follows.
    given = [
        _add_innocence(one) for one in region.suspects if (one.outside or one.weight) and one.record in cleared - suspected
    ]
    explained = sorted((*named, *reasons, *given), key=_find_place)
    only_guessed = set(verdict.standards) <= set(guessed)  # whoever sets a limit means it
    if found and not explained and only_guessed:
        carried = _find_carried(found, calls, statuses) & cleared
        if _is_drift(region.suspects, judged, guessed, cleared, carried):
            return _leave_undecided(region, judged, verdict, cleared)
    kept = _keep(region.suspects, explained, cleared, nodes)
    leading = _find_leading(kept, explained, nodes, statuses)
    suspects = (*leading, *explained, *(suspect for suspect in kept if suspect not in leading))
    errors = {
        record.text: error for name, error in wrong.items() for record in calls[name].outputs if record.index == error.index
    }
    final = [_with_introduced(one, errors.get(one.record)) for one in judged]
    return Attribution(
        region=replace(
            region,
            start=suspects[0].name if suspects else region.start,
            suspects=suspects,
            roles=_correct_roles(region.roles or {}, suspects, statuses, cleared),
            notes=(*_write_notes(classes, by_call, calls, region.suspects, cleared, left_out), *region.notes),
        ),
        judged=final,
        verdict=_correct_verdict(verdict, final, named),
    )


def _find_earlier(
    failing: Sequence[DifferentCall], different: Sequence[DifferentCall], wrong: Collection[str], judged: Sequence[Judged]
) -> list[DifferentCall]:
    """Return what is made differently in the same way as a call that fails in a later step, and passes in its own.

    Under autocast a first loss of another exponent may be within its limit, and its gradients are not. Steps of which nothing
    fails have nothing to explain.
    """
    places = [parse_identity(one.record) for one in judged if one.status in MISALIGNED_STATUSES]
    steps = {(place.step, place.rank) for place in places}
    last: dict[tuple[object, ...], int] = {}  # a call, whatever its step, and how it differs -> last step in which it fails
    for one in failing:
        key = _describe_difference(one)
        last[key] = max(one.pair.reference.step, last.get(key, 0))
    return [
        one
        for one in different
        if one not in failing
        and one.pair.name not in wrong
        and (one.pair.reference.step, one.pair.reference.rank) in steps
        and one.pair.reference.step < last.get(_describe_difference(one), 0)
    ]


def _describe_difference(different: DifferentCall) -> tuple[object, ...]:
    call = different.pair.reference
    return (*(getattr(call, name) for name in ("rank", "module", "call", "operator", "ordinal", "phase")), different.arguments)


def _without_own_backwards(wrong: Mapping[str, IntroducedError], calls: Mapping[str, Call]) -> dict[str, IntroducedError]:
    """Return the wrong calls without gradients of modules that are wrong in the forward already.

    A module that computes another function has the gradients of that one. The products of a Linear layer do not hang on what
    it computed.
    """
    forward = {(call.module, call.step, call.rank) for name in wrong if (call := calls[name]).phase == FORWARD}

    def is_own(call: Call) -> bool:
        """Tell whether a gradient follows from a wrong function of its module."""
        is_gradient = call.phase in {BACKWARD, GRADIENT} and not call.operator and not is_product(call)
        return is_gradient and (call.module, call.step, call.rank) in forward

    return {name: one for name, one in wrong.items() if not is_own(calls[name])}


def _find_place(suspect: Suspect) -> tuple[int, int]:
    """Return when a suspect runs: its step, and its number in that step. Steps may make another number of calls."""
    return parse_identity(suspect.record).step, suspect.order


def _kind_of(call: Call) -> str:
    """Return what calls of the same fault have in common: the operator, the class of the module, or the optimizer."""
    return "the optimizer" if call.phase == OPTIMIZER else call.operator or call.class_name


def _is_drift(
    suspects: Sequence[Suspect],
    judged: Sequence[Judged],
    guessed: Collection[str],
    cleared: Collection[str],
    carried: Collection[str],
) -> bool:
    """Tell whether all that fails is a little over its limit, behind inputs that use most of theirs.

    Inputs that use little of their limits suffice where the call makes far less of the difference than came with them
    (``carried``): the cosine of a large angle makes much of little, and three disturbed runs do not show how much.

    Every suspect of the forward has to compute rightly in place: one that could not be evaluated may be wrong by as much. A
    gradient that could not, and whose limit was measured, may inherit from a forward that is itself over its limits, by as much
    as that is; behind a forward that agrees it may not. One that is right in place may: after a step of Adam single elements
    differ by far more than others, and three disturbed runs do not show the largest.
    """
    failing = [one for one in judged if one.status in MISALIGNED_STATUSES]
    floors = {one.record: one.floor for one in judged}
    forward = [suspect for suspect in suspects if parse_identity(suspect.record).phase == FORWARD]
    inherited = max((suspect.ratio for suspect in forward), default=0.0)
    return (
        bool(failing)
        and all(one.status == "fail" and one.standard in guessed and one.ratio < lines.AMPLIFIED for one in failing)
        and bool(suspects)
        and all(suspect.record in cleared for suspect in forward)
        and all(
            suspect.inputs_use > lines.ACCUMULATED
            or suspect.record in carried
            or (
                suspect not in forward
                and floors.get(suspect.record) is not None
                and (suspect.record in cleared or suspect.ratio <= inherited)
            )
            for suspect in suspects
        )
    )


def _leave_undecided(region: Region, judged: Sequence[Judged], verdict: Verdict, cleared: Collection[str]) -> Attribution:
    undecided = "by accumulated rounding as far as can be told"
    why = {False: f"{undecided}; its noise floor, which was not measured, would decide", True: undecided}
    failing = [one for one in judged if one.status in MISALIGNED_STATUSES]
    final = [
        replace(one, status="undecided", reason=f"{one.reason} {why[one.floor is not None]}") if one in failing else one
        for one in judged
    ]
    counted, first = tally(final), next(one for one in final if one.status == "undecided")
    count = counted.counts["undecided"]
    kind, likely = "a fixed", "a noise floor would decide"
    if any(one.floor is not None for one in failing):
        kind = "their measured" if count > 1 else "its measured"
        likely = (
            "rounding may add up to it in an accumulator that truncates, by a step of Adam, or in a function of large numbers"
        )
    reason = (
        f"{count} record{'s' * (count > 1)} exceed{'s' * (count == 1)} {kind} limit by less than {lines.AMPLIFIED:g} "
        f"times, and no operator that was evaluated introduces an error: {likely} (first {first.record})"
    )
    note = (
        f"{len(region.suspects)} calls where the sides first differ start from inputs that use most of their limit, or make "
        "far less of the difference than came with these"
    )
    return Attribution(
        region=replace(
            region,
            start="",
            suspects=(),
            roles=_correct_roles(region.roles or {}, (), {one.record: one for one in final}, cleared),
            notes=(note, *region.notes),
        ),
        judged=final,
        verdict=replace(
            verdict,
            verdict="inconclusive",
            reasons=(reason, *verdict.reasons[1:]),  # the first one counts these records as failures
            counts=counted.counts,
            coverage=counted.coverage,
            compared=counted.compared,
            total=counted.total,  # movement that is wrong counts, which otherwise is not judged
            could_fail=counted.could_fail,
        ),
    )


def _is_accepted(call: Call, statuses: Mapping[str, Judged]) -> bool:
    found = [statuses[record.text].status for record in call.outputs if record.text in statuses]
    return "accepted" in found


def _find_cleared(
    found: Sequence[IntroducedError], by_call: Mapping[str, IntroducedError], calls: Mapping[str, Call]
) -> set[str]:
    """Return the records that were evaluated and are right; of a call with a wrong output none is.

    An output that could not be evaluated is not cleared by another one that was: the values of a topk may be right, and its
    indices wrong.
    """
    right = {(one.call, one.index) for one in found if not by_call[one.call].is_fault}
    return {record.text for name, _ in right for record in calls[name].outputs if (name, record.index) in right}


def _find_carried(found: Sequence[IntroducedError], calls: Mapping[str, Call], statuses: Mapping[str, Judged]) -> set[str]:
    """Return the records with a measured limit whose difference their call does not make, so that it came with the inputs.

    The largest element and the worst row of n elements are off by at most sqrt(n) times the call's own error. Errors of what
    adds up are relative to the sum of its absolute terms, and say nothing of the size of its output.
    """
    records = {(name, record.index): record for name, call in calls.items() for record in call.outputs}
    carried = set[str]()
    for one in found:
        record = records.get((one.call, one.index))
        judged = statuses.get(record.text) if record is not None and one.kind == _BY_ITSELF else None
        if record is None or judged is None or judged.floor is None or not one.eta_target:
            continue
        most = one.eta_target * (1.0 if judged.metric == MAIN_METRIC else math.sqrt(math.prod(record.shape)))
        if judged.value > lines.CARRIED * most:
            carried.add(record.text)
    return carried


def _suspect_error(call: Call, found: IntroducedError, classes: Mapping[str, str], statuses: Mapping[str, Judged]) -> Suspect:
    operator = _kind_of(call)
    whole = f"; {classes[operator]} do so" if operator in classes else ""
    record = next((each for each in call.outputs if each.index == found.index), call.outputs[0])
    judged = statuses.get(record.text)
    return Suspect.of(call, record.text, max(found.share, judged.ratio if judged else 0.0), f"{found.text}{whole}")


def _suspect_difference(
    different: DifferentCall, by_call: Mapping[str, IntroducedError], statuses: Mapping[str, Judged]
) -> Suspect:
    call = different.pair.reference
    own = by_call.get(different.pair.name)
    rightly = ", and it computes rightly what it is given" if own is not None and not own.is_fault else ""
    # In an earlier step than the one that fails, none may.
    record = next((each for each in call.outputs if _fails(each, statuses)), call.outputs[0])
    why = f"the target calls it differently: {different.text}{rightly}"
    return Suspect.of(call, record.text, statuses[record.text].ratio if record.text in statuses else 0.0, why)


def _add_innocence(suspect: Suspect) -> Suspect:
    return replace(suspect, why=f"{suspect.why}; but at its own inputs it computes rightly")


def _fails(record: Record, statuses: Mapping[str, Judged]) -> bool:
    judged = statuses.get(record.text)
    return judged is not None and judged.status in MISALIGNED_STATUSES


def _find_leading(
    kept: Sequence[Suspect],
    explained: Sequence[Suspect],
    nodes: Mapping[CallKey, CallNode],
    statuses: Mapping[str, Judged],
) -> tuple[Suspect, ...]:
    """Return what goes wrong by itself before anything that was computed again does.

    A module is no operator that float64 could clear or blame. If its inputs have the same bits, nothing recorded inside it
    fails and its output is far over its limit, the error starts in it: what was computed again behind it is given that error.
    So it is with a tensor from outside that is another one, before anything fails: a number that the script makes of it, such
    as a count that a loss is divided by, is another argument of a later call. And what is far over its limit in an earlier
    step, such as an optimizer of another class, leads to all of a later one. A call whose output has another type or shape is
    wrong whatever it computes.
    """
    places = {record.text: place for place, node in enumerate(nodes.values()) for record in node.call.outputs}
    owners = {record.text: node for node in nodes.values() for record in node.call.outputs}
    first = min((places[suspect.record] for suspect in explained if suspect.record in places), default=None)
    if first is None:
        return ()
    step = min(owners[suspect.record].call.step for suspect in explained if suspect.record in owners)

    def leads(suspect: Suspect) -> bool:
        """Tell whether a suspect is such a module, is given such a tensor, has another type, or belongs to an earlier step."""
        node = owners.get(suspect.record)
        if node is None or places[suspect.record] >= first:
            return False
        if node.call.step < step and suspect.ratio > lines.AMPLIFIED and suspect.inputs_use <= lines.ACCUMULATED:
            return True
        if node.call.phase != FORWARD:
            return False
        if node.call.operator:
            judged = statuses.get(suspect.record)
            has_other_type = judged is not None and judged.status in _BY_ITSELF_WRONG
            return has_other_type or (bool(suspect.given) and suspect.ratio > lines.AMPLIFIED)
        inside = [record for key in node.inside if key in nodes for record in nodes[key].call.outputs]
        is_alone = not any(_fails(record, statuses) for record in inside)
        return is_alone and not suspect.inputs_use and suspect.ratio > lines.AMPLIFIED

    return tuple(suspect for suspect in kept if leads(suspect))


def _keep(
    suspects: Sequence[Suspect], explained: Sequence[Suspect], cleared: Collection[str], nodes: Mapping[CallKey, CallNode]
) -> tuple[Suspect, ...]:
    """Return the suspects by first divergence that remain."""
    open_ones = [suspect for suspect in suspects if suspect.record not in cleared]
    named = {suspect.record for suspect in explained}
    if not named:
        # Cleared operators explain nothing, but something failed: better to show where than to show nothing.
        innocent = [_add_innocence(suspect) for suspect in suspects if suspect.record in cleared]
        return (*open_ones, *innocent)
    owners = {record.text: node for node in nodes.values() for record in node.call.outputs}
    start = [owners[record] for record in named if record in owners]
    behind = _find_behind(start, nodes)
    forward = min((node.call.step for node in start if node.call.phase == FORWARD), default=None)

    gradients = {(node.call.module, node.call.step, node.call.rank) for node in start if node.call.phase == BACKWARD}

    def follows(suspect: Suspect) -> bool:
        """Tell whether a named suspect leads to this one: through the graph, through the loss, or as a part of it."""
        node = owners.get(suspect.record)
        if node is None:
            return False
        call = node.call
        # The gradient of a module's input may be recorded before those of its parts are, which lead to it.
        if call.phase == BACKWARD and not call.operator and call.module:
            inside = f"{call.module}."
            if any(part.startswith(inside) and rest == [call.step, call.rank] for part, *rest in gradients):
                return True
        return node.key in behind or (forward is not None and node.call.phase != FORWARD and node.call.step >= forward)

    return tuple(suspect for suspect in open_ones if suspect.record not in named and not follows(suspect))


def _find_behind(start: Iterable[CallNode], nodes: Mapping[CallKey, CallNode]) -> set[CallKey]:
    """Return the calls that some calls lead to, and the modules that they are in."""
    behind = {node.key for node in start}
    for key, node in nodes.items():  # in order of completion: what goes into a call comes before it
        if key not in behind and (
            any(edge.source is not None and not edge.guessed and edge.source[0] in behind for edge in node.edges)
            or any(inner in behind for inner in node.inside)
        ):
            behind.add(key)
    return behind


def _with_introduced(judged: Judged, found: IntroducedError | None) -> Judged:
    """Return the status of a record; one whose operator introduces an error fails by it, however wide its limits are."""
    if found is None or judged.status in _KEPT:
        return judged
    if found.measure == "misplaced":
        return Judged(judged.record, "nonfinite", reason=found.text)
    if found.measure == "movement":
        return Judged(judged.record, "fail", "bitwise_equal", 0.0, 1.0, math.inf, METRIC, found.text)
    return Judged(judged.record, "fail", METRIC, found.rho, found.rho / found.share, found.share, METRIC, found.text)


def _correct_roles(
    roles: Mapping[str, str], suspects: Sequence[Suspect], statuses: Mapping[str, Judged], cleared: Collection[str]
) -> dict[str, str]:
    blamed = {suspect.record for suspect in suspects}
    corrected = dict(roles)
    for record, role in roles.items():
        judged = statuses.get(record)
        if record in blamed:
            corrected[record] = "introduces"
        elif role == "introduces" and judged is not None and (record in cleared or blamed):
            corrected[record] = "inherits" if judged.status in MISALIGNED_STATUSES else "agrees"
    return corrected


def _write_notes(  # noqa: PLR0913, PLR0917  what was found, each once at its one call
    classes: Mapping[str, str],
    by_call: Mapping[str, IntroducedError],
    calls: Mapping[str, Call],
    suspects: Sequence[Suspect],
    cleared: Collection[str],
    left_out: int,
) -> list[str]:
    notes = [f"{text} introduce an error of their own: the kind is at fault, not a place" for text in classes.values()]
    reduced = [name for name, one in by_call.items() if one.note]
    if reduced:
        first = by_call[reduced[0]].note
        more = f", and {len(reduced) - 1} more calls" if len(reduced) > 1 else ""
        notes.append(f"{calls[reduced[0]].name}{more}: {first}")
    inexact = [name for name, one in by_call.items() if one.is_reference_off]
    if inexact:
        more = f", and {len(inexact) - 1} more calls" if len(inexact) > 1 else ""
        notes.append(
            f"{calls[inexact[0]].name}{more}: the reference itself is off from float64 by more than rounding;"
            " are its matrix products reduced (TF32)?"
        )
    innocent = sum(suspect.record in cleared for suspect in suspects)
    if innocent:
        one, many = (
            "1 call where the sides first differ computes rightly at its own inputs",
            f"{innocent} calls where the sides",
        )
        notes.append(one if innocent == 1 else f"{many} first differ compute rightly at their own inputs")
    if left_out:
        notes.append(f"{left_out} calls were not evaluated in float64: together they are too large")
    return notes


def _correct_verdict(verdict: Verdict, judged: Sequence[Judged], named: Sequence[Suspect]) -> Verdict:
    if not named:
        return verdict
    first = min(named, key=_find_place)
    count = f"{len(named)} operator call{'s' * (len(named) > 1)}"
    reason = f"{count} introduce{'s' * (len(named) == 1)} an error that rounding does not explain, first {first.name}"
    counted = tally(judged)
    already = verdict.verdict == "misaligned"
    return replace(
        verdict,
        verdict="misaligned",
        # Reasons for "inconclusive" stay behind: what is missing does not make a fault doubtful.
        reasons=(*verdict.reasons, reason) if already else (reason, *verdict.reasons),
        counts=counted.counts,
        coverage=counted.coverage,
        compared=counted.compared,
        total=counted.total,  # movement that is wrong counts, which otherwise is not judged
        could_fail=counted.could_fail,
    )
