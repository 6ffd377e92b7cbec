"""Counts for allclose."""

import itertools

import numpy as np
import pytest
import torch

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.close_tolerances import RUNGS, count_close, rungs_from
from precflow.comparison.fused.summarize import summarize


def test_rungs_loosen_in_both_numbers():
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(RUNGS.values()))
    assert rungs_from("float64") == tuple(RUNGS)
    assert rungs_from("float8_e5m2") == ()


def test_counts_are_numpys():
    rng = np.random.default_rng(1)
    y = rng.standard_normal(4000)
    x = y * (1 + 10.0 ** rng.uniform(-9, 0, 4000))
    counts = count_close(np.abs(x - y), np.abs(y), tuple(RUNGS))
    for name, (rtol, atol) in RUNGS.items():
        assert counts[name] == np.isclose(x, y, rtol=rtol, atol=atol).sum()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_all_close_is_what_assert_close_accepts(dtype, factor):
    rtol, _ = torch.testing._comparison.default_tolerances(dtype)
    reference = torch.tensor([1000.0, 2000.0, 0.5], dtype=torch.float64)
    target = reference * (1 + factor * rtol)
    reference, target = reference.to(dtype), target.to(dtype)
    share = measure_all(summarize(reference.numpy(), target.numpy()))["allclose_share"]
    try:
        torch.testing.assert_close(target, reference)
    except AssertionError:
        assert share < 1
    else:
        assert share == 1
