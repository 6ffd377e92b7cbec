"""Recipes whose sides are several ranks: trained together, against a single process, and with a rank that does not come."""

import shutil
from pathlib import Path

import pytest
from recipes_of_tests import TRAINED

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ranks")]
ON_CPU = ("reference.device=cpu", "target.device=cpu")
LATE = """
import os, time
import torch
import torch.distributed


class Late(torch.nn.Linear):
    def forward(self, features):
        hidden = super().forward(features)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(hidden)
            if os.environ["RANK"] == "1":
                time.sleep(100)
            torch.distributed.all_reduce(hidden)
        return hidden


def build():
    return Late(4, 4)


def inputs():
    return {"features": torch.ones(2, 4)}
"""


SCRIPT = """
import argparse
import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--reduction", default="SUM")
parser.add_argument("--seed", type=int, default=7)
given = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(given.seed * rank)
for step in range(2):
    features, labels = torch.randn(6, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=getattr(dist.ReduceOp, given.reduction))
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def workplace_of_ranks(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("ranks")
    shutil.copy(Path(__file__).parent / "workloads" / "trained.py", cwd)
    (cwd / "late.py").write_text(LATE)
    (cwd / "train.py").write_text(SCRIPT)
    return cwd


@pytest.fixture(scope="module")
def run(precflow, workplace_of_ranks):
    def run(*words, trusted="trained"):
        options = {"cwd": workplace_of_ranks, "recipe": "minilm", "timeout": 300, "PRECFLOW_TRUST": trusted}
        return precflow("+recipe=minilm", *ON_CPU, *words, **options)

    return run


@pytest.fixture(scope="module")
def run_script(precflow, workplace_of_ranks):
    def run(*words):
        ranks = ("reference.ranks=2", "target.ranks=2", "capture.detail=tensors", "capture.step=[0]")
        options = {"cwd": workplace_of_ranks, "recipe": "script", "timeout": 300}
        return precflow("+recipe=script", "workload.script=train.py", *ON_CPU, *ranks, *words, **options)

    return run


def test_a_script_whose_reduction_differs_is_told_from_a_wrong_computation(run_script):
    ended = run_script("+target.arguments.reduction=MAX")
    assert ended.code == 1, ended.err
    assert "data, forward, loss, backward, optimizer aligned · communication misaligned, starts here" in ended.said
    titles = {finding["rule"]: finding["title"] for finding in ended.result["findings"]}
    assert titles["PF901"] == "all_reduce computes the maximum of what the ranks give, and the sum on the reference"


def test_a_rank_that_is_fed_from_another_seed_is_named(run_script):
    ended = run_script("+target.arguments.seed=8")
    assert ended.problems(3, "rank1.step0") == []


def test_two_ranks_train_as_one_process_does(run):
    ended = run(*TRAINED, "target.ranks=2")
    assert ended.code == 0, ended.err
    rows = {row["record"]: row["status"] for row in ended.result["rows"]}
    assert rows["head/gradient.output.weight"] == rows["head/optimizer.output.weight"] == "pass"
    assert rows["(outside)/cross_entropy.0/forward.output.0"] == "pass"
    assert not any("all_reduce" in record for record in rows)


def test_a_rank_that_does_not_come_is_named_with_what_the_other_waits_for(run):
    late = ("workload.model._target_=late.build", "workload.inputs._target_=late.inputs", "capture.phase=[forward]")
    for seconds in (5, 15):  # a busy machine may not come so far in the first
        ended = run(*late, "reference.ranks=2", "target.ranks=2", f"capture.timeout={seconds}s", trusted="late")
        if "all_reduce number 1 " in ended.said:
            break
    assert ended.problems(2, f"did not finish within {seconds} s", "rank 0 was in all_reduce number 1 of ranks 0,1") == []
    assert "which rank 1 has not reached" in ended.said
    assert "late.py" in ended.said  # the innermost frames of rank 1


def test_ranks_that_cannot_be_compared_are_refused(run):
    ended = run(*TRAINED, "reference.ranks=2", "target.ranks=4")
    assert ended.problems(2, "ranks are compared with their own, or several with a single process") == []
