"""Counts and warnings beside the metrics."""

import numpy as np
import pytest

from precflow.comparison.fused.summarize import summarize
from precflow.comparison.fused.summary import Summary
from precflow.comparison.reading import counts, warnings

NAN, FILL = np.nan, np.finfo(np.float32).min


def remarks(reference, target):
    summary = summarize(np.array(reference, np.float32), np.array(target, np.float32))
    return counts(summary), warnings(summary)


def test_every_element_is_counted_in_one_class():
    found, _ = remarks([1, 0, NAN, FILL, 2], [1, 0, NAN, FILL, 3])
    assert found["elements"] == 5
    assert [found[name] for name in ("ordinary", "small", "sentinel", "nonfinite")] == [2, 1, 1, 1]
    assert all(isinstance(number, int) for number in found.values())


def test_there_is_nothing_to_say_of_ordinary_values():
    assert remarks([1, 2, 3], [1, 2, 4])[1] == ()


@pytest.mark.parametrize(
    ("reference", "target", "said"),
    [
        ([NAN, np.inf, 1], [NAN, np.inf, 1], "2 NaN or Inf, equal in kind and place on both sides"),
        ([FILL, FILL, 1], [FILL, FILL, 1], "2 elements hold a mask's fill value on both sides and are measured by themselves"),
        ([FILL, 1, 1], [-np.inf, 1, 1], "1 places hold -inf on one side and a mask's fill value on the other"),
        (
            [0, 1, 1],
            [0.5, 1, 1],
            "1 elements are 0 or subnormal in the reference only: errors relative to single elements leave them out",
        ),
    ],
)
def test_what_the_metrics_leave_out_is_told_once(reference, target, said):
    assert remarks(reference, target)[1] == (said,)


def test_what_found_no_partner_is_counted_and_not_called_equal():
    found, said = remarks([NAN, 1, FILL], [1, NAN, 1])
    assert (found["nonfinite_mismatch"], found["sentinel_mismatch"]) == (2, 1)
    assert said == ()


def test_warnings_come_in_one_order():
    _, said = remarks([NAN, FILL, 0], [NAN, FILL, 1])
    assert [text.split(" ", 1)[1][:12] for text in said] == ["NaN or Inf, ", "elements hol", "elements are"]


def test_of_nothing_there_is_nothing_to_say():
    assert set(counts(Summary()).values()) == {0}
    assert warnings(Summary()) == ()
