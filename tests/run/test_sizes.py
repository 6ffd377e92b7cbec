"""What a plan says about the size of dumps."""

from types import SimpleNamespace

import pytest

from precflow.config.composition import compose
from precflow.run import steps
from precflow.run.jobs import make_job
from precflow.run.sizes import about_sizes
from precflow.run.steps import Step
from precflow.run.store import Store
from precflow.stages import again, dump
from precflow.stages.dump import contents

FIRST = [Step(dump.stage(side), "run", "k") for side in ("reference", "target")]


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Return a function that says what a plan says of these steps and sizes."""
    monkeypatch.chdir(tmp_path)

    def told(wanted, sizes, *words):
        job = make_job(compose(["+recipe=sd_text_encoder", *words]), command="")
        return list(about_sizes(wanted, sizes, job, steps.place(job.config)))

    return told


def test_sizes_that_nobody_knows_are_named_with_the_reason_and_what_bounds_them(said):
    reason, bound, telling = said(FIRST, {}, "capture.budget=2GB")
    assert reason.startswith("not estimated: what the dump of the reference and the target takes on disk, because ")
    assert reason.endswith("runs/sd_text_encoder/store has no dump of this workload")
    assert bound.strip() == "it stops at 2GB (capture.budget)"
    assert telling.endswith("capture.detail=digest capture.rules=[] stages=[environment,dump]")
    assert "sides=[reference]" in telling
    reason, bound, telling = said(FIRST, {"dump.reference": 5})
    assert "the dump of the target takes" in reason
    assert "capture.budget would bound it" in bound
    assert "sides=[target]" in telling


def test_dumps_that_know_too_little_are_another_reason(said, monkeypatch):
    job = make_job(compose(["+recipe=sd_text_encoder"]), command="")
    workload = contents(dump.declared(job.config, "reference")["workload"])
    monkeypatch.setattr(Store, "named", lambda *_: [SimpleNamespace(declared={"workload": workload})])
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
    kept = [Step(dump.stage("target"), "kept", "k"), Step(again.stage("target"), "run", "k")]
    assert said(kept, {}, "capture.budget=1kB") == []
