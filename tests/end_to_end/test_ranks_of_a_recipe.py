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


@pytest.fixture(scope="module")
def workplace_of_ranks(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("ranks")
    shutil.copy(Path(__file__).parent / "workloads" / "trained.py", cwd)
    (cwd / "late.py").write_text(LATE)
    return cwd


@pytest.fixture(scope="module")
def run(precflow, workplace_of_ranks):
    def run(*words, trusted="trained"):
        options = {"cwd": workplace_of_ranks, "recipe": "minilm", "timeout": 300, "PRECFLOW_TRUST": trusted}
        return precflow("+recipe=minilm", *ON_CPU, *words, **options)

    return run


def test_two_ranks_train_as_one_process_does(run):
    ended = run(*TRAINED, "target.ranks=2")
    assert ended.code == 0, ended.err
    rows = {row["record"]: row["status"] for row in ended.result["rows"]}
    assert rows["head/gradient.output.weight"] == rows["head/optimizer.output.weight"] == "pass"
    assert rows["(outside)/cross_entropy.0/forward.output.0"] == "pass"
    assert not any("all_reduce" in record for record in rows)


def test_a_rank_that_does_not_come_is_named_with_what_the_other_waits_for(run):
    late = ("workload.model._target_=late.build", "workload.inputs._target_=late.inputs", "capture.phase=[forward]")
    ended = run(*late, "reference.ranks=2", "target.ranks=2", "capture.timeout=12s", trusted="late")
    assert ended.problems(2, "did not finish within 12 s", "rank 0 was in all_reduce number 1 of ranks 0,1") == []
    assert "which rank 1 has not reached" in ended.said
    assert "late.py" in ended.said  # the innermost frames of rank 1


def test_ranks_that_cannot_be_compared_are_refused(run):
    ended = run(*TRAINED, "reference.ranks=2", "target.ranks=4")
    assert ended.problems(2, "ranks are compared with their own, or several with a single process") == []
