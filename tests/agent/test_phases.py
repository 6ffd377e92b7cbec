"""Golden identities of a training step: which records its phases make, and under which names.

As ``test_identities.py``; after a deliberate change of the contract write them anew with
``PRECFLOW_WRITE_GOLDEN=1 pytest tests/agent/test_phases.py`` and read the difference.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from toys import Calls

from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import Identity, identity_text, operator_of, parse_identity
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection

GOLDEN = Path(__file__).parent / "golden" / "phases"
MODULES = {"level": ("module",), "phase": ("forward", "backward", "gradient", "optimizer")}
OPERATORS = {"level": ("operator",), "phase": ("forward", "backward")}


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin() * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def linear():
    return nn.Linear(4, 4)


def residual():
    def forward(self, x):
        hidden = self.first(x)
        return hidden + self.second(self.norm(hidden))

    return Calls(forward, first=linear(), norm=nn.LayerNorm(4), second=linear()), MODULES


def frozen():
    model, options = residual()
    model.first.requires_grad_(requires_grad=False)
    model.second.bias.requires_grad_(requires_grad=False)
    return model, options


def shared_weight():
    model = Calls(lambda self, x: self.second(self.first(x)), first=linear(), second=linear())
    model.second.weight = model.first.weight
    return model, MODULES


def called_twice():
    return Calls(lambda self, x: self.shared(self.shared(x).tanh()), shared=linear()), MODULES


def nested_outputs():
    def inner(self, x, scale):
        return {"first": self.one(x) * scale, "rest": [self.two(x), (x, 1)]}

    def forward(self, x):
        found = self.inner(self.first(x), scale=torch.ones(()))
        return found["first"] + found["rest"][1][0]

    return Calls(forward, first=linear(), inner=Calls(inner, one=linear(), two=linear())), MODULES


def in_place():
    def forward(self, x):
        hidden = self.first(x)
        hidden.mul_(2)
        return self.act(hidden)

    return Calls(forward, first=linear(), act=nn.ReLU(inplace=True)), MODULES


def checkpointed():
    block = nn.Sequential(linear(), nn.Tanh())
    return Calls(
        lambda self, x: checkpoint(self.block, self.first(x), use_reentrant=False), first=linear(), block=block
    ), MODULES


def checkpointed_reentrant():
    block = nn.Sequential(linear(), nn.Tanh())
    return Calls(
        lambda self, x: checkpoint(self.block, self.first(x), use_reentrant=True), first=linear(), block=block
    ), MODULES


def operators():
    return Calls(lambda self, x: self.act(self.first(x)) * 2, first=linear(), act=nn.GELU()), OPERATORS


def operators_of_a_function():
    return Calls(lambda self, x: Double.apply(self.first(x)), first=linear()), OPERATORS


def operators_recomputed():
    return checkpointed_reentrant()[0], OPERATORS


CASES = [
    residual,
    frozen,
    shared_weight,
    called_twice,
    nested_outputs,
    in_place,
    checkpointed,
    checkpointed_reentrant,
    operators,
    operators_of_a_function,
    operators_recomputed,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_golden(case, tmp_path):
    torch.manual_seed(0)
    model, options = case()
    found = {"case": case.__name__, "records": [text for line in record(model, options, tmp_path) for text in texts(line)]}
    path = GOLDEN / (case.__name__ + ".json")
    if os.environ.get("PRECFLOW_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_golden_identities_can_be_read_back(path):
    identities = [text.split("  ")[0] for text in json.loads(path.read_text(encoding="utf-8"))["records"]]
    assert [identity_text(parse_identity(text)) for text in identities] == identities
    assert len(set(identities)) == len(identities)


def test_every_golden_file_has_a_case():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {case.__name__ for case in CASES}


def record(model, options, folder):
    """Run one training step of a model and return its lines."""
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    writer = Writer(str(folder))
    with Recorder(writer, CaptureSection(**options)).watch(model, optimizer):
        model(x).sum().backward()
        optimizer.step()
    writer.seal({})
    return [json.loads(line) for line in (folder / "rank0/step0/records-0.jsonl").read_text(encoding="utf-8").splitlines()]


def texts(line):
    """One text for each record of a line: identity, shape, where it comes from, and what is said of the call."""
    for role, records in (("input", line["inputs"]), ("output", line["outputs"])):
        for found in records:
            operator = operator_of(line["level"], line["operator"])
            who = (line["module"], line["call"], operator, line["ordinal"], line["phase"], role, found["index"], 0, 0)
            parts = [identity_text(Identity(*who)), json.dumps(found["shape"])]
            parts += ["from {}.{}".format(*found["source"])] if found["source"] else []
            parts += ["weight {}".format(found["weight"])] if found["weight"] else []
            parts += ["of forward {}".format(", ".join(map(str, line["forward"])))] if line["forward"] else []
            parts.append(f"by order {line['order']}")
            yield "  ".join(parts)
