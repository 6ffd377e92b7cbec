"""The fitted epsilon against torch's own layer_norm, with known epsilons."""

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.diagnosis.evidence.normalisation import fit_epsilon, fit_epsilon_to_variance

GENERATOR = np.random.default_rng(1)
INPUT = GENERATOR.standard_normal((231, 64)) * GENERATOR.uniform(0.01, 0.1, (231, 1))
WEIGHT, BIAS = 1 + 0.3 * GENERATOR.standard_normal(64), GENERATOR.standard_normal(64)


def layer_norm(values, epsilon, dtype=torch.float64):
    tensors = [torch.tensor(one, dtype=dtype) for one in (values, WEIGHT, BIAS)]
    return torch.nn.functional.layer_norm(tensors[0], (64,), *tensors[1:], eps=epsilon).double().numpy()


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 3e-4])
def test_the_epsilon_of_the_target_is_found(epsilon):
    fit = fit_epsilon(INPUT, layer_norm(INPUT, 1e-5), layer_norm(INPUT, epsilon), 1e-5)
    assert fit.epsilon == pytest.approx(epsilon, rel=0.01)
    assert fit.share > 0.999


def test_it_is_found_in_half_precision_too():
    reference, target = layer_norm(INPUT, 1e-5), layer_norm(INPUT, 1e-3, torch.float32).astype(np.float16).astype(float)
    fit = fit_epsilon(INPUT, reference, target, 1e-5)
    assert fit.epsilon == pytest.approx(1e-3, rel=0.05)
    assert fit.share > 0.97


def test_root_mean_square_without_a_mean():
    def rms_norm(epsilon):
        return INPUT / np.sqrt(np.mean(INPUT**2, axis=1, keepdims=True) + epsilon) * WEIGHT

    fit = fit_epsilon(INPUT, rms_norm(1e-6), rms_norm(1e-4), 1e-6, centred=False)
    assert fit.epsilon == pytest.approx(1e-4, rel=0.01)


def test_a_column_without_any_input_does_not_matter():
    values = np.where(np.arange(64) == 3, 0.0, INPUT)  # padded features: nothing to fit a weight from

    def rms_norm(epsilon):
        return values / np.sqrt(np.mean(values**2, axis=1, keepdims=True) + epsilon) * WEIGHT

    with np.errstate(all="raise"):
        fit = fit_epsilon(values, rms_norm(1e-6), rms_norm(1e-4), 1e-6, centred=False)
    assert fit.epsilon == pytest.approx(1e-4, rel=0.01)


def test_noise_and_a_plain_factor_are_not_explained():
    reference = layer_norm(INPUT, 1e-5)
    noise = fit_epsilon(INPUT, reference, reference + 1e-3 * GENERATOR.standard_normal(reference.shape), 1e-5)
    assert noise.share < 0.1
    assert fit_epsilon(INPUT, reference, 1.01 * reference, 1e-5).share < 0.6


def test_what_cannot_be_fitted_is_none():
    reference = layer_norm(INPUT, 1e-5)
    broken = np.where(np.arange(64) == 3, np.nan, reference)
    assert fit_epsilon(INPUT, reference, reference, 1e-5) is None
    assert fit_epsilon(INPUT, reference, broken, 1e-5) is None
    assert fit_epsilon(INPUT[:3], reference[:3], reference[:3] * 2, 1e-5) is None


def test_what_has_lost_its_values_has_no_epsilon():
    reference = layer_norm(INPUT, 1e-5)
    lost = np.full_like(reference, 1e-3)
    assert fit_epsilon(INPUT, reference, lost, 1e-5).share < 0.5
    assert fit_epsilon(INPUT, reference, 0 * lost, 1e-5).share == 0.0


def normalise(variance, values, epsilon):
    return values / np.sqrt(variance[:, None] + epsilon)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_variance_of_another_count_is_no_epsilon(dtype):
    variance = np.array([0.9, 1.1, 1.6, 0.8])  # of four channels: an epsilon of 0.12 comes near to 8 / 7 of each
    reference = normalise(variance, np.random.default_rng(2).standard_normal((4, 32)), 1e-5)
    wrong = (reference * np.sqrt(7 / 8)).astype(dtype).astype(np.float64)
    assert fit_epsilon_to_variance(variance, reference, reference, wrong, 1e-5) is None


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_an_epsilon_is_found_where_rows_are_alike_too(dtype, spread):
    variance = np.linspace(1 - spread, 1 + spread, 24)
    values = np.random.default_rng(2).standard_normal((24, 64))
    target = normalise(variance, values, 0.05).astype(dtype).astype(np.float64)
    fit = fit_epsilon_to_variance(variance, normalise(variance, values, 1e-5), normalise(variance, values, 1e-5), target, 1e-5)
    assert fit.epsilon == pytest.approx(0.05, rel=0.1)
