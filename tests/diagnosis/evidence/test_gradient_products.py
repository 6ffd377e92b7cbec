"""Gradients of a Linear layer, recorded by modules alone, have the evidence of the products that they are."""

import pytest
from linear_layers import products, record, rounded

from precflow.diagnosis.evidence import in_place
from precflow.diagnosis.evidence.gradient_products import add_products
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.findings import Suspect
from precflow.dumps.reader import Dump


def gather(reference, target, phase, index, module="head"):
    calls = [one for one in reference.calls() if (one.module, one.phase) == (module, phase)]
    ((call, made),) = ((one, made) for one in calls for made in one.outputs if made.index == index)
    suspect = Suspect(made.text, call.name, module, "", call.order, 3.0, "because")
    (observed,) = add_products(reference, target, observe(reference, target, [suspect]))
    return observed, in_place.gather(observed)


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
    target = Dump.open(tmp_path / "target")
    assert gather(reference, target, *GRADIENTS[0])[0].product is None
