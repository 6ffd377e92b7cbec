"""What stands in the way of a verdict is found before any tensor is read."""

import shutil

import dump_builder as builder
import numpy as np
import pytest

from precflow.stages import registry
from precflow.stages.artifacts import write_value
from precflow.stages.determinism import REPRODUCTION_FILE, STAGE, Reproduction, read_reproduction
from precflow.stages.judge import read_verdict

HIDDEN = np.ones((2, 3), np.float32)


def test_equal_starts_block_nothing(pair, made):
    found = read_reproduction(made(pair(), until="determinism")["determinism"])
    assert (found.blockers, found.incomplete, found.unrepeatable) == ((), (), ())


def test_other_weights_block(pair, made):
    other = {"digest": "x", "entries": {"linear.weight": {"content": "c1", "dtype": "float32", "shape": [2, 3]}}}
    found = read_reproduction(made(pair(weights=other), until="determinism")["determinism"])
    assert "linear.weight" in found.blockers[0]


def test_an_unsealed_dump_is_incomplete(pair, made):
    found = read_reproduction(made(pair(sealed=False), until="determinism")["determinism"])
    assert found.blockers == ()
    assert "never sealed" in found.incomplete[0]


def test_what_does_not_repeat_is_named_with_its_side(pair, made):
    repeat = {"checked": True, "records": 2, "different": ["fc2/linear.0/forward.output.0"]}
    found = read_reproduction(made(pair(repeat=repeat), until="determinism")["determinism"])
    assert found.unrepeatable == ("target: fc2/linear.0/forward.output.0",)


def test_a_model_that_returns_nothing_to_look_at_is_never_aligned(pair, made):
    folder = pair()
    for side in ("reference", "target"):
        dump = builder.DumpBuilder(folder / side, side=side)
        dump.call("fc1", "linear", [HIDDEN], [HIDDEN]).call("", "", [], [HIDDEN])
        dump.write()
    folders = made(folder, until="judge")
    verdict = read_verdict(folders["judge"])
    assert verdict.verdict == "inconclusive"
    assert "the reference's model returned holds no tensor" in verdict.reasons[0]


@pytest.fixture
def note(pair, job_of, tmp_path):
    """Return what the stage says of two dumps; the header of the target's has this outcome of its second run."""

    def noted(repeat):
        job = job_of(pair(repeat=repeat), "environment.same=[weights]")
        folders = {name: tmp_path / name for name in ("dump.reference", "dump.target", "determinism")}
        for stage in registry.instances(job.config)[:3]:
            folders[stage.name].mkdir()
            made = stage.make(job, folders[stage.name], folders)
        return made.note

    return noted


def test_nothing_is_said_to_repeat_itself_that_ran_once(note):
    assert note({"checked": False}) == "seeds and weights are the same; not checked whether the target repeats itself"


def test_how_the_sides_were_found_to_repeat_themselves_is_told(note):
    assert note({"checked": True, "by": ["bits"]}).endswith("; both sides repeat themselves bitwise")


def test_a_side_that_does_not_say_how_is_not_said_to_repeat_itself_bitwise(note):
    assert note({"checked": True}).endswith("; both sides repeat themselves in a way that the dump does not name")


def test_one_side_that_was_checked_by_statistics_is_enough_to_say_so(note):
    told = "both sides repeat themselves bitwise, or by statistics where these are all that is kept"
    assert note({"checked": True, "by": ["statistics"]}).endswith(told)


@pytest.fixture
def again(job_of, tmp_path):
    """Return what the second pass says of a first one that kept tensors, or statistics and marks alone."""

    def noted(*, marked=0, changed=0):
        folders = {}
        for number, name in enumerate(("dump.reference", "dump.target", "dump.reference@2", "dump.target@2")):
            dump = builder.DumpBuilder(tmp_path / name, side=name.partition("@")[0].rpartition(".")[2])
            dump.call("fc1", "linear", [HIDDEN], [HIDDEN + (changed if number == 3 else 0)])
            outputs = dump.lines[0, 0][0]["outputs"] if number < marked else []
            for output in outputs:
                output.update(content="", mark="5" * 32, stored=False)
            folders[name] = dump.write()
        folders["determinism"], made = tmp_path / "determinism", tmp_path / "made"
        folders["determinism"].mkdir()
        made.mkdir()
        write_value(folders["determinism"] / REPRODUCTION_FILE, Reproduction())
        result = STAGE.make(job_of(tmp_path), made, folders)
        return result.note, read_reproduction(made).unrepeatable

    return noted


def test_a_second_pass_that_repeats_the_first(again):
    assert again() == ("both sides repeat their first pass bitwise", ())


def test_a_second_pass_that_does_not(again):
    drifted = ("target: fc1/linear.0/forward.input.0",)
    assert again(changed=1) == ("1 records are not those of the first pass", drifted)


def test_records_that_the_first_pass_only_marked_are_not_said_to_repeat(again):
    told = "both sides repeat their first pass bitwise, except for 2 records of which it kept statistics alone"
    assert again(marked=2) == (told, ())


def test_a_copy_of_the_reference_is_no_target(pair, made):
    folder = pair()
    shutil.rmtree(folder / "target")
    shutil.copytree(folder / "reference", folder / "target")
    folders = made(folder, until="judge")
    (blocker,) = read_reproduction(folders["determinism"]).blockers
    assert "the dump of the target is the reference's own" in blocker
    assert read_verdict(folders["judge"]).verdict == "inconclusive"
