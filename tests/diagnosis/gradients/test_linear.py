"""Gradients of Linear layers, from dumps of modules: evaluated in place, and looked into as the products that they are."""

import pytest
import torch
from evaluated import evaluate_here, evaluate_pair
from linear_layers import products, record, rounded

from precflow.config.schema import RunConfig
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evaluation import name_call
from precflow.diagnosis.evidence import in_place
from precflow.diagnosis.evidence.of_suspect import other_computation
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.gradients.linear import add_products
from precflow.diagnosis.introduced import IntroducedError
from precflow.dumps.formats import read_dump
from precflow.stages.introduced import explain_suspects


@pytest.fixture
def judge(tmp_path):
    """Record a right and a wrong step, evaluate both, and return what was found in backward."""

    def run(wrong, **options):
        reference, target = record(tmp_path / "reference", **options), record(tmp_path / "target", wrong, **options)
        return {key: one for key, one in evaluate_pair(tmp_path, reference, target).items() if key[1] != "forward"}

    return run


def test_the_wrong_gradients_are_named_and_what_they_lead_to_is_cleared(judge):
    found = judge(lambda *given: products(*map(rounded, given)))
    assert {key for key, one in found.items() if one.is_fault} == {("head", "backward", "0"), ("head", "gradient", "weight")}
    assert not found["inner", "gradient", "weight"].is_fault
    assert not found["inner", "backward", "0"].is_fault
    assert found["inner", "gradient", "weight"].rho < 8


def test_without_functions_only_the_gradient_of_the_weight_is_evaluated(judge):
    found = judge(lambda g, x, w: (products(g, x, w)[0], 1.01 * products(g, x, w)[1]), level="module")
    assert {key for key, one in found.items() if one.is_fault} == {("head", "gradient", "weight")}
    assert ("head", "backward", "0") not in found


def test_a_layer_that_runs_twice_has_the_sum_and_a_gradient_that_something_else_changes_says_nothing(judge):
    def other(g, x, w):
        return products(g, x, w)[0], products(g, x, w)[1] + torch.ones(40, 24)

    found = judge(other, times=2, on_both=other)
    assert not any(one.is_fault for one in found.values())
    assert ("inner", "backward", "0") in found  # each call of it has an input of its own
    assert ("inner", "gradient", "weight") in found
    assert ("head", "gradient", "weight") not in found


# As products


def gather(reference, target, phase, index, module="head"):
    calls = [one for one in reference.calls() if (one.module, one.phase) == (module, phase)]
    ((call, made),) = ((one, made) for one in calls for made in one.outputs if made.index == index)
    suspect = Suspect(made.text, call.name, module, "", call.order, 3.0, "because")
    (observed,) = add_products(reference, target, observe(reference, target, [suspect]))
    found = [IntroducedError(name_call(call), index, "matmul", 99.0, 9.0, "rho", is_fault=True)]
    folder = reference.path.parent / "explaining"
    explained = explain_suspects(reference, target, Region(suspects=(suspect,)), found, folder=folder, evaluate=evaluate_here)
    comparison = Comparison(reference, target, RunConfig(), explanations=explained)
    return observed, in_place.gather(observed) | other_computation.gather(comparison, observed)


GRADIENTS = [("gradient", "weight"), ("backward", "0")]


@pytest.mark.parametrize(("phase", "index"), GRADIENTS)
def test_operands_of_10_bits_and_another_order_are_told_apart(tmp_path, phase, index):
    reference = record(tmp_path / "reference")
    short = record(tmp_path / "short", lambda *given: products(*map(rounded, given)))
    observed, found = gather(reference, short, phase, index)
    assert observed.product is not None
    assert (found["operand_bits"], found["in_place"]) == (10, True)
    _, found = gather(reference, record(tmp_path / "plain", products), phase, index)
    assert found.get("operand_bits", 0) == 0
    assert found["own_error_units"] < 4


def test_a_weight_gradient_without_one_sample_says_which_rows_it_lacks(tmp_path):
    def lacking(g, x, w):
        return products(g, x, w)[0], products(g[:1], x[:1], w)[1]

    _, found = gather(record(tmp_path / "reference"), record(tmp_path / "target", lacking), "gradient", "weight")
    assert found["variant"] in {"terms_left_out", "last_terms_left_out"}
    assert found["variant_share"] > 0.999


def test_without_functions_the_weight_is_not_there_and_the_input_is(tmp_path):
    dumps = [record(tmp_path / name, level="module") for name in ("reference", "target")]
    assert gather(*dumps, "gradient", "weight")[0].product is not None
    assert gather(*dumps, "backward", "0")[0].product is None


def test_a_layer_that_runs_twice_has_no_one_product(tmp_path):
    dumps = [record(tmp_path / name, times=2) for name in ("reference", "target")]
    assert gather(*dumps, "gradient", "weight", module="inner")[0].product is None


def test_what_was_not_kept_gives_no_product(tmp_path):
    reference, target = (record(tmp_path / name) for name in ("reference", "target"))
    assert gather(reference, target, *GRADIENTS[0])[0].product is not None
    for shard in (tmp_path / "target").rglob("*.safetensors"):
        shard.unlink()
    target = read_dump(tmp_path / "target")
    assert gather(reference, target, *GRADIENTS[0])[0].product is None
