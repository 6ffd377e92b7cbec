"""Attention in training: the gradient that is zero but for rounding raises no alarm, and faults around it are found."""

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("training")]
ATTENTION = (
    "workload.model._target_=attended.build",
    "workload.inputs._target_=attended.inputs",
    "workload.loss._target_=attended.loss",
    "workload.mode=train",
    "capture.phase=[forward,backward,gradient]",
    "capture.level=[module]",
    "reference.device=cpu",
    "target.device=emulated",
)
BIAS = "attention.key/gradient.output.bias"


@pytest.fixture(scope="module")
def attended(precflow, tmp_path_factory):
    """Return a function that runs recipe ``minilm`` over ``workloads/attended.py``."""
    cwd = tmp_path_factory.mktemp("attended")
    shutil.copy(Path(__file__).parent / "workloads" / "attended.py", cwd)

    def run(*words):
        options = {"cwd": cwd, "recipe": "minilm", "timeout": 600, "PRECFLOW_TRUST": "attended", "OMP_NUM_THREADS": "1"}
        return precflow("+recipe=minilm", *ATTENTION, *words, **options)

    return run


ADAM = ("workload.optimizer._target_=torch.optim.AdamW", "workload.optimizer.lr=0.001")
OPTIMIZER = "capture.phase=[forward,backward,gradient,optimizer]"


def test_an_optimizer_that_steps_by_noise_raises_no_alarm_either(attended):
    ended = attended("+emulate=reorder", *ADAM, OPTIMIZER)
    assert ended.code == 0, ended.err
    blind = {row["record"].removeprefix("attention.key/") for row in ended.result["rows"] if row["status"] == "blind"}
    states = {f"optimizer.output.bias{state}" for state in ("", ".exp_avg", ".exp_avg_sq")}
    assert blind == {"gradient.output.bias", *states}


def test_an_optimizer_that_is_wrong_is_found(attended):
    ended = attended("emulate.name=planted", "emulate.rules=[{operator:addcdiv_,rule:scale,factor:1.5}]", *ADAM, OPTIMIZER)
    assert ended.code == 1, ended.err
    assert ended.result["region"]["start"].endswith("(optimizer)")


def bias(ended):
    (row,) = [row for row in ended.result["rows"] if row["record"] == BIAS]
    return row


def test_another_order_of_sums_is_aligned_though_the_bias_of_the_keys_is_all_noise(attended):
    ended = attended("+emulate=reorder")
    assert ended.code == 0, ended.err
    assert "1 blind" in ended.err
    assert bias(ended)["status"] == "blind"
    assert bias(ended)["metrics"]["relative_l2"] > 0.1
    assert "zero apart from rounding" in bias(ended)["reason"]


@pytest.mark.parametrize(
    ("fault", "start"),
    [
        ("{operator:_softmax,rule:scale,factor:1.001}", "attention"),
        ("{operator:_softmax_backward_data,rule:scale,factor:1.001,phase:backward}", "attention (backward)"),
    ],
)
def test_faults_in_what_attention_computes_itself_are_its_own(attended, fault, start):
    ended = attended("emulate.name=planted", f"emulate.rules=[{fault}]")
    assert ended.code == 1, ended.err
    assert ended.result["region"]["start"] == start
