"""Every planted fault is found, named at its module and operator, and shown first; clean runs stay clean.

On a narrow encoder of two layers: a fault that sits in a later one is planted in the second. Where each sits in the whole
encoder is tested in ``tests/agent/emulated/test_faults.py``. One is found here at the real width, in the weights; twelve layers
are clean, and continuous integration runs all of them at the real width.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.npu]
ROOT = Path(__file__).parents[2]
RECIPE = "+recipe=sd_text_encoder"
FAULTS = {  # fault -> ends of the name of the operator where it sits
    "sigmoid_inexact": "encoder.layers.0.mlp.activation_fn / sigmoid",
    "softmax_half": "encoder.layers.0.self_attn / softmax",
    "layernorm_eps": "encoder.layers.0.layer_norm1 / layer_norm",
    "hf32_matmul": "/ linear",
    "scaled_linear": "/ linear",
    "mask_dropped": "self_attn / add",
    "nan_in_layer": "/ linear",
}
IN_HALF = ("layernorm_eps", "scaled_linear", "nan_in_layer")  # the others are looked for in float32


def planted(fault):
    """Return the words that plant a fault of ``conf/emulate``, whatever layer it sits in, in the second one."""
    text = (ROOT / "conf" / "emulate" / f"{fault}.yaml").read_text(encoding="utf-8")
    rules = yaml.safe_load(re.sub(r"\blayers\.\d+", "layers.1", text))["rules"]
    return f"+emulate={fault}", "emulate.rules=" + re.sub(r'"(\w+)":', r"\1:", json.dumps(rules))  # Hydra quotes no key


@pytest.fixture
def small(precflow, small_encoder):
    """Return a function that runs the recipe on a narrow encoder of two layers."""
    return lambda *words: precflow(RECIPE, *small_encoder(layers=2), *words)


@pytest.mark.xdist_group("small encoder")
@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_fault_is_found(small, fault, name):
    ended = small(f"target.dtype={'float16' if fault in IN_HALF else 'float32'}", *planted(fault))
    assert ended.code == 1, ended.err
    assert ended.result["region"]["start"].endswith(name)
    assert "EMULATED" in ended.err.upper()
    first_screen = ended.err.partition("MISALIGNED")[2].splitlines()[0]
    assert ended.result["region"]["start"] in first_screen


@pytest.mark.xdist_group("small encoder")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_another_order_of_sums_is_aligned(small, dtype):
    """Exact runs are in ``test_main_job.py``."""
    ended = small(f"target.dtype={dtype}", "+emulate=reorder")
    assert ended.code == 0, ended.err


@pytest.mark.xdist_group("small encoder")
def test_drift_that_stays_is_inconclusive_and_named(small):
    ended = small("target.dtype=float32", *planted("nondeterministic_op"))
    assert ended.code == 3, ended.err
    assert ended.result["region"]["unrepeatable"][0].startswith("target: encoder.layers.")
    assert ended.result["region"]["unrepeatable"][0].split(" ")[1] in ended.err


@pytest.mark.xdist_group("small encoder")
def test_weights_drawn_on_the_device_are_inconclusive_and_named(precflow):
    ended = precflow(RECIPE, "workload.model.layers=2", "target.dtype=float32", *planted("weights_from_device_rng"))
    assert ended.code == 3, ended.err
    assert "weight" in ended.err
    assert ended.result["verdict"]["compared"] == 0
    reason = "the weights differ in 1 of 37: encoder.layers.1.mlp.fc1.weight"
    assert ended.result["verdict"]["reasons"][0].startswith(reason)


SKETCHES = ("target.dtype=float32", "capture.detail=sketch")


@pytest.mark.xdist_group("small encoder")
def test_several_harmless_differences_are_aligned_by_sketches(precflow, small_encoder):
    ended = precflow(RECIPE, *small_encoder(layers=12), *SKETCHES, "+emulate=ascend_like")
    assert ended.code == 0, ended.err
    counts = ended.result["verdict"]["counts"]
    assert (counts["pass"], counts.get("undecided", 0)) == (396, 0)  # 385 of fractions, and 11 that are integers or booleans
    assert "over the 385 outputs" in (ROOT / "docs" / "emulation.md").read_text(encoding="utf-8")


@pytest.mark.xdist_group("small encoder")
def test_drift_is_inconclusive_by_sketches(small):
    ended = small(*SKETCHES, *planted("nondeterministic_op"))
    assert ended.code == 3, ended.err
    assert ended.result["verdict"]["reasons"][0].startswith("the target does not repeat itself")


@pytest.mark.xdist_group("small encoder")
def test_nan_is_found_by_the_recipe_for_it(precflow, small_encoder):
    recipe = "+recipe=[sd_text_encoder,symptom/nan]"
    words = (*small_encoder(layers=2), *planted("nan_in_layer"), "target.dtype=float32", "tolerance.standards=[default]")
    ended = precflow(recipe, *words, recipe="sd_text_encoder+symptom/nan")
    assert ended.code == 1, ended.err
    assert ended.result["region"]["start"].endswith("/ linear")
