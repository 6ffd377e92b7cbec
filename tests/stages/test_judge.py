"""The judge's artifacts and what its key depends on."""

import datetime
import importlib.util
import shutil
from pathlib import Path

import numpy as np

from precflow.stages import judge

_SPEC = importlib.util.spec_from_file_location("stage_fixtures", Path(__file__).with_name("conftest.py"))
_FIXTURES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_FIXTURES)
builder, HIDDEN = _FIXTURES.builder, _FIXTURES.HIDDEN


def test_a_fault_is_misaligned_and_its_record_fails(pair, made):
    folders = made(pair(factor=1.01), until="judge")
    assert judge.read_verdict(folders["judge"]).verdict == "misaligned"
    assert [one.status for one in judge.read_judged(folders["judge"])] == ["pass", "fail"]


def test_equal_dumps_are_aligned(pair, made):
    verdict = judge.read_verdict(made(pair(), until="judge")["judge"])
    assert (verdict.verdict, verdict.coverage) == ("aligned", 1.0)


def test_an_unsealed_dump_is_never_aligned(pair, made):
    verdict = judge.read_verdict(made(pair(sealed=False), until="judge")["judge"])
    assert verdict.verdict == "inconclusive"
    assert "never sealed" in verdict.reasons[0]


def test_a_limit_and_a_day_change_the_key(pair, job_of, monkeypatch):
    folder = pair()
    declare = judge.STAGE.declare
    plain = declare(job_of(folder))
    assert declare(job_of(folder, "tolerance.cosine_similarity=0.9")) != plain
    accepted = job_of(folder, "accepted=[{match: 'fc2*', relative_l2: 2%, because: known, until: '2099-03-31'}]")
    before = declare(accepted)
    monkeypatch.setattr(judge, "_today", lambda: datetime.date(2099, 4, 1))
    assert declare(accepted) != before


def test_an_unsealed_dump_in_another_type_is_judged_by_the_type_of_its_records(pair, made):
    folder = pair()
    target = builder.DumpBuilder(folder / "half", side="target", dtype="float16")
    for module, shift in (("fc1", 0), ("fc2", 1)):
        target.call(module, "linear", [(HIDDEN + shift).astype(np.float16)], [HIDDEN])
    shutil.rmtree(folder / "target")
    target.write(sealed=False).rename(folder / "target")
    folders = made(folder, until="judge")
    assert [one.status for one in judge.read_judged(folders["judge"])] == ["pass", "pass"]
    assert judge.read_verdict(folders["judge"]).verdict == "inconclusive"


def test_what_would_decide_a_record_is_part_of_the_key_and_the_size_of_a_budget_is_not(pair, job_of):
    folder, declare = pair(), judge.STAGE.declare
    assert declare(job_of(folder, "capture.budget=1GB")) != declare(job_of(folder))
    assert declare(job_of(folder, "capture.budget=1GB")) == declare(job_of(folder, "capture.budget=2GB"))
