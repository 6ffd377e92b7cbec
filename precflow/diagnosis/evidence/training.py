"""Evidence about training as a whole: the optimizer's settings and steps, its gradients, and the order of the batches."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from precflow.agent.contract import FORWARD, GRADIENT, OPTIMIZER, ROOT_MODULE
from precflow.diagnosis.evaluation import PairedCall, pair_calls
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.suspect import IMPLEMENTATIONS, OPTIMIZER_CLASS, find_different_arguments
from precflow.diagnosis.training.gradients import GradientChange, GradientRow, Gradients, is_same_scaling
from precflow.diagnosis.training.optimizers import is_same_setting, read_settings
from precflow.diagnosis.training.replay import ReplayedStep, choose_cause, list_proven
from precflow.diagnosis.training.updates import StillParameter
from precflow.dumps.header import Header
from precflow.dumps.protocol import Dump
from precflow.environment.module_settings import read_module_settings
from precflow.judgement.curves import find_narrow_losses

_FEWEST = 3  # parameters whose gradients have to share a factor
_MOST = 0.9  # share of the parameters that have to
_COUNTED = 1e-3  # relative: a factor that is nearer to a count is one
_SPREAD = 1e-3
_NOISE = 2.0**-9  # of a module's largest gradient: half of what bfloat16 resolves
_POWER = 1e-6  # of the logarithm: a factor that is as near to a power of two is one
_AVERAGING = {"batch_norm": "training", "instance_norm": "use_input_stats"}  # operator -> argument that turns averaging on
_RUNNING_MEAN = frozenset(("1", "running_mean"))  # of either: where the average is given, by position or by name
_OUTCOMES = frozenset(("loss_scale_at_the_end", "skipped_steps"))
_KINDS = {
    "none": "unchanged",
    "scaled": "all multiplied by {:.3g}",
    "scaled each": "multiplied by {:.3g} to {:.3g}",
    "cut off": "cut off at {:.3g}",
    "bfloat16": "rounded to bfloat16",
    "float16": "rounded to float16",
    "other": "changed in another way",
}

EVIDENCE = {
    "optimizer_settings": Evidence(
        "settings of the optimizer that differ", "`name: reference / target (parameters)`, as recorded at each step."
    ),
    "optimizer_choices": Evidence(
        "class and settings that one side lacks",
        "`name: reference / target`; they choose a formula or another implementation of the same.",
    ),
    "optimizer_settings_proven": Evidence(
        "of these explain the target's steps",
        "Its steps follow from them, and not from the reference's; absent if no step was computed again.",
    ),
    "optimizer_steps": Evidence(
        "steps of the optimizer computed again", "Of parameters whose tensors were kept; absent if there are none."
    ),
    "optimizer_faults": Evidence(
        "of them that do not follow from their own gradient",
        "Steps of the target whose weight or state does not follow from the optimizer's formula.",
    ),
    "optimizer_first_fault": Evidence("first of them", "Parameter; empty without one."),
    "optimizer_cause": Evidence(
        "they follow if", "A setting other than the recorded one that gives the target's weights; empty if none does."
    ),
    "optimizer_explained": Evidence("explained by that setting", "Share of the steps that do not follow.", unit="%"),
    "rate_shift": Evidence("learning rates are shifted by steps", "1: a step later, -1: a step earlier; 0 if neither."),
    "rate_shift_steps": Evidence(
        "steps whose learning rate shows it",
        "Of the recorded ones; one alone may be chance: a schedule that runs faster meets it.",
    ),
    "gradient_factor": Evidence(
        "gradients are those of the reference times", "One factor for all parameters in the first step; absent without one."
    ),
    "gradient_factor_is": Evidence(
        "which is", "Which counts of the run it is, or one divided by them: ranks, micro batches of a step; absent if none."
    ),
    "gradient_factor_share": Evidence("parameters with that factor", "Of those with a gradient.", unit="%"),
    "gradient_factor_estimated": Evidence(
        "that factor is of the statistics alone",
        "Smallest, largest, sum and norm have it; neither tensors nor sketches were kept.",
    ),
    "gradient_given_factor": Evidence(
        "what the optimizer sees is that of the reference times",
        "In the same step, after what the script does to gradients; absent without one factor for all.",
    ),
    "gradient_scale_taken_off": Evidence(
        "the factor is taken off before the optimizer",
        "The optimizer sees the same on both sides, and clipping to one norm cannot be what made it so.",
    ),
    "gradients_reference": Evidence(
        "between backward and the optimizer, on the reference",
        "What happened to the gradients in the first step in which it differs; absent if it is the same.",
    ),
    "gradients_target": Evidence(
        "the same on the target", "Such as: all multiplied by 0.13, to a norm of 1; cut off at 0.1; unchanged."
    ),
    "gradients_step": Evidence("first in step", "Number of that step."),
    "gradients_left_side": Evidence(
        "gradients that still hold the last step's",
        "Side whose gradients are those of the other side and of its own step before; absent if there is none.",
    ),
    "gradients_left_step": Evidence("they still hold it first in step", "Number of the step."),
    "gradients_left_share": Evidence(
        "parameters whose gradient is such a sum", "Whose gradient is that sum, of those on both sides.", unit="%"
    ),
    "gradients_narrow": Evidence(
        "gradients of the target fit into", "16-bit type that holds all that its optimizer sees, and not the reference's."
    ),
    "mixed_precision_different": Evidence(
        "mixed precision differs",
        "`setting: reference / target` of what was in effect: level, type, modules, operators, scale.",
    ),
    "loss_type_side": Evidence("computes its losses in 16 bits", "`reference` or `target`; absent unless one side alone does."),
    "loss_type": Evidence("type of these losses", "16-bit type that holds all losses of this side alone."),
    "batches_shuffled": Evidence(
        "batches in another order", "The model was given the same inputs as on the reference, in other steps."
    ),
}


def gather(
    reference: Dump,
    target: Dump,
    *,
    steps: Sequence[ReplayedStep],
    gradients: Gradients,
    still: Sequence[StillParameter] = (),
) -> dict[str, Any]:
    """Return the evidence about training, by the names of ``names.EVIDENCE``.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        steps: The optimizer's steps, computed again.
        gradients: The gradients of both sides.
        still: Parameters that one side does not update: their steps follow no formula, and nothing else explains them.
    """
    proven = [text.partition(" is ")[0] for text in list_proven(steps)]
    settings = find_other_settings(reference, target)
    narrow = find_narrow_losses(reference.header.loss_of_step, target.header.loss_of_step)
    return {
        "optimizer_settings": sorted(settings, key=lambda text: text.partition(": ")[0] not in proven),  # those first
        "optimizer_choices": find_other_choices(reference, target),
        **_find_shift(_pair_steps(reference, target)),
        **_count_steps([one for one in steps if one.parameter not in {each.parameter for each in still}]),
        **_describe_factor(gradients, reference),
        **_compare_changes(gradients),
        **_describe_left(gradients),
        "batches_shuffled": _are_shuffled(reference, target),
        "mixed_precision_different": _compare_precision(reference.header, target.header),
        **({"loss_type_side": narrow[0], "loss_type": narrow[1]} if narrow else {}),
    }


# The optimizer


def _pair_steps(reference: Dump, target: Dump) -> list[PairedCall]:
    return pair_calls(reference, target, OPTIMIZER)


def find_other_settings(reference: Dump, target: Dump) -> list[str]:
    """Return ``name: reference / target (parameters)`` of each setting of the optimizer that differs."""
    parameters: dict[str, set[str]] = defaultdict(set)
    every = set()
    for pair in _pair_steps(reference, target):
        name = f"{pair.reference.module}.{pair.reference.outputs[0].index}"
        every.add(name)
        for text in find_different_arguments(pair.reference, pair.target, same_dtype=True):
            parameters[text].add(name)
    return [
        f"{text} ({'all' if names == every else f'{len(names)} of'} {len(every)} parameters)"
        for text, names in sorted(parameters.items(), key=lambda item: -len(item[1]))
    ]


def find_other_choices(reference: Dump, target: Dump) -> list[str]:
    """Return ``name: reference / target`` of the class of the optimizer, if it differs, and of settings that one side lacks.

    They may choose another formula or another implementation of the same: only the steps tell which.
    """
    found: dict[str, None] = {}
    for pair in _pair_steps(reference, target):
        here, there = pair.reference.arguments, pair.target.arguments
        known = ({OPTIMIZER_CLASS} | (here.keys() ^ there.keys())) - IMPLEMENTATIONS
        for name in (name for name in (*here, *there) if name in known and here.get(name) != there.get(name)):
            found[f"{name}: {here.get(name, '(absent)')} / {there.get(name, '(absent)')}"] = None
    return list(found)


def find_other_numbers(reference: Dump, target: Dump) -> dict[str, list[str]]:
    """Return ``name: reference / target`` of the optimizer's settings that both sides have with another value, and its records.

    Such steps cannot be the same computation. The class of the optimizer is left out, because a fused class may compute the
    same formula, and so is a setting that one side alone knows, because versions of torch add some. A learning rate that is a
    float32 tensor on one side is the same number.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for pair in _pair_steps(reference, target):
        here, there = (read_settings(call.arguments) for call in (pair.reference, pair.target))
        names = (here.keys() & there.keys()) - IMPLEMENTATIONS - {OPTIMIZER_CLASS}
        for name in sorted(names):
            if not is_same_setting(here[name], there[name]):
                found[f"{name}: {here[name]} / {there[name]}"] += [record.text for record in pair.reference.outputs]
    return dict(found)


def find_other_averages(reference: Dump, target: Dump) -> list[str]:
    """Return, in words, which batch norms average their running statistics at another rate.

    Training does not read these statistics and no record holds them; evaluation does. Modules say it themselves, and functions
    that are called without one by their arguments.
    """
    settings = [read_module_settings(dump.header.facts) for dump in (reference, target)]
    found: dict[str, None] = {}
    for name, here in settings[0].items():
        there = settings[1].get(name, {})
        rates = here.get("momentum"), there.get("momentum")
        averages = all(side.get(name) == "True" for side in (here, there) for name in ("track_running_stats", "training"))
        if averages and None not in rates and rates[0] != rates[1]:
            found[f"{name} averages its running statistics with momentum {rates[0]} / {rates[1]}"] = None
    if found or not any(call.operator in _AVERAGING for call in reference.calls()):
        return list(found)
    for pair in pair_calls(reference, target):
        given = tuple(call.arguments.get("momentum") for call in (pair.reference, pair.target))
        reads = any(record.index in _RUNNING_MEAN for record in pair.reference.inputs)
        is_training = pair.reference.arguments.get(_AVERAGING.get(pair.reference.operator, "")) == "True"
        if reads and is_training and given[0] != given[1]:
            found[f"{pair.reference.name} averages its running statistics with momentum {given[0]} / {given[1]}"] = None
    return list(found)


def moves_no_weight(reference: Dump, target: Dump) -> bool:
    """Tell whether every recorded step of the optimizer has a learning rate of 0 on both sides; without any, ``False``."""
    calls = [call for pair in _pair_steps(reference, target) for call in (pair.reference, pair.target)]
    rates = {read_settings(call.arguments).get("lr") for call in calls}
    return rates == {0}


def _find_shift(pairs: Sequence[PairedCall]) -> dict[str, int]:
    """Return by how many steps the target's learning rates are ahead (0 if they are not), and how many steps show it."""
    rates: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
    for pair in pairs:
        for kept, call in zip(rates, (pair.reference, pair.target), strict=True):
            kept.setdefault(call.step, read_settings(call.arguments).get("lr"))
    here, there = rates
    if here == there:
        return {"rate_shift": 0}
    for shift in (1, -1):
        both = [step for step in there if step + shift in here]
        moves = len({here[step + shift] for step in both}) > 1 or len(both) == 1
        if both and moves and all(there[step] == here[step + shift] for step in both):
            return {"rate_shift": shift, "rate_shift_steps": len(both)}
    return {"rate_shift": 0}


def _count_steps(steps: Sequence[ReplayedStep]) -> dict[str, Any]:
    proving = [one for one in steps if one.proves]
    if not proving:
        return {}
    faults = [one for one in proving if one.is_fault]
    cause, explained = choose_cause(proving)
    return {
        "optimizer_steps": len(proving),
        "optimizer_faults": len(faults),
        "optimizer_first_fault": faults[0].parameter if faults else "",
        "optimizer_cause": cause,
        "optimizer_settings_proven": list_proven(proving),
        "optimizer_explained": explained / len(faults) if faults else 0.0,
    }


# Gradients


def _describe_factor(gradients: Gradients, reference: Dump) -> dict[str, Any]:
    """Return the factor between the gradients of both sides, and what is left of it when the optimizer sees them."""
    found = _find_factor(gradients.rows)
    if not found:
        return {}
    first = min(row.step for row in gradients.rows)
    found["gradient_factor_estimated"] = any(row.multiple is not None for row in gradients.rows if row.step == first)
    found |= name_factor(found["gradient_factor"], reference)
    given = _find_factor(gradients.given)
    if not given:
        return found
    left = given["gradient_factor"]
    is_taken_off = math.isclose(left, 1.0, rel_tol=_SPREAD) and given["gradient_factor_share"] == 1.0
    is_taken_off = is_taken_off and any(_is_never_clipped(side, gradients.changes) for side in ("reference", "target"))
    return {**found, "gradient_given_factor": left, "gradient_scale_taken_off": is_taken_off}


def _is_never_clipped(side: str, changes: Sequence[GradientChange]) -> bool:
    """Tell whether a side leaves its gradients, or multiplies them by a power of two, in every recorded step.

    Clipped to one norm, gradients that are wrong by a factor agree as well, by a factor that follows from their norm.
    """
    own = [change for change in changes if change.side == side]
    return bool(own) and all(
        change.kind == "none" or (change.kind == "scaled" and change.amount > 0 and _is_power_of_two(change.amount))
        for change in own
    )


def _is_power_of_two(number: float) -> bool:
    power = math.log2(number)
    return abs(power - round(power)) < _POWER


def _find_factor(rows: Sequence[GradientRow]) -> dict[str, Any]:
    """Return the one factor between the gradients of both sides in the first step; nothing if there is none."""
    if not rows:
        return {}
    first = min(row.step for row in rows)
    of_step = _leave_noise_out([row for row in rows if row.step == first and row.reference])
    factors = [row.factor for row in of_step if row.factor is not None]
    if len(factors) < max(_FEWEST, _MOST * len(of_step)):
        return {}
    middle = statistics.median(factors)
    same = [factor for factor in factors if abs(factor - middle) <= _SPREAD * middle]
    return {"gradient_factor": middle, "gradient_factor_share": len(same) / len(of_step)}


def _leave_noise_out(rows: Sequence[GradientRow]) -> list[GradientRow]:
    """Return the gradients without those that follow no factor because they are the rounding that a sum leaves.

    Such is the bias of an attention's keys: on both sides it is less than rounding of the other gradients of its module.
    """
    largest: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        module = largest[row.parameter.rpartition(".")[0]]
        module[:] = (max(module[0], row.reference or 0.0), max(module[1], row.target or 0.0))
    return [
        row
        for row in rows
        if row.factor is not None
        or any(
            (norm or 0.0) > _NOISE * most
            for norm, most in zip((row.reference, row.target), largest[row.parameter.rpartition(".")[0]], strict=True)
        )
    ]


def name_factor(factor: float, reference: Dump) -> dict[str, Any]:
    """Return which counts of a run a factor is; two micro batches on two ranks leave open which of both was forgotten."""
    calls = reference.calls()
    ranks = len({call.rank for call in calls})
    batches = 1 + max((call.call for call in calls if call.phase == GRADIENT), default=0)
    count = factor if factor > 1.0 else 1.0 / factor
    numbers = {"ranks": ranks, "micro batches": batches}
    if ranks > 1 and batches > 1:
        numbers["ranks times that of micro batches"] = ranks * batches
    names = [name for name, number in numbers.items() if number > 1 and abs(count / number - 1.0) < _COUNTED]
    if not names:
        return {}
    inverse = "one divided by " if factor < 1.0 else ""
    return {"gradient_factor_is": f"{inverse}the number of {', and also that of '.join(names)}"}


def _describe_left(gradients: Gradients) -> dict[str, Any]:
    left = gradients.left
    if left is None:
        return {}
    return {
        "gradients_left_side": left.side,
        "gradients_left_step": left.step,
        "gradients_left_share": left.parameters / left.compared,
    }


def _compare_changes(gradients: Gradients) -> dict[str, Any]:
    """Return what happened to the gradients on both sides in the first step in which that is another thing."""
    narrow = dict(gradients.narrow or {})
    found: dict[str, Any] = {}
    if narrow.get("target") and narrow.get("target") != narrow.get("reference"):
        found["gradients_narrow"] = narrow["target"]
    by_step: dict[tuple[int, int], dict[str, GradientChange]] = defaultdict(dict)
    for change in gradients.changes:
        by_step[change.step, change.rank][change.side] = change
    for (step, _), sides in sorted(by_step.items()):
        if (
            len(sides) == 2
            and all(math.isfinite(one.norm) for one in sides.values())
            and _differ(sides["reference"], sides["target"])
        ):
            words = {f"gradients_{side}": _describe_change(change) for side, change in sides.items()}
            return {**found, **words, "gradients_step": step}
    return found


def _describe_change(change: GradientChange) -> str:
    factors = sorted(factor for factor, _ in change.each.values())
    text = _KINDS[change.kind].format(*((factors[0], factors[-1]) if factors else (change.amount,)))
    is_shortened = change.kind == "scaled" and 0.0 < change.amount < 1.0
    return f"{text}, to a norm of {change.norm:.3g}" if is_shortened else text  # of clipping, this is the limit


def _differ(reference: GradientChange, target: GradientChange) -> bool:
    """Tell whether the sides treat gradients differently. Where gradients differ, the same clipping acts otherwise on them."""
    kinds = {reference.kind, target.kind}
    rounding = max(reference.rounding, target.rounding)
    spread = max(_SPREAD, rounding)
    if kinds <= {"none", "scaled"}:
        factors = [change.amount if change.kind == "scaled" else 1.0 for change in (reference, target)]
        return not is_same_scaling(factors, [reference.norm, target.norm], rounding)
    if kinds == {"none", "cut off"}:
        cut, unchanged = (reference, target) if target.kind == "none" else (target, reference)
        return unchanged.peak > (1.0 + spread) * cut.amount  # else it has nothing beyond the same limit
    if kinds == {"cut off"}:
        return not math.isclose(reference.amount, target.amount, rel_tol=spread)
    if kinds == {"scaled each"}:
        both = [(one, target.each[name]) for name, one in reference.each.items() if name in target.each]
        return any(_treat_differently(*one, *other, rounding) for one, other in both)
    return len(kinds) > 1


def _treat_differently(factor: float, norm: float, other: float, after: float, rounding: float) -> bool:
    """Tell whether the sides multiply a gradient by different factors, though its norm is about the same."""
    before = [norm / factor, after / other] if factor and other else [0.0, 0.0]
    is_same = math.isclose(factor, other, rel_tol=max(10 * _SPREAD, rounding))
    return math.isclose(*before, rel_tol=max(_SPREAD, rounding)) and not is_same


# Data


def _are_shuffled(reference: Dump, target: Dump) -> bool:
    """Tell whether the target was fed the reference's batches in another order."""
    here, there = (
        {
            (call.rank, call.step, call.call): tuple(record.known for record in call.inputs if not record.weight)
            for call in dump.calls()
            if call.module == ROOT_MODULE and not call.operator and call.phase == FORWARD
        }
        for dump in (reference, target)
    )
    if here == there or here.keys() != there.keys() or not all(all(batch) for batch in (*here.values(), *there.values())):
        return False
    return sorted(here.values()) == sorted(there.values())


# Mixed precision


def _compare_precision(reference: Header, target: Header) -> list[str]:
    """Return ``setting: reference / target`` of each setting of mixed precision that differs; what came of them is left out."""
    here, there = (header.facts.get("mixed_precision") or {} for header in (reference, target))
    names = [name for name in dict.fromkeys((*here, *there)) if name not in _OUTCOMES]
    return [
        f"{name}: {here.get(name) or 'none'} / {there.get(name) or 'none'}"
        for name in names
        if (here.get(name) or "none") != (there.get(name) or "none")
    ]
