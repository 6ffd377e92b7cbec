"""A network with what converters change: an embedding, norms, a gelu, an attention and a convolution with a batch norm."""

import json
import sys
from pathlib import Path

import pytest
import torch

from precflow.agent import request as requests
from precflow.agent.devices.cpu import Cpu

CODE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 16)
        self.act = nn.GELU()

    def forward(self, x):
        y = self.norm(x)
        x = x + torch.softmax(self.q(y) @ self.k(y).transpose(-1, -2) / 4, -1) @ self.v(y)
        return x + self.fc2(self.act(self.fc1(x)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.conv = nn.Conv1d(16, 8, 3, bias=False)
        self.bn = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)
        self.bn.running_mean.uniform_(-0.2, 0.2)
        self.bn.running_var.uniform_(0.5, 1.5)

    def forward(self, ids, scale):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        y = self.bn(self.conv(x.transpose(1, 2)))
        scores = self.head(y.relu().mean(-1)) * scale
        return {"scores": scores, "best": scores.argmax(-1)}


def build():
    return Network()


def inputs():
    return {"ids": torch.arange(18).reshape(2, 9), "scale": torch.tensor(2.0)}
"""


@pytest.fixture
def convert(tmp_path, asked, events, monkeypatch):
    """Return a function that makes a dump of the network in ONNX Runtime, in this process, and returns its header.

    Without a conversion the reference runs in torch.
    """
    (tmp_path / "converted_workload.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("converted_workload", None)
    workload = {
        "model": {"_target_": "converted_workload.build"},
        "inputs": {"_target_": "converted_workload.inputs"},
    }

    def run(*, conversion=None, side="target", **changes):
        from precflow.agent.converted.dump import dump
        from precflow.agent.session.dump import dump as dump_torch

        folder = tmp_path / side
        folder.mkdir(exist_ok=True)
        settings = {"runtime": "onnxruntime", **(conversion or {})}
        asking = {"side": side, "output": str(folder), "workload": workload, "trusted": ["converted_workload"], **changes}
        in_torch = side == "reference" and conversion is None
        asking = asked(**asking, **({} if in_torch else {"conversion": settings}))
        make = dump_torch if in_torch else dump
        make(requests.parse(asking), Cpu(), torch.device("cpu"), events)
        return json.loads(Path(folder, "dump.json").read_text())

    run.folder = tmp_path
    return run
