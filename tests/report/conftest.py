"""Builders of report models that look like real runs: a CLIP text encoder, twelve layers, one fault."""

import dataclasses
import math
import random

import pytest

from precflow.comparison.measure import Measure
from precflow.diagnosis.findings import Finding, Region, Suspect
from precflow.diagnosis.training.gradients import GradientRow
from precflow.diagnosis.training.phases import PhaseState
from precflow.diagnosis.training.procedure import Check
from precflow.judgement.verdicts import Judged, Verdict
from precflow.report.model import ReportModel, Row, SideView, StageView

LIMIT = 2.0**-16
NASTY = (
    "<script>alert(1)</script>",
    "quote\"and'apostrophe",
    "文本编码器.层.零",
    "long_" + "x" * 295,
    "with space/and slash",
    "</script><img src=x onerror=alert(2)>",
    "control\x1b[31m\x00\x07bell",
    "pipe|back`tick*star",
    "lone\ud800surrogate",
    "{{ 7 * 7 }}",
)
YAML = """# @package _global_
about:
  title: Stable Diffusion v1.5 text encoder
workload:
  model:
    _target_: precflow.workloads.stable_diffusion.text_encoder
    weights: seeded
tolerance:
  standards: [default]
  rules:
    - match: "*.final_layer_norm"
      relative_l2: 2^-10
      because: feeds every cross attention of the UNet
"""
ATTENTION = [
    ("layer_norm1", "layer_norm"),
    ("self_attn.q_proj", "linear"),
    ("self_attn.k_proj", "linear"),
    ("self_attn.v_proj", "linear"),
    ("self_attn", "view"),
    ("self_attn", "matmul"),
    ("self_attn", "mul"),
    ("self_attn", "add"),
    ("self_attn", "softmax"),
    ("self_attn", "matmul"),
    ("self_attn", "transpose"),
    ("self_attn.out_proj", "linear"),
    ("self_attn", ""),
    ("", "add"),
    ("layer_norm2", "layer_norm"),
    ("mlp.fc1", "linear"),
    ("mlp.activation_fn", "mul"),
    ("mlp.activation_fn", "sigmoid"),
    ("mlp.activation_fn", "mul"),
    ("mlp.fc2", "linear"),
    ("mlp", ""),
    ("", "add"),
    ("", ""),
]
MOVEMENT = {"view", "transpose"}


def calls(layers):
    """Module and operator of each record, in order of the graph."""
    yield "embeddings.token_embedding", "embedding"
    yield "embeddings", "add"
    for layer in range(layers):
        for part, operator in ATTENTION:
            yield f"encoder.layers.{layer}" + (f".{part}" if part else ""), operator
    yield "encoder", ""
    yield "final_layer_norm", "layer_norm"
    yield "", ""


def measure(order, module, operator, *, error=1e-7, seen=None, **changes):
    """One measured pair with all metrics that a comparison gives."""
    ordinal = seen.setdefault((module, operator), -1) + 1 if seen is not None else 0
    if seen is not None:
        seen[module, operator] = ordinal
    place = module or "(model)"
    moving = operator in MOVEMENT
    fields = {
        "record": f"{place}/{operator}.{ordinal}/forward.output.0" if operator else f"{place}/forward.output.0",
        "name": f"{place} / {operator}" if operator else place,
        "module": module,
        "operator": operator,
        "level": "api" if operator else "module",
        "phase": "forward",
        "order": order,
        "join": "paired",
        "movement": moving,
        "judged": not moving,
        "reference_dtype": "float32",
        "target_dtype": "float32",
        "reference_shape": (3, 77, 768),
        "target_shape": (3, 77, 768),
        "equal": error == 0,
        "metrics": {} if moving else metrics(error),
        "counts": {"elements": 177408, "ordinary": 177408, "small": 12, "sentinel": 0, "nonfinite": 0},
        **dict.fromkeys(("site", "target_site"), f"modeling_clip.py:{300 + order % 300} in forward <- workload"),
    }
    return Measure(**(fields | changes))


def metrics(error):
    """Every metric, all following from one relative error."""
    return {
        "cosine_similarity": 1 - min(error * error / 2, 1.0),
        "relative_l2": error,
        "max_abs_error": error * 9.7,
        "mean_abs_error": error * 0.61,
        "max_rel_error": error * 140,
        "mean_rel_error": error * 1.9,
        "rmse": error * 0.93,
        "kl_divergence": error * error,
        "max_rms_error": error * 4.2,
        "share_within_one_thousandth": 1.0 if error < 1e-4 else 0.41,
        "share_within_five_thousandths": 1.0 if error < 1e-4 else 0.73,
        "allclose_share": 1.0 if error < 1e-5 else 0.12,
        "ulp_distance": error / 6e-8,
    }


def judged(found, *, status="", limit=LIMIT, **changes):
    """The judgement that follows from one plain limit on relative_l2."""
    if not found.judged:
        return Judged(found.record, "not_judged", reason="pure data movement")
    error = found.metrics.get("relative_l2", 0.0)
    decided = status or ("fail" if error > limit else "pass")
    reason = "" if decided == "pass" else f"relative_l2 is {error / limit:.0f} times its limit"
    return Judged(
        found.record, decided, "relative_l2", error, limit, error / limit, "default", **({"reason": reason} | changes)
    )


def rows_of(layers, fault=None, seed=1):
    """Rows of a model; from the operator named ``fault`` on, everything differs."""
    chance, seen, rows = random.Random(seed), {}, []
    broken = False
    for order, (module, operator) in enumerate(calls(layers)):
        starts = not broken and fault == (module, operator)
        broken = broken or starts
        clean = 0.0 if order < 2 else 10 ** chance.uniform(-7.6, -6.2)
        faded = -3.6 + 2 * math.tanh(order / 400) if broken else 0.0
        error = 10 ** chance.uniform(faded - 0.4, faded + 0.4) if broken else clean
        arguments = {"eps": ("1e-05", "0.001")} if starts and operator == "layer_norm" else {}
        found = measure(order, module, operator, error=error, seen=seen, arguments=arguments)
        verdict = judged(found)
        role = "introduces" if starts else "inherits" if verdict.status == "fail" else "agrees"
        rows.append(Row(found, verdict, role if found.judged else "unknown"))
    return tuple(rows)


def verdict_of(rows, outcome, **changes):
    """A verdict whose counts belong to its rows."""
    counts = {}
    for row in rows:
        counts[row.judged.status] = counts.get(row.judged.status, 0) + 1
    total = sum(number for status, number in counts.items() if status != "not_judged")
    lost = sum(counts.get(status, 0) for status in ("unpaired_reference", "unpaired_target", "unreadable"))
    passing = [row for row in rows if row.judged.status == "pass"]
    fields = {
        "counts": counts,
        "coverage": (total - lost) / total if total else 0.0,
        "compared": total - lost,
        "total": total,
        "could_fail": total - lost - counts.get("blind", 0),
        "standards": {"default": outcome != "misaligned", "cosine_similarity >= 0.999": True},
        "closest": max(passing, key=lambda row: row.judged.ratio).measure.record if passing else "",
    }
    return Verdict(outcome, **(fields | changes))


REFERENCE = SideView(
    "reference",
    "A100-SXM4-80GB, CUDA 12.4, torch 2.6.0, float32",
    emulated=False,
    device="cuda",
    dtype="float32",
    facts={
        "platform.machine": "x86_64",
        "python": "3.11.9",
        "torch": "2.6.0+cu124",
        "packages.transformers": "5.23.0",
        "variables.CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    },
)
TARGET = SideView(
    "target",
    "Ascend 910B3, CANN 8.5.0, torch_npu 2.6.0.post5, float32",
    emulated=False,
    device="npu",
    dtype="float32",
    facts={
        "platform.machine": "aarch64",
        "python": "3.11.9",
        "torch": "2.6.0",
        "packages.transformers": "5.23.0",
        "packages.torch_npu": "2.6.0.post5",
        "variables.HCCL_DETERMINISTIC": "true",
    },
)
STAGES = (
    StageView("environment", "run", 3.1),
    StageView("determinism", "run", 2.2, "seeds set, dropout removed at 13 places"),
    StageView("dump.reference", "kept", 0.0, "made on 2026-11-20"),
    StageView("dump.target", "run", 21.4, "1 214 records, 11 MB"),
    StageView("localize", "run", 0.6),
)


def model_of(rows, verdict, **changes):
    """A report model around some rows."""
    fields = {
        "recipe": "sd_text_encoder",
        "title": "Stable Diffusion v1.5 text encoder",
        "run": 3,
        "finished": "2026-11-21 10:14",
        "precflow": "0.1.0",
        "command": "precflow +recipe=sd_text_encoder target.dtype=float32",
        "sides": (REFERENCE, TARGET),
        "verdict": verdict,
        "region": Region(roles={row.measure.record: row.role for row in rows if row.measure.judged}),
        "findings": (),
        "rows": tuple(rows),
        "differences": {
            "platform.machine": ("x86_64", "aarch64"),
            "torch": ("2.6.0+cu124", "2.6.0"),
            "packages.torch_npu": ("", "2.6.0.post5"),
        },
        "stages": STAGES,
        "recipe_yaml": YAML,
        "columns": ("cosine_similarity", "relative_l2", "max_abs_error", "ulp_distance"),
        "seconds": 38.2,
        "emulated": False,
    }
    return ReportModel(**(fields | changes))


FAULT = ("encoder.layers.4.layer_norm1", "layer_norm")


def suspect_of(row):
    """The suspicion that belongs to the row that introduces the error."""
    found = row.measure
    why = "its inputs are bitwise equal, its output is not"
    return Suspect(
        found.record,
        found.name,
        found.module,
        found.operator,
        found.order,
        row.judged.ratio,
        why,
        "modeling_clip.py:371 in forward",
    )


FINDINGS = (
    Finding(
        "PF214",
        "eps of layer_norm differs: 1e-05 on the reference, 1e-03 on the target",
        "certain",
        "encoder.layers.4.layer_norm1 / layer_norm",
        "modeling_clip.py:371 in forward",
        (
            ("inputs", "bitwise equal"),
            ("argument eps", "1e-05 (reference), 0.001 (target)"),
            ("error", "a pure scale, larger where the variance is small"),
        ),
        "The variance of the first layers is small, so that eps is part of the signal and not only a guard against zero.",
        "Set layer_norm_eps=1e-05 in the target's model configuration, then run the same command again.",
        "precflow +recipe=sd_text_encoder target.dtype=float32 +emulate=none",
        ("MindFormers accuracy checklist", "https://example.org/layer-norm-eps"),
        "+emulate=none",
    ),
    Finding(
        "PF102",
        "HF32 is on for matrix products of the target",
        "possible",
        "switches.allow_hf32",
        why="HF32 rounds the inputs of a product to ten bits.",
        fix="Turn it off to rule it out.",
    ),
)


def aligned_model(**changes):
    """All records agree; the target is emulated."""
    rows = rows_of(12)
    target = dataclasses.replace(TARGET, emulated=True, title="Ascend910B-emulated, torch 2.13.0, float16", dtype="float16")
    fields = {"sides": (REFERENCE, target), "emulated": True}
    return model_of(rows, verdict_of(rows, "aligned"), **(fields | changes))


def misaligned_model(layers=12, **changes):
    """One layer norm introduces an error; all that follows inherits it."""
    rows = rows_of(layers, FAULT)
    first = next(row for row in rows if row.role == "introduces")
    roles = {row.measure.record: row.role for row in rows if row.measure.judged}
    region = Region(first.measure.name, (suspect_of(first),), roles)
    failed = sum(row.judged.status == "fail" for row in rows)
    verdict = verdict_of(rows, "misaligned", reasons=(f"{failed} records are over their limits",))
    return model_of(rows, verdict, **({"region": region, "findings": FINDINGS, "seconds": 52.0} | changes))


PHASES = (
    PhaseState("data", "aligned", "the inputs are the same"),
    PhaseState("forward", "aligned", "60 records within their limits"),
    PhaseState("backward", "starts", "3 of 60 records over their limits, first a", "a/backward.output.0"),
    PhaseState("optimizer", "not_told", "nothing of it was recorded"),
)


PROCEDURE = (
    Check("environment", "noted", "torch.version: 2.6.0 / 2.5.1"),
    Check("forward", "agrees", "60 records within their limits"),
    Check("gradients, from the loss backwards", "differs", "3 of 60 records over their limits, first a"),
    Check("loss of step 1", "inherits", "1 and 1.1, 0.09 apart"),
    Check("losses of steps 2 to 9", "not_told", "the dumps hold no loss of it"),
)


def inconclusive_model(**changes):
    """Nothing fails, but the target does not repeat itself and has lost records."""
    rows = list(rows_of(12))
    lost = {40: "unpaired_reference", 41: "unpaired_target", 60: "unreadable", 80: "blind", 81: "accepted"}
    for index, status in lost.items():
        row = rows[index]
        metrics_left = row.measure.metrics if status in {"blind", "accepted"} else {}
        join = status if status not in {"blind", "accepted"} else "paired"
        found = dataclasses.replace(row.measure, join=join, reason="no partner of this name", metrics=metrics_left, judged=True)
        role = "accepted" if status == "accepted" else "unknown"
        rows[index] = Row(found, judged(found, status=status, reason="no partner of this name"), role)
    reasons = (
        "the target does not repeat itself: 14 records differ between two equal runs, first at layers.2.self_attn / matmul",
        "3 of 242 records were not compared",
    )
    region = Region(unrepeatable=("target: encoder.layers.2.self_attn / matmul",), notes=("nothing differs beyond its limit",))
    return model_of(rows, verdict_of(rows, "inconclusive", reasons=reasons), **({"region": region} | changes))


def nasty_model(**changes):
    """Names that try to break out of every format, and numbers that JSON does not have."""
    rows = []
    for index, name in enumerate(NASTY * 2):
        found = measure(index, f"{name}.{index}", "linear", error=[0.3, float("nan"), float("inf"), 0.0][index % 4])
        verdict = judged(found, status="nonfinite" if index % 4 in {1, 2} else "", reason=f"because of {name}")
        arguments = {name: (name, f"other {name}")}
        found = dataclasses.replace(found, arguments=arguments, warnings=(f"warning {name}",), site=f"{name}.py:1")
        rows.append(Row(found, verdict, "introduces" if index == 0 else "inherits"))
    first = suspect_of(rows[0])
    finding = Finding(
        "PF999", NASTY[0], "likely", NASTY[3], NASTY[5], ((NASTY[1], NASTY[5]),), NASTY[0], NASTY[5], NASTY[1], NASTY, NASTY[7]
    )
    finding = dataclasses.replace(finding, claim=NASTY[0], against=((NASTY[1], NASTY[3]),), confirm=NASTY[2])
    side = dataclasses.replace(TARGET, title=NASTY[5], facts={name: name for name in NASTY})
    fields = {
        "recipe": "recipe <b>&",
        "title": NASTY[0],
        "sides": (dataclasses.replace(REFERENCE, title=NASTY[2]), side),
        "region": Region(first.name, (first,), {}, notes=NASTY),
        "findings": (finding,),
        "differences": {name: (name, "") for name in NASTY},
        "recipe_yaml": "\n".join(NASTY),
        "stages": (StageView(NASTY[0], "failed", 1.0, NASTY[5]),),
        "command": "precflow '" + NASTY[5] + "'",
        "emulation": NASTY[0],
        "emulated": True,
    }
    return model_of(rows, verdict_of(rows, "misaligned", reasons=NASTY[:3], warnings=NASTY), **(fields | changes))


def empty_model(**changes):
    """Nothing at all was compared."""
    return model_of((), Verdict("inconclusive", ("no record was in scope",)), **({"differences": {}, "stages": ()} | changes))


@pytest.fixture
def aligned():
    return aligned_model()


@pytest.fixture
def misaligned():
    return misaligned_model()


@pytest.fixture
def inconclusive():
    return inconclusive_model()


@pytest.fixture
def nasty():
    return nasty_model()


@pytest.fixture
def empty():
    return empty_model()


@pytest.fixture(scope="session")
def medium():
    """1 200 records."""
    return misaligned_model(layers=52)


@pytest.fixture(scope="session")
def large():
    """20 000 records."""
    return misaligned_model(layers=870)


@pytest.fixture(scope="session")
def deep():
    """3 000 modules, each inside the one before; the innermost introduces the error."""
    rows = []
    for order in range(3000):
        found = measure(order, ".".join("m" * (3000 - order)), "", error=0.5)
        rows.append(Row(found, judged(found), "inherits" if order else "introduces"))
    return model_of(rows, verdict_of(rows, "misaligned"))


@pytest.fixture
def undecided():
    """Return an inconclusive run in which nothing that was kept decides a record: the best end of its range keeps the limit."""
    model = aligned_model()
    rows = [dataclasses.replace(row, judged=dataclasses.replace(row.judged, status="undecided")) for row in model.rows]
    rows = [
        dataclasses.replace(row, role="unknown", measure=dataclasses.replace(row.measure, metrics={}, equal=False))
        if row.judged.metric
        else original
        for row, original in zip(rows, model.rows, strict=True)
    ]
    counts = {"undecided": sum(row.judged.status == "undecided" for row in rows)}
    verdict = dataclasses.replace(
        model.verdict, verdict="inconclusive", counts=counts, compared=0, coverage=0.0, standards={"default": False}
    )
    return dataclasses.replace(model, rows=tuple(rows), verdict=verdict)


@pytest.fixture
def estimated():
    """Return an aligned run whose first record was judged by sketches of half of its elements."""
    model = aligned_model()
    row = next(row for row in model.rows if row.judged.metric == "relative_l2")
    known = dataclasses.replace(row.measure, evidence="sketch", share=0.5, ranges={"relative_l2": (7.5e-8, math.inf)})
    return dataclasses.replace(
        model, rows=(dataclasses.replace(row, measure=known), *(other for other in model.rows if other is not row))
    )


@pytest.fixture
def trained():
    """Return a misaligned run of a training step, whose backward is guilty."""
    gradients = tuple(
        GradientRow(f"layers.{layer}.weight", step, 0, 1.0 + layer, (1.0 + layer) * (4 if layer > 4 else 1), 1.0 - 1e-3 * layer)
        for step in (0, 1)
        for layer in range(8)
    )
    return misaligned_model(phases=PHASES, procedure=PROCEDURE, gradients=gradients)
