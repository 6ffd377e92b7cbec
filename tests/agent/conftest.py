"""A small workload of a user, requests for it, and torch's switches put back after each test."""

import io
import json
import os
import random
import sys

import pytest

TOY = """
import torch


class Toy(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, features, scale=None):
        self.seen += 1
        hidden = self.dropout(self.norm(self.linear(features))) + self.seen
        return {"hidden": hidden if scale is None else hidden * scale}


class Raising(Toy):
    def forward(self, features, scale=None):
        super().forward(features)
        raise ValueError("the third layer is upset")


class Noisy(Toy):
    calls = 0

    def forward(self, features, scale=None):
        Noisy.calls += 1
        return super().forward(features + Noisy.calls)


class Watched(Toy):
    def forward(self, features, scale=None):
        return super().forward(features, scale=1 + len(self.linear._forward_hooks))


class Drawing(Toy):
    def forward(self, features, scale=None):
        return super().forward(features + torch.randn(features.shape, device=features.device))


class Routing(Toy):
    def forward(self, features, scale=None):
        hidden = self.linear(features)
        first = hidden.abs().sum(-1)
        chosen = torch.topk(torch.stack([first * 1.5, first * (1.5 + 2**-9)], -1), 1).indices
        return {"hidden": torch.where(chosen == 0, hidden, -hidden)}


class Losing(Toy):
    def forward(self, features, labels):
        hidden = super().forward(features)["hidden"]
        return {"hidden": hidden, "loss": (hidden - labels).pow(2).mean()}


def build(width=8, kind="Toy"):
    return globals()[kind](width)


def compiled():
    return torch.compile(Toy(8), backend="eager")


def inputs(rows=4, width=8):
    return {"features": torch.randn(rows, width)}


def pair(rows=4, width=8):
    return torch.randn(rows, width), torch.tensor(2.0)


def labelled(rows=4, width=8):
    return {"features": torch.randn(rows, width), "labels": torch.zeros(rows, width)}


def squared(factor=1.0):
    def loss(output, labels, weight=1.0):
        return (output["hidden"] - labels).pow(2).mean() * factor * weight

    return loss


def halved(factor=1.0):
    return lambda output, labels: (output["hidden"] - labels).pow(2)


def detached():
    return lambda output: output["hidden"].detach().sum()


def momentum(model, lr):
    return torch.optim.SGD([each for each in model.parameters() if each.dim() > 1], lr=lr, momentum=0.9)


def number():
    return 7


def on_meta(width=8):
    return Toy(width).to("meta")
"""


@pytest.fixture
def forgotten():
    """Let each test import its own toy."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("toy_workload", None)


@pytest.fixture
def toy(tmp_path):
    """Return the folder that holds ``toy_workload.py``."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "toy_workload.py").write_text(TOY)
    return folder


@pytest.fixture
def asked(tmp_path, toy):
    """Return a function that makes a plain request for the toy; its output folder exists."""

    def make(**changes):
        output = tmp_path / "output"
        output.mkdir(exist_ok=True)
        request = {
            "schema": 1,
            "action": "dump",
            "side": "target",
            "recipe": "toy",
            "declared": "5be0",
            "output": str(output),
            "device": ["cpu"],
            "ci": False,
            "dtype": "float32",
            "workload": {"model": {"_target_": "toy_workload.build"}, "inputs": {"_target_": "toy_workload.inputs"}},
            "trusted": ["toy_workload"],
            "import_paths": [str(toy)],
        }
        return {**request, **changes}

    return make


@pytest.fixture
def written(tmp_path, asked):
    """Return a function that writes such a request to a file."""

    def write(**changes):
        path = tmp_path / "request.json"
        path.write_text(json.dumps(asked(**changes)))
        return path

    return write


@pytest.fixture
def events():
    """Return events whose lines are kept in ``events.lines()``."""
    from precflow.agent.events import Events

    stream = io.StringIO()
    made = Events(stream)
    made.lines = lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    return made


@pytest.fixture
def emulation():
    """Skip where torch is too old for an emulated device: these tests also run on torch 2.1."""
    from precflow.agent import emulated

    if emulated.describe_problem():
        pytest.skip(emulated.describe_problem())


@pytest.fixture
def restored():
    """Put torch's and Python's global state back: the agent owns its process, a test does not."""
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic = getattr(torch.utils, "deterministic", None)  # absent in torch 2.1, on which these tests also run
    filled = getattr(deterministic, "fill_uninitialized_memory", None)
    states = random.getstate(), torch.get_rng_state()
    variables = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(variables)
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    if deterministic is not None:
        deterministic.fill_uninitialized_memory = filled
    random.setstate(states[0])
    torch.set_rng_state(states[1])
