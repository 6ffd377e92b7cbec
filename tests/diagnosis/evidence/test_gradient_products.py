"""Gradients of a Linear layer, recorded by modules alone, have the evidence of the products that they are."""

import pytest
import torch

import precflow
from precflow.diagnosis.evidence import in_place
from precflow.diagnosis.evidence.gradient_products import add_products
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.findings import Suspect
from precflow.dumps.reader import Dump


class Layer(torch.nn.Module):
    """A layer that runs as often as asked."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        self.inner = torch.nn.Linear(24, 24)
        self.head = torch.nn.Linear(24, 40, bias=False)

    def forward(self, x):
        for _ in range(self.times):
            x = self.inner(x)
        return self.head(x)


def rounded(tensor, bits=10):
    """Round the significand to so many bits, as TF32 does."""
    unit = torch.exp2((torch.frexp(tensor)[1] - 1 - bits).float())
    return (tensor / unit).round() * unit


def record(folder, wrong=None, times=1, level=("module", "api")):
    """Run a step; ``wrong`` gives the gradient of the head's weight and of its input from what they are computed from."""
    model = Layer(times)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)) / 5)
    x = torch.randn(2, 16, 24, generator=torch.Generator().manual_seed(9)).requires_grad_()
    kept = {}
    model.head.register_forward_hook(lambda _, given, made: kept.update(x=given[0].detach()))
    if wrong is not None:
        model.head.register_full_backward_pre_hook(lambda _, arriving: kept.update(g=arriving[0].detach()))
        model.head.register_full_backward_hook(lambda *_: (wrong(kept["g"], kept["x"], model.head.weight.detach())[0],))
        model.head.weight.register_hook(lambda _: wrong(kept["g"], kept["x"], model.head.weight.detach())[1])
    phases = ("forward", "backward", "gradient")
    with precflow.capture(model, folder, level=level, detail="tensors", phase=phases):
        model(x).square().sum().backward()
    return Dump.open(folder)


def products(g, x, w):
    return g @ w, torch.einsum("bto,bti->oi", g, x)


def gather(reference, target, phase, index, module="head"):
    calls = [one for one in reference.calls() if (one.module, one.phase) == (module, phase)]
    ((call, made),) = ((one, made) for one in calls for made in one.outputs if made.index == index)
    suspect = Suspect(made.text, call.name, module, "", call.order, 3.0, "because")
    (observed,) = add_products(reference, target, observe(reference, target, [suspect]))
    return observed, in_place.gather(observed)


GRADIENTS = [("gradient", "weight"), ("backward", "0")]


@pytest.mark.parametrize(("phase", "index"), GRADIENTS)
def test_operands_of_10_bits_and_another_order_are_told_apart(tmp_path, phase, index):
    reference = record(tmp_path / "reference")
    short = record(tmp_path / "short", lambda *given: products(*map(rounded, given)))
    observed, found = gather(reference, short, phase, index)
    assert observed.product is not None
    assert (found["operand_bits"], found["in_place"]) == (10, True)
    _, found = gather(reference, record(tmp_path / "plain", products), phase, index)
    assert found.get("operand_bits", 0) == 0
    assert found["own_error_units"] < 4


def test_a_weight_gradient_without_one_sample_says_which_rows_it_lacks(tmp_path):
    def lacking(g, x, w):
        return products(g, x, w)[0], products(g[:1], x[:1], w)[1]

    _, found = gather(record(tmp_path / "reference"), record(tmp_path / "target", lacking), "gradient", "weight")
    assert found["variant"] in {"terms_left_out", "last_terms_left_out"}
    assert found["variant_share"] > 0.999


def test_without_functions_the_weight_is_not_there_and_the_input_is(tmp_path):
    dumps = [record(tmp_path / name, level="module") for name in ("reference", "target")]
    assert gather(*dumps, "gradient", "weight")[0].product is not None
    assert gather(*dumps, "backward", "0")[0].product is None


def test_a_layer_that_runs_twice_has_no_one_product(tmp_path):
    dumps = [record(tmp_path / name, times=2) for name in ("reference", "target")]
    assert gather(*dumps, "gradient", "weight", module="inner")[0].product is None


def test_what_was_not_kept_gives_no_product(tmp_path):
    reference, target = (record(tmp_path / name) for name in ("reference", "target"))
    assert gather(reference, target, *GRADIENTS[0])[0].product is not None
    for shard in (tmp_path / "target").rglob("*.safetensors"):
        shard.unlink()
    target = Dump.open(tmp_path / "target")
    assert gather(reference, target, *GRADIENTS[0])[0].product is None
