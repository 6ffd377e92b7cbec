"""A rehearsal is made once by an agent and kept by what it depends on."""

import json

import pytest

from precflow.config.composition import compose
from precflow.errors import SideError
from precflow.run import sizes, steps
from precflow.run.jobs import make_job
from precflow.run.sizes import Rehearsal, rehearsal

MODEL = """
import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, features):
        if self.linear.in_features == 3:
            features.sum().item()
        return self.linear(features)


def build(width=8):
    return Model(width)


def inputs(width=8):
    return {"features": torch.randn(4, width)}
"""
WORDS = ("+recipe=minilm", "workload.model._target_=rehearsed.build", "workload.inputs._target_=rehearsed.inputs")


@pytest.fixture
def job_of(tmp_path, monkeypatch):
    """Return a function that makes the job of a small workload."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECFLOW_TRUST", "rehearsed")
    (tmp_path / "rehearsed.py").write_text(MODEL)
    return lambda *words: make_job(compose([*WORDS, *words]), command="")


@pytest.fixture
def told(job_of):
    """Return a function that returns the rehearsal of a side, and where it is kept."""

    def tell(*words, side="reference", make=True):
        job = job_of(*words)
        return rehearsal(side, job, steps.place(job.config), make=make)

    return tell


@pytest.fixture
def asked(monkeypatch):
    """Return the list of requests that agents got; nobody starts one."""
    requests = []

    def ask(job, side, request, folder):
        requests.append((side, request))
        (folder / "rehearsal.json").write_text(json.dumps({"problem": "it looks", "dtype": "float32"}))

    monkeypatch.setattr(sizes, "ask", ask)
    return requests


def test_none_is_made_unless_it_is_wanted(told, asked, tmp_path):
    assert told(make=False) is None
    assert not asked
    assert not (tmp_path / "runs").exists()


def test_one_is_made_and_kept_whatever_the_detail(told, asked):
    found = Rehearsal((), "float32", "it looks")
    assert told() == found
    assert told("capture.detail=sketch", "capture.scope=[linear]", "tolerance.cosine_similarity=0.9") == found
    assert told(make=False) == found
    ((side, request),) = asked
    assert (side, request["action"], request["trusted"][-1]) == ("reference", "rehearse", "rehearsed")


@pytest.mark.parametrize("word", ["workload.model.width=4", "capture.level=[operator]", "capture.phase=[forward,gradient]"])
def test_other_calls_are_rehearsed_anew(told, asked, word):
    told()
    told(word)
    assert len(asked) == 2


def test_an_agent_that_fails_is_a_problem_and_is_asked_again(told, monkeypatch):
    asked = []

    def ask(*request):
        asked.append(request)
        raise SideError("the agent was killed")

    monkeypatch.setattr(sizes, "ask", ask)
    assert told().problem == told().problem == "the agent was killed"
    assert len(asked) == 2


@pytest.mark.slow
def test_an_agent_runs_the_workload_without_values(told):
    found = told("target.dtype=float16", side="target")
    assert (found.dtype, found.problem) == ("float16", "")
    (module,) = [call for call in found.calls if call.module == "linear" and not call.operator]
    assert module.outputs[0].shape == (4, 8)


@pytest.mark.slow
def test_a_workload_that_needs_values_says_where(told):
    found = told("workload.model.width=3", "workload.inputs.width=3")
    assert not found.calls
    assert "rehearsed.py:12 in forward" in found.problem
