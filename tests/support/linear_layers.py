"""A small model of Linear layers, recorded in a step whose backward pass may be wrong at one of them."""

import torch

import precflow
from precflow.dumps.formats import read_dump


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


def record(folder, wrong=None, times=1, level=("module", "api"), on_both=None):
    """Run a step; ``wrong`` gives the gradients of the head's input and weight from what they are computed from."""
    wrong = wrong or on_both
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
    return read_dump(folder)


def products(g, x, w):
    return g @ w, torch.einsum("bto,bti->oi", g, x)
