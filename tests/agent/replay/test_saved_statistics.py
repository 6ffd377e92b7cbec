"""Norms that keep mean and deviation in 16 bits: against torch's own backward at rounded statistics, and what torch makes."""

import pytest
import torch
from torch.nn import functional

from precflow.agent.replay.calls import (
    Function,
    GradientGraph,
    RecordedCall,
    Result,
    SideTensors,
    Slot,
    StoredTensor,
    TensorFiles,
)
from precflow.agent.replay.evaluate import evaluate_call
from precflow.agent.replay.saved_statistics import find_saved_type, run_with_saved

BACKWARD = torch.ops.aten
DTYPES = [torch.float16, torch.bfloat16]
SHAPE = (2, 6, 4, 4)
NORMS = {
    "group_norm": lambda x, w, b: functional.group_norm(x, 2, w, b),
    "layer_norm": lambda x, w, b: functional.layer_norm(x, (4, 4), w, b),
    "batch_norm": lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
    "instance_norm": lambda x, w, b: functional.instance_norm(x, None, None, w, b),
}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(name):
    shape = (4, 4) if name == "layer_norm" else (6,)
    return 1 + 0.1 * draw(*shape, seed=1), 0.1 * draw(*shape, seed=2)


def statistics(x, axes, dtype):
    mean, variance = x.mean(axes), x.var(axes, unbiased=False)
    return mean.to(dtype).double(), (variance + 1e-5).rsqrt().to(dtype).double()


def torchs_own(name, x, weight, g, dtype):
    """Return the gradients of input, weight and bias of torch's backward in float64, at rounded statistics."""
    if name == "group_norm":
        mean, inverse = statistics(x.reshape(2, 2, -1), -1, dtype)
        return BACKWARD.native_group_norm_backward(g, x, mean, inverse, weight, 2, 6, 16, 2, [True] * 3)
    if name == "layer_norm":
        mean, inverse = (each[..., None, None] for each in statistics(x, (-1, -2), dtype))
        return BACKWARD.native_layer_norm_backward(g, x, (4, 4), mean, inverse, weight, torch.zeros(4, 4).double(), [True] * 3)
    if name == "instance_norm":
        x, g, weight = x.reshape(1, 12, 4, 4), g.reshape(1, 12, 4, 4), weight.repeat(2)
    mean, inverse = statistics(x, (0, 2, 3), dtype)
    of_input, *others = BACKWARD.native_batch_norm_backward(g, x, weight, None, None, mean, inverse, True, 1e-5, [True] * 3)  # noqa: FBT003
    if name == "instance_norm":
        return of_input.reshape(SHAPE), *[each.reshape(2, 6).sum(0) for each in others]
    return of_input, *others


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
def test_gradients_at_rounded_statistics_are_those_of_torchs_own_backward(name, dtype):
    x, g = draw(*SHAPE, seed=3).to(dtype).double(), draw(*SHAPE, seed=4)
    weight, bias = weights(name)
    places = ("3", "4") if name in {"batch_norm", "instance_norm"} else ("weight", "bias")
    leaves = {path: each.clone().requires_grad_() for path, each in zip(("0", *places), (x, weight, bias), strict=True)}
    given = {"1": 2 if name == "group_norm" else (4, 4), "5": True}
    made = run_with_saved(name, lambda place, word, default=None: given.get(str(place), default), leaves, dtype)
    found = torch.autograd.grad(made, list(leaves.values()), g)
    for one, other in zip(found, torchs_own(name, x, weight, g, dtype), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-12)
    assert torch.allclose(made, NORMS[name](x, weight, bias), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_statistics_that_are_not_those_of_the_input_are_left_alone(name):
    leaves = {"0": draw(*SHAPE)}
    given = {"5": False}
    assert run_with_saved(name, lambda place, _, default=None: given.get(str(place), default), leaves, torch.float16) is None


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("softmax", {"0": torch.float16}),
        ("group_norm", {"0": torch.float32, "weight": torch.float32}),
        ("group_norm", {"0": torch.bfloat16, "2": torch.float32}),
        ("batch_norm", {"input": torch.bfloat16, "3": torch.float32}),
    ],
)
def test_what_keeps_its_statistics_in_float32(name, types):
    assert find_saved_type(name, types) is None


@pytest.fixture
def evaluated(tmp_path):
    """Return a function that evaluates the input's gradient of a group norm on two sides and gives the target's numbers."""

    def evaluate(sides):
        tensors = {}
        for side, (x, weight, g, made) in sides.items():
            stored = []
            for index, each in {"x": x, "w": weight, "g": g, "made": made}.items():
                path = tmp_path / f"{side}-{index}"
                path.write_bytes(each.contiguous().view(torch.uint8).numpy().tobytes())
                dtype = str(each.dtype).removeprefix("torch.")
                stored.append(StoredTensor(index, dtype, tuple(each.shape), str(path), 0, each.numel() * each.element_size()))
            tensors[side] = SideTensors(tuple(stored[:3]), tuple(stored[3:]))
        x, weight = sides["target"][:2]
        facts = [(str(each.dtype).removeprefix("torch."), tuple(each.shape)) for each in (x, weight)]
        call = RecordedCall("norm", "api", "group_norm", "", "forward", {"1": "1"}, {})
        slots = {"0": Slot("x", *facts[0]), "weight": Slot("w", *facts[1])}
        function = Function(call, slots, {"0": Slot("y", *facts[0])}, is_whole=True)
        graph = GradientGraph((function,), {"y": "g"}, {}, (Result("made", "x", "norm", "0"),))
        whole = RecordedCall("norm", "module", "", "GroupNorm", "backward", {}, tensors, graph)
        (line,) = evaluate_call(whole, TensorFiles())
        assert line["evaluated"], line
        return line["sides"]["target"]

    return evaluate


def differentiate(x, weight, g):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(functional.group_norm(leaf, 1, weight), leaf, g)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_backward_at_rounded_statistics_is_right_and_one_with_a_wrong_scale_is_not(evaluated, dtype):
    weight, g = torch.ones(6, dtype=dtype), draw(1, 6, 16, 16, seed=5).to(dtype)
    wide = [draw(1, 6, 16, 16, seed=6) * (1 + number / 200) for number in range(200)]
    off = [float((inverse := (x.var(unbiased=False) + 1e-5).rsqrt()) - inverse.to(dtype).double()) for x in wide]
    x = wide[max(range(200), key=lambda number: abs(off[number]))].to(dtype)  # whose deviation is rounded most
    made = differentiate(x, weight, g)
    right = evaluated({"reference": (x, weight, g, made), "target": (x, weight, g, made)})
    assert right["variance"] < 1.3
    assert right["slope"] < 4
    precise = differentiate(x.float(), weight.float(), g.float()).to(dtype)
    assert evaluated({"reference": (x, weight, g, made), "target": (x, weight, g, precise)})["variance"] < 1.3
    scaled = (made.double() * (1 + 2.0 ** (-9 if dtype == torch.float16 else -6))).to(dtype)
    wrong = evaluated({"reference": (x, weight, g, made), "target": (x, weight, g, scaled)})
    assert wrong["slope"] > 20 * max(right["slope"], 1)
