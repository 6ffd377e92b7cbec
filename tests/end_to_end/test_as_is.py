"""What a recipe changes is told with the verdict, and a fault that sits in what it changes is not aligned."""

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("as_is")]
WORDS = ("+recipe=[script,training_alignment]", "workload.script=recomputed.py", "workload.stop_early=true", "~curves.loss")
NAME = "script+training_alignment"
FORGET = "target.arguments.forget=true"


@pytest.fixture(scope="module")
def recomputed(precflow, tmp_path_factory):
    """Return a function that runs the recipe over ``workloads/recomputed.py``, on the CPU on both sides."""
    cwd = tmp_path_factory.mktemp("as_is")
    shutil.copy(Path(__file__).parent / "workloads" / "recomputed.py", cwd)

    def run(*words, device="cpu", **variables):
        target = ("target.device=cpu",) if device == "cpu" else ("target.device=emulated", f"target.arguments.device={device}")
        options = {"cwd": cwd, "recipe": NAME, "OMP_NUM_THREADS": "1", **variables}
        return precflow(*WORDS, "reference.device=cpu", *target, *words, **options)

    return run


def test_without_a_fault_it_is_aligned_and_every_report_says_what_was_changed(recomputed):
    ended = recomputed("output=terminal")
    assert ended.code == 0, ended.err
    changed = "with dropout removed (2 places)"
    assert f"✓ ALIGNED {changed}" in ended.said
    assert "the script as it is agrees" in ended.said
    verdict = ended.result["verdict"]
    (change,) = verdict["changes"]
    assert (change["what"], change["reference"], change["target"]) == ("dropout", 2, 2)
    assert change["places"] == ["blocks.0.drop", "blocks.1.drop"]
    assert verdict["as_is"]["state"] == "agrees"
    assert [step["step"] for step in verdict["as_is"]["steps"]] == [0, 1]
    assert all(step["loss"] == step["gradients"] == 0.0 for step in verdict["as_is"]["steps"])
    for name in ("report.html", "report.md", "junit.xml"):
        text = (ended.folder / "public" / name).read_text(encoding="utf-8")
        assert "dropout removed" in text, name
        assert "the script as it is agrees" in text, name
    line = recomputed("output=ci").err.splitlines()[-1]
    assert "changed=dropout:2 as_is=agrees" in line


def test_a_fault_in_what_was_removed_is_not_aligned_and_the_proposed_run_finds_it(recomputed):
    hidden = recomputed(FORGET)
    reason = "the script as it is does not agree: the gradients of step 0 differ by"
    assert hidden.problems(3, reason, "dropout removed (2 places)", "PF110") == []
    assert hidden.result["verdict"]["as_is"]["state"] == "differs"
    finding = hidden.result["findings"][0]
    assert (finding["rule"], finding["certainty"]) == ("PF110", "likely")
    assert finding["change"].startswith("determinism.dropout=kept   determinism.random_numbers=cpu")
    sure = recomputed(FORGET, "determinism.repeat=true")
    assert (sure.code, sure.result["findings"][0]["certainty"]) == (3, "certain")
    found = recomputed(FORGET, "determinism.dropout=kept", "determinism.random_numbers=cpu")
    assert found.problems(1, "backward misaligned, starts here") == []
    left_out = recomputed(FORGET, "determinism.as_is=unchecked")
    assert left_out.problems(0, "the script was not run as it is") == []


def test_devices_of_two_kinds_are_compared_with_their_draws_on_the_cpu(recomputed):
    sound = recomputed(device="npu")
    assert sound.code == 0, sound.err
    assert "the script as it is, apart from draws on the CPU, agrees" in sound.said
    hidden = recomputed(FORGET, device="npu")
    assert hidden.problems(3, "as it is, apart from draws on the CPU, does not agree", "PF110") == []


def test_a_workload_of_functions_is_run_as_it_is_too(precflow, tmp_path):
    shutil.copy(Path(__file__).parent / "workloads" / "dropped.py", tmp_path)
    parts = [
        f"workload.{part}._target_=dropped.{name}"
        for part, name in (("model", "build"), ("inputs", "inputs"), ("loss", "loss"))
    ]
    trained = ("workload.optimizer._target_=torch.optim.SGD", "workload.optimizer.lr=0.1", "~curves.loss")
    words = ("+recipe=[minilm,training_alignment]", *parts, *trained, "reference.device=cpu", "target.device=emulated")
    options = {"cwd": tmp_path, "recipe": "minilm+training_alignment", "PRECFLOW_TRUST": "dropped", "OMP_NUM_THREADS": "1"}
    sound = precflow(*words, **options)
    assert (
        sound.problems(0, "with dropout removed (1 place)", "the workload as it is, apart from draws on the CPU, agrees") == []
    )
    hidden = precflow(*words, "workload.model.forget=true", **options)
    assert hidden.problems(3, "the workload as it is, apart from draws on the CPU, does not agree", "PF110") == []
