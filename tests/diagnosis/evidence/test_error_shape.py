"""Errors that are a function of the input, and errors that are not."""

import numpy as np
import pytest
import torch

from precflow.diagnosis.evidence.error_shape import curve_share

GENERATOR = np.random.default_rng(3)
VALUES = GENERATOR.standard_normal((64, 512))


def test_another_formula_of_gelu_is_a_curve():
    tensor = torch.tensor(VALUES)
    exact, approximate = (torch.nn.functional.gelu(tensor, approximate=kind).numpy() for kind in ("none", "tanh"))
    assert curve_share(VALUES, approximate - exact) > 0.99


def test_noise_is_no_curve():
    assert curve_share(VALUES, 1e-3 * GENERATOR.standard_normal(VALUES.shape)) < 0.05


def test_half_a_curve_is_half_explained():
    smooth = np.sin(VALUES)
    noise = GENERATOR.standard_normal(VALUES.shape) * smooth.std()
    assert curve_share(VALUES, smooth + noise) == pytest.approx(0.5, abs=0.05)


def test_too_few_elements_or_no_error_give_none():
    assert curve_share(VALUES[:1, :100], VALUES[:1, :100]) is None
    assert curve_share(VALUES, np.zeros_like(VALUES)) is None


def test_broken_elements_are_left_out():
    error = np.sin(VALUES)
    error[0, 0] = np.nan
    assert curve_share(VALUES, error) > 0.99
