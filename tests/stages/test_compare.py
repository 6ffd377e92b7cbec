"""Measures are written in order; where the sides did not start equal no tensor is read."""

import pytest

from precflow.comparison import batches
from precflow.comparison.executors.threads import Threads
from precflow.stages.compare import STAGE, read_measures


def test_every_record_is_measured(pair, made):
    measures = read_measures(made(pair(factor=1.01), until="compare")["compare"])
    assert [measure.name for measure in measures] == ["fc1 / linear", "fc2 / linear"]
    assert measures[0].equal
    assert measures[1].metrics["relative_l2"] > 1e-3


def test_nothing_is_compared_after_a_blocker(pair, made):
    other = {"digest": "other", "entries": {}}
    assert read_measures(made(pair(inputs=other), until="compare")["compare"]) == []


def test_a_stage_that_was_killed_goes_on_behind_its_batches(pair, made, job_of, monkeypatch, tmp_path):
    needs = made(pair(factor=1.01), until="compare")
    monkeypatch.setattr(batches, "READINGS", 1)
    whole = read_measures(needs["compare"])
    original, read = Threads.run, []

    def dies(self, work, *rest):
        for number, found in enumerate(original(self, work, *rest)):
            read.append(found)
            yield found
            if number == 0 and len(read) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(Threads, "run", dies)
    folder = tmp_path / "attempt"
    folder.mkdir()
    job = job_of(tmp_path / "dumps")
    with pytest.raises(KeyboardInterrupt):
        STAGE.make(job, folder, needs)
    assert len(list((folder / "batches").iterdir())) == 1
    STAGE.make(job, folder, needs)
    assert len(read) == 2
    assert read_measures(folder) == whole
    assert [path.name for path in folder.iterdir()] == ["measures.jsonl"]
    assert STAGE.resumes
