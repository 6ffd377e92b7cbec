"""Dumps that are damaged, of something else, or of models that differ: never aligned without evidence, and always explained."""

import json
import shutil
from xml.etree import ElementTree

import dump_builder as builder
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("bad input")]
RECORDS, SHARD = "rank0/step0/records-0.jsonl", "rank0/step0/tensors-0.safetensors"


@pytest.fixture
def compare(precflow, dumps, tmp_path):
    """Return a function that compares copies of two dumps after doing something to the target's."""

    def run(reference="plain", target="plain", damage=lambda folder: None, words=()):
        for side, name in (("reference", reference), ("target", target)):
            shutil.copytree(dumps[name], tmp_path / side, dirs_exist_ok=True)
        builder.reseal(tmp_path / "target", id="of another run")  # else one dump is given twice
        damage(tmp_path / "target")
        given = ("reference.dump=reference", "target.dump=target")
        return precflow("+recipe=compare_dumps", *given, *words, recipe="compare_dumps", cwd=tmp_path)

    return run


def cut_shard(folder):
    path = folder / SHARD
    path.write_bytes(path.read_bytes()[:-100])


def flip_byte(folder):
    path = folder / SHARD
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)


def tear_last_line(folder):
    path = folder / RECORDS
    path.write_bytes(path.read_bytes()[:-60])


def header(folder):
    return json.loads((folder / "dump.json").read_text(encoding="utf-8"))


def changed(**changes):
    return lambda folder: builder.reseal(folder, **changes)


def unsealed_change(folder):
    (folder / "dump.json").write_text(json.dumps({**header(folder), "recipe": "other"}), encoding="utf-8")


def other_seed(folder):
    changed(determinism={**header(folder)["determinism"], "seed": 7})(folder)


def drifting(folder):
    repeat = header(folder)["repeat"]
    changed(repeat={**repeat, "different": ["last/linear.0/forward.output.0"]})(folder)


def without_header(folder):
    (folder / "dump.json").unlink()


def not_json(folder):
    (folder / "dump.json").write_text("not json {")


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGE = {
    "shard cut short": (cut_shard, 3, "target: rank0/step0/tensors-0.safetensors is cut short"),
    "byte flipped": (flip_byte, 3, "tensors-0.safetensors is damaged", "PF107", "Copy the dump again"),
    "shard missing": (lambda folder: (folder / SHARD).unlink(), 3, "the file is missing", "PF107"),
    "line torn": (tear_last_line, 3, "records-0.jsonl is cut short", "is torn", "PF107"),
    "records missing": (lambda folder: (folder / RECORDS).unlink(), 3, "records-0.jsonl is missing", "PF107"),
    "header missing": (without_header, 3, "never sealed", "-> unknown device", "PF107"),
    "header newer": (changed(schema=99), 2, "schema 99; this precflow reads schema 2", "update precflow"),
    "header no JSON": (not_json, 2, "target/dump.json cannot be read as JSON", "copy it again"),
    "header changed": (
        unsealed_change,
        2,
        "target/dump.json is damaged",
        "the checksum that it was sealed with",
        "copy it again",
    ),
    "header of something else": (changed(format="x"), 2, "expected format 'precflow-dump', found 'x'"),
    "header of no run": (changed(dtype="banana"), 2, "dtype is 'banana', expected a floating point type"),
    "header leads outside": (changed(files={"../../x": {"bytes": 1, "blake2b": "00"}}), 2, "outside of its folder: ../../x"),
    "nothing left": (emptied, 2, "there is no dump in ", "run this side again"),
    "other recipe": (changed(recipe="other"), 3, "different recipes: minilm on the reference, other", "no tensor was compared"),
    "other seed": (other_seed, 3, "the seeds differ: 1234 on the reference, 7 on the target", "PF103"),
    "drift": (drifting, 3, "the target does not repeat itself: 1 record differs"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_other_dump_is_explained(compare, name):
    damage, code, *texts = DAMAGE[name]
    assert not compare(damage=damage).problems(code, *texts)


def test_what_was_aligned_once_is_not_aligned_when_the_dump_has_changed(compare):
    assert compare().code == 0
    for damage in (flip_byte, other_seed, drifting):
        assert not compare(damage=damage).problems(3)
    again = compare()
    assert again.code == 0, "a later correct command works"
    assert "state=kept" in again.err


PAIRS = {
    ("plain", "lacks"): (3, "the target lacks 2 records that the reference has", "PF204", "step / tanh"),
    ("lacks", "plain"): (3, "the target has 2 records that the reference lacks", "step / tanh"),
    ("plain", "shape"): (1, "PF201", "shape on the target: 10, 4"),
    ("plain", "double"): (1, "PF202", "float64"),
    ("plain", "all_nan"): (1, "NaN or Inf", "on the target only", "starts at (model) / mul"),
    ("all_nan", "all_nan"): (3, "nothing is known about the end, (model)", "NaN"),
    ("plain", "zero"): (1, "starts at (model) / masked_fill"),
    ("plain", "weights"): (3, "the weights differ in 4 of 4: first.weight", "PF401", "no tensor was compared"),
    ("plain", "names"): (3, "weights are on one side only", "no tensor was compared"),
}


@pytest.mark.parametrize(("reference", "target"), PAIRS)
def test_models_that_differ_are_explained(compare, reference, target):
    code, *texts = PAIRS[reference, target]
    ended = compare(reference, target)
    assert not ended.problems(code, *texts)
    assert {"report.html", "report.md", "junit.xml", "result.json"} == {
        path.name for path in (ended.folder / "public").iterdir()
    }


@pytest.mark.parametrize(("reference", "target"), [("plain", "infinity"), ("infinity", "plain"), ("infinity", "half")])
def test_fills_that_mask_alike_are_aligned_and_inf_is_warned_of(compare, reference, target):
    ended = compare(reference, target)
    assert ended.code == 0, ended.err
    assert "1 record holds -inf on one side where the other has a mask's fill value" in ended.said


def test_a_mask_of_another_constant_is_misaligned_in_words(compare):
    """Both sides are float32, so that float16's smallest value is not the target's own."""
    ended = compare("plain", "half")
    assert ended.code == 1, ended.err
    assert "other constants than the reference's" in (ended.folder / "public" / "result.json").read_text(encoding="utf-8")


def strict(text):
    """Read JSON as the standard has it: no NaN, no Infinity."""

    def refuse(constant):
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def test_names_of_any_kind_reach_no_interpreter(compare):
    scripts = (compare("plain", "shape").folder / "public" / "report.html").read_text(encoding="utf-8").count("<script")
    ended = compare("names", "names_wrong")
    assert not ended.problems(1, "MISALIGNED")
    assert not [letter for letter in ended.err if not letter.isprintable() and letter != "\n"]
    public = ended.folder / "public"
    page = (public / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "</script><b>" not in page
    assert "{{ 7*7 }}" in page
    assert "层 一" in page
    assert "\x1b" not in page
    assert page.count("<script") == scripts
    markdown = (public / "report.md").read_text(encoding="utf-8")
    assert "\x1b" not in markdown
    assert "\n| <script>" not in markdown
    modules = {case.get("name") for case in ElementTree.parse(public / "junit.xml").iter("testcase")}
    assert {"a/b c", "层 一", "<script>alert(1)</script>", "{{ 7*7 }}"} <= modules
    assert "x" * 300 in json.dumps(strict((public / "result.json").read_text(encoding="utf-8")))
