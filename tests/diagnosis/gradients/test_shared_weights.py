"""Gradients of weights that several module calls use, computed again in float64 as the sum of what each of them gives."""

import pytest
import torch
from evaluated import evaluate_pair
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import precflow
from precflow.dumps.formats import read_dump

TYPES = [torch.float32, torch.float16, torch.bfloat16]


class Tied(torch.nn.Module):
    """An embedding and an output head with one weight."""

    weight = "embedding.weight"

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(40, 16), torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)))


class TiedByFunction(Tied):
    """The model itself multiplies by the weight of its embedding."""

    def __init__(self):
        super().__init__()
        del self.head

    def forward(self, tokens):
        return functional.linear(self.norm(self.embedding(tokens)), self.embedding.weight * 0.5)


class ReadTwice(torch.nn.Module):
    """A table that is read for two inputs."""

    weight = "table.weight"

    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(40, 16), torch.nn.Linear(32, 8)

    def forward(self, tokens):
        return self.head(torch.cat([self.table(tokens), self.table(tokens.flip(0))], -1))


class CalledTwice(torch.nn.Module):
    """A linear layer that takes its own output."""

    weight = "layer.weight"

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 16)

    def forward(self, tokens):
        return self.layer(self.layer(self.embedding(tokens)).tanh())


class SplitProducts(TorchDispatchMode):
    """A chip that computes products of matrices in four parts, and rounds and adds these in the type."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is not torch.ops.aten.mm:
            return func(*args, **(kwargs or {}))
        left, right = args
        return sum(a @ b for a, b in zip(left.tensor_split(4, 1), right.tensor_split(4, 0), strict=True))


MODELS = [Tied, TiedByFunction, ReadTwice, CalledTwice]


@pytest.fixture
def judge(tmp_path):
    """Record two steps, evaluate both, and return what was found of the shared weight's gradient; ``None`` if nothing was."""

    def record(name, kind, dtype, change, on_chip):
        model = kind()
        with torch.no_grad():
            for number, weight in enumerate(model.parameters()):
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)) / 3)
        model = model.to(dtype)
        tokens = torch.randint(0, 40, (3, 24), generator=torch.Generator().manual_seed(9))
        weight = dict(model.named_parameters())[kind.weight]
        if change is not None:
            weight.register_hook(change)
        phases, levels = ("forward", "backward", "gradient"), ("module", "api")
        with precflow.capture(model, tmp_path / name, level=levels, detail="tensors", phase=phases), on_chip:
            model(tokens).float().square().mean().mul(64).backward()
        return read_dump(tmp_path / name)

    def run(kind, dtype, change=None, on_chip=None):
        reference = record("reference", kind, dtype, None, torch.enable_grad())
        target = record("target", kind, dtype, change, on_chip or torch.enable_grad())
        found = evaluate_pair(tmp_path, reference, target)
        module, _, name = kind.weight.rpartition(".")
        assert not any(one.is_fault for key, one in found.items() if key != (module, "gradient", name))
        return found.get((module, "gradient", name))

    return run


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", MODELS)
def test_the_sum_of_all_uses_is_what_it_has_to_be(judge, kind, dtype):
    found = judge(kind, dtype)
    assert not found.is_fault
    assert found.eta_reference < torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_chip_that_rounds_partial_sums_is_no_fault(judge, kind, dtype):
    found = judge(kind, dtype, on_chip=SplitProducts())
    assert found.eta_target > 0
    assert not found.is_fault


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_wrong_sum_is_a_fault(judge, kind, dtype):
    assert judge(kind, dtype, lambda gradient: gradient * 1.06).is_fault


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", MODELS)
def test_a_sum_that_went_through_bfloat16_is_a_fault(judge, kind, dtype):
    assert judge(kind, dtype, lambda gradient: gradient.bfloat16().to(gradient.dtype)).is_fault


def test_a_use_whose_gradient_was_not_recorded_leaves_the_sum_unjudged(judge):
    class OnceUnused(CalledTwice):
        def forward(self, tokens):
            with torch.no_grad():
                self.layer(self.embedding(tokens))
            return self.layer(self.embedding(tokens))

    assert judge(OnceUnused, torch.float32, lambda gradient: gradient * 1.06) is None
