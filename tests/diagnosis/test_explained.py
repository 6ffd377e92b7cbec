"""What explains a suspect: two dumps, an agent that computes it again with one thing changed, and the usual lines."""

import dump_builder as builder
import ml_dtypes
import numpy as np
import pytest
import torch
from evaluated import evaluate_here
from torch.nn import functional

from precflow import resources
from precflow.agent.hypotheses import of_call
from precflow.agent.hypotheses.engine import list_hypotheses
from precflow.config.schema import RunConfig
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evidence.collect import collect
from precflow.diagnosis.explained import Explanation, describe_left_out, read_explanation
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.introduced import IntroducedError
from precflow.dumps.formats import read_dump
from precflow.errors import SideError
from precflow.stages.introduced import explain_suspects

GENERATOR = torch.Generator().manual_seed(7)
IMAGE, WEIGHT, BIAS = (torch.randn(shape, generator=GENERATOR) for shape in ((2, 4, 12, 12), (6, 4, 3, 3), (6,)))
SQUARE, OTHER = (torch.randn(24, 24, generator=GENERATOR) for _ in range(2))
HEADS = torch.randn(2, 4, 10, 10, generator=GENERATOR)
LABELS = torch.randint(0, 24, (24,), generator=GENERATOR)
PLACES = torch.randint(0, 24, (24, 24), generator=GENERATOR)
CALL = "block/f.0/api.forward@0.0"


def as_array(tensor):
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


@pytest.fixture
def examine(tmp_path):
    """Explain one call of two dumps: what it took, what the reference gave, and what the target did."""

    def run(operator, arguments, inputs, right, wrong, *, is_fault=True, evaluate=evaluate_here):
        sides = []
        for side, made in (("reference", right), ("target", wrong)):
            outputs = made if isinstance(made, tuple) else (made,)
            dump = builder.DumpBuilder(tmp_path / side, side=side)
            arrays = {path: as_array(tensor) for path, tensor in inputs.items()}
            dump.call("block", operator, list(map(as_array, outputs)), arrays, arguments=arguments)
            sides.append(read_dump(dump.write()))
        (call,) = sides[0].calls()
        region = Region(suspects=(Suspect.of(call, call.outputs[0].text, 9.0, ""),))
        found = [IntroducedError(CALL.replace("f", operator, 1), "0", "other", 99.0, 9.0, "rho", is_fault=is_fault)]
        explained = explain_suspects(*sides, region, found, folder=tmp_path / "work", evaluate=evaluate)
        return Comparison(*sides, RunConfig(), region=region, introduced=found, explanations=explained)

    return run


@pytest.fixture
def explain(examine):
    """Return the values of arguments that explain one call of two dumps."""

    def run(*given, **options):
        explanations = examine(*given, **options).explanations
        return [one for each in explanations for one in each.list_told("argument") if one.fits]

    return run


def convolve(x, weight, bias, padding, mode):
    return functional.conv2d(functional.pad(x, padding, mode=mode), weight, bias)


GATES = tuple(torch.randn(shape, generator=GENERATOR) for shape in ((40, 6), (40, 8), (24, 6), (24, 8), (24,), (24,)))


def order_gates(x, hidden, *weights):
    return torch.gru_cell(x, hidden, *(torch.cat([one.chunk(3)[place] for place in (1, 0, 2)]) for one in weights))


def sum_in_half(x):
    total = torch.zeros(x.shape[1:])
    return torch.stack([total := (total + row).half().float() for row in x.float()]).to(x.dtype)


# operator, arguments, tensors, what the reference gives, what the target gives, and with which value
CASES = {
    "kernel": (
        "conv2d",
        {},
        (IMAGE, WEIGHT, BIAS),
        functional.conv2d,
        lambda x, weight, bias: functional.conv2d(x, weight.flip(2, 3), bias),
        "weight='mirrored'",
    ),
    "gates": ("gru_cell", {}, GATES, torch.gru_cell, order_gates, "gates='z, r, n'"),
    "scale": (
        "scaled_dot_product_attention",
        {"scale": "0.5"},
        (HEADS, HEADS.flip(0), HEADS.flip(1)),
        lambda *given: functional.scaled_dot_product_attention(*given, scale=0.5),
        lambda *given: functional.scaled_dot_product_attention(*given, scale=0.125),
        "scale=0.125",
    ),
    "bounded norm": (
        "normalize",
        {"dim": "-1"},
        (SQUARE,),
        lambda x: functional.normalize(x, dim=-1),
        lambda x: functional.normalize(x, dim=-1, eps=5.0),
        "eps=5.0",
    ),
    "larger norm": (
        "normalize",
        {"dim": "-1"},
        (SQUARE,),
        lambda x: functional.normalize(x, dim=-1),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 0.75),
        "eps_added_to_norm=0.75",
    ),
    "accumulator": (
        "cumsum",
        {"1": "0"},
        (torch.randn(40, 24, generator=GENERATOR),),
        lambda x: x.cumsum(0),
        sum_in_half,
        "accumulator='float16'",
    ),
    "padding mode": (
        "conv2d",
        {"3": "(1, 1)", "4": "(1, 1)"},
        (IMAGE, WEIGHT, BIAS),
        lambda *given: functional.conv2d(*given, padding=1),
        lambda *given: convolve(*given, (1, 1, 1, 1), "reflect"),
        "padding_mode='reflect'",
    ),
    "padding moved": (
        "conv2d",
        {"4": "(1, 1)"},
        (IMAGE, WEIGHT, BIAS),
        lambda *given: functional.conv2d(*given, padding=1),
        lambda *given: convolve(*given, (0, 2, 0, 2), "constant"),
        "padding=([0, 0] before, [2, 2] after)",
    ),
    "dilation": (
        "conv2d",
        {"padding": "2", "dilation": "2"},
        (IMAGE, WEIGHT, BIAS),
        lambda *given: functional.conv2d(*given, padding=2, dilation=2),
        lambda *given: functional.conv2d(*given, padding=1),
        "dilation=[1, 1]",
    ),
    "align_corners": (
        "interpolate",
        {"scale_factor": "2", "mode": "'bilinear'", "align_corners": "True"},
        (IMAGE,),
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        "align_corners=False",
    ),
    "interpolation": (
        "interpolate",
        {"scale_factor": "2", "mode": "'bicubic'"},
        (IMAGE,),
        lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        "mode='bilinear'",
    ),
    "pooling": (
        "avg_pool2d",
        {"1": "3", "2": "2", "3": "1"},
        (IMAGE,),
        lambda x: functional.avg_pool2d(x, 3, 2, 1),
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "count_include_pad=False",
    ),
    "maximum of a border": (
        "max_pool2d",
        {"1": "3", "stride": "2", "padding": "1"},
        (-IMAGE.abs(),),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        lambda x: functional.max_pool2d(functional.pad(x, (1, 1, 1, 1)), 3, 2),
        "padding_value=0",
    ),
    "padding": (
        "pad",
        {"pad": "(2, 2, 1, 1)", "mode": "'reflect'"},
        (IMAGE,),
        lambda x: functional.pad(x, (2, 2, 1, 1), mode="reflect"),
        lambda x: functional.pad(x, (2, 2, 1, 1), mode="replicate"),
        "mode='replicate'",
    ),
    "variance": ("var", {"dim": "-1"}, (SQUARE,), lambda x: x.var(-1), lambda x: x.var(-1, unbiased=False), "unbiased=False"),
    "elu": ("elu", {"alpha": "0.5"}, (SQUARE,), lambda x: functional.elu(x, 0.5), functional.elu, "alpha=1.0"),
    "softplus": (
        "softplus",
        {"1": "1.0", "2": "20.0"},
        (SQUARE,),
        functional.softplus,
        lambda x: functional.softplus(x, threshold=1.0),
        "threshold=1.0",
    ),
    "rounding": (
        "div",
        {"1": "3", "rounding_mode": "'trunc'"},
        (SQUARE * 8,),
        lambda x: torch.div(x, 3, rounding_mode="trunc"),
        lambda x: torch.div(x, 3, rounding_mode="floor"),
        "rounding_mode='floor'",
    ),
    "axis": ("log_softmax", {"dim": "1"}, (SQUARE,), lambda x: x.log_softmax(1), lambda x: x.log_softmax(0), "dim=0"),
    "order": ("sort", {"1": "-1"}, (SQUARE,), lambda x: x.sort(-1), lambda x: x.sort(-1, descending=True), "descending=True"),
    "scatter": (
        "scatter_reduce",
        {"1": "1", "4": "'amax'"},
        (SQUARE, PLACES, OTHER),
        lambda x, index, source: x.scatter_reduce(1, index, source, "amax"),
        lambda x, index, source: x.scatter_reduce(1, index, source, "amax", include_self=False),
        "include_self=False",
    ),
    "loss": (
        "cross_entropy",
        {"label_smoothing": "0.1", "reduction": "'none'"},
        (SQUARE, LABELS),
        lambda x, labels: functional.cross_entropy(x, labels, label_smoothing=0.1, reduction="none"),
        lambda x, labels: functional.cross_entropy(x, labels, reduction="none"),
        "label_smoothing=0.0",
    ),
    "causal": (
        "scaled_dot_product_attention",
        {"is_causal": "True"},
        (HEADS, HEADS.flip(-1), HEADS.flip(-2)),
        lambda *given: functional.scaled_dot_product_attention(*given, is_causal=True),
        functional.scaled_dot_product_attention,
        "is_causal=False",
    ),
}
# Where tensors stand among the arguments, if not in front.
TENSORS = {"scatter_reduce": ("0", "2", "3")}


def prepare(name, dtype):
    operator, arguments, tensors, right, wrong, value = CASES[name]
    given = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]
    paths = TENSORS.get(operator, tuple(map(str, range(len(given)))))
    outputs = [tuple(made) if isinstance(made, tuple) else made for made in (right(*given), wrong(*given))]
    return (operator, arguments, dict(zip(paths, given, strict=True)), *outputs), value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_the_value_that_gives_the_output_is_found_and_no_other(explain, name, dtype):
    given, value = prepare(name, dtype)
    (found,) = explain(*given)
    assert f"{found.argument}={found.value}" == value
    assert found.share > 0.99
    assert found.places >= 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["padding mode", "elu", "align_corners", "variance", "scatter", "loss", "causal"])
def test_an_error_of_another_kind_is_explained_by_no_value(explain, name, dtype):
    (operator, arguments, inputs, right, _), _ = prepare(name, dtype)
    wrong = right.clone()
    wrong[..., -1:] *= 1.1
    assert explain(operator, arguments, inputs, right, wrong) == []


@pytest.mark.parametrize("name", ["padding mode", "interpolation", "elu", "axis"])
def test_a_value_that_leaves_a_wrong_row_does_not_explain_the_output(explain, name):
    (*given, wrong), _ = prepare(name, torch.float32)
    wrong = wrong.clone()
    wrong.view(-1, wrong.shape[-1])[3] *= 1.001
    assert explain(*given, wrong) == []


def test_two_values_that_give_the_same_output_are_both_named(explain):
    arguments = {"scale_factor": "2", "mode": "'bilinear'", "align_corners": "True"}
    right, wrong = (
        functional.interpolate(IMAGE, scale_factor=2, **options)
        for options in ({"mode": "bilinear", "align_corners": True}, {"mode": "nearest"})
    )
    found = explain("interpolate", arguments, {"0": IMAGE}, right, wrong)
    assert {one.value for one in found} == {"'nearest'", "'nearest-exact'", "'area'"}
    assert {(one.argument, one.recorded) for one in found} == {("mode", "'bilinear'")}


def test_a_shape_is_explained_too(explain):
    right, wrong = (functional.max_pool2d(IMAGE, 3, 2, ceil_mode=mode) for mode in (True, False))
    (found,) = explain("max_pool2d", {"1": "3", "stride": "2", "ceil_mode": "True"}, {"0": IMAGE}, right, wrong)
    assert (found.argument, found.value) == ("ceil_mode", "False")


def test_one_number_in_16_bits_has_few_places_that_tell(explain):
    x = SQUARE.bfloat16()
    right, wrong = (functional.mse_loss(x, OTHER.bfloat16(), reduction=how) for how in ("mean", "sum"))
    (found,) = explain("mse_loss", {"reduction": "'mean'"}, {"0": x, "1": OTHER.bfloat16()}, right, wrong)
    assert (found.argument, found.value, found.places) == ("reduction", "'sum'", 1)


def test_a_call_that_float64_cleared_is_not_computed_again(explain):
    def fail(_):
        raise AssertionError("nothing is to be computed")

    given, _ = prepare("elu", torch.float32)
    assert explain(*given, is_fault=False, evaluate=fail) == []


def test_without_an_agent_the_cause_is_unknown_and_nothing_else_changes(explain, tmp_path):
    def fail(_):
        raise SideError("there is no torch", kind="workload")

    given, _ = prepare("elu", torch.float32)
    assert explain(*given, evaluate=fail) == []
    assert not (tmp_path / "work").exists()


def test_a_call_that_could_not_be_computed_says_nothing():
    assert read_explanation({"call": "a", "index": "0", "evaluated": False, "why": "no memory"}) is None


def test_a_call_that_was_too_large_for_some_changes_is_said():
    some = [
        Explanation((name,), left_out=left_out) for name, left_out in (("a", ("shifted",)), ("b", ()), ("c", ("other_value",)))
    ]
    assert describe_left_out(some) == [
        "too large to be computed again with every change: a and 1 more (not tried: other_value, shifted)"
    ]
    assert describe_left_out(some[1:2]) == []


NEW = '''
"""A relu that does not bend."""
from precflow.agent.hypotheses.subject import Candidate, Hypothesis

def propose(subject):
    if subject.name == "relu":
        yield Candidate("not_bent", subject.give(subject.tensor(0, "input")))

HYPOTHESIS = Hypothesis("variant", propose, says="hands on its input as it is")
'''


def test_a_new_hypothesis_is_one_file_and_becomes_a_finding(examine, tmp_path, monkeypatch):
    """No other file knows its name: it is found, tried, and said by the rule for changes that have none of their own."""
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "handed_on.py").write_text(NEW)
    monkeypatch.setattr(of_call, "__path__", [*of_call.__path__, str(tmp_path / "hypotheses")])
    list_hypotheses.cache_clear()
    try:
        comparison = examine("relu", {}, {"0": SQUARE}, SQUARE.relu(), SQUARE.clone())
    finally:
        list_hypotheses.cache_clear()
    found = advise(collect(comparison), load_rules([resources.directory("conf") / "rule"]))
    assert (found[0].rule, found[0].certainty) == ("PF236", "certain")
    assert found[0].title == "relu hands on its input as it is on the target"


def test_a_module_of_an_activation_is_explained_as_the_function_that_it_is(tmp_path):
    sides, given = [], SQUARE
    for side, form in (("reference", "none"), ("target", "tanh")):
        dump = builder.DumpBuilder(tmp_path / side, side=side)
        made = functional.gelu(given, approximate=form)
        dump.call("block.act", "", [as_array(made)], {"0": as_array(given)}, **{"class": "GELU"})
        sides.append(read_dump(dump.write()))
    (call,) = sides[0].calls()
    region = Region(suspects=(Suspect.of(call, call.outputs[0].text, 9.0, ""),))
    (found,) = explain_suspects(*sides, region, [], folder=tmp_path / "work", evaluate=evaluate_here)
    assert (found.choose("variant").name, found.choose("variant").fits) == ("gelu_tanh", True)
    comparison = Comparison(*sides, RunConfig(), region=region, explanations=[found])
    (first, *_) = advise(collect(comparison), load_rules([resources.directory("conf") / "rule"]))
    assert (first.rule, first.certainty) == ("PF212", "certain")


def test_the_errors_of_both_sides_are_measured_against_float64(examine):
    given = {"0": SQUARE * 1.01}
    exact = functional.gelu(given["0"].double())
    right, wrong = exact.float(), exact.float() * (1 + 2.0**-14)
    (one,) = examine("gelu", {}, given, right, wrong).explanations[0].residuals
    assert (one.call, one.index) == (CALL.replace("f", "gelu", 1), "0")
    assert (one.quantiles.measured, one.quantiles.elements) == (True, SQUARE.numel())
    for found, recorded in ((one.quantiles.own, right), (one.quantiles.found, wrong)):
        expected = np.quantile(np.abs((recorded.double() - exact).numpy()), one.quantiles.shares)
        assert np.array(found) == pytest.approx(expected, rel=1e-9)
