"""One number that explains a whole difference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.curves.relation import find_relation

LOSS = 2 + 8 * 0.97 ** np.arange(100)
JITTER = np.random.default_rng(0).normal(size=100)


@given(factor=st.floats(1.05, 1e4), inverse=st.booleans())
def test_a_factor_is_found_through_the_rounding_of_a_log(factor, inverse):
    factor = 1 / factor if inverse else factor
    found = find_relation(LOSS, np.round(factor * LOSS, 9))
    assert found.kind == "factor"
    assert found.number == pytest.approx(factor, rel=1e-4)


@pytest.mark.parametrize(("factor", "integer"), [(2.0, 2), (0.25, 4), (8.0005, 8), (1.5, 0), (0.589, 0)])
def test_a_factor_that_is_a_number_of_parts(factor, integer):
    assert find_relation(LOSS, np.round(factor * LOSS * (1 + 1e-4 * JITTER), 4)).integer == integer


@given(amount=st.floats(0.01, 1e3), below=st.booleans())
def test_an_amount_is_found(amount, below):
    amount = -amount if below else amount
    found = find_relation(LOSS, LOSS + amount)
    assert (found.kind, found.number) == ("offset", pytest.approx(amount, rel=1e-6))
    assert found.words.endswith("below" if below else "above")


@pytest.mark.parametrize(
    "target",
    [
        LOSS,
        LOSS * (1 + 0.01 * JITTER),  # noise
        LOSS + 0.01 * np.arange(100),  # grows
        np.where(np.arange(100) < 50, LOSS, 2 * LOSS),  # twice as much in half of the steps only
        np.where(np.arange(100) == 7, LOSS, 2 * LOSS),  # or at all but one
        LOSS * 1.001 + 0.01 * JITTER,  # a factor that noise hides
    ],
)
def test_nothing_is_claimed_of_what_no_number_explains(target):
    assert find_relation(LOSS, target).kind == ""


def test_on_a_plateau_a_factor_cannot_be_told_from_an_amount():
    assert find_relation(np.full(50, 2.0), np.full(50, 4.0)).kind == ""
    assert find_relation(LOSS[:4], 2 * LOSS[:4]).kind == ""  # too few
    assert find_relation(np.zeros(9), np.arange(9.0)).kind == ""
