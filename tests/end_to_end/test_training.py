"""Two training steps in all phases: aligned where both sides compute alike, and each fault is found where it is."""

import shutil
from pathlib import Path

import pytest
from recipes_of_tests import TRAINED

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("training")]  # the reference's dump is made once
TRAINING = (*TRAINED, "reference.device=cpu", "target.device=emulated")


@pytest.fixture(scope="module")
def trained(precflow, tmp_path_factory):
    """Return a function that runs recipe ``minilm`` over ``workloads/trained.py``."""
    cwd = tmp_path_factory.mktemp("trained")
    shutil.copy(Path(__file__).parent / "workloads" / "trained.py", cwd)

    def run(*words, without=""):
        options = {"cwd": cwd, "recipe": "minilm", "timeout": 600, "PRECFLOW_TRUST": "trained", "OMP_NUM_THREADS": "1"}
        kept = [word for word in TRAINING if not (without and word.startswith(without))]
        return precflow("+recipe=minilm", *kept, *words, **options)

    return run


def fault(operator, phase, call, *, factor=1.01):
    rule = f"{{operator:{operator},rule:scale,factor:{factor},phase:{phase},call:{call}}}"
    return "emulate.name=planted", f"emulate.rules=[{rule}]"


def starts(ended):
    return ended.result["region"]["start"]


def test_a_training_run_without_a_fault_is_aligned(trained):
    ended = trained()
    assert ended.code == 0, ended.err
    assert "✓ ALIGNED" in ended.err
    assert ended.result["verdict"]["coverage"] == 1.0
    assert "0 unpaired   0 unreadable" in ended.err
    assert "data, forward, loss, backward, optimizer aligned" in ended.err


def test_the_second_run_keeps_everything(trained):
    trained()
    said = trained().err
    for stage in ("dump side=reference", "dump side=target", "compare", "judge", "localize"):
        assert f"stage={stage} state=kept" in said


@pytest.mark.parametrize(
    ("operator", "phase", "call", "start"),
    [
        ("gelu_backward", "backward", 1, "blocks.1.act (backward)"),
        ("native_layer_norm_backward", "backward", 0, "blocks.2.norm (backward)"),
        ("mm", "backward", 5, "blocks.2.wide.weight (gradient)"),
        ("native_layer_norm", "forward", 1, "blocks.1.norm"),
    ],
)
def test_a_fault_is_found_in_its_phase(trained, operator, phase, call, start):
    ended = trained(*fault(operator, phase, call), "capture.level=[module]")
    assert ended.code == 1, ended.err
    assert starts(ended) == start
    assert f"{phase} misaligned, starts here" in ended.err
    # A gradient of a weight is evaluated at its own operands, so that of the second step is named too.
    assert ("2 introduce the error" if operator == "mm" else "1 introduces the error") in ended.err


def test_operators_name_the_one_in_backward(trained):
    ended = trained(*fault("gelu_backward", "backward", 1), "capture.level=[module,api,operator]")
    assert ended.code == 1, ended.err
    assert starts(ended) == "blocks.1.act / gelu_backward (backward)"
    assert "multiplied by 1.01 on the target" in ended.said


def test_an_optimizer_that_steps_elsewhere_is_found_in_its_phase(trained):
    rule = "{operator:addcdiv_,rule:scale,factor:1.5}"
    ended = trained("emulate.name=planted", f"emulate.rules=[{rule}]", "capture.level=[module]")
    assert ended.code == 1, ended.err
    assert starts(ended) == "blocks.0.norm.weight (optimizer)"
    assert "data, forward, loss, backward aligned · optimizer misaligned, starts here" in ended.err


def test_an_optimizer_phase_without_an_optimizer_is_refused_before_anything_runs(trained):
    ended = trained(without="workload.optimizer")
    assert ended.code == 2
    assert "workload.optimizer._target_=torch.optim.AdamW" in ended.said


def test_code_that_nobody_trusts_is_no_optimizer(trained):
    ended = trained("workload.optimizer._target_=os.system")
    assert ended.code == 2
    assert "os.system is not trusted" in ended.said


def test_autocast_on_one_side_is_expected_and_a_module_that_computes_otherwise_is_found(trained):
    level = ("target.mixed_precision.level=O1", "capture.level=[module]", "tolerance.standards=[default]")
    ended = trained(*level)
    assert ended.code == 0, ended.err
    assert "bfloat16" in ended.err
    assert ended.result["differences"]["mixed_precision.level"] == {"reference": "(absent)", "target": "O1"}
    broken = trained(*level, *fault("native_layer_norm", "forward", 1, factor=1.2))
    assert broken.code == 1, broken.err
    assert starts(broken) == "blocks.1.norm"
    assert "PF809" in [finding["rule"] for finding in broken.result["findings"]]
