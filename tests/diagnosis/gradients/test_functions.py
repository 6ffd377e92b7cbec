"""Gradients of modules, computed again in float64 from the functions that they called."""

from functools import partial

import pytest
import torch
from evaluated import evaluate_pair
from torch.nn import functional

import precflow
from precflow.dumps.formats import read_dump


def scale_leaving(factor, module, given, made):
    """Let what leaves through a module's input be wrong, below all that records."""
    made.grad_fn.register_hook(lambda leaving, arriving: (leaving[0] * factor, *leaving[1:]))


class Attention(torch.nn.Module):
    """Eager attention of one head; ``wrong`` scales the gradient of its scores."""

    def __init__(self, wrong, fused):
        super().__init__()
        self.wrong, self.fused = wrong, fused
        self.q, self.k, self.v, self.out = (torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.fused:
            return self.out(functional.scaled_dot_product_attention(q, k, v))
        scores = q @ k.transpose(-1, -2) / 4
        if "softmax" in self.wrong:
            scores.register_hook(lambda gradient: gradient * self.wrong["softmax"])
        return self.out(scores.softmax(-1) @ v)


class Router(torch.nn.Module):
    """Returns its logits, and shares that it makes of them; ``wrong`` scales what leaves its softmax in backward."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        self.weight = torch.nn.Parameter(torch.empty(4, 16))

    def forward(self, x):
        logits = functional.linear(x, self.weight)
        shares = logits.float().softmax(-1)
        if "router" in self.wrong:
            scale_leaving(self.wrong["router"], self, (), shares)
        largest, _ = shares.topk(2, -1)
        return logits, largest / largest.sum(-1, keepdim=True)


class Block(torch.nn.Module):
    """An embedding, attention, a router and an activation; ``wrong`` scales what leaves one of its parts in backward."""

    def __init__(self, wrong, fused):
        super().__init__()
        self.wrong = wrong
        self.embedding = torch.nn.Embedding(20, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.attention = Attention(wrong, fused)
        self.router = Router(wrong)
        self.act = torch.nn.GELU()
        self.head = torch.nn.Linear(16, 12)
        for name, factor in wrong.items():
            if name in {"norm", "act"}:
                getattr(self, name).register_forward_hook(partial(scale_leaving, factor))
            if name == "embedding":
                self.embedding.weight.register_hook(lambda gradient, by=factor: gradient * by)
            if name == "bias":
                self.norm.bias.register_hook(lambda gradient, by=factor: gradient * by)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.attention(self.norm(x))
        logits, shares = self.router(x)
        x = x * (0.5 + shares[..., :1].to(x.dtype))
        if "logits" in self.wrong:
            x = x + self.wrong["logits"] * logits.mean()
        return self.head(self.act(x))


@pytest.fixture
def judge(tmp_path):
    """Record a right and a wrong step, evaluate both, and return what was found in backward."""

    def record(name, wrong, dtype, *, fused=False, autocast=False):
        model = Block(wrong, fused)
        with torch.no_grad():
            for number, weight in enumerate(model.parameters()):
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)) / 2)
        model = model.to(dtype)
        tokens = torch.randint(0, 20, (2, 24), generator=torch.Generator().manual_seed(9))
        phases = ("forward", "backward", "gradient")
        levels = ("module", "api")
        with (
            precflow.capture(model, tmp_path / name, level=levels, detail="tensors", phase=phases),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            model(tokens).float().square().mean().backward()
        return read_dump(tmp_path / name)

    def run(wrong=None, dtype=torch.float32, on_both=None, *, autocast=False, **target):
        both = on_both or {}
        reference = record("reference", both, dtype, autocast=autocast)
        other = record("target", {**both, **(wrong or {})}, dtype, autocast=autocast, **target)
        found = evaluate_pair(tmp_path, reference, other)
        return {key: one for key, one in found.items() if key[1] != "forward"}

    return run


OF_ATTENTION = {("attention", "backward", f"attention.{name}~0.0") for name in "qkv"}


def test_every_gradient_between_functions_is_computed(judge):
    found = judge()
    assert {
        ("act", "backward", "0"),
        ("norm", "backward", "0"),
        *(("norm", "gradient", index) for index in ("weight", "bias")),
        ("embedding", "gradient", "weight"),
        *(("attention." + name, "gradient", "bias") for name in ("q", "k", "v", "out")),
        *OF_ATTENTION,
        ("router", "backward", "router~0.0"),
    } < found.keys()
    assert not any(one.is_fault for one in found.values())
    assert (
        max(one.eta_reference for one in found.values()) < 4e-7
    )  # the bias of the keys too, whose gradient cancels to nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("act", {("act", "backward", "0")}),
        ("norm", {("norm", "backward", "0")}),
        ("embedding", {("embedding", "gradient", "weight")}),
        ("bias", {("norm", "gradient", "bias")}),
        ("softmax", {("attention", "backward", f"attention.{name}~0.0") for name in "qk"}),
        ("router", {("router", "backward", "router~0.0")}),
    ],
)
def test_the_module_whose_backward_is_wrong_is_named_alone(judge, wrong, named, dtype):
    found = judge({wrong: 1.03 if dtype == torch.float32 else 1.1}, dtype)
    assert {key for key, one in found.items() if one.is_fault} == named


def test_where_the_sides_call_other_functions_nothing_is_said(judge):
    found = judge({"act": 1.03}, fused=True)
    assert not OF_ATTENTION & found.keys()
    assert {key for key, one in found.items() if one.is_fault} == {("act", "backward", "0")}


def test_a_gradient_that_something_changes_on_both_sides_says_nothing(judge):
    found = judge({"embedding": 1.5, "norm": 3.0}, on_both={"embedding": 1.4, "norm": 2.0})
    assert not {("embedding", "gradient", "weight"), ("norm", "backward", "0")} & found.keys()
    assert not any(one.is_fault for one in found.values())


def test_an_output_that_others_use_too_says_nothing(judge):
    found = judge({"router": 1.03}, on_both={"logits": 0.5})
    assert ("router", "backward", "router~0.0") not in found
    assert not any(one.is_fault for one in found.values())


def test_what_autocast_rounds_unseen_says_nothing(judge):
    found = judge(autocast=True)
    assert ("head", "gradient", "bias") not in found
    assert not any(one.is_fault for one in found.values())
