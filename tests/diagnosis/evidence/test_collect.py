"""From two dumps to findings: faults as an accelerator makes them, computed by torch, named by the shipped rules."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from precflow import resources
from precflow.config.schema import Capture, RunConfig, Side
from precflow.diagnosis.evidence.collect import SUSPECTS, collect, keep_tensors
from precflow.diagnosis.evidence.names import EVIDENCE
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.localize import localize
from precflow.diagnosis.rule_files import load_rules
from precflow.diagnosis.rules import advise

RULES = load_rules([resources.directory("conf") / "rule"])
CONFIG = RunConfig(recipe="demo")
torch.manual_seed(0)
INPUT = torch.randn(96, 64) * torch.rand(96, 1) * 0.1
WEIGHT, BIAS = torch.randn(64, 64) / 8, torch.randn(64)


def rounded(tensor, bits):
    """Round the significand of float32 to so many bits, as TF32 and HF32 do."""
    scale = 2.0 ** (23 - bits)
    whole = tensor.view(torch.int32)
    return ((whole + int(scale) // 2) & ~(int(scale) - 1)).view(torch.float32)


def causal(scores):
    return scores + torch.full_like(scores, torch.finfo(torch.float32).min).triu(1)


SCORES = torch.randn(64, 64)
HUGE = torch.randn(64, 64) * 4e4
FAULTS = {  # name: operator, input, right, wrong, arguments, rule
    "epsilon": (
        "layer_norm",
        INPUT,
        lambda x: torch.layer_norm(x, (64,), WEIGHT[0], BIAS, 1e-5),
        lambda x: torch.layer_norm(x, (64,), WEIGHT[0], BIAS, 1e-3),
        {"1": "(64,)", "4": "1e-05"},
        "PF214",
    ),
    "factor": ("linear", INPUT, lambda x: x @ WEIGHT, lambda x: 1.01 * (x @ WEIGHT), {}, "PF211"),
    "hf32": ("linear", INPUT, lambda x: x @ WEIGHT, lambda x: rounded(x, 11) @ rounded(WEIGHT, 11), {}, "PF102"),
    "tf32": ("matmul", INPUT, lambda x: x @ WEIGHT, lambda x: rounded(x, 10) @ rounded(WEIGHT, 10), {}, "PF102"),
    "softmax": ("softmax", SCORES, lambda x: x.softmax(-1), lambda x: x.half().softmax(-1).float(), {"dim": "-1"}, "PF213"),
    "activation": (
        "gelu",
        SCORES,
        torch.nn.functional.gelu,
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        {},
        "PF212",
    ),
    "noisy_activation": ("sigmoid", SCORES, torch.sigmoid, lambda x: x.sigmoid() + 1e-3 * torch.sin(40 * x), {}, "PF212"),
    "shifted_activation": ("sigmoid", SCORES, torch.sigmoid, lambda x: x.sigmoid() + 5e-4, {}, "PF212"),
    "scaled_activation": ("silu", SCORES, torch.nn.functional.silu, lambda x: 1.01 * torch.nn.functional.silu(x), {}, "PF211"),
    "mask": ("add", SCORES, causal, lambda x: x.clone(), {}, "PF301"),
    "mask_behind": ("softmax", SCORES, lambda x: causal(x).softmax(-1), lambda x: x.softmax(-1), {}, "PF301"),
    "nan": ("linear", INPUT, lambda x: x @ WEIGHT, lambda x: (x @ WEIGHT).masked_fill(x > 0.05, torch.nan), {}, "PF501"),
    "overflow": ("linear", HUGE, lambda x: x * 3, lambda x: (x.double() * 3).half().float(), {}, "PF502"),
    "unknown": ("cumsum", INPUT, lambda x: x.cumsum(0), lambda x: x.cumsum(0) + 1e-3 * torch.randn(96, 64), {}, "PF299"),
}


def side(hand_made, operator, given, result, arguments):
    dump = hand_made()
    before = dump.operator("layers.0", "contiguous", value=given.numpy())
    dump.operator("layers.0", operator, before, {"weight": "w", "content": "w"}, value=result.numpy(), arguments=arguments)
    return dump


def findings(reference, target, judge_calls, operator, status="fail"):
    measures, judged = judge_calls(reference, {f"layers.0 / {operator}": status}, equal={"layers.0 / contiguous"})
    region = localize(reference, target, measures, judged)
    evidence = collect(reference, target, region=region, measures=measures, judged=judged, config=CONFIG)
    assert set().union(*evidence["suspects"]) | set(evidence) - {"suspects"} <= set(EVIDENCE)
    return advise(evidence, RULES)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_its_rule_first(fault, hand_made, judge_calls):
    operator, given, right, wrong, arguments, expected = FAULTS[fault]
    reference = side(hand_made, operator, given, right(given), arguments)
    target = side(hand_made, operator, given, wrong(given), arguments)
    status = "nonfinite" if fault in {"nan", "overflow"} else "fail"
    found = findings(reference, target, judge_calls, operator, status)
    assert found[0].rule == expected
    assert found[0].where == f"layers.0 / {operator}"


@pytest.mark.parametrize("fault", ["epsilon", "factor", "softmax", "mask", "nan", "activation"])
def test_equal_inputs_make_it_certain(fault, hand_made, judge_calls):
    operator, given, right, wrong, arguments, _ = FAULTS[fault]
    sides = [side(hand_made, operator, given, compute(given), arguments) for compute in (right, wrong)]
    assert findings(*sides, judge_calls, operator)[0].certainty == "certain"


def test_an_argument_that_differs_explains_the_epsilon_too(hand_made, judge_calls):
    operator, given, right, wrong, arguments, _ = FAULTS["epsilon"]
    reference = side(hand_made, operator, given, right(given), arguments)
    target = side(hand_made, operator, given, wrong(given), {**arguments, "4": "0.001"})
    found = findings(reference, target, judge_calls, operator)
    assert {one.rule for one in found[:2]} == {"PF203", "PF214"}


def test_a_dump_of_modules_only_is_understood(hand_made, judge_calls):
    _, given, right, wrong, _, _ = FAULTS["epsilon"]
    sides = []
    for compute in (right, wrong):
        dump = hand_made()
        before = dump.module("embed", value=given.numpy())
        dump.module("norm", before, value=compute(given).numpy(), class_name="LayerNorm")
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {"norm": "fail"})
    region = localize(*sides, measures, judged)
    evidence = collect(*sides, region=region, measures=measures, judged=judged, config=CONFIG)
    assert advise(evidence, RULES)[0].rule == "PF214"


def test_blockers_leave_the_tensors_alone(hand_made, monkeypatch):
    dump = hand_made()

    def read(record):
        raise AssertionError(record)

    monkeypatch.setattr(dump, "tensor", read)
    found = collect(dump, dump, region=Region(), measures=[], judged=[], config=CONFIG, blockers=["the weights differ"])
    assert found["suspects"] == []
    assert found["recipe"] == "demo"


def test_only_the_first_three_suspects_are_read(hand_made, judge_calls):
    dump = hand_made()
    for number in range(5):
        dump.operator(f"layers.{number}", "linear", {"weight": "w"}, value=np.ones((2, 2), np.float32))
    measures, judged = judge_calls(dump, {call.name: "fail" for call in dump.made})
    region = localize(dump, dump, measures, judged)
    found = collect(dump, dump, region=region, measures=measures, judged=judged, config=CONFIG)
    assert found["suspect_count"] == 5
    assert len(found["suspects"]) == SUSPECTS
    assert found["suspects_all_matmul"]


def test_products_that_agree_before_the_suspect_are_counted(hand_made, judge_calls):
    dump = hand_made()
    for operator in ("linear", "matmul", "conv2d", "gelu", "linear", "linear"):
        dump.operator("a", operator, {"weight": "w"}, value=np.ones((2, 2), np.float32), ordinal=len(dump.made))
    measures, judged = judge_calls(dump, {})
    errors = (1e-7, 1e-3, 1e-7, 1e-7, 1e-3, 1e-7)
    measures = [replace(one, metrics={"relative_l2": error}) for one, error in zip(measures, errors, strict=True)]
    call = dump.made[4]
    region = Region(suspects=(Suspect(call.outputs[0].text, call.name, "a", "linear", 4, 3.0, "why"),))
    found = collect(dump, dump, region=region, measures=measures, judged=judged, config=CONFIG)
    assert found["suspects"][0]["exact_products"] == 1


def test_an_argument_that_differs_is_found_although_its_call_is_no_suspect(hand_made):
    reference, target = hand_made(), hand_made()
    reference.operator("norm", "layer_norm", value=np.ones((2, 2), np.float32), arguments={"eps": "1e-05"})
    target.operator("norm", "layer_norm", value=np.ones((2, 2), np.float32), arguments={"eps": "1e-06"})
    found = collect(reference, target, region=Region(), measures=[], judged=[], config=CONFIG)
    assert found["arguments_elsewhere"] == ["norm / layer_norm: eps: 1e-05 / 1e-06"]
    assert advise(found, RULES)[0].rule == "PF206"
    call = reference.made[0]
    region = Region(suspects=(Suspect(call.outputs[0].text, call.name, "norm", "layer_norm", 0, 3.0, "why"),))
    found = collect(reference, target, region=region, measures=[], judged=[], config=CONFIG)
    assert found["arguments_elsewhere"] == []


def test_unrepeatable_names_lose_their_side(hand_made):
    region = Region(unrepeatable=("reference: a / scatter", "target: b / index_put"))
    found = collect(hand_made(), hand_made(), region=region, measures=[], judged=[], config=CONFIG)
    assert found["unrepeatable_reference"] == ["a / scatter"]
    assert found["unrepeatable_target"] == ["b / index_put"]
    assert advise(found, RULES)[0].rule == "PF101"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "capture=escalating"),
        ({"capture": Capture(detail="sketch")}, "capture=escalating"),
        ({"capture": Capture(detail="escalating")}, "capture=tensors"),
        ({"capture": Capture(detail="sketch", keep_last=3)}, "capture=tensors"),
        ({"reference": Side(dump="somewhere")}, "capture=tensors"),
    ],
)
def test_tensors_are_kept_in_a_way_that_the_recipe_allows(changes, expected):
    assert keep_tensors(replace(CONFIG, **changes)) == expected
