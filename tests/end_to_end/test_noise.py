"""The noise floor as users meet it: measured once, kept by a changed limit, found on the other machine."""

import json
import shutil

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("noise")]
CALIBRATED = "tolerance.standards=[calibrated]"


def states(ended):
    return json.loads((ended.folder / "run.json").read_text())["runs"][-1]["states"]


def test_limits_are_made_of_the_floor_and_another_limit_does_not_measure_it_again(hostile):
    ended = hostile(CALIBRATED, "target.dtype=bfloat16")
    assert ended.code == 0, ended.err
    assert ended.result["verdict"]["standards"] == {"calibrated": True}
    assert "noise floor" in ended.err
    (folder,) = ended.folder.glob("store/noise.reference-*")
    assert {path.name for path in folder.iterdir()} == {
        "floors.jsonl",
        "noise.json",
        "sealed.json",
        "request.json",
        "agent.log",
    }
    again = hostile(CALIBRATED, "target.dtype=bfloat16", "tolerance.relative_l2=50%")
    assert (states(again)["noise.reference"], states(again)["judge"]) == ("kept", "run")
    assert states(hostile(CALIBRATED))["noise.reference"] == "run"  # the floor of another type


def test_the_machine_of_the_target_takes_the_floor_from_the_store(hostile, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for cwd in (here, there):
        cwd.mkdir()
        shutil.copy(hostile.cwd / "hostile.py", cwd)
    words = (CALIBRATED, f"store={tmp_path / 'store'}")
    first = hostile(*words, "sides=[reference]", cwd=here)
    assert first.code == 0, first.err
    ended = hostile(*words, "sides=[target]", cwd=there)
    assert ended.code == 0, ended.err
    assert states(ended)["noise.reference"] == "kept"
    assert not any("no noise floor" in warning for warning in ended.result["verdict"]["warnings"])


def test_the_floor_is_measured_while_the_target_is_recorded(hostile, tmp_path):
    """Each of the two takes a second or more and begins before the other has ended; screen and history have them in order."""
    ended = hostile(CALIBRATED, "target.device=emulated", f"runs={tmp_path}")
    assert ended.code == 0, ended.err
    (run,) = json.loads((tmp_path / "minilm" / "run.json").read_text())["runs"]
    assert list(run["states"])[2:5] == ["dump.reference", "dump.target", "noise.reference"]
    spans = {}
    for name in ("dump.target", "noise.reference"):
        (seal,) = (tmp_path / "minilm" / "store").glob(f"{name}-*/sealed.json")
        sealed = json.loads(seal.read_text())
        spans[name] = (sealed["finished"] - sealed["seconds"], sealed["finished"])
    assert max(begin for begin, _ in spans.values()) < min(end for _, end in spans.values())
    told = json.loads((tmp_path / "minilm" / "public" / "result.json").read_text())
    assert told["seconds"] <= run["seconds"] + 0.1  # how long it took, and not what its stages took together


def test_if_the_target_fails_its_error_is_told_and_the_reference_is_kept(hostile, tmp_path):
    words = (CALIBRATED, "target.device=emulated", f"runs={tmp_path}")
    failed = hostile(*words, "+workload.model.how=raise_on_npu")
    assert not failed.problems(2, "the user's own words", "in stage dump.target")
    (run,) = json.loads((tmp_path / "minilm" / "run.json").read_text())["runs"]
    assert "noise.reference" not in run["states"]
    again = hostile(*words, "+workload.model.how=raise_on_npu")
    assert again.code == 2
    assert json.loads((tmp_path / "minilm" / "run.json").read_text())["runs"][-1]["states"]["dump.reference"] == "kept"
