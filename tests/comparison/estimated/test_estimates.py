"""What is said of pairs of which not both tensors were kept: true, and never more than was kept."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.agent.contract import DETAILS
from precflow.comparison.estimated import estimates
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.dumps.dtypes import FLOATS, NUMPY_DTYPES
from precflow.errors import DumpError
from precflow.metrics import METRICS

RNG = np.random.default_rng(23)
LEFT = RNG.standard_normal((60, 70)).astype(np.float32)
RIGHT = (LEFT + 1e-3 * RNG.standard_normal((60, 70))).astype(np.float32)
LOW = np.finfo(np.float32).min


@pytest.mark.parametrize("details", list(itertools.product(DETAILS, DETAILS)))
def test_every_metric_is_a_number_a_range_or_absent_with_a_reason(evidence, details):
    if details == ("tensors", "tensors"):
        return
    found = evidence.measured(LEFT, RIGHT, details)
    true = measure_all(summarize(LEFT, RIGHT))
    unknown = {"kl_divergence"} if "digest" in details else set()  # whether a value is negative
    assert {*found.metrics, *found.ranges, *found.absent} == true.keys() | unknown
    assert found.absent.keys().isdisjoint({*found.metrics, *found.ranges})
    assert all(found.absent.values())
    assert found.evidence == min(details, key=DETAILS.index)
    assert found.metrics["bitwise_equal"] == 0.0
    for name, (low, high) in found.ranges.items():
        assert low * (1 - 1e-6) - 1e-12 <= true[name] <= high * (1 + 1e-6) + 1e-12, name


@pytest.mark.parametrize("details", [("sketch", "sketch"), ("sketch", "tensors"), ("tensors", "sketch")])
def test_sketches_estimate_what_follows_from_the_norm_of_the_difference(evidence, details):
    found, true = evidence.measured(LEFT, RIGHT, details), measure_all(summarize(LEFT, RIGHT))
    assert found.metrics.keys() == {"cosine_similarity", "relative_l2", "rmse", "bitwise_equal"}
    assert found.metrics["relative_l2"] == pytest.approx(true["relative_l2"], rel=0.16)
    assert "relative_l2" in found.ranges


@pytest.mark.parametrize("details", [("statistics", "statistics"), ("sketch", "statistics"), ("tensors", "statistics")])
def test_statistics_bound_and_estimate_nothing(evidence, details):
    found = evidence.measured(LEFT, RIGHT, details)
    assert found.metrics.keys() == {"bitwise_equal"}
    low, high = found.ranges["relative_l2"]
    assert low < 1e-3
    assert high > 1


def test_a_content_id_alone_says_only_that_something_differs(evidence):
    found = evidence.measured(LEFT, RIGHT, ("digest", "tensors"))
    assert (found.join, found.evidence, found.metrics, found.ranges) == ("paired", "digest", {"bitwise_equal": 0.0}, {})
    assert "content id only" in found.absent["relative_l2"]
    assert found.counts == {"elements": LEFT.size}


def test_equal_content_is_exact_whatever_was_kept(evidence):
    found = evidence.measured(LEFT, LEFT, ("digest", "statistics"), ("same", "same"))
    assert (found.evidence, found.ranges, found.absent) == ("digest", {}, {})
    assert found.metrics["relative_l2"] == 0.0
    assert found.metrics["bitwise_equal"] == found.metrics["cosine_similarity"] == found.metrics["allclose_share"] == 1.0
    assert found.counts["elements"] == LEFT.size


def test_equal_content_without_any_ordinary_number_is_told_from_statistics(evidence):
    nothing = np.full((3, 4), np.nan, np.float32)
    found = evidence.measured(nothing, nothing, ("sketch", "sketch"), ("same", "same"))
    assert found.counts == {"elements": 12, "sentinel": 0, "nonfinite": 12}
    assert "12 NaN or Inf" in found.warnings[0]


def test_without_a_content_id_and_a_number_nothing_was_kept(evidence):
    found = evidence.measured(LEFT, RIGHT, ("digest", "digest"), ("", ""))
    assert (found.join, found.metrics) == ("sampled_out", {})
    assert found.reason == "the reference and target kept no tensor of it"


def test_nonfinite_values_on_one_side_are_a_certain_mismatch(evidence):
    broken = RIGHT.copy()
    broken[3, 4:6] = np.nan
    found = evidence.measured(LEFT, broken, ("statistics", "statistics"))
    assert found.counts["nonfinite_mismatch"] == found.counts["nonfinite"] == 2
    assert found.ranges == {}


def test_a_mask_that_was_dropped_is_a_certain_mismatch(evidence):
    masked = LEFT.copy()
    masked[:, 3:9] = LOW
    assert evidence.measured(masked, RIGHT).counts["sentinel_mismatch"] == 360
    assert evidence.measured(masked, np.roll(masked, 1, axis=1)).counts["sentinel_mismatch"] > 0


def test_fills_at_equal_places_leave_the_rest_comparable(evidence):
    one, other = LEFT.copy(), RIGHT.copy()
    one[:, 3:9], other[:, 3:9] = LOW, -np.inf
    found, true = evidence.measured(one, other), measure_all(summarize(one, other))
    assert found.metrics["relative_l2"] == pytest.approx(true["relative_l2"], rel=0.16)
    assert (found.counts["infinity_for_sentinel"], found.counts["nonfinite"], found.counts["sentinel"]) == (360, 360, 0)
    assert "360 places" in found.warnings[0]


def test_fills_whose_places_were_not_kept_leave_nothing_comparable(evidence):
    one, other = LEFT.copy(), RIGHT.copy()
    one[:, 3], other[:, 3] = LOW, LOW
    first, second = evidence.Dump(one, "sketch", "c1").counted(places=None), evidence.Dump(other, "sketch", "c2")
    found = estimates.estimate_pair(evidence.paired(first, second), first.record, second.record, first, second)
    assert "places were not kept" in found.absent["relative_l2"]
    assert found.ranges == {}


def test_different_parts_of_a_tensor_are_not_compared(evidence):
    first, second = evidence.Dump(LEFT, "sketch", "c1", share=0.5), evidence.Dump(RIGHT, "sketch", "c2", share=0.25)
    pair = evidence.paired(first, second)
    assert estimates.needs_estimate(pair, first.record, second.record)
    found = estimates.estimate_pair(pair, first.record, second.record, first, second)
    assert "different parts" in found.absent["relative_l2"]


def test_what_cannot_be_read_is_unreadable(evidence):
    first, second = evidence.Dump(LEFT, "tensors", "c1"), evidence.Dump(RIGHT, "sketch", "c2")

    def torn(record):
        raise DumpError(f"the shard of {record.content} is cut")

    first.tensor = torn
    found = estimates.estimate_pair(evidence.paired(first, second), first.record, second.record, first, second)
    assert (found.join, found.reason, found.metrics) == ("unreadable", "reference: the shard of c1 is cut", {})


def test_two_stored_tensors_are_not_measured_here(evidence):
    first, second = evidence.Dump(LEFT, "tensors", "c1"), evidence.Dump(RIGHT, "tensors", "c2")
    assert not estimates.needs_estimate(evidence.paired(first, second), first.record, second.record)


SPECIAL = st.sampled_from([np.nan, np.inf, -np.inf, LOW, -1e9, 65504.0, 1e-44, 0.0, 2e38])


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(), (0,), (1,), (0, 3), (700,), (9, 80), (2, 3, 40)]),
    types=st.tuples(*[st.sampled_from([*FLOATS, "complex64"])] * 2),
    details=st.tuples(*[st.sampled_from(DETAILS)] * 2).filter(lambda pair: pair != ("tensors", "tensors")),
    special=st.lists(st.tuples(st.integers(0, 700), SPECIAL, st.integers(0, 2)), max_size=3),
    error=st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
)
def test_nothing_is_said_that_the_tensors_refute(evidence, seed, shape, types, details, special, error):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    pair = [values.copy(), values * (1 + error * rng.standard_normal(shape))]
    for place, value, where in special if values.size else ():
        for number, array in enumerate(pair):
            if where in (number, 2):
                array.reshape(-1)[place % values.size] = value
    with np.errstate(over="ignore", invalid="ignore"):
        left, right = (array.astype(NUMPY_DTYPES[name]) for array, name in zip(pair, types, strict=True))
    found = evidence.measured(left, right, details)
    summary = summarize(left, right)
    true = measure_all(summary)
    mismatched = summary.nonfinite_mismatch + summary.sentinel_mismatch
    if found.counts.get("nonfinite_mismatch", 0) + found.counts.get("sentinel_mismatch", 0):
        assert mismatched or summary.other_fill
    if found.ranges:
        assert not mismatched
        assert found.counts["elements"] == summary.elements
    for name, (low, high) in found.ranges.items():
        if name in true and found.evidence != "sketch":
            room = 1e-9 + (1e-5 * abs(true[name]) if np.isfinite(true[name]) else 0.0)
            assert low - room <= true[name] <= high + room, name
    assert found.metrics.keys() | found.ranges.keys() <= METRICS.keys()


@pytest.mark.parametrize("detail", ["statistics", "sketch"])
def test_rows_of_metrics_say_what_is_known_without_tensors(evidence, detail):
    values, noise = np.random.default_rng(0).standard_normal((2, 2000)).astype(np.float32)
    found = evidence.measured(np.abs(values), np.abs(values) + np.float32(1e-3) * noise, (detail, detail))
    known = {name for name, metric in METRICS.items() if metric.source == "statistics"} - {"allclose_share_float64"}
    assert found.ranges.keys() | found.metrics.keys() - {"bitwise_equal"} == known
    guessed = {name for name, metric in METRICS.items() if metric.estimated} if detail == "sketch" else set()
    assert found.metrics.keys() - {"bitwise_equal"} == guessed
