"""A training script, unchanged: draws on the device are found and mended by the patch, then faults are found where they are."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("script")]
WORDS = (
    "+recipe=script",
    "workload.script=train.py",
    "workload.files=[gpulog.json]",
    "reference.device=cpu",
    "target.device=emulated",
)


@pytest.fixture(scope="module")
def workplace_of_script(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("script")
    shutil.copy(Path(__file__).parent / "workloads" / "train.py", cwd)
    return cwd


def test_a_script_is_mended_by_its_patch_and_a_fault_is_found_behind_it(precflow, workplace_of_script):
    cwd = workplace_of_script
    options = {"cwd": cwd, "recipe": "script", "OMP_NUM_THREADS": "1"}
    drawn = precflow(*WORDS, **options)
    assert (
        drawn.problems(3, "the sides were fed different batches from step 0 on: step0.input", "train.py:20 in <module>") == []
    )
    assert drawn.result["findings"][0]["rule"] == "PF108"
    subprocess.run(["git", "init", "-q", "."], cwd=cwd, check=True)
    subprocess.run(["git", "apply", "runs/script/public/draws.patch"], cwd=cwd, check=True)
    mended = precflow(*WORDS, **options)
    assert mended.code == 0, mended.err
    assert "data, forward, loss, backward, optimizer aligned" in mended.said
    for side in ("reference", "target"):
        dump = max((cwd / "runs" / "script" / "store").glob(f"dump.{side}-*"), key=lambda folder: folder.stat().st_mtime)
        assert (dump / "output.log").read_text().startswith("step 0 loss ")
        assert [entry["step"] for entry in json.loads((dump / "files" / "gpulog.json").read_text())] == [0, 1, 2]
    rule = "{operator:native_layer_norm_backward,rule:scale,factor:1.01,phase:backward}"
    fault = precflow(*WORDS, "emulate.name=planted", f"emulate.rules=[{rule}]", "workload.arguments.lr=1e-3", **options)
    assert fault.problems(1, "starts at", "forward, loss aligned", "backward misaligned, starts here") == []
    assert fault.result["region"]["start"] == "1 (backward)"


def test_every_rank_of_a_script_is_recorded(precflow, tmp_path):
    shutil.copy(Path(__file__).parent / "workloads" / "train_ranks.py", tmp_path)
    words = ("+recipe=script", "workload.script=train_ranks.py", "reference.device=cpu", "target.device=cpu")
    ranks = ("reference.ranks=2", "target.ranks=2", "workload.stop_early=true")
    ended = precflow(*words, *ranks, cwd=tmp_path, recipe="script", OMP_NUM_THREADS="1")
    assert ended.code == 0, ended.err
    assert "communication aligned" in ended.said
    (dump,) = (tmp_path / "runs" / "script" / "store").glob("dump.target-*")
    assert (dump / "rank1" / "step1").is_dir()
    assert "rank 0 step 1" in (dump / "output.log").read_text()
    assert "rank 1 step 1" in (dump / "output-rank1.log").read_text()


def test_a_further_forward_of_a_script_is_told_and_a_fault_behind_it_is_found(precflow, tmp_path):
    """Both doors say the same: the recipe that ran the script, and the two dumps that it left."""
    shutil.copy(Path(__file__).parent / "workloads" / "train_watched.py", tmp_path)
    options = {"cwd": tmp_path, "recipe": "script", "OMP_NUM_THREADS": "1"}
    words = (*(word for word in WORDS if not word.startswith("workload.")), "workload.script=train_watched.py")
    clean = precflow(*words, "target.arguments.watch=true", **options)
    assert clean.problems(3, "only the target has call 0 of step 0, without a gradient; so in 1 more step", "PF409") == []
    assert {*clean.result["verdict"]["counts"]} <= {"pass", "unpaired_target", "not_judged", "covered"}
    rule = "{operator:native_layer_norm,rule:scale,factor:1.01}"
    fault = precflow(*words, "target.arguments.watch=true", "emulate.name=planted", f"emulate.rules=[{rule}]", **options)
    assert fault.problems(1, "starts at 1 / layer_norm", "multiplied by 1.01", "PF409") == []
    dumps = [
        str(max((tmp_path / "runs" / "script" / "store").glob(f"dump.{side}-*"), key=lambda folder: folder.stat().st_mtime))
        for side in ("reference", "target")
    ]
    again = precflow("compare", *dumps, "--output", "again", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert again.code == 1, again.err
    other = json.loads((tmp_path / "again" / "result.json").read_text())
    assert other["verdict"]["counts"] == fault.result["verdict"]["counts"]
    assert other["region"]["start"] == fault.result["region"]["start"] == "1 / layer_norm"
    first, second = ([finding["rule"] for finding in result["findings"]] for result in (other, fault.result))
    assert first == second
