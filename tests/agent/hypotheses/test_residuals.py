"""Sizes of the errors of both sides against float64: against NumPy, at every sort of tensor."""

import numpy as np
import pytest
import torch

from precflow.agent.hypotheses.residuals import MOST_ELEMENTS, SHARES, Results, describe_residuals

X = torch.randn(300, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
NAMES = {"0": ("act/gelu.0/api.forward@0.0", "0")}


def describe(reference, target, exact=X, other=None):
    return describe_residuals(
        NAMES, Results({"0": reference}, {"0": exact}), Results({"0": target}, {"0": exact if other is None else other})
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_they_are_those_of_numpy(dtype):
    """Each side is measured at its own inputs: the target was given twice as much, and rounds as the reference does."""
    reference, target = X.to(dtype), (2 * X).to(dtype)
    (line,) = describe(reference, target, other=2 * X)
    assert (line["call"], line["index"], line["elements"]) == (*NAMES["0"], X.numel())
    for name, recorded, exact in (("own", reference, X), ("found", target, 2 * X)):
        errors = np.abs(recorded.double().numpy() - exact.numpy())
        assert line[name] == pytest.approx(np.quantile(errors, SHARES), rel=1e-12)
    assert np.array(line["found"]) == pytest.approx(2 * np.array(line["own"]), rel=1e-12)  # as exact as the reference


def test_every_layout_gives_the_same_and_what_is_not_finite_does_not_count():
    reference, target = X.float(), (X * 1.001).float()
    (line,) = describe(reference, target)
    turned = describe_residuals(
        NAMES, Results({"0": reference.T}, {"0": X.T}), Results({"0": target.T.contiguous().T.T}, {"0": X.T})
    )
    assert turned[0]["found"] == pytest.approx(line["found"])
    target[7, 3], reference[5, 5] = torch.nan, torch.inf
    (finite,) = describe(reference, target)
    assert finite["elements"] == X.numel() - 1
    assert finite["found"][-1] == pytest.approx(line["found"][-1], rel=0.2)


def test_of_a_large_tensor_elements_at_equal_distances_are_looked_at():
    large = torch.linspace(-3, 3, 5 * MOST_ELEMENTS, dtype=torch.float64)
    (line,) = describe(large.half(), (large + 1e-3).half(), large)
    assert line["elements"] == MOST_ELEMENTS
    assert line["found"][SHARES.index(0.5)] == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize(
    ("reference", "target", "exact"),
    [
        (X, X.float(), X),  # the reference has no error at all, and no line has it on its axis
        (X.float(), X, X),
        (X.float(), X.float(), X.reshape(-1)),
        (X.long(), X.long() + 1, X),
        (torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.float64)),
        (torch.full((3,), torch.nan), torch.ones(3), torch.zeros(3, dtype=torch.float64)),
    ],
)
def test_there_is_no_line_where_a_side_has_no_errors(reference, target, exact):
    assert describe(reference, target, exact) == []
    assert describe_residuals(NAMES, Results({}, {}), Results({}, {})) == []


def test_a_single_number_has_a_line():
    (line,) = describe(torch.tensor(0.1), torch.tensor(0.3), torch.tensor(0.1, dtype=torch.float64))
    assert (line["elements"], line["found"][0]) == (1, pytest.approx(0.2, rel=1e-6))
