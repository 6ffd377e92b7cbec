"""Sources, settings and order of batches of two sides are laid side by side, and what a recipe wants equal is held to that."""

import json

import pytest

from precflow.environment import program
from precflow.environment.differences import find_differences
from precflow.environment.program import (
    compare_sources,
    describe_other_program,
    describe_settings,
    find_first_other_batch,
    find_first_other_samples,
    read_sources,
)

HERE = {
    "sources": {"train.py": "a", "net.py": "b", "old.py": "c"},
    "hyperparameters": {"argparse.lr": "0.1", "argparse.seed": "1"},
    "loaders": {"Words": {"shuffle": "True", "workers": "0"}},
    "batches": {"step 0000": "p", "step 0001": "q", "step 0002": "r"},
}
THERE = {
    "sources": {"train.py": "a", "net.py": "x", "new.py": "c"},
    "hyperparameters": {"argparse.lr": "0.2", "argparse.seed": "1"},
    "loaders": {"Words": {"shuffle": "True", "workers": "4"}},
    "batches": {"step 0000": "p", "step 0001": "r", "step 0002": "q"},
}


def test_a_source_that_differs_is_shown_line_by_line():
    texts = ({"net.py": "x = 1\ny = relu(x)\n"}, {"net.py": "x = 1\ny = gelu(x)\n"})
    differs, new, old = compare_sources(HERE, THERE, texts)
    assert (differs.name, differs.lines[-2:]) == ("net.py", ("-y = relu(x)", "+y = gelu(x)"))
    assert [(one.name, one.state) for one in (new, old)] == [("new.py", "target only"), ("old.py", "reference only")]
    assert compare_sources(HERE, THERE, ({}, {}))[0].lines == ()
    assert compare_sources(HERE, {}, texts) == ()  # an older agent says nothing of its sources
    assert compare_sources(HERE, HERE, texts) == ()


def test_a_long_difference_and_many_files_are_bounded(monkeypatch):
    monkeypatch.setattr(program, "_MOST_LINES", 4)
    monkeypatch.setattr(program, "_MOST_TEXTS", 1)
    facts = [{"sources": {"a.py": side, "b.py": side}} for side in "xy"]
    texts = [dict.fromkeys(("a.py", "b.py"), f"{side}\n" * 9) for side in "xy"]
    first, second = compare_sources(*facts, texts)
    assert (len(first.lines), first.left_out) == (4, 17)
    assert second.lines == ()


def test_the_first_other_batch_is_named_with_where_the_reference_read_it():
    assert find_first_other_batch(HERE, THERE) == ("step 0001", ("q", "r, the reference's step 0002"))
    assert find_first_other_batch(HERE, HERE) is None
    assert find_first_other_batch(HERE, {}) is None


def test_differences_have_all_of_it_and_one_line_for_the_order():
    found = find_differences(HERE, THERE)
    assert found["hyperparameters.argparse.lr"] == ("0.1", "0.2")
    assert found["loaders.Words.workers"] == ("0", "4")
    assert [name for name in found if name.startswith("batches")] == ["batches.step 0001"]
    assert found["sources.net.py"] == ("b", "x")


def test_what_a_recipe_wants_to_be_the_same_is_held_to_it():
    assert describe_other_program(HERE, THERE, ["weights"]) == []
    assert describe_other_program(HERE, THERE, ["sources", "hyperparameters", "data_order"]) == [
        "the sources differ: net.py, new.py (target only), old.py (reference only)",
        "the hyperparameters differ: argparse.lr",
        "the loaders differ: Words",
        "the sides read other batches from step 0001 on",
    ]
    assert describe_other_program(HERE, HERE, ["sources", "hyperparameters", "data_order"]) == []
    assert describe_other_program(HERE, {}, ["sources"]) == ["what the sources of the target are is not known"]


@pytest.mark.parametrize("text", ["", "[1]", '{"a.py": 3, "b.py": "x"}', '{"b.py": "x"', "\0"])
def test_sources_from_a_stranger_are_read_as_far_as_they_go(tmp_path, text):
    (tmp_path / "sources.json").write_text(text, encoding="utf-8")
    assert read_sources(tmp_path) in ({}, {"b.py": "x"})
    assert read_sources(tmp_path / "elsewhere") == {}


def test_secrets_in_a_source_are_not_shown():
    token = "hf_" + "a1B2c3D4e5F6g7H8i9J0"
    texts = [{"net.py": f"login('{token}')\n"}, {"net.py": "login()\n"}]
    assert token not in json.dumps(compare_sources(HERE, THERE, texts)[0].lines)


def test_a_ported_script_and_what_lies_in_another_folder_are_compared_with_their_own():
    here = {"sources": {"train.py": "a", "old/net.py": "b", "old/util.py": "c", "x/a.py": "", "y/a.py": ""}}
    there = {"sources": {"train_npu.py": "z", "net.py": "b", "new/util.py": "y", "a.py": ""}}
    texts = ({"train.py": "cuda\n"}, {"train_npu.py": "npu\n"})
    sides = [{**side, "program": {"script": name}} for side, name in ((here, "train.py"), (there, "train_npu.py"))]
    found = {one.name: one.state for one in compare_sources(*sides, texts)}
    assert found == {  # which of two a.py the third one is cannot be told
        "train.py": "differs",
        "old/util.py": "differs",
        "x/a.py": "reference only",
        "y/a.py": "reference only",
        "a.py": "target only",
    }
    assert compare_sources(*sides, texts)[2].lines[-1] == "+npu"
    assert find_differences(*sides)["sources.train.py"] == ("a", "z")
    assert "sources.old/net.py" not in find_differences(*sides)


def test_the_first_batch_of_other_samples_is_named_with_where_the_reference_read_it():
    here = {"samples": {"Words": {"batch 0000": "1, 2", "batch 0001": "3, 4"}, "Dev": {"batch 0000": "0"}}}
    there = {"samples": {"Words": {"batch 0000": "3, 4", "batch 0001": "5, 6"}, "Dev": {"batch 0000": "0"}}}
    assert find_first_other_samples(here, there) == ("Words, batch 0000: 1, 2 / 3, 4, which the reference read as batch 0001")
    assert find_first_other_samples(here, here) == find_first_other_samples(here, {}) == ""
    assert [name for name in find_differences(here, there) if name.startswith("samples")] == ["samples.Words.batch 0000"]
    said = describe_other_program(
        {"loaders": {}, "batches": {}, **here}, {"loaders": {}, "batches": {}, **there}, ["data_order"]
    )
    assert said == ["the sides read other samples: Words, batch 0000: 1, 2 / 3, 4, which the reference read as batch 0001"]


def test_the_name_of_a_device_is_no_setting_that_differs():
    here = {"hyperparameters": {"argparse.device": "cuda:0", "argparse.backend": "nccl", "argparse.lr": "0.1"}}
    there = {"hyperparameters": {"argparse.device": "npu", "argparse.backend": "hccl", "argparse.lr": "0.2"}}
    assert describe_settings(find_differences(here, there)) == ["hyperparameters.argparse.lr: 0.1 / 0.2"]
