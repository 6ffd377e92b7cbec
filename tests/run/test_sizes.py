"""What a plan says about the size of dumps."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from precflow.agent.contract import DETAIL_FACTS
from precflow.config.composition import compose
from precflow.dumps.formats import read_dump
from precflow.errors import SideError
from precflow.run import sizes, steps
from precflow.run.jobs import make_job
from precflow.run.sizes import Rehearsal, Sizes, describe_sizes, estimate_sizes, rehearse
from precflow.run.steps import Step
from precflow.run.store import Store
from precflow.stages import dump
from precflow.stages.dump import declare_workload
from precflow.stages.second_pass import second_dump

FIRST = [Step(dump.STAGE.instance(side), "run", "k") for side in ("reference", "target")]


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Return a function that says what a plan says of these steps and sizes."""
    monkeypatch.chdir(tmp_path)

    def told(wanted, sizes, *words, **more):
        job = make_job(compose(["+recipe=sd_text_encoder", *words]), command="")
        return list(describe_sizes(wanted, Sizes(sizes, **more), job, steps.locate_run(job.config)))

    return told


def test_sizes_that_nobody_knows_are_named_with_the_reason_and_what_bounds_them(said):
    reason, bound, telling = said(FIRST, {}, "capture.budget=2GB")
    assert reason.startswith("not estimated: what the dump of the reference and the target takes on disk, because ")
    assert reason.endswith("runs/sd_text_encoder/store has no dump of this workload")
    assert bound.strip() == "it stops at 2GB (capture.budget)"
    assert telling.endswith("capture.detail=digest capture.rules=[] stages=[environment,dump]")
    assert "sides=[reference]" in telling
    reason, bound, telling, other = said(FIRST, {"dump.reference": 5})
    assert "the dump of the target takes" in reason
    assert "capture.budget would bound it" in bound
    assert "sides=[target]" in telling
    assert other.endswith("the same command with --sizes")


def test_a_workload_without_sizes_says_why(said):
    lines = said(FIRST, {}, problem="RuntimeError: it looks (model.py:3 in forward)")
    assert lines[1].endswith("does not run without values: RuntimeError: it looks (model.py:3 in forward)")
    assert not any("--sizes" in line for line in lines)


def test_sizes_of_a_rehearsal_are_said_to_be_its(said):
    (line,) = said(FIRST, {"dump.reference": 5, "dump.target": 5}, rehearsed=("dump.reference", "dump.target"))
    assert line.startswith("the size of the dump of the reference and the target comes from a run without values")


def test_dumps_that_know_too_little_are_another_reason(said, monkeypatch):
    job = make_job(compose(["+recipe=sd_text_encoder"]), command="")
    workload = declare_workload(dump.describe_side(job.config, "reference")["workload"])
    monkeypatch.setattr(Store, "list_sealed", lambda *_: [SimpleNamespace(declared={"workload": workload})])
    assert "lack some of the levels, phases or modules" in said(FIRST, {})[0]


def test_the_command_that_tells_composes(said):
    words = said(FIRST, {}, "capture=escalating", "capture.budget=1MB")[2].split("precflow ")[1].split()
    asked = compose(words).config
    assert (asked.capture.detail, asked.capture.level, asked.sides) == ("digest", ("module", "api"), ("reference",))


def test_a_size_beyond_the_budget_is_named(said):
    sizes = {"dump.reference": 3 * 10**9, "dump.target": 10**6}
    (line,) = said(FIRST, sizes, "capture.budget=2GB")
    assert line == "the dump of the reference would take about 3000 MB, and stop at 2GB (capture.budget)"


def test_kept_dumps_and_second_passes_are_no_news(said):
    kept = [Step(dump.STAGE.instance("target"), "kept", "k"), Step(second_dump.STAGE.instance("target"), "run", "k")]
    assert said(kept, {}, "capture.budget=1kB") == []


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Return a function that tells the sizes of a first plan, with what a rehearsal would say; it records who was asked."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def told(found, *words, rehearse=True):
        def rehearsal(side, job, where, *, make):
            asked.append((side, make))
            return found

        monkeypatch.setattr("precflow.run.sizes.rehearse", rehearsal)
        job = make_job(compose(["+recipe=sd_text_encoder", *words]), command="")
        return estimate_sizes(FIRST, job, steps.locate_run(job.config), {}, rehearse=rehearse)

    told.asked = asked
    return told


def test_a_rehearsal_tells_each_side_in_its_own_type(planned, stage_fixtures, tmp_path):
    dump = stage_fixtures.builder.DumpBuilder(tmp_path / "dump")
    dump.call("fc", "linear", [np.ones((64, 64), dtype=np.float32)], [np.ones((64, 64), dtype=np.float32) * 2], store=False)
    sizes = planned(Rehearsal(tuple(read_dump(dump.write()).calls()), "float32"), "target.dtype=float16")
    assert planned.asked == [("reference", True), ("target", True)]
    assert sizes.rehearsed == ("dump.reference", "dump.target")
    lines = 2 * DETAIL_FACTS["tensors"].line_bytes
    assert sizes.bytes["dump.reference"] - lines == 2 * (sizes.bytes["dump.target"] - lines) == 2 * 64 * 64 * 4


def test_a_rehearsal_is_not_made_unless_it_is_wanted(planned):
    assert planned(None, rehearse=False) == Sizes({})
    assert planned.asked == [("reference", False), ("target", False)]


def test_what_cannot_be_rehearsed_is_tried_once(planned):
    assert planned(Rehearsal((), "float32", "it looks")) == Sizes({}, problem="it looks")
    assert planned.asked == [("reference", True)]


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
        return rehearse(side, job, steps.locate_run(job.config), make=make)

    return tell


@pytest.fixture
def asked(monkeypatch):
    """Return the list of requests that agents got; nobody starts one."""
    requests = []

    def ask(job, side, request, folder):
        requests.append((side, request))
        (folder / "rehearsal.json").write_text(json.dumps({"problem": "it looks", "dtype": "float32"}))

    monkeypatch.setattr(sizes, "ask_agent", ask)
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

    monkeypatch.setattr(sizes, "ask_agent", ask)
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
