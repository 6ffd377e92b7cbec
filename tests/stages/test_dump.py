"""Paths never enter a key, content does; given dumps are taken as they are."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from precflow.cli import main
from precflow.config.composition import compose
from precflow.config.schema import Bytes, Environment, Requirements
from precflow.errors import ConfigError, DumpError, PrecflowError
from precflow.run.jobs import make_job
from precflow.stages import dump, given_dump


def test_a_path_is_replaced_by_its_content(tmp_path):
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    one.write_bytes(b"weights")
    other.write_bytes(b"weights")
    assert dump.declare_workload({"weights": str(one)}) == dump.declare_workload({"weights": str(other)})
    other.write_bytes(b"Weights")
    assert dump.declare_workload({"weights": str(one)}) != dump.declare_workload({"weights": str(other)})


def test_words_stay_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seeded").write_text("a file of that name")
    value = {"weights": "seeded", "layers": 2, "texts": ["a/b", ""]}
    assert dump.declare_workload(value) == value


def test_weights_are_files_also_without_a_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").write_bytes(b"one")
    before = dump.declare_workload({"weights": "checkpoint", "title": "checkpoint"})
    assert before["title"] == "checkpoint"
    (tmp_path / "checkpoint").write_bytes(b"other")
    assert dump.declare_workload({"weights": "checkpoint"})["weights"] != before["weights"]


@pytest.mark.parametrize("text", ["v1.5 " + "very " * 100 + "long/text", "a\0b/c", "~nobody_of_this_name/x", "", "."])
def test_texts_that_can_be_no_path_stay_texts(text):
    assert dump.declare_workload({"model": [text]}) == {"model": [text]}


def test_a_given_dump_is_keyed_by_its_evidence(pair, job_of):
    stage = given_dump.STAGE.instance("target")
    same = [stage.declare(job_of(pair(name))) for name in ("here", "there")]
    assert same[0] == same[1]
    assert stage.declare(job_of(pair("else", content="e1"))) != same[0]


def test_a_given_folder_that_is_none_is_said(tmp_path, job_of):
    with pytest.raises(DumpError, match=r"target\.dump=.* does not exist"):
        given_dump.STAGE.instance("target").declare(job_of(tmp_path / "absent"))
    (tmp_path / "target").write_text("")
    with pytest.raises(DumpError, match=r"target\.dump=.* is a file"):
        given_dump.STAGE.instance("target").declare(job_of(tmp_path))


def sealed(stage, job, folder):
    folder.mkdir()
    return stage.make(job, folder, {}).seal


def test_a_disk_that_has_filled_up_since_the_environment_was_looked_at_stops_the_side(pair, job_of, monkeypatch):
    asked = []
    monkeypatch.setattr(dump, "ask_agent", lambda *request: asked.append(request))
    folder = pair()
    job = job_of(folder)
    required = Environment(require=Requirements(free_disk=Bytes(10**18)))
    job = replace(job, config=replace(job.config, environment=required))
    with pytest.raises(PrecflowError, match="GB of free disk are required"):
        dump.record("target", job, folder / "target", "5be0")
    assert asked == []


@pytest.mark.parametrize(
    ("repeat", "note"),
    [
        ({"checked": False}, "4 records, 0 MB"),
        ({"checked": True, "by": ["bits"]}, "4 records, 0 MB, repeats bitwise"),
        ({"checked": True, "by": ["statistics"]}, "4 records, 0 MB, repeats by statistics"),
        ({"checked": True, "by": ["statistics"], "different": ["a"]}, "4 records, 0 MB, 1 not repeatable"),
    ],
)
def test_the_note_of_a_dump_says_how_it_was_found_to_repeat(pair, job_of, monkeypatch, repeat, note):
    monkeypatch.setattr(dump, "ask_agent", lambda *_: None)
    folder = pair(repeat=repeat)
    assert dump.record("target", job_of(folder), folder / "target", "5be0").note == note


def test_a_copy_of_a_given_dump_is_looked_at_and_then_worth_the_same(pair, job_of, tmp_path):
    stage = given_dump.STAGE.instance("target")
    here, there = (job_of(pair(name)) for name in ("here", "there"))
    assert stage.locate(here) != stage.locate(there)
    assert sealed(stage, here, tmp_path / "one") == sealed(stage, there, tmp_path / "other")


def test_a_damaged_copy_is_never_taken_for_the_whole_one(pair, job_of, tmp_path):
    stage = given_dump.STAGE.instance("target")
    whole, damaged = job_of(pair("whole")), pair("damaged")
    shard = damaged / "target/rank0/step0/tensors-0.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert stage.declare(whole) == stage.declare(job_of(damaged)), "the header says the same"
    assert sealed(stage, whole, tmp_path / "one") != sealed(stage, job_of(damaged), tmp_path / "other")


@pytest.mark.parametrize(
    "header",
    [{"determinism": {"seed": 7}}, {"repeat": {"checked": True, "records": 2, "different": ["a"]}}, {"recipe": "other"}],
)
def test_what_later_stages_read_of_a_header_is_part_of_its_evidence(pair, header):
    assert dump.identify(pair("one") / "target") != dump.identify(pair("other", **header) / "target")
    assert dump.identify(pair("three") / "target") == dump.identify(pair("four", seconds={"forward": 9.0}) / "target")


def test_a_dump_that_changed_in_its_place_is_looked_at_again(pair, job_of):
    job = job_of(pair())
    stage = given_dump.STAGE.instance("target")
    before = stage.locate(job)
    assert stage.locate(job) == before
    records = Path(job.config.target.dump) / "rank0/step0/records-0.jsonl"
    records.write_bytes(records.read_bytes() + b"\n")
    assert stage.locate(job) != before


def test_code_of_a_trusted_package_is_part_of_the_place(tmp_path, monkeypatch):
    from precflow.config.composition import compose
    from precflow.run.jobs import make_job

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECFLOW_TRUST", "my_model")
    (tmp_path / "my_model.py").write_text("def build(): ...\n")
    words = ["+recipe=minilm", "workload.model._target_=my_model.build", "workload.inputs._target_=my_model.build"]
    job = make_job(compose(words), command="")
    stage = dump.STAGE.instance("target")
    declared, before = stage.declare(job), stage.locate(job)
    (tmp_path / "my_model.py").write_text("def build(): return 1\n")
    assert stage.locate(job) != before
    assert stage.declare(job) == declared


@pytest.mark.parametrize("key", ["path", "pretrained_model_name_or_path", "data_dir", "checkpoint"])
def test_a_folder_without_a_slash_counts_where_its_key_means_one(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "model.safetensors").write_bytes(b"one")
    before = dump.declare_workload({key: "clip"})
    (tmp_path / "clip" / "model.safetensors").write_bytes(b"other")
    assert dump.declare_workload({key: "clip"}) != before


def test_what_a_script_writes_makes_no_other_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workload = {"files": ["*.jsonl"], "arguments": {"log": "loss.jsonl", "data": "words.txt"}}
    before = dump.declare_workload(workload)
    Path("loss.jsonl").write_text("{}")
    assert dump.declare_workload(workload) == before
    Path("words.txt").write_text("data that it reads")
    assert dump.declare_workload(workload) != before


def test_a_module_is_keyed_by_its_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "train.py").write_text("import torch\n")
    words = ["+recipe=script", "workload.script=-m bundle.train", "reference.device=cpu", "target.device=cpu"]
    job = make_job(compose(words), command="")
    before = dump.locate("target", job)["code"]
    assert before["bundle"]
    (tmp_path / "bundle" / "train.py").write_text("import torch, json\n")
    assert dump.locate("target", job)["code"] != before


def test_a_module_that_can_have_no_such_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"names no module; expected -m package\.train"):
        compose(["+recipe=script", "workload.script=-m package/train.py", "reference.device=cpu", "target.device=cpu"])


def test_the_newest_dump_of_a_folder_that_a_site_names_is_taken(tmp_path, sites, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, factors in (("gpu", {"first": 1, "second": 1}), ("npu", {"broken": 2, "mended": 1})):
        for age, (name, factor) in enumerate(factors.items()):
            folder = DumpBuilder(tmp_path / side / name).call("a", "linear", [np.full(3, factor, np.float32)]).write()
            for path in (folder, *folder.rglob("*")):
                os.utime(path, (1_000_000 + age, 1_000_000 + age))
        (tmp_path / side / "notes").mkdir()
    sites("ours", f"# @package _global_\nreference: {{dump: {tmp_path}/gpu}}\ntarget: {{dump: {tmp_path}/npu}}\n")
    assert main(["+recipe=compare_dumps", "+site=ours"]) == 0
    told = Path("runs/compare_dumps/public/result.json").read_text()
    assert "given, mended, the newest of its folder, sealed" in told
    os.utime(tmp_path / "npu" / "broken" / "dump.json", (2_000_000, 2_000_000))
    assert main(["+recipe=compare_dumps", "+site=ours"]) == 1


def test_a_dump_is_itself_and_a_folder_without_one_too(tmp_path):
    folder = DumpBuilder(tmp_path / "one").call("a", "linear", [np.ones(3, np.float32)]).write()
    assert given_dump.choose_newest(folder) == folder
    assert given_dump.choose_newest(tmp_path) == folder
    (tmp_path / "empty").mkdir()
    assert given_dump.choose_newest(tmp_path / "empty") == tmp_path / "empty"
