"""Collects all evidence of a run with bounded work: headers, statuses, and the tensors of the first three suspects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.agent.contract import BACKWARD, COPY_IN, GRADIENT, MODULE, OPTIMIZER, PHASES, parse_identity
from precflow.config.schema import RunConfig
from precflow.config.vocabulary import ESCALATING
from precflow.diagnosis.advice.repro import SCRIPT, write_repro
from precflow.diagnosis.calls_differ import DifferentCall, find_different_calls
from precflow.diagnosis.dropped_steps import find_first_broken, gather_first_broken
from precflow.diagnosis.evaluation import name_call, pair_calls
from precflow.diagnosis.evidence import (
    communication,
    operator_families,
    run,
    suspect,
    training,
)
from precflow.diagnosis.evidence.overflows import overflow, skipped_steps
from precflow.diagnosis.evidence.overflows.skipped_steps import list_noted
from precflow.diagnosis.evidence.pieces import Evidence, list_of_run, list_of_suspect
from precflow.diagnosis.evidence.run import UNPAIRED
from precflow.diagnosis.evidence.suspect import find_different_arguments
from precflow.diagnosis.evidence.tensors import ObservedCall, observe
from precflow.diagnosis.examined import choose_examined, find_kind
from precflow.diagnosis.findings import Suspect
from precflow.diagnosis.gradients.linear import add_products
from precflow.diagnosis.introduced import IntroducedError, group_by_call
from precflow.diagnosis.training.replay import ReplayedStep
from precflow.diagnosis.training.updates import (
    StillParameter,
    explain_missing,
    find_still_parameters,
    gather_still,
    keep_whatever_data,
)
from precflow.dumps.header import Header
from precflow.dumps.protocol import Dump
from precflow.dumps.record_names import name_record
from precflow.judgement.verdicts import Judged

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

_LISTED = 5
_OF_LOSS = frozenset({"micro_factors", "tokens_left_out", "tokens_added", "labels_shifted", "loss_gradient"})
"""Number of suspects whose tensors are read."""
_TENSOR_OR_NONE = ("(absent) / None", "None / (absent)", "(a tensor) / None", "None / (a tensor)")
"""Ends of arguments that are ``None`` on one side and left out or a tensor on the other: other code, and no other setting."""
_NOT_JUDGED = Judged(record="", status="not_judged")  # the status of data movement that changed values

EVIDENCE_OF_RUN = {
    "recipe": Evidence("recipe", "Name of the recipe."),
    "keep_tensors": Evidence(
        "keeps tensors", "The override with which a run of this recipe keeps the tensors of its suspects."
    ),
    "record_inside": Evidence(
        "records what runs inside of modules", "The override with which another run does; empty if this one did."
    ),
    "suspect_count": Evidence("calls that introduce an error", "Number of suspects."),
    "first_suspect": Evidence("first suspect", "Its name; empty without one."),
    "first_record": Evidence("its record", "Name of the first suspect's failing output; empty without one."),
    "first_suspect_phase": Evidence("part of the step it is in", "Phase of the first suspect; empty without one."),
    "later_phases": Evidence(
        "later parts of the step",
        "Phases that follow the one in which the run starts, if that is in the first recorded step; empty otherwise.",
    ),
    "suspect_kinds": Evidence(
        "kinds of them", "Operator, module class and phase of the suspects that no evidence about the run explains."
    ),
    "suspects_all_matmul": Evidence(
        "all of them multiply matrices", "Every suspect is of the family matmul; false without any."
    ),
    "unrepeatable_reference": Evidence(
        "reference changes at", "Module and operator of records that change between equal runs, in order."
    ),
    "unrepeatable_target": Evidence("target changes at", "The same on the target."),
    "arguments_elsewhere": Evidence(
        "arguments that differ elsewhere", "`call: name: reference / target` of calls that are no suspects; up to five."
    ),
}
EVIDENCE_OF_SUSPECT = {
    "phase": Evidence("part of the step", "Phase of the call."),
    "kind": Evidence("kind", "Operator, class of its module, and phase."),
    "repro": Evidence("runs alone", "Script in the run folder that runs this call without precflow; absent if there is none."),
    "behind_start": Evidence(
        "its gradients are wrong since",
        "Where the error starts, if this is a later step of the optimizer; else absent.",
    ),
}


def collect(comparison: Comparison, repro: Path | None = None) -> dict[str, Any]:
    """Return evidence by the names of ``names.EVIDENCE``, and under ``suspects`` one mapping for each that is examined.

    Evidence that could not be measured is absent, so that no rule takes it for a measured value.

    Args:
        comparison: Two dumps, and what each stage has made of them.
        repro: Folder for a script that runs the first suspect alone, if all of its tensors were kept; ``None`` for no script.
    """
    reference, target, config, blockers = comparison.reference, comparison.target, comparison.config, comparison.blockers
    region, measures, judged, steps = comparison.region, comparison.measures, comparison.judged, comparison.steps
    same_dtype = comparison.same_dtype
    of_run = {name: value for piece in list_of_run() for name, value in piece.gather(comparison).items()}
    statuses = {record.record: record for record in judged}
    by_output = {(one.call, one.index): one for one in comparison.introduced}
    by_call = group_by_call(comparison.introduced)
    different = {} if blockers else _find_different_calls(reference, target, same_dtype=same_dtype)
    suspected = {one.record for one in region.suspects}
    elsewhere = [
        f"{one.pair.reference.name}: {text}"
        for one in different.values()
        if not suspected & {record.text for record in one.pair.reference.outputs} and not _takes_a_part(one)
        for text in one.arguments
        if not text.endswith(_TENSOR_OR_NONE)
    ]
    families = {operator_families.find_family(suspect.operator) for suspect in region.suspects}
    still = find_still_parameters(reference, target, measures)
    still = keep_whatever_data(still) if blockers else still
    observed = [] if blockers else add_products(reference, target, observe(reference, target, choose_examined(region.suspects)))
    # What the loss does is told by itself: gradients that are made of it have no cause of their own, but for a backward that
    # computes wrongly at its own inputs.
    wrong_in_place = {call for call, one in by_call.items() if one.is_fault}
    of_loss = {BACKWARD, GRADIENT} if _OF_LOSS & of_run.keys() else set()
    of_training = (
        {} if blockers else training.gather(reference, target, steps=steps, gradients=comparison.gradients, still=still)
    )
    treated = of_training.get("gradients_step")
    looked_at = [one.suspect for one in observed]
    observed = [
        one
        for one in observed
        if not _is_told(one, still, steps, treated)
        and (
            one.reference.phase not in of_loss
            or (one.reference.phase == BACKWARD and name_call(one.reference) in wrong_in_place)
        )
        and not (one.reference.phase == GRADIENT and one.reference.step == of_training.get("gradients_left_step"))
        and not ("state_anew" in of_run and one.reference.phase == OPTIMIZER)
        and not (one.reference.phase != OPTIMIZER and one.reference.step > of_run.get("written_after", one.reference.step))
        and not ("copy_differs" in of_run and f".{COPY_IN}" in one.suspect.record)
        # Gradients that are clipped by their common norm all change, if one of them is wrong.
        and not (one.suspect.changed and _describe_start(one, region.suspects[0]))
    ]
    left = {one.suspect.record for one in observed}
    told_kinds = {find_kind(one) for one in looked_at if one.record not in left}
    shown = next((number for number, one in enumerate(observed) if repro and write_repro(one, repro)), None)
    headers, same = (reference.header, target.header), config.environment.same
    traces = None if blockers else overflow.trace_sides(reference, target, measures)
    skipped = (
        skipped_steps.NOTHING
        if traces is None
        else skipped_steps.find_skipped_steps(*traces, noted=(list_noted(reference.header), list_noted(target.header)))
    )
    is_explained = explain_missing(still)
    # Records of a step that one side skipped, or of a parameter that it does not train, are missing for a known reason: they
    # have a finding of their own.
    unexplained = [
        record
        for record in judged
        if record.status not in UNPAIRED or not (skipped.explains(record.record) or is_explained(record.record))
    ]
    return {
        "recipe": config.recipe,
        "keep_tensors": keep_tensors(config),
        "record_inside": record_inside(config, headers),
        **run.gather(*headers, same=same, measures=measures, judged=unexplained, incomplete=comparison.incomplete),
        **of_run,
        **of_training,
        **gather_still(still, region),
        **({} if blockers else gather_first_broken(find_first_broken(reference, target))),
        **({} if blockers else communication.gather_run(reference, target, region.suspects, judged)),
        "arguments_elsewhere": elsewhere[:_LISTED],
        "suspect_count": len(region.suspects),
        "first_suspect": region.suspects[0].name if region.suspects else "",
        "first_record": name_record(parse_identity(region.suspects[0].record)) if region.suspects else "",
        "first_suspect_phase": parse_identity(region.suspects[0].record).phase if region.suspects else "",
        "later_phases": _list_later_phases(reference, region.suspects),
        "suspect_kinds": [
            _describe_kind(kind) for kind in dict.fromkeys(map(find_kind, region.suspects)) if kind not in told_kinds
        ],
        "suspects_all_matmul": families == {"matmul"},
        "unrepeatable_reference": _select_side(region.unrepeatable, "reference"),
        "unrepeatable_target": _select_side(region.unrepeatable, "target"),
        **({} if traces is None else {**overflow.gather(*traces), **skipped.evidence}),
        "suspects": [
            suspect.gather(
                call,
                statuses.get(call.suspect.record, _NOT_JUDGED),
                same_dtype=same_dtype,
                introduced=_choose_introduced(by_output, by_call, (name := name_call(call.reference)), call.records[0].index),
                sources=different[name].sources if name in different else (),
            )
            | {"kind": _describe_kind(find_kind(call.suspect)), "phase": call.reference.phase}
            | _describe_start(call, region.suspects[0])
            | {name: value for piece in list_of_suspect() for name, value in piece.gather(comparison, call).items()}
            | communication.gather(reference, target, call.reference, call.target)
            | communication.find_lost(reference, target, call.suspect)
            | ({"repro": f"{repro.name}/{SCRIPT}"} if repro and number == shown else {})
            for number, call in enumerate(observed)
        ]
        + [
            suspect.describe_lone(one) | {"kind": _describe_kind(find_kind(one)), "phase": parse_identity(one.record).phase}
            for one in ([] if blockers else choose_examined(region.suspects))
            if one.between_target and not one.between_reference and one.record not in {each.record for each in looked_at}
        ],
    }


def _is_told(call: ObservedCall, still: Sequence[StillParameter], steps: Sequence[ReplayedStep], treated: int | None) -> bool:
    """Tell whether evidence about the run explains a step of the optimizer, so that no other explanation is looked for.

    It does if its weight stands still, if float64 says that the step does not follow, if a setting differs, or if the step is
    given another gradient since step ``treated``, the first in which the sides clip or scale gradients differently.
    """
    if call.reference.phase != OPTIMIZER:
        return False
    if treated is not None and call.reference.step >= treated and not call.inputs_equal:
        return True
    if call.target is not None and find_different_arguments(call.reference, call.target, same_dtype=True):
        return True
    proven = {step.call for step in steps if step.is_fault or step.settings}
    return name_call(call.reference) in proven or call.suspect.record in {one.record for one in still}


def _find_different_calls(reference: Dump, target: Dump, *, same_dtype: bool) -> dict[str, DifferentCall]:
    """Return the calls that the sides made differently by their names."""
    pairs = pair_calls(reference, target)
    found = find_different_calls(pairs, reference.calls(), target.calls(), same_dtype=same_dtype)
    return {one.pair.name: one for one in found}


def _choose_introduced(
    by_output: Mapping[tuple[str, str], IntroducedError], by_call: Mapping[str, IntroducedError], call: str, index: str
) -> IntroducedError | None:
    """Return what was found about an output; of a module's backward, what is wrong inside of it if something is."""
    worst = by_call.get(call)
    if worst is not None and worst.is_fault and worst.is_inside:
        return worst
    return by_output.get((call, index))


def _list_later_phases(reference: Dump, suspects: Sequence[Suspect]) -> list[str]:
    """Return the parts of a step that follow the one in which the run starts, where none of them comes before it.

    None does in the first step that was recorded.
    """
    if not suspects:
        return []
    start = parse_identity(suspects[0].record)
    is_first = start.step == min((call.step for call in reference.calls()), default=start.step)
    return list(PHASES[PHASES.index(start.phase) + 1 :]) if is_first else []


def _describe_kind(kind: tuple[str, str, str]) -> str:
    """Return a kind of suspects in words.

    >>> _describe_kind(("linear", "Linear", "forward")), _describe_kind(("", "GELU", "backward"))
    ('linear in Linear (forward)', 'GELU (backward)')
    """
    operator, class_name, phase = kind
    name = " in ".join(filter(None, (operator, class_name)))
    return f"{name} ({phase})" if name else phase


def _describe_start(call: ObservedCall, first: Suspect) -> dict[str, Any]:
    """Say that a step of the optimizer comes behind where the error starts: in what makes its gradients."""
    start = parse_identity(first.record)
    if call.reference.phase != OPTIMIZER or start.phase == OPTIMIZER or start.step > call.reference.step or call.inputs_equal:
        return {}
    return {"behind_start": first.name}


def _takes_a_part(different: DifferentCall) -> bool:
    """Tell whether a call only takes a part of a tensor (``mask[:, :7]``): which one is no setting where its output agrees."""
    call = different.pair.reference
    return call.movement or call.operator in {"getitem", "__getitem__", "index"}


def record_inside(config: RunConfig, headers: Iterable[Header]) -> str:
    """Return the override with which another run records what modules call; empty if no run made the dumps, or this one did."""
    is_run = not (config.reference.dump or config.target.dump)
    only_modules = any(list(header.capture.get("level", ())) == [MODULE] for header in headers)
    return "capture.level=[module,api]" if is_run and only_modules else ""


def keep_tensors(config: RunConfig) -> str:
    """Return the override with which another run keeps the tensors of its suspects: escalating if possible."""
    capture = config.capture
    once = capture.keep_last or config.reference.dump or config.target.dump  # neither allows a second pass
    return "capture=tensors" if once or capture.detail == ESCALATING else "capture=escalating"


def _select_side(names: Sequence[str], side: str) -> list[str]:
    """Return the names of one side; the region has ``side: name``, which ``result.json`` shows."""
    return [name.removeprefix(f"{side}: ") for name in names if name.startswith(f"{side}: ")]
