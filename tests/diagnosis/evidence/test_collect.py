"""From two dumps to findings: faults as an accelerator makes them, computed by torch, named by the shipped rules."""

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
from subjects import explain_calls

from precflow import resources
from precflow.config.schema import Capture, RunConfig, Side
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.evidence.collect import collect, keep_tensors, record_inside
from precflow.diagnosis.evidence.names import EVIDENCE
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.introduced import IntroducedError
from precflow.diagnosis.localize import localize
from precflow.dumps.header import Header

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
    known = {"region": region, "measures": measures, "judged": judged, "explanations": explain_calls(reference, target)}
    evidence = collect(Comparison(reference, target, CONFIG, **known))
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


F = torch.nn.functional
TOKENS, SQUARE = torch.randn(4, 32, 64), torch.randn(4, 32, 32)
GAIN, GATES = torch.rand(64) + 0.5, torch.randn(4, 32, 64)


def layer(x, weight, bias, epsilon=1e-5):
    return F.layer_norm(x, (64,), weight, bias, epsilon)


def heads(x):
    return x.reshape(4, 32, 4, 16)[:, :, [0, 2, 1, 3]].reshape(4, 32, 64)


def pairs(x):
    return x.reshape(4, 32, 2, 32).transpose(-1, -2).reshape(4, 32, 64)


def zero_tail(x):
    return torch.cat([x[..., :-3], torch.zeros_like(x[..., -3:])], -1)


PRODUCT = (TOKENS, WEIGHT, BIAS)
SOFTMAX = ("softmax", (SQUARE,), lambda x: x.softmax(-1))
ROWWISE, HALF_SIGNS = {"dim": "-1"}, torch.where(torch.arange(64) < 32, -1, 1)
SLOPE = {"1": "0.1"}
NORM, NORMED = {"normalized_shape": "(64,)", "eps": "1e-05"}, (TOKENS, GAIN, BIAS)
IN_PLACE = {  # name: operator, inputs, right, wrong, arguments, rule, and whether 16 bits show it
    "epsilon": ("layer_norm", NORMED, layer, lambda *of: layer(*of, 0.3), NORM, "PF214", True),
    "no weight": ("layer_norm", NORMED, layer, lambda x, w, b: layer(x, None, b), NORM, "PF217", True),
    "factor": ("linear", PRODUCT, F.linear, lambda *of: 1.1 * F.linear(*of), {}, "PF211", True),
    "tail": ("linear", PRODUCT, F.linear, lambda *of: zero_tail(F.linear(*of)), {}, "PF221", True),
    "terms": ("linear", PRODUCT, F.linear, lambda x, w, b: x[..., :-5] @ w[:, :-5].T + b, {}, "PF222", True),
    "layout": ("matmul", (SQUARE, SQUARE.flip(0)), torch.matmul, lambda x, y: x @ y.mT, {}, "PF223", True),
    "residual": ("add", (TOKENS, GATES), torch.add, lambda x, y: y + 0, {}, "PF224", True),
    "clamp": ("gelu", (TOKENS,), F.gelu, lambda x: F.gelu(x).clamp(max=1.2), {}, "PF225", True),
    "gates": ("linear", PRODUCT, F.linear, lambda *of: heads(F.linear(*of)), {}, "PF226", True),
    "rows": ("linear", PRODUCT, F.linear, lambda *of: F.linear(*of).roll(1, 1), {}, "PF226", True),
    "halves": ("mul", (TOKENS, GATES), torch.mul, lambda x, y: pairs(x * y), {}, "PF311", True),
    "uniform": (*SOFTMAX, lambda x: torch.full_like(x, 1 / 32), ROWWISE, "PF302", True),
    "axis": (*SOFTMAX, lambda x: x.softmax(-2), ROWWISE, "PF303", True),
    "keys": (*SOFTMAX, lambda x: F.pad(x[..., :-2].softmax(-1), (0, 2)), ROWWISE, "PF304", True),
    "samples": ("linear", PRODUCT, F.linear, lambda *of: F.linear(*of)[[0, 0, 0, 0]], {}, "PF306", True),
    "sign": ("mul", (TOKENS, GATES), torch.mul, lambda x, y: x * y * HALF_SIGNS, {}, "PF313", True),
    "tanh form": ("gelu", (TOKENS,), F.gelu, lambda x: F.gelu(x, approximate="tanh"), {}, "PF212", False),
    "lines": ("silu", (TOKENS,), F.silu, F.hardswish, {}, "PF212", True),
    "no slope": ("leaky_relu", (TOKENS,), lambda x: F.leaky_relu(x, 0.1), F.relu, SLOPE, "PF212", True),
    "slopes": ("leaky_relu", (TOKENS,), lambda x: F.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, -0.1), SLOPE, "PF212", True),
    "tf32": ("linear", PRODUCT, F.linear, lambda x, w, b: rounded(x, 10) @ rounded(w, 10).T + b, {}, "PF102", False),
    "narrow angles": ("cos", (TOKENS * 30,), torch.cos, lambda x: x.bfloat16().float().cos(), {}, "PF213", False),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", IN_PLACE)
def test_a_fault_is_named_on_a_chip_that_rounds_differently(fault, dtype, hand_made, judge_calls):
    """The target's inputs differ from the reference's by rounding, so that nothing but the call's own inputs is exact."""
    operator, inputs, right, wrong, arguments, expected, shows = IN_PLACE[fault]
    if dtype == torch.bfloat16 and not shows:
        pytest.skip("smaller than the rounding of bfloat16")
    found = diagnose(hand_made, judge_calls, operator, inputs, (right, wrong), arguments, dtype)
    assert (found[0].rule, found[0].where) == (expected, f"layers.0 / {operator}"), [(one.rule, one.certainty) for one in found]
    assert found[0].certainty != "certain"  # nothing shows yet that the error begins here


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", IN_PLACE)
@pytest.mark.parametrize("explains", [explain_calls, lambda *_: []], ids=["torch", "without torch"])
def test_nothing_is_claimed_about_a_right_operator_that_a_limit_blames(fault, dtype, hand_made, judge_calls, explains):
    operator, inputs, right, _, arguments, _, _ = IN_PLACE[fault]
    found = diagnose(hand_made, judge_calls, operator, inputs, (right, right), arguments, dtype, explains)
    assert [(one.rule, one.certainty) for one in found] == [("PF299", "unknown")]


def diagnose(hand_made, judge_calls, operator, inputs, computes, arguments, dtype, explains=explain_calls):
    indices = (0, 2, 3) if operator == "layer_norm" else range(len(inputs))
    noise = 2.0**-22 if dtype == torch.float32 else 2.0**-8
    sides = []
    for compute, size in zip(computes, (0.0, noise), strict=True):
        dump = hand_made()
        first, *others = [one.to(dtype) for one in inputs]
        first = first + (size * first * torch.randn(first.shape)).to(dtype)
        before = dump.operator("layers.0", "sort", value=to_numpy(first))
        given = {0: before} | {
            at: {"value": to_numpy(one), "weight": f"w{at}"} for at, one in zip(list(indices)[1:], others, strict=True)
        }
        value = to_numpy(compute(*(one.float() for one in (first, *others))).to(dtype))
        places = [given.get(at, {"shape": (), "content": "none"}) for at in range(max(indices) + 1)]
        call = dump.operator("layers.0", operator, *places, value=value, arguments=arguments)
        dump.made[-1] = msgspec.structs.replace(call, inputs=tuple(one for one in call.inputs if int(one.index) in indices))
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {f"layers.0 / {operator}": "fail"})
    region = localize(*sides, measures, judged)
    known = {"region": region, "measures": measures, "judged": judged, "explanations": explains(*sides)}
    return advise(collect(Comparison(*sides, CONFIG, **known)), RULES)


def to_numpy(tensor):
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def test_a_maximum_that_starts_at_zero_is_no_part_that_was_not_written(hand_made, judge_calls):
    """Nearly all its error may stand in the last row, where other values are right."""
    scores = torch.rand(4, 32) + 0.1
    scores[3, ::3] *= -1

    def start_at_zero(x):
        return x.clamp(min=0.0)

    sides = [side(hand_made, "scatter_reduce", scores, compute(scores), {}) for compute in (torch.clone, start_at_zero)]
    found = findings(*sides, judge_calls, "scatter_reduce")
    assert {one.certainty for one in found} <= {"possible", "unknown"}, [(one.rule, one.certainty) for one in found]


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
    evidence = collect(Comparison(*sides, CONFIG, region=region, measures=measures, judged=judged))
    assert advise(evidence, RULES)[0].rule == "PF214"


def test_blockers_leave_the_tensors_alone(hand_made, monkeypatch):
    dump = hand_made()

    def read(record):
        raise AssertionError(record)

    monkeypatch.setattr(dump, "tensor", read)
    found = collect(Comparison(dump, dump, CONFIG, region=Region(), measures=[], judged=[], blockers=["the weights differ"]))
    assert found["suspects"] == []
    assert found["recipe"] == "demo"


def test_three_suspects_of_one_kind_are_read_and_the_first_of_another(hand_made, judge_calls):
    dump = hand_made()
    for number in range(5):
        dump.operator(f"layers.{number}", "linear", {"weight": "w"}, value=np.ones((2, 2), np.float32))
    measures, judged = judge_calls(dump, {call.name: "fail" for call in dump.made})
    region = localize(dump, dump, measures, judged)
    found = collect(Comparison(dump, dump, CONFIG, region=region, measures=measures, judged=judged))
    assert found["suspect_count"] == 5
    assert [one["module"] for one in found["suspects"]] == ["layers.0", "layers.1", "layers.2"]
    assert found["suspects_all_matmul"]
    dump.operator("late", "layer_norm", {"weight": "w"}, value=np.ones((2, 2), np.float32))
    measures, judged = judge_calls(dump, {call.name: "fail" for call in dump.made})
    region = localize(dump, dump, measures, judged)
    found = collect(Comparison(dump, dump, CONFIG, region=region, measures=measures, judged=judged))
    assert [one["module"] for one in found["suspects"]] == ["layers.0", "layers.1", "late"]


@pytest.mark.parametrize("start", ["backward", "optimizer"])
def test_steps_that_are_given_other_gradients_behind_a_wrong_backward_have_no_cause_of_their_own(start, hand_made, judge_calls):
    sides = []
    for factor in (1.0, 0.5):
        dump = hand_made()
        dump.module("norm", value=factor * np.ones((2, 2), np.float32), phase="backward", class_name="LayerNorm")
        given = {"content": str(factor)}
        dump.module("head", given, value=factor * np.ones((2, 2), np.float32), phase="optimizer", class_name="Linear")
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {call.name: "fail" for call in sides[0].made})
    backward, step = (Suspect.of(call, call.outputs[0].text, 9.0, "") for call in sides[0].made)
    changed = replace(step, changed="input weight after head.weight (gradient) returned it")  # clipped by a common norm
    region = Region(suspects=(backward, changed) if start == "backward" else (changed, backward))
    found = collect(Comparison(*sides, CONFIG, region=region, measures=measures, judged=judged))
    assert {one["phase"] for one in found["suspects"]} == {"backward", start}
    assert ("optimizer" in found["suspect_kinds"]) == (start == "optimizer")


@pytest.mark.parametrize("wrong", [True, False])
def test_behind_another_loss_a_backward_has_a_cause_of_its_own_only_where_it_is_wrong_in_place(
    wrong, hand_made, judge_calls, monkeypatch
):
    sides = []
    for factor in (1.0, 0.5):
        dump = hand_made()
        dump.module("norm", value=factor * np.ones((2, 2), np.float32), phase="backward", class_name="LayerNorm")
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {call.name: "fail" for call in sides[0].made})
    call = sides[0].made[0]
    region = Region(suspects=(Suspect.of(call, call.outputs[0].text, 9.0, ""),))
    introduced = [IntroducedError(name_call(call), "0", "other", 99.0, 9.0, "rho", is_fault=wrong)]
    of_run = SimpleNamespace(gather=lambda _run: {"tokens_left_out": "2 of 48 (rows 45, 46)"})
    monkeypatch.setattr("precflow.diagnosis.evidence.collect.list_of_run", lambda: [of_run])
    comparison = Comparison(*sides, CONFIG, region=region, measures=measures, judged=judged, introduced=introduced)
    assert len(collect(comparison)["suspects"]) == wrong


@pytest.mark.parametrize(("length", "first"), [(200, "PF230"), (100, "PF202")])  # int8 ends at 127
def test_a_count_in_another_type_is_named_by_where_it_wraps(length, first, hand_made, judge_calls):
    sides = []
    for kind in ("int64", "int8"):
        dump = hand_made()
        before = dump.operator("layers.0", "contiguous", value=np.ones(length, np.int8))
        dump.operator("layers.0", "cumsum", before, value=np.cumsum(np.ones(length), dtype=kind))
        sides.append(dump)
    found = findings(*sides, judge_calls, "cumsum", "dtype")
    assert found[0].rule == first
    assert {"PF202", "PF230"} & {one.rule for one in found} == {first}


def test_products_that_agree_before_the_suspect_are_counted(hand_made, judge_calls):
    dump = hand_made()
    for operator in ("linear", "matmul", "conv2d", "gelu", "linear", "linear"):
        dump.operator("a", operator, {"weight": "w"}, value=np.ones((2, 2), np.float32), ordinal=len(dump.made))
    measures, judged = judge_calls(dump, {})
    errors = (1e-7, 1e-3, 1e-7, 1e-7, 1e-3, 1e-7)
    measures = [replace(one, metrics={"relative_l2": error}) for one, error in zip(measures, errors, strict=True)]
    call = dump.made[4]
    region = Region(suspects=(Suspect(call.outputs[0].text, call.name, "a", "linear", 4, 3.0, "why"),))
    found = collect(Comparison(dump, dump, CONFIG, region=region, measures=measures, judged=judged))
    assert found["suspects"][0]["exact_products"] == 1


def test_an_argument_that_differs_is_found_although_its_call_is_no_suspect(hand_made):
    reference, target = hand_made(), hand_made()
    reference.operator("norm", "layer_norm", value=np.ones((2, 2), np.float32), arguments={"eps": "1e-05"})
    target.operator("norm", "layer_norm", value=np.ones((2, 2), np.float32), arguments={"eps": "1e-06"})
    found = collect(Comparison(reference, target, CONFIG, region=Region(), measures=[], judged=[]))
    assert found["arguments_elsewhere"] == ["norm / layer_norm: eps: 1e-05 / 1e-06"]
    assert advise(found, RULES)[0].rule == "PF206"
    call = reference.made[0]
    region = Region(suspects=(Suspect(call.outputs[0].text, call.name, "norm", "layer_norm", 0, 3.0, "why"),))
    found = collect(Comparison(reference, target, CONFIG, region=region, measures=[], judged=[]))
    assert found["arguments_elsewhere"] == []


def test_unrepeatable_names_lose_their_side(hand_made):
    region = Region(unrepeatable=("reference: a / scatter", "target: b / index_put"))
    found = collect(Comparison(hand_made(), hand_made(), CONFIG, region=region, measures=[], judged=[]))
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


@pytest.mark.parametrize(
    ("level", "changes", "expected"),
    [
        (["module"], {}, "capture.level=[module,api]"),
        (["module", "api"], {}, ""),
        (["operator"], {}, ""),
        (["module"], {"reference": Side(dump="somewhere")}, ""),
    ],
)
def test_another_run_records_what_modules_call_where_this_one_did_not(level, changes, expected):
    assert record_inside(replace(CONFIG, **changes), [Header(capture={"level": level})] * 2) == expected


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("getitem", ({"1": "slice(None, 7)"}, {"1": "slice(None, 8)"})),  # which part is taken is no setting
        ("fused", ({}, {"attention_mask": "None"})),  # a tensor, or left out, against None
        ("fused", ({"bias": "None"}, {})),
    ],
)
def test_other_code_is_no_other_setting(hand_made, operator, arguments):
    sides = hand_made(), hand_made()
    for dump, given in zip(sides, arguments, strict=True):
        dump.operator("norm", operator, value=np.ones((2, 2), np.float32), arguments=given)
    assert collect(Comparison(*sides, CONFIG, region=Region(), measures=[], judged=[]))["arguments_elsewhere"] == []
