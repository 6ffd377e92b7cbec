"""Gradients of modules in float64: against autograd's own of the whole computation."""

import pytest
import torch
from torch.nn import functional

from precflow.agent.replay.calls import Function, GradientGraph, RecordedCall, Result, Slot
from precflow.agent.replay.computation import float64_defaults
from precflow.agent.replay.gradients import GradientComputation


def function(name, inputs, output, *, arguments=None, is_whole=True, level="api"):
    """Return a function; inputs and output are ``(key, tensor)``."""
    slots = {str(place): slot_of(*one) for place, one in enumerate(inputs)}
    call = RecordedCall(name, level, name, "", "forward", arguments or {}, {})
    return Function(call, slots, {"0": slot_of(*output)}, is_whole)


def slot_of(key, tensor):
    return Slot(key, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def compute(functions, values, *, total=None, parts=None, wanted):
    """Return what comes out, with the sums of terms and kinds; all keys of ``wanted`` have float32 gradients."""
    results = tuple(Result(key, key, "m", key) for key in wanted)
    computation = GradientComputation(GradientGraph(tuple(functions), total or {}, parts or {}, results))
    with float64_defaults(), torch.no_grad():
        exact = computation.run(values, {key: torch.zeros(values[key].shape, dtype=torch.float32) for key in wanted})
    return exact, computation.kinds


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def differentiate(run, leaves, gradient):
    wide = [leaf.double().requires_grad_() for leaf in leaves]
    return torch.autograd.grad(run(*wide), wide, gradient.double())


@pytest.fixture
def attention():
    q, k, v, g = (draw(2, 5, 4, seed=seed) for seed in range(4))
    scores = q @ k.transpose(-1, -2)
    weights = scores.softmax(-1)
    tensors = {"q": q, "k": k, "v": v, "kt": k.transpose(-1, -2), "scores": scores, "weights": weights, "out": weights @ v}

    def made(name, inputs, output, **arguments):
        return function(name, [(key, tensors[key]) for key in inputs], (output, tensors[output]), arguments=arguments)

    functions = [
        made("transpose", ["k"], "kt", **{"1": "-1", "2": "-2"}),
        made("matmul", ["q", "kt"], "scores"),
        made("softmax", ["scores"], "weights", dim="-1"),
        made("matmul", ["weights", "v"], "out"),
    ]
    return functions, {**tensors, "g": g}


def test_a_chain_of_functions_gives_what_autograd_gives(attention):
    functions, values = attention
    exact, kinds = compute(functions, values, total={"out": "g"}, wanted="qkv")
    leaves = [values[key] for key in "qkv"]
    expected = differentiate(lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v, leaves, values["g"])
    for key, gradient in zip("qkv", expected, strict=True):
        assert torch.allclose(exact.outputs[key], gradient, rtol=1e-6, atol=1e-6)
        assert bool((exact.terms[key] >= exact.outputs[key].abs() * (1 - 1e-9)).all())
    assert set(kinds.values()) == {"matmul"}


def test_what_a_lost_part_adds_to_is_left_out_and_the_rest_is_not(attention):
    functions, values = attention
    exact, _ = compute(functions, values, total={"out": "g"}, parts={"v": [""]}, wanted="qkv")
    assert exact.outputs.keys() == {"q", "k"}
    broken = [one._replace(is_whole=one.call.operator != "softmax") for one in functions]
    exact, _ = compute(broken, values, total={"out": "g"}, wanted="qkv")
    assert exact.outputs.keys() == {"v"}
    exact, _ = compute(functions, values, total={"out": ""}, wanted="qkv")
    assert not exact.outputs


def test_parts_of_modules_inside_are_added_and_alone_they_say_nothing():
    x, g = draw(3, 4), draw(3, 4, seed=1)
    gelu = function("gelu", [("x", x)], ("y", x), arguments={"approximate": "'none'"})
    values = {"x": x, "y": functional.gelu(x), "g": g, "part": g}
    exact, kinds = compute([gelu], values, total={"y": "g"}, parts={"x": ["part"]}, wanted="x")
    (expected,) = differentiate(functional.gelu, [x], g)
    assert torch.allclose(exact.outputs["x"], expected + g)
    assert kinds == {"x": "parts"}  # what gelu gives was rounded before it was added
    exact, _ = compute([gelu], values, parts={"x": ["part"]}, wanted="x")
    assert not exact.outputs


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "linear", "embedding"])
def test_sums_over_rows_are_measured_by_their_terms(name):
    x, g = draw(8, 6), draw(8, 6, seed=1)
    g -= g.mean(0)  # the gradient of a bias cancels to nothing
    weight, bias = torch.ones(6, 6) if name == "linear" else torch.ones(6), torch.zeros(6)
    arguments = {"layer_norm": {"1": "(6,)"}, "group_norm": {"1": "2"}}.get(name, {})
    run = {
        "layer_norm": lambda x, w, b: functional.layer_norm(x, (6,), w, b),
        "group_norm": lambda x, w, b: functional.group_norm(x, 2, w, b),
        "linear": functional.linear,
    }
    if name == "embedding":
        tokens, table = torch.tensor([0, 1, 1, 1, 2, 2, 3, 0]), draw(5, 6)
        made = function(name, [("t", tokens), ("w", table)], ("y", x))
        exact, kinds = compute([made], {"t": tokens, "w": table, "g": g}, total={"y": "g"}, wanted="w")
        assert torch.equal(exact.terms["w"], torch.zeros(5, 6).double().index_add_(0, tokens, g.double().abs()))
        assert kinds == {"w": "matmul"}
        return
    given = [("x", x), ("w", weight), ("b", bias)]
    made = function(name, given, ("y", x), arguments=arguments)
    if name != "linear":
        places = {"0": "0", "1": "2", "2": "3"}
        made = made._replace(inputs={places[path]: slot for path, slot in made.inputs.items()})
    exact, _ = compute([made], {**dict(given), "g": g}, total={"y": "g"}, wanted="xwb")
    for key, expected in zip("xwb", differentiate(run[name], [x, weight, bias], g), strict=True):
        assert torch.allclose(exact.outputs[key], expected, atol=1e-6)
    assert float(exact.outputs["b"].abs().max()) < 1e-5
    assert torch.allclose(exact.terms["b"], g.double().abs().sum(0))


def test_a_gradient_kept_in_a_finer_type_than_a_function_on_its_way_is_left_out():
    x, g = draw(3, 4), draw(3, 4, seed=1)
    silu = function("silu", [("x", x.bfloat16())], ("y", x.bfloat16()))
    exact, _ = compute([silu], {"x": x, "g": g}, total={"y": "g"}, wanted="x")
    assert not exact.outputs


def test_a_conversion_and_a_function_that_draws():
    x, g = draw(3, 4), draw(3, 4, seed=1)
    cast = function("float", [("x", x)], ("y", x))
    exact, _ = compute([cast], {"x": x, "g": g}, total={"y": "g"}, wanted="x")
    assert torch.equal(exact.outputs["x"], g.double())
    drop = function("dropout", [("x", x)], ("y", x), arguments={"p": "0.5", "training": "True"})
    assert not compute([drop], {"x": x, "g": g}, total={"y": "g"}, wanted="x")[0].outputs


def test_what_is_only_moved_and_added_says_nothing_and_two_recorded_parts_are_rounded_once():
    x, parts = draw(3, 4), {name: draw(3, 4, seed=seed) for seed, name in enumerate("abc", 1)}
    moved = function("transpose", [("x", x)], ("y", x.T), arguments={"1": "0", "2": "1"})
    values = {"x": x, "y": x.T, "g": draw(4, 3), **parts}
    exact, _ = compute([moved], values, total={"y": "g"}, parts={"x": ["a"]}, wanted="x")
    assert not exact.outputs
    added = function("add", [("x", x), ("other", x)], ("y", x))
    values = {"x": x, "other": x, "y": x + x, "g": draw(3, 4), **parts}
    _, kinds = compute([added], values, total={"y": "g"}, parts={"x": ["a"]}, wanted="x")
    assert kinds == {"x": "other"}
    _, kinds = compute([added], values, total={"y": "g"}, parts={"x": ["a", "b"]}, wanted="x")
    assert kinds == {"x": "parts"}


def test_what_is_joined_is_not_repeated():
    a, b = draw(3, 2), draw(3, 2, seed=1)
    joined = function("cat", [("a", a), ("b", b)], ("y", torch.cat([a, b], -1)), arguments={"dim": "-1"})
    joined = joined._replace(inputs={"0.0": slot_of("a", a), "0.1": slot_of("b", b)})
    gelu = function("gelu", [("x", a)], ("a", a), arguments={"approximate": "'none'"})
    values = {"x": a, "a": functional.gelu(a), "b": b, "y": torch.cat([functional.gelu(a), b], -1), "g": draw(3, 4)}
    exact, kinds = compute([gelu, joined], values, total={"y": "g"}, wanted="x")
    assert "x" in exact.outputs
    assert kinds == {"x": "other"}


@pytest.mark.parametrize(
    ("name", "run"),
    [("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("exp", torch.exp), ("sqrt", torch.sqrt), ("rsqrt", torch.rsqrt)],
)
def test_a_slope_comes_from_the_result_that_was_recorded_as_that_of_autograd_does(name, run):
    x, g = draw(200).abs() * 4 + 0.5, draw(200, seed=1)
    y = run(x.double()).float()
    moved = (y.view(torch.int32) + torch.tensor([-2, 2] * 100, dtype=torch.int32)).view(torch.float32)  # by two units
    leaf = x.double().requires_grad_()
    result = run(leaf)
    result.data.copy_(moved)  # what its backward reads
    (expected,) = torch.autograd.grad(result, leaf, g.double())
    exact, _ = compute([function(name, [("x", x)], ("y", moved))], {"x": x, "y": moved, "g": g}, total={"y": "g"}, wanted="x")
    assert torch.allclose(exact.outputs["x"], expected, rtol=1e-12, atol=0)


def test_a_result_that_is_wrong_gives_no_slope():
    x, g = draw(200), draw(200, seed=1)
    wrong = x.tanh() * 1.01
    values = {"x": x, "y": wrong, "g": g}
    exact, _ = compute([function("tanh", [("x", x)], ("y", wrong))], values, total={"y": "g"}, wanted="x")
    (expected,) = differentiate(torch.tanh, [x], g)
    assert torch.allclose(exact.outputs["x"], expected, rtol=1e-12, atol=0)
