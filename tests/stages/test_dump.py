"""Paths never enter a key, content does; given dumps are taken as they are."""

import pytest

from precflow.errors import DumpError
from precflow.stages import dump


def test_a_path_is_replaced_by_its_content(tmp_path):
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    one.write_bytes(b"weights")
    other.write_bytes(b"weights")
    assert dump.contents({"weights": str(one)}) == dump.contents({"weights": str(other)})
    other.write_bytes(b"Weights")
    assert dump.contents({"weights": str(one)}) != dump.contents({"weights": str(other)})


def test_words_stay_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seeded").write_text("a file of that name")
    value = {"weights": "seeded", "layers": 2, "texts": ["a/b", ""]}
    assert dump.contents(value) == value


def test_a_given_dump_is_keyed_by_its_evidence(pair, job_of):
    stage = dump.given("target")
    same = [stage.declare(job_of(pair(name))) for name in ("here", "there")]
    assert same[0] == same[1]
    assert stage.declare(job_of(pair("else", content="e1"))) != same[0]


def test_a_given_folder_that_is_none_is_said(tmp_path, job_of):
    with pytest.raises(DumpError, match="is not a folder"):
        dump.given("target").declare(job_of(tmp_path / "absent"))


def test_code_of_a_trusted_package_is_part_of_the_place(tmp_path, monkeypatch):
    from precflow.config.composition import compose
    from precflow.run.jobs import make_job

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECFLOW_TRUST", "my_model,minilm_workload")
    (tmp_path / "my_model.py").write_text("def build(): ...\n")
    job = make_job(compose(["+recipe=minilm", "workload.model._target_=my_model.build"]), command="")
    stage = dump.stage("target")
    declared, before = stage.declare(job), stage.place(job)
    (tmp_path / "my_model.py").write_text("def build(): return 1\n")
    assert stage.place(job) != before
    assert stage.declare(job) == declared
