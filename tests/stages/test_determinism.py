"""What stands in the way of a verdict is found before any tensor is read."""

import importlib.util
from pathlib import Path

import numpy as np

from precflow.stages import registry
from precflow.stages.determinism import read_reproduction
from precflow.stages.judge import read_verdict

_SPEC = importlib.util.spec_from_file_location("dump_builder", Path(__file__).parents[1] / "dumps" / "builder.py")
builder = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(builder)
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


def test_nothing_is_said_to_repeat_itself_that_ran_once(pair, job_of, tmp_path):
    job = job_of(pair(repeat={"checked": False}), "environment.same=[weights]")
    folders = {name: tmp_path / name for name in ("dump.reference", "dump.target", "determinism")}
    for stage in registry.instances(job.config)[:3]:
        folders[stage.name].mkdir()
        made = stage.make(job, folders[stage.name], folders)
    assert made.note == "seeds and weights are the same; not checked whether the target repeats itself"
