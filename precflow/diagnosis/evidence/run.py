"""Evidence about the run as a whole: from headers, facts and statuses, without any tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from precflow.agent.contract import RECORDED
from precflow.comparison.measure import Measure
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.header import ContentEntries, Header
from precflow.environment import amounts, differences, program, reproduction, unseen, variables
from precflow.judgement.verdicts import MISALIGNED_STATUSES, Judged

UNPAIRED = ("unpaired_reference", "unpaired_target")

_SHOWN = 5
_LOW = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})

EVIDENCE = {
    "reference_dtype": Evidence("reference dtype", "Floating point type of the reference."),
    "target_dtype": Evidence("target dtype", "Floating point type of the target."),
    "low_precision": Evidence("low precision", "Either side computes in 16 bits or fewer."),
    "damage": Evidence("damaged", "What is missing, torn or cut short in the dumps, or was never sealed; up to five."),
    "emulated": Evidence("emulated", "Either side is emulated."),
    "failing": Evidence("records over their limit", "Number of records that fail, or differ in shape, dtype or finiteness."),
    "accepted_count": Evidence("accepted differences", "Number of records whose difference the recipe accepts."),
    "weights_different": Evidence("weights that differ", "Up to five names."),
    "weights_different_count": Evidence("number of weights that differ", "Weights that differ or are on one side only."),
    "weights_on_one_side_count": Evidence(
        "of them on one side only", "Weights whose name only one side has, after the rules of section `pairing`."
    ),
    "inputs_different": Evidence("inputs that differ", "Up to five names."),
    "inputs_different_count": Evidence("number of inputs that differ", "Inputs that differ or are on one side only."),
    "seed_reference": Evidence("seed of the reference", "As the agent set it."),
    "seed_target": Evidence("seed of the target", "As the agent set it."),
    "device_draws": Evidence("random numbers drawn on the device", "Operators whose numbers were not drawn on CPU and moved."),
    "device_draw_sites": Evidence(
        "where the script draws on the device", "File and line, operator and device of up to five draws of a script."
    ),
    "changed_by_watching": Evidence("capturing changes what it computes", "Side, and what differs from a run without capture."),
    "other_amounts": Evidence(
        "ran in all", "Steps, micro batches or calls of a model that one side made more of, with the numbers of both."
    ),
    "other_mode": Evidence("trained in evaluation mode", "First step in which one side alone does, recorded or not."),
    "compiled_unseen": Evidence(
        "not seen", "What each side ran in compiled code, where nothing is recorded inside, with the number of modules."
    ),
    "draws_patch": Evidence(
        "patch", "File in the folder of the report that makes the script draw on the CPU; empty if there is none."
    ),
    "misspelt_variables": Evidence("environment variables", "Misspelt names and the names that they resemble."),
    "package_differences": Evidence(
        "packages that differ", "`name: reference / target`, those first that the recipe wants the same."
    ),
    "sources_different": Evidence(
        "sources that differ", "Files of the model and the script that differ or that one side alone has; up to five names."
    ),
    "settings_different": Evidence(
        "settings that differ",
        "Arguments, configurations and ways of loading data, as `name: reference / target`; up to five, no names of devices.",
    ),
    "samples_different": Evidence(
        "other samples",
        "Dataset and first batch whose samples, as the sampler gave their numbers, differ: `reference / target`.",
    ),
    "matmul_switches": Evidence("switch for matrix products", "TF32, HF32 and their like, in effect on one side only."),
    "convolution_switches": Evidence("switch for convolutions", "The same for convolutions."),
    "unpaired_reference": Evidence("only on the reference", "Up to five names of calls without a partner."),
    "unpaired_target": Evidence("only on the target", "The same on the target."),
    "unpaired_count": Evidence("records without a partner", "Number of judged records that are on one side only."),
}


def gather(  # noqa: PLR0913  headers, and what each stage found
    reference: Header,
    target: Header,
    *,
    same: Sequence[str],
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    incomplete: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the evidence about the run, by the names of ``names.EVIDENCE``, except what comes from the region.

    Args:
        reference: Header of the reference's dump.
        target: Header of the target's dump.
        same: What the recipe wants to be the same.
        measures: All pairs.
        judged: Their statuses.
        incomplete: What is damaged in a dump or was never sealed, in words.
    """
    unreadable = [record.reason for record in judged if record.status == "unreadable"]
    return {
        "damage": list(dict.fromkeys([*incomplete, *unreadable]))[:_SHOWN],
        "reference_dtype": reference.dtype,
        "target_dtype": target.dtype,
        "low_precision": bool({reference.dtype, target.dtype} & _LOW),
        "emulated": reference.device.emulated or target.device.emulated,
        **_compare_starts(reference, target),
        **_compare_environments(reference, target, same),
        **_count_statuses(measures, judged),
    }


def _compare_starts(reference: Header, target: Header) -> dict[str, Any]:
    """Return what differed before the first operator ran: weights, inputs, seeds, random numbers."""
    seeds = {"seed_reference": reference.determinism.get("seed"), "seed_target": target.determinism.get("seed")}
    drawn = [str(draw.get("operator", "")) for draw in (*reference.draws, *target.draws) if not draw.get("moved", True)]
    own, other = reference.weights, target.weights
    weights = reproduction.complete_ranks(own, other), reproduction.complete_ranks(other, own)
    return {
        **_compare_contents("weights", *weights),
        "weights_on_one_side_count": len(reproduction.find_partnerless(*weights)),
        **_compare_contents("inputs", reference.inputs, target.inputs),
        **{name: seed for name, seed in seeds.items() if seed is not None},
        "device_draws": sorted(set(drawn)),
        "device_draw_sites": _list_draw_sites([reference, target]),
        "changed_by_watching": [
            text
            for header in (reference, target)
            if (text := reproduction.find_disturbance(header.side, header))
            if header.observer.checked
        ],
        "other_amounts": amounts.find_other_amounts(reference, target),
        "other_mode": amounts.find_other_mode(reference.script, target.script),
        "compiled_unseen": unseen.describe_unseen(reference, target),
        "draws_patch": next((patch for header in (target, reference) if (patch := header.script.get("patch", ""))), ""),
    }


def _list_draw_sites(headers: Sequence[Header]) -> list[str]:
    """Return the places where a script draws on a device, as ``train.py:12 in main: randn on npu``, each once."""
    places = [
        f"{header.sites[int(draw['site'])]}: {draw.get('operator', '')} on {draw.get('device', '')}"
        for header in headers
        for draw in header.draws
        if header.script and not draw.get("moved", True) and 0 <= int(draw.get("site", -1)) < len(header.sites)
    ]
    return list(dict.fromkeys(places))[:_SHOWN]


def _compare_contents(name: str, reference: ContentEntries, target: ContentEntries) -> dict[str, Any]:
    if not (reference.digest and target.digest):  # a dump that was never sealed does not say what it started from
        return {}
    names = reproduction.find_different(reference, target)
    return {f"{name}_different": names[:_SHOWN], f"{name}_different_count": len(names)}


def _compare_environments(reference: Header, target: Header, same: Sequence[str]) -> dict[str, Any]:
    changed = differences.find_differences(reference.facts, target.facts, same=same)
    packages = [
        f"{name}: {here} / {there}" for name, (here, there) in changed.items() if differences.is_compute_package(name, same)
    ]
    variables_of_sides = (differences.read_variables(header.facts) for header in (reference, target))
    is_fed = target.determinism.get("data") == RECORDED  # what the target reads itself counts for nothing then
    misspelt = {variable.text for given in variables_of_sides for variable in variables.find_misspelt(given)}
    return {
        "misspelt_variables": sorted(misspelt),
        "package_differences": packages,
        "sources_different": program.describe_sources(reference.facts, target.facts)[:_SHOWN],
        "settings_different": program.describe_settings(changed)[:_SHOWN],
        "samples_different": "" if is_fed else program.find_first_other_samples(reference.facts, target.facts),
        "matmul_switches": _find_switches(reference, target, convolution=False),
        "convolution_switches": _find_switches(reference, target, convolution=True),
    }


def _find_switches(reference: Header, target: Header, *, convolution: bool) -> list[str]:
    """Return the reducing switches in effect on one side only, as ``side: name=value``."""
    here, there = (differences.find_reduced_switches(header.facts, convolution=convolution) for header in (reference, target))
    # TF32 on a GPU against HF32 on an NPU is the same choice under two names: only a side that has none at all differs.
    return [f"reference: {switch}" for switch in here if not there] + [f"target: {switch}" for switch in there if not here]


def _count_statuses(measures: Sequence[Measure], judged: Sequence[Judged]) -> dict[str, Any]:
    counts = Counter(record.status for record in judged)
    names = {measure.record: measure.name for measure in measures}
    unpaired = {
        status: [names[record.record] for record in judged if record.status == status and record.record in names]
        for status in UNPAIRED
    }
    return {
        "failing": sum(counts[status] for status in MISALIGNED_STATUSES),
        "accepted_count": counts["accepted"],
        **{status: list(dict.fromkeys(calls))[:_SHOWN] for status, calls in unpaired.items()},
        "unpaired_count": sum(counts[status] for status in UNPAIRED),
    }
