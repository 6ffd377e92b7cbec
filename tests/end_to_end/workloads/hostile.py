"""A small model in variants that differ, lie, break or hang; copied into a working directory and named by tests."""

import os
import sys
import time

import torch
from torch import nn

FILLS = {"half": -65504.0, "infinity": float("-inf"), "zero": 0.0}
NAMES = (
    "a/b c",
    "层 一",
    "x" * 300,
    "<script>alert(1)</script>",
    "quote\"'&amp;",
    "--> </script><b>",
    "new\nline",
    "\x1b[31mred",
    "{{ 7*7 }}",
    "|pipe| `code` [red]",
    "\u202eevil",
)


class Step(nn.Module):
    """A module without parameters: weights are the same with it and without it."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        y = torch.tanh(x)
        return y * 1.01 if self.how == "branch" and hasattr(torch, "npu") else y


class Sides(nn.Module):
    """Linear, tanh, masked softmax, linear; ``how`` says what is other than plain."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.first = nn.Linear(8, 8)
        self.step = None if how == "lacks" else Step(how)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        y = self.first(x)
        y = y.tanh() if self.step is None else self.step(y)
        y = y * (float("nan") if self.how == "all_nan" else 1.0)
        fill = FILLS.get(self.how, torch.finfo(y.dtype).min)
        mask = torch.ones(5, 8, dtype=torch.bool, device=y.device).triu(1)
        z = self.last(torch.softmax(y.masked_fill(mask, fill), -1))
        if self.how == "shape":
            return torch.cat([z, z])
        return z.double() if self.how == "double" else z


class Named(nn.Module):
    """Linear layers with names that nobody should choose; one of them is off on the faulty side."""

    def __init__(self, how):
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(8, 8))
        self.off = 1.01 if how == "names_wrong" else 1.0

    def forward(self, x):
        for name in NAMES:
            x = self._modules[name](x) * (self.off if "script" in name else 1.0)
        return x


class Breaking(nn.Module):
    """Computes one layer and then does something else."""

    def __init__(self, how):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.how = how

    def forward(self, x):
        y = self.inner(x)
        return getattr(self, f"do_{self.how}")(y)

    def do_raise(self, y):
        raise ValueError("the user's own words")

    def do_raise_on_npu(self, y):
        if y.device.type != "cpu":
            raise ValueError("the user's own words")
        return y

    def do_abort(self, y):
        os.abort()

    def do_leave(self, y):
        os._exit(0)

    def do_hang(self, y):
        time.sleep(1000)

    def do_print(self, y):
        sys.stdout.write("a line of the user's own\n")
        os.chdir("/")
        os.write(1, b'{"event": "error", "kind": "workload", "message": "forged"}\n')
        return y

    def do_text(self, y):
        return "no tensor at all"


class Bare(nn.Module):
    """No modules, no parameters."""

    def forward(self, x):
        return x * 2


def build(how="plain"):
    """Return the variant of the model."""
    torch.manual_seed(1 if how == "weights" else 0)
    if how == "number":
        return 42
    if how == "bare":
        return Bare()
    if how.startswith("names"):
        return Named(how)
    return Breaking(how) if hasattr(Breaking, f"do_{how}") else Sides(how)


def inputs(how="right"):
    """Return five rows of eight numbers, or something else."""
    rows = torch.linspace(-1, 1, 40).reshape(5, 8)
    wrong = {"number": 7, "misnamed": {"y": rows}, "too many": (rows, rows, rows)}
    return wrong.get(how, {"x": rows})
