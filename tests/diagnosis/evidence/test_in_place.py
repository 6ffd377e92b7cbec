"""Evidence at a call's own inputs: what arrived wrong does not count, and faults are fitted in 16 bits too."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from precflow.diagnosis.evidence import in_place
from precflow.diagnosis.evidence.names import OF_SUSPECT
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.findings import Suspect

torch.manual_seed(4)
X, W = torch.randn(32, 64) * torch.rand(32, 1), torch.randn(64, 64) / 8
GAIN, BIAS = torch.rand(64) + 0.5, torch.randn(64)
IMAGES = torch.randn(6, 8, 5, 5) * torch.rand(6, 8, 1, 1)


@pytest.fixture
def about(hand_made):
    """Evidence about one operator. The target's inputs differ by one percent, and it computes ``wrong``."""

    def of(operator, right, wrong, *inputs, dtype=np.float32, shift=1.01, **arguments):
        sides = []
        for compute, factor in ((right, 1.0), (wrong, shift)):
            dump = hand_made()
            given = [
                None if one is None else (one * (factor if at == 0 else 1.0)).numpy().astype(dtype)
                for at, one in enumerate(inputs)
            ]
            wide = [None if one is None else torch.from_numpy(one.astype(np.float64)) for one in given]
            with np.errstate(over="ignore"):
                value = compute(*wide).numpy().astype(dtype)
            dump.operator(
                "b", operator, *({"value": one} for one in given if one is not None), value=value, arguments=arguments
            )
            sides.append(dump)
        call = sides[0].made[0]
        (observed,) = observe(*sides, [Suspect(call.outputs[0].text, call.name, "b", operator, 0, 3.0, "because")])
        return in_place.gather(observed)

    return of


def product(x, w):
    return x @ w.T


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_scale_is_found_behind_inputs_that_differ(about, dtype):
    found = about("linear", product, lambda x, w: 1.05 * (x @ w.T), X, W, dtype=dtype)
    assert found["scale_slope"] == pytest.approx(1.05, rel=2e-3)
    assert found["scale_share"] > 0.98
    assert set(found) <= OF_SUSPECT


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_an_error_that_arrived_is_not_its_own(about, dtype):
    found = about("linear", product, product, X, W, dtype=dtype)
    assert found["own_error"] < 0.005
    assert found["scale_share"] < 0.5
    assert found["rearranged"] == ""


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_epsilon_of_norms_is_fitted_at_their_own_inputs(about, dtype):
    def layer(epsilon):
        return lambda x: functional.layer_norm(x, (64,), None, None, epsilon)

    def group(epsilon):
        return lambda x: functional.group_norm(x, 4, None, None, epsilon)

    found = about("layer_norm", layer(1e-5), layer(3e-2), X, dtype=dtype, normalized_shape="(64,)", eps="1e-05")
    assert found["epsilon_target"] == pytest.approx(3e-2, rel=0.05)
    assert found["epsilon_share"] > 0.97
    found = about("group_norm", group(1e-5), group(3e-2), IMAGES, dtype=dtype, num_groups="4", eps="1e-05")
    assert found["epsilon_target"] == pytest.approx(3e-2, rel=0.05)
    assert found["epsilon_share"] > 0.97
    found = about("layer_norm", layer(1e-5), layer(1e-5), X, dtype=dtype, normalized_shape="(64,)", eps="1e-05")
    assert found["epsilon_share"] < 0.5


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_epsilon_of_a_batch_norm_is_fitted_to_the_variances_that_it_keeps(about, dtype):
    mean, variance, gain, bias = torch.randn(8), torch.rand(8) + 0.05, torch.rand(8) + 0.5, torch.randn(8)

    def batch(epsilon, *, training=False):
        return lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b, training, 0.1, epsilon)

    given = (IMAGES, mean, variance, gain, bias)
    found = about("batch_norm", batch(1e-5), batch(1e-1), *given, dtype=dtype, **{"5": "False", "7": "1e-05"})
    assert found["in_place"]
    assert found["epsilon_target"] == pytest.approx(1e-1, rel=0.05)
    assert found["epsilon_share"] > 0.97
    found = about("batch_norm", batch(1e-5), batch(1e-5), *given, dtype=dtype, **{"5": "False", "7": "1e-05"})
    assert found.get("epsilon_share", 0.0) < 0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_batch_norm_that_trains_is_computed_by_the_variances_of_the_batch(about, dtype):
    gain, bias = torch.rand(8) + 0.5, torch.randn(8)
    of_batch = {"5": "True", "7": "1e-05"}

    def batch(epsilon):
        return lambda x, m, v, w, b: functional.batch_norm(x, m.clone(), v.clone(), w, b, training=True, eps=epsilon)

    def of_another_count(fewer):
        def compute(x, _, __, w, b):
            mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=fewer)
            return (x - mean) / (variance + 1e-5).sqrt() * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1)

        return compute

    images = IMAGES[:1, :, :4, :4] * (1 + torch.arange(8).view(1, -1, 1, 1))
    given = (images, torch.zeros(8), torch.ones(8), gain, bias)
    found = about("batch_norm", batch(1e-5), batch(3e-1), *given, dtype=dtype, **of_batch)
    assert found["epsilon_target"] == pytest.approx(3e-1, rel=0.05)
    found = about("batch_norm", batch(1e-5), of_another_count(1), *given, dtype=dtype, **of_batch)
    assert found.get("epsilon_share", 0.0) < 0.97


def test_epsilon_of_a_norm_that_is_written_out_is_that_of_its_sum(about):
    found = about("add", lambda x: x + 1e-6, lambda x: x + 1e-4, X.abs(), **{"1": "1e-06"})
    assert found["epsilon_reference"] == 1e-6
    assert found["epsilon_target"] == pytest.approx(1e-4, rel=1e-3)
    assert found["epsilon_share"] > 0.99
    found = about("add", lambda x: x + 1e-6, lambda x: x + 0.2, X.abs(), dtype=np.float16, **{"1": "1e-06"})
    assert found["epsilon_target"] == pytest.approx(0.2, rel=1e-2)
    assert "epsilon_target" not in about("add", lambda x: x + 1e-6, lambda x: x + 200, X.abs(), **{"1": "1e-06"})


def test_a_loss_that_is_one_number_is_explained(about):
    """It has neither rows nor a last axis."""
    other = X.flip(0)
    found = about("mse_loss", functional.mse_loss, lambda x, y: functional.mse_loss(x, y).bfloat16().double(), X, other)
    assert found["in_place"]
    assert found["own_error"] < 2.0**-8


def test_a_part_that_is_left_alone_shows_behind_the_rounding_of_16_bits(about):
    """The dimensions that turn slowest are multiplied by nearly one."""
    cosine = torch.linspace(0.0, 0.1, 64).cos()
    found = about(
        "mul", torch.mul, lambda x, y: torch.cat([(x * y)[:, :-8], x[:, -8:]], 1), X, cosine, dtype=ml_dtypes.bfloat16
    )
    assert found["unchanged"] == "the last 8 of 64 along axis 1"
    assert about("mul", torch.mul, torch.mul, X, cosine, dtype=ml_dtypes.bfloat16)["unchanged"] == ""


def test_an_operator_of_another_kind_with_that_name_is_left_alone(about):
    found = about("linear", lambda x, w: (x @ w.T) ** 2, product, X, W)
    assert "own_error" not in found
    assert found["rearranged"] == ""


def test_nan_in_rows_that_are_masked_everywhere(about):
    scores = X.clone()
    scores[3] = scores[5] = torch.finfo(torch.float32).min

    def broken(x):
        return torch.where((x < -1e30).all(1, keepdim=True), torch.nan, x.softmax(-1))

    found = about("softmax", lambda x: x.softmax(-1), broken, scores, shift=1.0, dim="-1")
    assert found["nan_rows_masked"] == 1.0


def test_saturation_where_the_reference_is_infinite(about):
    found = about("exp", torch.exp, lambda x: x.exp().clamp(max=65504.0), X * 20 + 10, dtype=np.float16, shift=1.0)
    assert found["saturated_target"] > 0


def test_what_an_optimizer_leaves_is_no_inverted_sign_and_no_border(hand_made):
    """Adam begins with steps of the rate, by the sign of a gradient that may be rounding: one element is off by two of them."""
    stepped = np.full((32, 4), 1e-2, np.float32)
    flipped = stepped.copy()
    flipped[0, 1] *= -1
    found = []
    for phase in ("forward", "optimizer"):
        sides = [hand_made(), hand_made()]
        for dump, value in zip(sides, (stepped, flipped), strict=True):
            dump.module("v_proj", {"content": "x"}, value=value, phase=phase)
        call = sides[0].made[0]
        (observed,) = observe(*sides, [Suspect(call.outputs[0].text, call.name, "v_proj", "", 0, 3.0, "because")])
        found.append(in_place.gather(observed))
    forward, optimizer = found
    assert forward["sign_share"] == 1.0
    assert optimizer == {}


def test_what_a_type_rounds_away_is_no_other_computation(about):
    """In float16 nothing is left of a small epsilon that is added."""
    found = about("add", lambda x: x + 1e-6, lambda x: x, X.abs() + 1, dtype=np.float16, **{"1": "1e-06"})
    assert "epsilon_share" not in found
