"""Which one change explains the gradients of an attention whose backward is wrong inside."""

import pytest
import torch

from precflow.agent.hypotheses import of_backward
from precflow.agent.hypotheses.backward import Backward, Side
from precflow.agent.hypotheses.engine import list_hypotheses, try_all
from precflow.agent.hypotheses.narrow import cut
from precflow.agent.hypotheses.of_backward.other_form import FORMS
from precflow.agent.replay.calls import Function, GradientGraph, RecordedCall, Result, Slot
from precflow.agent.replay.computation import float64_defaults
from precflow.agent.replay.gradients import GradientComputation


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def function(name, inputs, output, tensors, **arguments):
    slots = {str(place): slot_of(key, tensors) for place, key in enumerate(inputs)}
    call = RecordedCall(name, "api", name, "", "forward", arguments, {})
    return Function(call, slots, {"0": slot_of(output, tensors)}, is_whole=True)


def slot_of(key, tensors):
    return Slot(key, str(tensors[key].dtype).removeprefix("torch."), tuple(tensors[key].shape))


def same(gradient):
    return gradient


def run_backward(tensors, *, leaving=same, of_product=same, change_value=same, of_softmax=None):
    """Return the gradients of q, k and v as a device computes them: each function rounds, and one of them is wrong."""
    gradient = tensors["g"]
    weights = tensors["weights"]
    of_weights = gradient @ tensors["v"].mT
    of_softmax = of_softmax or (lambda gradient, made: torch._softmax_backward_data(gradient, made, -1, made.dtype))
    of_scores = leaving(of_softmax(of_weights, weights))
    return {
        "q": of_product(of_scores) @ of_product(tensors["k"]),
        "k": of_product(of_scores).mT @ of_product(tensors["q"]),
        "v": change_value(weights.mT @ gradient),
    }


@pytest.fixture
def explain():
    """Return what is tried, the best first, for a target that computes some gradients otherwise."""

    def run(dtype=torch.float32, **changes):
        q, k, v, g = (draw(2, 24, 16, seed=seed).to(dtype) for seed in range(4))
        kt = k.transpose(-1, -2)
        scores = q @ kt
        weights = scores.softmax(-1)
        tensors = {"q": q, "k": k, "v": v, "g": g, "kt": kt, "scores": scores, "weights": weights, "out": weights @ v}
        functions = (
            function("transpose", ["k"], "kt", tensors, **{"1": "-1", "2": "-2"}),
            function("matmul", ["q", "kt"], "scores", tensors),
            function("softmax", ["scores"], "weights", tensors, dim="-1"),
            function("matmul", ["weights", "v"], "out", tensors),
        )
        graph = GradientGraph(functions, {"out": "g"}, {}, tuple(Result(key, key, "m", key) for key in "qkv"))
        computation = GradientComputation(graph)
        with float64_defaults(), torch.no_grad():
            gradients = [run_backward(tensors), run_backward(tensors, **changes)]
            sides = [Side(tensors, recorded, computation.run(tensors, recorded)) for recorded in gradients]
            return try_all(Backward(graph, computation, *sides), list_hypotheses(of_backward)).found

    return run


def through(dtype):
    return lambda gradient: gradient.to(dtype).to(gradient.dtype)


@pytest.mark.parametrize(
    ("changes", "kind", "operators"),
    [
        ({"leaving": through(torch.bfloat16)}, "bfloat16", {"softmax"}),
        ({"leaving": through(torch.float16)}, "float16", {"softmax"}),
        ({"leaving": lambda gradient: gradient * 1.01}, "scaled", {"softmax", "matmul"}),
        ({"of_product": lambda value: cut(value, 10).to(value.dtype)}, "operands_10", {"matmul"}),
        ({"of_product": lambda value: cut(value, 11).to(value.dtype)}, "operands_11", {"matmul"}),
        ({"of_product": lambda value: cut(value, 10, truncate=True).to(value.dtype)}, "operands_10", {"matmul"}),
    ],
)
def test_the_one_change_that_explains_the_gradients_behind_it_leaves_only_rounding(explain, changes, kind, operators):
    found = explain(**changes)
    best = found[0]
    assert best["name"] == kind
    assert best["share"] > 0.98  # of 11 bits: what float32 rounds before can change what is cut
    assert best["left"] < 2 or kind == "operands_11"
    assert {each["operator"] for each in found if each["name"] == kind and each["share"] > 0.98} == operators
    assert all(each["share"] < 0.9 for each in found if each["name"] != kind)


def test_a_factor_is_fitted(explain):
    found = explain(leaving=lambda gradient: gradient * 0.75)
    assert found[0]["factor"] == pytest.approx(0.75, rel=1e-6)


def test_in_16_bits_functions_round_with_the_change_and_without(explain):
    found = explain(torch.float16, leaving=through(torch.bfloat16))
    assert found[0]["name"] == "bfloat16"
    assert found[0]["share"] > 0.9
    found = explain(torch.bfloat16, leaving=lambda gradient: gradient * 1.1)
    assert found[0]["name"] == "scaled"
    assert found[0]["factor"] == pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("form", "name"),
    [
        (lambda gradient, made: made * gradient, "form_without_sum_of_row"),
        (lambda gradient, made: made * (1 - made) * gradient, "form_diagonal"),
    ],
)
def test_another_form_of_a_backward_is_named(explain, form, name, dtype):
    best, *others = explain(dtype, of_softmax=form)
    assert (best["name"], best["operator"]) == (name, "softmax")
    assert best["share"] > 0.99 > max((one["share"] for one in others), default=0.0)
    assert best["left"] < 2


@pytest.mark.parametrize("operator", FORMS)
def test_no_form_is_the_right_backward(operator):
    """A form that were right would explain whatever is wrong elsewhere."""
    values = draw(8, 16).double().requires_grad_()
    run = {"log_softmax": lambda x: x.log_softmax(-1), "softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid}
    for approximate in ("none", "tanh") if operator == "gelu" else ("",):
        named = {"approximate": approximate} if approximate else {}
        output = run[operator](values) if operator in run else getattr(torch.nn.functional, operator)(values, **named)
        gradient = draw(8, 16, seed=1).double()
        (right,) = torch.autograd.grad(output, values, gradient)
        left = {name: float((form(values.detach(), output.detach(), gradient) - right).norm() / right.norm())
                for name, form in FORMS[operator].items()}  # fmt: skip
        own = {"none": "gelu_erf", "tanh": "gelu_tanh"}.get(approximate)
        assert all((error < 1e-9) == (name == own) for name, error in left.items()), left


def drop_last_rows(gradient):
    gradient = gradient.clone()
    gradient[:, -5:] = 0
    return gradient


def test_what_none_of_these_is_stays_unexplained(explain):
    assert all(each["share"] < 0.9 for each in explain(leaving=drop_last_rows))
    assert all(each["share"] < 0.9 for each in explain(leaving=lambda gradient: gradient + 0.01 * gradient.sign()))


def test_gradients_that_are_right_speak_against_a_change(explain):
    # The value's gradient alone is wrong: a factor on what arrives would change those of queries and keys too.
    found = explain(change_value=lambda gradient: gradient * 1.01)
    assert {(each["operator"], each["path"]) for each in found if each["left"] < 2} == {("matmul", "1")}
    assert found[0]["factor"] == pytest.approx(1.01, rel=1e-6)


def test_a_right_backward_is_not_explained(explain):
    assert not [each for each in explain() if each["sure"] > 0.9]
