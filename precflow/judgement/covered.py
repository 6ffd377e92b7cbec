"""Records without a partner that the module around them covers, because that module's outputs were compared.

Two implementations of a module run different operators: a fused attention in place of matmul, softmax and matmul, another cast,
an extra ``cat``. None of these operators has a partner on the other side, and yet what they compute was compared: it is the
output of their module. Such a record is ``covered`` and no gap. For example, eager against fused attention::

    layers.0.self_attn / matmul            only on the reference   covered: layers.0.self_attn was compared
    layers.0.self_attn / softmax           only on the reference   covered
    layers.0.self_attn / scaled_dot_...    only on the target      covered
    layers.0.self_attn                     on both sides           pass

A device may also run several operators as one. The graph of the model says which (``Header.fused``): those that have no output
of their own any more are covered by the one that they became.

A wrapper may send gradients in buckets of other sizes. A bucket without a partner is covered by the steps of its parameters, if
their gradients are sent on both sides. A loop may reduce gradients at every micro batch, or at the last one alone: those that
only one side has reduced already are covered by the steps of their parameters, if these agree.

Backward may make a gradient on one side that nobody reads: activation checkpointing lets inputs require a gradient, so that
backward goes through the block at all. If its call has other outputs that were compared, and the gradients of all parameters
agree, these cover it::

    block.1   gradient of hidden_states     on both sides         pass
    block.1   gradient of position_bias     only on the target    covered

The output of the whole model covers only what the model's own code runs, and nothing inside its modules. Otherwise two sides
whose modules all have different names would be called aligned after the comparison of a single record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, MODULE, OUTSIDE, ROOT_MODULE, Identity, parse_identity
from precflow.comparison.measure import Measure
from precflow.judgement.coverage import COMPARED
from precflow.judgement.decision import Decision
from precflow.judgement.verdicts import MISALIGNED_STATUSES

UNPAIRED = frozenset({"unpaired_reference", "unpaired_target"})

_AGREES = frozenset({"pass", "blind", "accepted"})
_WHY = {
    "covered": "covered by {} around it, whose outputs were compared",
    "not_comparable": "{} around it depends on a near tie",
}

_WHY_FUSED = {
    "covered": "the other side computes it inside of {}, whose outputs were compared",
    "not_comparable": "the other side computes it inside of {}, which depends on a near tie",
}

_WHY_REGROUPED = "both sides send these gradients in other groups, and what the optimizer makes of them was compared"
_WHY_REPEATED = "one side reduces these gradients more often in the step, and what the optimizer makes of them agrees"
_WHY_IDLE = "backward hands it on to no parameter: the gradients of all parameters are on both sides, and agree"

_When = tuple[str, int, int]  # phase, step and rank
_Calls = Mapping[tuple[str, _When], Mapping[int, Sequence[str]]]  # module and when -> number of a call -> its outputs' statuses
_Lost = Sequence[tuple[str, int, int]]  # module, step and rank of gradients of parameters that were not compared, or fail


def mark_covered(
    measures: Sequence[Measure],
    decisions: Sequence[Decision],
    fused: Mapping[str, str] | None = None,
    regrouped: Mapping[str, Sequence[str]] | None = None,
    repeated: Mapping[str, Sequence[str]] | None = None,
) -> list[Decision]:
    """Return the decisions; records without a partner that a compared module covers become ``covered``.

    A module covers what ran inside one of its calls if every output of that call was compared and one of them at least could
    have failed. In backward, the gradients of its parameters must have been compared too: they are no outputs of the module.
    If an output depends on a near tie, what ran inside depends on it too, and becomes ``not_comparable``.

    Args:
        measures: Every record.
        decisions: One for each measure, in the same order.
        fused: Module that the other side computes inside of another one -> that one, whose output covers it.
        regrouped: Record of a collective that the other side makes in other groups -> records of what comes of it.
        repeated: Record of a gradient that one side reduces more often -> records of what the optimizer makes of it.
    """
    decisions = _mark_repeated(measures, decisions, repeated or {})
    if not any(decision.judged.status in UNPAIRED for decision in decisions):
        return decisions
    calls, gradients = _collect_modules(measures, decisions)
    statuses = {measure.record: decision.judged.status for measure, decision in zip(measures, decisions, strict=True)}
    marked = []
    for measure, decision in zip(measures, decisions, strict=True):
        if decision.judged.status in UNPAIRED:
            identity = parse_identity(measure.record)
            status, around = _find_cover(identity, calls, gradients)
            why = _WHY
            if not around and fused:
                (status, around), why = _find_fused(identity, calls, fused), _WHY_FUSED
            given = [statuses.get(record, "") for record in (regrouped or {}).get(measure.record, ())]
            text = why[status].format(around) if around else ""
            if not around and given and _is_compared(given):
                status, text = "covered", _WHY_REGROUPED
            if text:
                reason = f"{decision.judged.reason}; {text}"
                decision = replace(decision, judged=replace(decision.judged, status=status, reason=reason))  # noqa: PLW2901
        marked.append(decision)
    marked = _mark_idle_gradients(measures, marked)
    return _mark_uneven(measures, _mark_namesakes(measures, marked, calls, gradients), calls, gradients)


def _mark_idle_gradients(measures: Sequence[Measure], decisions: list[Decision]) -> list[Decision]:
    """Return the decisions; gradients of inputs that only one side has become ``covered`` where no parameter lies behind them.

    In that step and rank, both sides have to have all gradients of parameters, and these agree; at least one could have failed.
    And each module's backward has an output that both sides have.
    """
    by_step: dict[tuple[int, int], list[tuple[int, Identity, str]]] = defaultdict(list)
    for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True)):
        if measure.level == MODULE and measure.phase in {BACKWARD, GRADIENT} and decision.judged.status != "not_judged":
            identity = parse_identity(measure.record)
            by_step[identity.step, identity.rank].append((number, identity, decision.judged.status))
    for records in by_step.values():
        of_parameters = {status for _, identity, status in records if identity.phase == GRADIENT}
        calls: dict[tuple[str, int], set[str]] = defaultdict(set)
        for _, identity, status in records:
            if identity.phase == BACKWARD:
                calls[identity.module, identity.call].add(status)
        is_known = of_parameters <= _AGREES and "pass" in of_parameters
        if not is_known or any(statuses <= UNPAIRED for statuses in calls.values()):
            continue
        for number, identity, status in records:
            if identity.phase == BACKWARD and status in UNPAIRED:
                why = f"{decisions[number].judged.reason}; {_WHY_IDLE}"
                judged = replace(decisions[number].judged, status="covered", reason=why)
                decisions[number] = replace(decisions[number], judged=judged)
    return decisions


def _mark_repeated(
    measures: Sequence[Measure], decisions: Sequence[Decision], repeated: Mapping[str, Sequence[str]]
) -> list[Decision]:
    """Return the decisions; gradients that one side has reduced already become ``covered`` where the steps agree."""
    statuses = {measure.record: decision.judged.status for measure, decision in zip(measures, decisions, strict=True)}
    marked = list(decisions)
    for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True)):
        made = {statuses.get(record, "") for record in repeated.get(measure.record, ())}
        if decision.judged.status in MISALIGNED_STATUSES and made <= _AGREES and "pass" in made:
            why = f"{decision.judged.reason}; {_WHY_REPEATED}"
            judged = replace(decision.judged, status="covered", reason=why)
            marked[number] = replace(decision, judged=judged, failed=frozenset())
    return marked


def _mark_namesakes(measures: Sequence[Measure], decisions: list[Decision], calls: _Calls, gradients: _Lost) -> list[Decision]:
    """Return the decisions; operators that fail only because another implementation has their name become ``covered``.

    Two implementations of a norm may both multiply twice, in another order: ``mul.0`` of one is then no partner of the other's.
    Where a module call has operators without a partner, a pair of operators in it fails and the module's outputs pass, the two
    compute different things on the way to the same result.
    """
    different = {
        _call_of(parse_identity(measure.record))
        for measure, decision in zip(measures, decisions, strict=True)
        if measure.operator and decision.judged.status in UNPAIRED | {"covered"}
    }
    for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True)):
        if not measure.operator or decision.judged.status not in MISALIGNED_STATUSES:
            continue
        identity = parse_identity(measure.record)
        statuses = calls.get((identity.module, _when(identity)), {}).get(identity.call, ())
        # "Its outputs agree" takes one that could have failed and did not: an accepted difference is none.
        if _call_of(identity) not in different or not set(statuses) <= _AGREES or "pass" not in statuses:
            continue
        if _find_cover(identity, calls, gradients)[1] == (identity.module or "the model"):
            module = identity.module or "the model"
            why = f"{decision.judged.reason}; {module} runs other operators on the two sides, and its outputs agree"
            judged = replace(decision.judged, status="covered", reason=why)
            decisions[number] = replace(decision, judged=judged, failed=frozenset())
    return decisions


def _mark_uneven(measures: Sequence[Measure], decisions: list[Decision], calls: _Calls, gradients: _Lost) -> list[Decision]:
    """Return the decisions; what fails in a module that the sides call another number of times becomes ``covered``.

    A mixture of experts may run its activation once for each expert, or once for all of them. The first call of one side is
    then no partner of the other's first call. If a module around it agrees, the two only cut the same work otherwise.
    """
    called: dict[tuple[str, _When], dict[int, bool]] = defaultdict(dict)  # number of a call -> it has a record on both sides
    for measure in measures:
        identity = parse_identity(measure.record)
        numbers = called[identity.module, _when(identity)]
        numbers[identity.call] = numbers.get(identity.call, False) or measure.join not in UNPAIRED
    uneven = {key for key, numbers in called.items() if not all(numbers.values())}
    for number, (measure, decision) in enumerate(zip(measures, decisions, strict=True)):
        if decision.judged.status not in MISALIGNED_STATUSES:
            continue
        identity = parse_identity(measure.record)
        when = _when(identity)
        inner = next((one for one in (identity.module, *_list_outer(identity.module)) if (one, when) in uneven), "")
        around = next((one for one in _list_outer(inner) if (one, when) in calls), "")
        if not around:  # the model's own output covers nothing inside its modules, and "" is the model's name
            continue
        outputs = calls.get((around, when), {}).values()
        agrees = bool(outputs) and all(set(statuses) <= _AGREES and "pass" in statuses for statuses in outputs)
        if agrees and not _has_lost_gradients(identity, around, gradients):
            why = f"{decision.judged.reason}; the sides call {inner} another number of times, and {around} agrees"
            judged = replace(decision.judged, status="covered", reason=why)
            decisions[number] = replace(decision, judged=judged, failed=frozenset())
    return decisions


def _collect_modules(measures: Sequence[Measure], decisions: Sequence[Decision]) -> tuple[_Calls, _Lost]:
    """Return the statuses of the outputs of every module call, and (module, step, rank) of gradients that were not compared."""
    calls: dict[tuple[str, _When], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    gradients = []
    for measure, decision in zip(measures, decisions, strict=True):
        status = decision.judged.status
        if status == "not_judged":
            continue
        if measure.level == MODULE and measure.phase in {FORWARD, BACKWARD}:
            identity = parse_identity(measure.record)
            calls[identity.module, _when(identity)][identity.call].append(status)
        elif measure.phase == GRADIENT and (status not in COMPARED or status in MISALIGNED_STATUSES):
            identity = parse_identity(measure.record)
            gradients.append((identity.module, identity.step, identity.rank))
    return calls, gradients


def _find_cover(identity: Identity, calls: _Calls, gradients: _Lost) -> tuple[str, str]:
    """Return the status that a module gives a record inside it, and the innermost such module; ``""`` if there is none."""
    if identity.phase not in {FORWARD, BACKWARD} or identity.module == OUTSIDE:
        return "", ""
    when = _when(identity)
    for module in _list_modules_around(identity):
        of_module = calls.get((module, when), {})
        # Which call of an outer module a call belongs to is not in its name, so all calls of an outer module must have been
        # compared.
        called = [of_module.get(identity.call, ())] if module == identity.module else list(of_module.values())
        if not called or not all(_is_compared(statuses) for statuses in called):
            continue
        if not _has_lost_gradients(identity, module, gradients):
            depends = any("not_comparable" in statuses for statuses in called)
            return "not_comparable" if depends else "covered", module or "the model"
    return "", ""


def _find_fused(identity: Identity, calls: _Calls, fused: Mapping[str, str]) -> tuple[str, str]:
    """Return the status that a fused operator gives one that the other side computes inside of it; ``""`` if there is none."""
    around = fused.get(identity.module, "")
    called = list(calls.get((around, _when(identity)), {}).values()) if around else []
    if not called or not all(_is_compared(statuses) for statuses in called):
        return "", ""
    return "not_comparable" if any("not_comparable" in statuses for statuses in called) else "covered", around


def _list_modules_around(identity: Identity) -> Iterator[str]:
    """Yield the modules that may cover a record, innermost first; the model only for what its own code ran."""
    if identity.operator:
        yield identity.module
    yield from _list_outer(identity.module)


def _list_outer(module: str) -> Iterator[str]:
    """Yield the modules around a module, innermost first, without the model itself."""
    while module := module.rpartition(".")[0]:
        yield module


def _has_lost_gradients(identity: Identity, module: str, gradients: _Lost) -> bool:
    """Tell whether gradients of a module's parameters are missing or fail, so that its outputs say too little in backward."""
    when = (identity.step, identity.rank)
    return identity.phase == BACKWARD and any(
        (step, rank) == when and _is_inside(parameter, module) for parameter, step, rank in gradients
    )


def _is_compared(statuses: Sequence[str]) -> bool:
    """Tell whether all outputs of a call were compared, or depend on a near tie, and one of them at least could have failed."""
    known = all(status in COMPARED or status == "not_comparable" for status in statuses)
    return known and any(status != "blind" for status in statuses)


def _is_inside(module: str, outer: str) -> bool:
    return outer in {ROOT_MODULE, module} or module.startswith(f"{outer}.")


def _call_of(identity: Identity) -> tuple[str, int, int, int]:
    return identity.module, identity.call, identity.step, identity.rank


def _when(identity: Identity) -> _When:
    return identity.phase, identity.step, identity.rank
