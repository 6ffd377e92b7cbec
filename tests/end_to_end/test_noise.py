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
