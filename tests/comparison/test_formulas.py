"""Every metric against an implementation of somebody else: torch in float64, SciPy, mpmath, definitions written out."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.close_tolerances import RUNGS
from precflow.comparison.fused.summarize import summarize
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES, coarsest, float_facts

TORCH = {name: getattr(torch, name) for name in (*FLOATS, "complex64", "complex128")}


def made(reference_dtype, target_dtype, spread, seed=0, shape=(40, 33)):
    """Return a pair of torch tensors and the same as NumPy arrays; no zeros and no special values among them."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, generator=generator, dtype=torch.float64).clamp(-3, 3) + 4
    y *= torch.where(torch.rand(shape, generator=generator) < 0.5, -1.0, 1.0)
    x = y * (1 + spread * torch.randn(shape, generator=generator, dtype=torch.float64))
    tensors = y.to(TORCH[reference_dtype]), x.to(TORCH[target_dtype])
    arrays = [
        np.frombuffer(bytes(t.view(torch.uint8).flatten().tolist()), NUMPY_DTYPES[d]).reshape(shape)
        for t, d in zip(tensors, (reference_dtype, target_dtype), strict=True)
    ]
    return (*tensors, *arrays)


PAIRS = [*((name, name) for name in FLOATS), ("float32", "float16"), ("float32", "bfloat16"), ("float64", "float32")]


@pytest.mark.parametrize(("reference", "target"), PAIRS)
@pytest.mark.parametrize("spread", [1e-7, 1e-2, 1.0])
def test_against_torch_in_float64(reference, target, spread):
    y, x, ours, theirs = made(reference, target, spread)
    y, x = y.double(), x.double()
    d = x - y
    expected = {
        "cosine_similarity": torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0, eps=0),
        "max_abs_error": d.abs().max(),
        "mean_abs_error": torch.nn.functional.l1_loss(x, y),
        "max_rel_error": (d / y).abs().max(),
        "mean_rel_error": (d / y).abs().mean(),
        "relative_l2": torch.linalg.vector_norm(d) / torch.linalg.vector_norm(y),
        "accumulated_relative_error": d.abs().sum() / y.abs().sum(),
        "rmse": torch.nn.functional.mse_loss(x, y).sqrt(),
        "mare": (d.abs() / (y.abs() + 1e-7)).max(),
        "mere": (d.abs() / (y.abs() + 1e-7)).mean(),
        "share_within_one_thousandth": ((d / y).abs() <= 0.001).double().mean(),
        "share_within_five_thousandths": ((d / y).abs() <= 0.005).double().mean(),
        "max_rms_error": d.abs().max() / y.square().mean().sqrt(),
        "bitwise_equal": float(reference == target and bool((x == y).all())),
    }
    rows, scale = torch.linalg.vector_norm(d, dim=-1), torch.linalg.vector_norm(y, dim=-1)
    expected["worst_row_error"] = (rows / torch.maximum(scale, scale.quantile(0.5))).max()
    metrics = measure_all(summarize(ours, theirs))
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-11, abs=1e-15), name


def test_a_table_most_of_whose_rows_are_zero_is_measured_by_the_rows_that_are_not():
    y = torch.zeros(50, 4, dtype=torch.float64)
    y[3:9] = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = y.clone()
    x[20, 1] = 1e-8  # a row that is zero on the reference
    scale = torch.linalg.vector_norm(y[3:9], dim=-1).quantile(0.5)
    metrics = measure_all(summarize(y.numpy(), x.numpy()))
    assert metrics["worst_row_error"] == pytest.approx(float(1e-8 / scale), rel=1e-12)


@pytest.mark.parametrize(("reference", "target"), PAIRS)
def test_ulp_against_a_definition_by_exponents(reference, target):
    _, _, ours, theirs = made(reference, target, 1e-3)
    coarse = coarsest([reference, target])
    y, x = (array.astype(NUMPY_DTYPES[coarse]).astype(np.float64) for array in (ours, theirs))
    same_binade = np.floor(np.log2(np.abs(y))) == np.floor(np.log2(np.abs(x)))
    spacing = 2.0 ** (np.floor(np.log2(np.abs(y))) + 1 - float_facts(coarse).digits)
    steps = (np.abs(x - y) / spacing)[same_binade]
    metrics = measure_all(summarize(ours[same_binade], theirs[same_binade]))
    assert metrics["ulp_distance"] == steps.max()
    assert metrics["mean_ulp_distance"] == pytest.approx(steps.mean(), rel=1e-12)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_allclose_against_torch(name):
    y, x, ours, theirs = made(name, name, 1e-2)
    rtol, atol = RUNGS[name]
    expected = torch.isclose(x.double(), y.double(), rtol=rtol, atol=atol).double().mean()
    metrics = measure_all(summarize(ours, theirs))
    assert metrics["allclose_share"] == metrics[f"allclose_share_{name}"] == pytest.approx(float(expected), abs=1e-15)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_are_pairs_of_reals(name):
    generator = torch.Generator().manual_seed(3)
    y = torch.randn((6, 5), generator=generator, dtype=TORCH[name])
    x = y * (1 + 1e-4j)
    metrics = measure_all(summarize(y.numpy(), x.numpy()))
    assert metrics["relative_l2"] == pytest.approx(float((x - y).to(torch.complex128).norm() / y.norm()), rel=1e-6)
    parts = torch.view_as_real(x).double() - torch.view_as_real(y).double()
    assert metrics["max_abs_error"] == float(parts.abs().max())
    assert summarize(y.numpy(), x.numpy()).elements == 60
    rows = parts.flatten(1).norm(dim=1)
    scale = torch.view_as_real(y).double().flatten(1).norm(dim=1)
    assert metrics["worst_row_error"] == pytest.approx(
        float((rows / torch.maximum(scale, scale.quantile(0.5))).max()), rel=1e-12
    )
    assert measure_all(summarize(y.numpy(), y.numpy()))["bitwise_equal"] == 1.0


def test_complex_against_real():
    metrics = measure_all(summarize(np.array([3 + 4j]), np.array([3.0])))
    assert metrics["relative_l2"] == pytest.approx(0.8)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-6, 1e-3, 0.5, math.pi / 2, 3.0, math.pi])
@pytest.mark.parametrize("stretch", [1.0, 1.5, 1e4])
def test_cosine_against_mpmath(angle, stretch):
    from scipy.spatial import distance

    rng = np.random.default_rng(7)
    basis, _ = np.linalg.qr(rng.standard_normal((50, 2)))
    y = basis[:, 0]
    x = stretch * (math.cos(angle) * basis[:, 0] + math.sin(angle) * basis[:, 1])
    with mpmath.workdps(50):
        left, right = [mpmath.mpf(v) for v in y.tolist()], [mpmath.mpf(v) for v in x.tolist()]
        exact = mpmath.fdot(left, right) / mpmath.sqrt(mpmath.fdot(left, left) * mpmath.fdot(right, right))
        error = abs(mpmath.mpf(measure_all(summarize(y, x))["cosine_similarity"]) - exact)
    assert error < 4e-16
    assert measure_all(summarize(y, x))["cosine_similarity"] == pytest.approx(1 - distance.cosine(x, y), abs=1e-14)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e-160, 1.0, 1e160, 1e200, 1e300])
def test_scale_does_not_matter_in_float64(scale):
    rng = np.random.default_rng(8)
    y = np.abs(rng.standard_normal((9, 31))) + 0.5
    x = y * (1 + 0.1 * rng.random((9, 31)))
    relative = (
        "cosine_similarity",
        "relative_l2",
        "accumulated_relative_error",
        "max_rms_error",
        "worst_row_error",
        "kl_divergence",
    )
    plain, scaled = measure_all(summarize(y, x)), measure_all(summarize(y * scale, x * scale))
    tolerance = 1e-9 if scale > 1e-300 else 1e-3  # subnormal inputs have few digits of their own
    for name in relative:
        assert scaled[name] == pytest.approx(plain[name], rel=tolerance), name
    for name in ("mean_abs_error", "rmse", "max_abs_error"):
        assert scaled[name] / scale == pytest.approx(plain[name], rel=tolerance), name


@pytest.mark.parametrize(("name", "value"), [("float32", 1e38), ("float32", 1e-44), ("float16", 6e-8), ("bfloat16", 1e38)])
def test_ends_of_narrow_types(name, value):
    y = np.full(4096, value, np.float64).astype(NUMPY_DTYPES[name])
    x = y.copy()
    x[0] = 0
    metrics = measure_all(summarize(y, x))
    assert metrics["relative_l2"] == pytest.approx(1 / 64, rel=1e-12)
    assert metrics["max_rms_error"] == pytest.approx(1, rel=1e-12)


def test_huge_and_tiny_in_one_tensor():
    y, x = np.array([1e200, 1.0, 1e-200]), np.array([1e200, 2.0, 1e-200])
    metrics = measure_all(summarize(y, x))
    assert metrics["relative_l2"] == pytest.approx(1e-200, rel=1e-12)
    assert metrics["max_rel_error"] == 1.0
    assert metrics["mean_abs_error"] == pytest.approx(1 / 3)


def test_zero_against_zero_is_no_error():
    metrics = measure_all(summarize(np.zeros((2, 3)), -np.zeros((2, 3))))
    assert metrics["cosine_similarity"] == 1.0
    assert (
        metrics["relative_l2"] == metrics["accumulated_relative_error"] == metrics["worst_row_error"] == metrics["rmse"] == 0.0
    )
    assert metrics["share_within_one_thousandth"] == metrics["allclose_share"] == 1.0
    assert "max_rel_error" not in metrics
    assert "ulp_distance" not in metrics


def test_something_against_zero_is_infinitely_wrong():
    metrics = measure_all(summarize(np.zeros(4), np.ones(4)))
    assert metrics["relative_l2"] == metrics["max_rms_error"] == metrics["worst_row_error"] == math.inf
    assert metrics["cosine_similarity"] == metrics["share_within_one_thousandth"] == 0.0
    assert metrics["mare"] == pytest.approx(1e7)
    backwards = measure_all(summarize(np.ones(4), np.zeros(4)))
    assert (backwards["relative_l2"], backwards["cosine_similarity"], backwards["max_rel_error"]) == (1.0, 0.0, 1.0)


def test_a_small_reference_is_left_out_of_ratios_but_not_of_sums():
    summary = summarize(np.array([0.0, 2.0, 4.0]), np.array([5.0, 2.0, 4.4]))
    metrics = measure_all(summary)
    assert metrics["max_rel_error"] == pytest.approx(0.1)
    assert metrics["mean_rel_error"] == pytest.approx(0.05)
    assert metrics["max_abs_error"] == 5.0
    assert metrics["relative_l2"] > 1
    assert metrics["share_within_five_thousandths"] == pytest.approx(1 / 3)
    assert (summary.small, summary.small_mismatch) == (1, 1)


def test_means_are_taken_over_what_was_compared():
    y = np.array([1.0, np.nan, -1e9, 2.0], np.float32)
    x = np.array([2.0, np.nan, -1e9, 2.0], np.float32)
    metrics = measure_all(summarize(y, x))
    assert metrics["mean_abs_error"] == 0.5
    assert metrics["rmse"] == pytest.approx(math.sqrt(0.5))
    assert metrics["max_rms_error"] == pytest.approx(1 / math.sqrt(2.5))
    assert metrics["allclose_share"] == 0.5


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_a_common_factor_changes_no_relative_metric(seed, factor):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(60)
    x = y + 1e-3 * rng.standard_normal(60)
    plain, scaled = measure_all(summarize(y, x)), measure_all(summarize(y * factor, x * factor))
    for name in ("cosine_similarity", "relative_l2", "max_rel_error", "accumulated_relative_error", "max_rms_error"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-9), name


def test_inequalities_between_metrics():
    from scipy.stats import gmean  # a second to import, which only the worker of this test takes

    _, _, ours, theirs = made("float32", "float16", 1e-2)
    metrics = measure_all(summarize(ours, theirs))
    geometric = gmean(np.abs(theirs.astype(float) - ours.astype(float)) / np.abs(ours.astype(float)), axis=None)
    assert geometric <= metrics["mean_rel_error"] <= metrics["max_rel_error"]
    assert metrics["mean_abs_error"] <= metrics["rmse"] <= metrics["max_abs_error"]
    assert metrics["relative_l2"] <= metrics["worst_row_error"]
