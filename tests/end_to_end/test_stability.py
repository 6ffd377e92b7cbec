"""One side alone, run again with another number of threads, half of the batch and in float64: what changes is named."""

import json
import re

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("training")]
WORKLOAD = """
import torch
from torch import nn

class Threaded(nn.Module):  # as a sum that is cut by threads
    def forward(self, values):
        return values * (1 + 1e-5 * torch.get_num_threads())

class Batched(nn.Module):  # as a kernel that is chosen by the size of the batch
    def forward(self, values):
        return values + 1e-4 * values.shape[0]

def build():
    return nn.Sequential(nn.Linear(8, 8), Threaded(), Batched(), nn.Linear(8, 8))

def inputs():
    return (torch.randn(2, 8),)
"""
ALONE = (
    "+recipe=minilm",
    "workload.model._target_=threaded.build",
    "workload.inputs._target_=threaded.inputs",
    "reference.device=cpu",
    "reference.variables.OMP_NUM_THREADS=1",
    "sides=[reference]",
    "target.device=cpu",
    "tolerance.standards=[calibrated]",
)
OWN = {"PRECFLOW_TRUST": "threaded"}


def test_what_threads_batch_and_float64_change_is_ranked(precflow, tmp_path):
    (tmp_path / "threaded.py").write_text(WORKLOAD, encoding="utf-8")
    ended = precflow(*ALONE, cwd=tmp_path, **OWN)
    assert ended.code == 0, ended.err
    words = ("stability", "minilm", "--also", "threads,batch,float64", "--json", "--page", "page.html")
    told = precflow(*words, cwd=tmp_path, **OWN)
    assert told.code == 0, told.err
    also = json.loads(told.out)["also"]
    threads = {call["name"]: call["leaves"] for call in also["threads"]["calls"]}
    assert threads["0 / linear"] == 0
    assert threads["1 / mul"] == pytest.approx(1e-5, rel=0.1)
    assert also["threads"]["calls"][0]["name"] == "1 / mul"
    assert also["batch"]["calls"][0]["name"] == "2 / add"
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"once more, with half of the batch at a time: \d of 4 calls differ", page)
    assert "once more, against float64" in page
    assert 0 < max(call["leaves"] for call in also["float64"]["calls"]) < 1e-6
    log = (tmp_path / "runs" / "minilm" / "stability" / "float64.log").read_text(encoding="utf-8")
    assert "stage=dump side=reference state=kept" in log  # of both ways it is the same
    refused = precflow("stability", "minilm", "--also", "thread", cwd=tmp_path, **OWN)
    assert refused.problems(2, "--also thread: expected threads or batch or float64") == []
