"""The status of one record, by its tensors and by less: less evidence gives the same status, or none."""

import datetime
import math
from dataclasses import replace

import evidence
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.measure import Measure
from precflow.comparison.reading import count_classes
from precflow.config.schema import Accepted, Tolerance, ToleranceRule
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.decision import Terms, decide, deciding_dtype, find_conditions
from precflow.judgement.limits import ratio

NOBODY = AcceptedDifferences((), datetime.date.max)
WRONG = {"fail", "nonfinite"}
LEAST = ("digest", "statistics", "sketch")
SPECIAL = (np.nan, np.inf, -np.inf, float(np.finfo(np.float32).min), -1e9, 0.0)


def status(run, record, **more):
    return run([record], **more)[0][0]


def test_the_coarsest_type_decides(measure):
    terms = Terms("float32", "float16", [standards.load("default")], Tolerance())
    record = measure(reference_dtype="float32", target_dtype="float32")
    assert deciding_dtype(record, terms) == "float16"
    assert [condition.limit for condition in find_conditions(record, terms).conditions] == [2**-8]
    assert deciding_dtype(measure(target_dtype="bfloat16"), terms) == "bfloat16"


@pytest.mark.parametrize(
    ("reference", "target", "expected"),
    [
        ("float32", "float16", "pass"),
        ("float32", "float32", "pass"),  # an operator that computes in float32 inside a float16 run
        ("float16", "float16", "pass"),
        ("float16", "float32", "dtype"),
        ("float32", "bfloat16", "dtype"),
        ("float32", "float64", "dtype"),
        ("float32", "int64", "pass"),  # inside the model the values decide
        ("float64", "float16", "dtype"),
    ],
)
def test_types_that_the_recipe_implies(measure, run, reference, target, expected):
    record = measure(reference_dtype=reference, target_dtype=target)
    judged = status(run, record, dtypes=("float32", "float16"))
    assert judged.status == expected
    assert (f"{target} on the target" in judged.reason) == (expected == "dtype")


def test_of_whole_numbers_inside_the_model_the_values_decide_and_not_the_kind_of_type(measure, run):
    """A histogram of token counts is float32 on the CPU and int32 on an NPU."""
    equal = {"relative_l2": 0.0, "max_abs_error": 0.0}
    types = {"reference_dtype": "float32", "target_dtype": "int32", "metrics": equal}
    same, output = measure(**types, operator="histc"), measure(**types, operator="")
    other = measure(**(types | {"metrics": {"relative_l2": 0.1, "max_abs_error": 1.0}}), operator="histc")
    found = [status(run, one, dtypes=("float32", "float32")).status for one in (same, output, other)]
    assert found == ["pass", "dtype", "fail"]


@pytest.mark.parametrize(
    ("value", "expected"), [(2**-16, "pass"), (2**-16 * 1.0001, "fail"), (0.0, "pass"), (math.inf, "fail"), (math.nan, "fail")]
)
def test_the_limit_itself_passes(measure, run, value, expected):
    judged = status(run, measure(relative_l2=value))
    assert judged.status == expected
    assert (judged.metric, judged.standard, judged.limit) == ("relative_l2", "default", 2**-16)
    assert (judged.reason == "") == (expected == "pass")


def test_a_plain_limit_never_loosens(measure, run):
    assert status(run, measure(relative_l2=1e-3), tolerance=Tolerance(relative_l2=0.01)).status == "fail"
    tight = status(run, measure(relative_l2=1e-6), tolerance=Tolerance(relative_l2=1e-7))
    assert (tight.status, tight.standard) == ("fail", "tolerance")
    assert "is 10 times its limit 1e-07 (tolerance)" in tight.reason


def test_at_least_metrics(measure, run):
    judged = status(run, measure(relative_l2=0.1), tolerance=Tolerance(standards=(), cosine_similarity=0.999))
    assert judged.status == "fail"
    assert judged.ratio == pytest.approx(5)
    assert "cosine_similarity 0.995 is below its limit 0.999" in judged.reason


def test_the_first_rule_that_matches_replaces_the_metrics_it_names(measure, run):
    rules = (
        ToleranceRule(match="*.mlp", relative_l2=0.01, because="known"),
        ToleranceRule(match="*", relative_l2=1e-9),
    )
    tolerance = Tolerance(rules=rules, cosine_similarity=0.9999)
    loose = status(run, measure(relative_l2=5e-3), tolerance=tolerance)
    assert (loose.status, loose.standard) == ("pass", "*.mlp")
    strict = status(run, measure("other", relative_l2=1e-8), tolerance=tolerance)
    assert (strict.status, strict.standard) == ("fail", "*")
    still = status(run, measure(relative_l2=5e-3), tolerance=Tolerance(rules=rules, cosine_similarity=0.99999999))
    assert (still.status, still.metric) == ("fail", "cosine_similarity")


def test_a_rule_on_allclose_replaces_the_standards_form_of_it(measure, run):
    record = measure(metrics={"allclose_share": 0.9, "allclose_share_float32": 0.9})
    assert status(run, record, tolerance=Tolerance(standards=("allclose",))).status == "fail"
    rule = ToleranceRule(match="*", allclose_share=0.8, because="ties")
    assert status(run, record, tolerance=Tolerance(standards=("allclose",), rules=(rule,))).status == "pass"


def test_equal_nonfinite_values_pass(measure, run):
    counts = {"elements": 6, "nonfinite": 2, "nonfinite_mismatch": 0}
    assert status(run, measure(counts=counts)).status == "pass"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"elements": 0}, "no element"),
        ({"elements": 6, "nonfinite": 6}, "every element is NaN"),
        ({"elements": 6, "nonfinite": 2, "sentinel": 4}, "mask's fill"),
    ],
)
def test_nothing_ordinary_is_blind(measure, run, counts, said):
    judged = status(run, measure(counts=counts, metrics={"bitwise_equal": 1.0}))
    assert judged.status == "blind"
    assert said in judged.reason


def test_a_record_without_any_limit_is_blind(measure, run):
    judged = status(run, measure(metrics={"relative_l2": 0.0}), tolerance=Tolerance(standards=(), kl_divergence=0.001))
    assert (judged.status, judged.reason) == ("blind", "no limit applies to it")


def test_a_blind_limit_can_still_be_failed(measure, run):
    wide = Tolerance(standards=(), relative_l2=0.2)
    assert status(run, measure(relative_l2=0.3), tolerance=wide).status == "fail"
    blind = status(run, measure(relative_l2=0.01), tolerance=wide)
    assert blind.status == "blind"
    assert "so wide that nothing could fail: relative_l2 <= 0.2" in blind.reason
    same_bits = measure(metrics={"relative_l2": 0.0, "bitwise_equal": 1.0})
    assert status(run, same_bits, tolerance=wide).status == "pass"
    assert status(run, measure(relative_l2=0.0), tolerance=wide).status == "blind"  # 0 and -0 have other bits


def test_one_telling_condition_is_enough(measure, run):
    tolerance = Tolerance(standards=(), relative_l2=0.2, cosine_similarity=0.9999)
    judged = status(run, measure(relative_l2=1e-4), tolerance=tolerance)
    assert (judged.status, judged.metric) == ("pass", "cosine_similarity")


def test_mask_fills_without_a_partner_fail_in_words(measure, run):
    judged = status(run, measure(counts={"elements": 6, "sentinel": 3, "sentinel_mismatch": 3}))
    assert judged.status == "fail"
    assert "3 mask fill values stand against ordinary numbers" in judged.reason
    judged = status(run, measure(counts={"elements": 6, "sentinel": 1, "sentinel_mismatch": 1}))
    assert "1 mask fill value stands against an ordinary number" in judged.reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"equal": True, "metrics": {"bitwise_equal": 1.0}}, "pass"),
        ({"metrics": {"bitwise_equal": 1.0, "max_abs_error": 0.0}}, "pass"),  # tensors without content ids
        ({"metrics": {"bitwise_equal": 0.0, "max_abs_error": 1.0}}, "fail"),
        ({"metrics": {"bitwise_equal": 0.0}}, "fail"),  # other content ids, and nothing else was kept
        ({"metrics": {}, "ranges": {"max_abs_error": (0.0, 3.0)}}, "undecided"),
        ({"metrics": {}, "ranges": {"max_abs_error": (1.0, 3.0)}}, "fail"),
        ({"target_dtype": "int32", "metrics": {"bitwise_equal": 0.0}}, "dtype"),
        ({"join": "shape", "metrics": {}}, "shape"),
    ],
)
def test_integers_have_to_be_equal(measure, run, changes, expected):
    ids = {"judged": False, "exact": True, "reference_dtype": "int64", "target_dtype": "int64", **changes}
    assert status(run, measure(**ids)).status == expected


def test_token_ids_that_are_off_by_one_make_a_run_misaligned(measure, run):
    metrics = {"bitwise_equal": 0.0, "max_abs_error": 1.0}
    ids = measure("", "", judged=False, exact=True, reference_dtype="int64", target_dtype="int64", metrics=metrics)
    judged, verdict = run([measure(), ids])
    assert judged[1].reason == "int64 values differ, by at most 1; they have to be equal"
    assert (verdict.verdict, verdict.reasons) == ("misaligned", ("1 record has other integers or booleans, first ",))
    assert (verdict.compared, verdict.total) == (2, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"reference_dtype": "bool", "target_dtype": "bool", "metrics": {"bitwise_equal": 0.0, "max_abs_error": 1.0}},
        {"metrics": {"bitwise_equal": 0.0, "max_abs_error": 3.0}, "ranges": {"max_abs_error": (1.0, 3.0)}},
        {"metrics": {"bitwise_equal": 0.0}},
    ],
    ids=["booleans", "estimated", "unknown"],
)
def test_no_distance_is_told_where_it_says_nothing_or_is_not_known(measure, run, changes):
    ids = {"judged": False, "exact": True, "reference_dtype": "int64", "target_dtype": "int64", **changes}
    assert status(run, measure(**ids)).reason == f"{ids['reference_dtype']} values differ; they have to be equal"


def test_integers_that_differ_can_be_accepted(measure, run):
    ids = measure(judged=False, exact=True, reference_dtype="int64", target_dtype="int64", metrics={"bitwise_equal": 0.0})
    assert status(run, ids, accepted=[Accepted(match="*", because="sampled")]).status == "accepted"
    limited = [Accepted(match="*", relative_l2=1.0, because="noise")]
    assert status(run, ids, accepted=limited).status == "fail"


@pytest.mark.parametrize(
    ("movement", "said"), [(True, "data movement"), (False, "integers or booleans that need not be equal")]
)
def test_what_is_not_judged(measure, run, movement, said):
    judged = status(run, measure(judged=False, movement=movement, join="shape"))
    assert judged.status == "not_judged"
    assert said in judged.reason


def sketched(measure, value, **changes):
    """Return a record whose error was estimated from sketches."""
    plain = {"metrics": {"relative_l2": value}, "ranges": {"relative_l2": (0.75 * value, value / 0.75)}}
    return measure(**{**plain, "evidence": "sketch", "absent": {"max_rel_error": "needs single elements"}, **changes})


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "pass"), (0.74, "pass"), (0.76, "undecided"), (1.0, "undecided"), (1.32, "undecided"), (1.34, "fail")],
)
def test_a_sketch_decides_nothing_near_a_limit(measure, run, share, expected):
    judged = status(run, sketched(measure, share * 2**-16))
    assert judged.status == expected
    assert (judged.metric, judged.ratio) == ("relative_l2", pytest.approx(share))
    assert ("too near to its limit" in judged.reason) == (expected == "undecided")
    assert ("relative_l2 about" in judged.reason) == (expected == "fail")


def test_a_metric_that_was_not_kept_is_undecided_and_never_a_pass(measure, run):
    judged = status(run, sketched(measure, 1e-9), tolerance=Tolerance(max_rel_error=0.1))
    assert judged.status == "undecided"
    assert judged.reason == "max_rel_error is unavailable: needs single elements"


def test_a_metric_that_fails_outweighs_one_that_was_not_kept(measure, run):
    judged = status(run, sketched(measure, 1.0), tolerance=Tolerance(max_rel_error=0.1))
    assert (judged.status, judged.metric) == ("fail", "relative_l2")


def test_bounds_may_fail_a_record_and_say_at_least(measure, run):
    judged = status(run, measure(metrics={}, evidence="statistics", ranges={"relative_l2": (0.5, 2.0)}))
    assert judged.status == "fail"
    assert judged.reason.startswith("relative_l2 at least 0.5 is")


def test_bounds_that_hold_a_limit_leave_it_undecided(measure, run):
    judged = status(run, measure(metrics={}, evidence="statistics", ranges={"relative_l2": (0.0, 2.0)}))
    assert judged.status == "undecided"
    assert "between 0 and 2 by its statistics" in judged.reason


def test_fills_that_cannot_match_fail_without_any_number(measure, run):
    counts = {"elements": 6, "sentinel": 2, "nonfinite": 0, "sentinel_mismatch": 2}
    absent = {"relative_l2": "the sides leave out different elements"}
    assert status(run, measure(metrics={}, absent=absent, counts=counts)).status == "fail"


@settings(max_examples=200)
@given(
    known=st.dictionaries(st.sampled_from(["relative_l2", "cosine_similarity", "max_abs_error"]), st.floats(0, 1), max_size=3),
    bounded=st.dictionaries(
        st.sampled_from(["relative_l2", "cosine_similarity", "max_abs_error"]), st.tuples(st.floats(0, 1), st.floats(0, 1))
    ),
    limits=st.dictionaries(st.sampled_from(["relative_l2", "cosine_similarity", "max_abs_error"]), st.floats(0, 1), min_size=1),
)
def test_nothing_passes_that_some_value_within_its_range_would_fail(known, bounded, limits):
    ranges = {name: (min(pair), max(pair)) for name, pair in bounded.items()}
    names = ("relative_l2", "cosine_similarity", "max_abs_error")
    record = Measure("r", "a", "a", "", "module", "forward", 0, "paired", reference_dtype="float32", target_dtype="float32")
    record = replace(
        record,
        counts={"elements": 6},
        metrics=known,
        ranges=ranges,
        absent={name: "was not kept" for name in names if name not in known and name not in ranges},
    )
    terms = Terms("float32", "float32", [], Tolerance(**limits))
    judged = decide(record, terms, AcceptedDifferences((), datetime.date.max)).judged
    worst = [ratio(name, end, limits[name]) for name in limits for end in ranges.get(name, (known.get(name, math.nan),))]
    best = [min(ratio(name, end, limits[name]) for end in ranges.get(name, (known.get(name, math.nan),))) for name in limits]
    assert (judged.status in {"pass", "blind"}) <= all(share <= 1 for share in worst)
    sure = [share for name, share in zip(limits, best, strict=True) if name not in record.absent]
    assert (judged.status == "fail") == any(share > 1 for share in sure)


def status_under(measure, tolerance):
    terms = Terms("float32", "float16", [standards.load(name) for name in tolerance.standards], tolerance)
    return decide(measure, terms, NOBODY).judged.status


def pairs(left, right, detail):
    """Return the measure by a detail, and the measure by the tensors."""
    known = evidence.measured(left, right, (detail, detail))
    summary = summarize(left, right)
    whole = replace(
        known, metrics=measure_all(summary), counts=count_classes(summary), ranges={}, absent={}, evidence="tensors"
    )
    return known, whole


@settings(max_examples=200, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(1,), (40,), (30, 60), (2, 11, 64), (1100, 8)]),
    types=st.sampled_from([("float32", "float32"), ("float32", "float16"), ("float16", "float16")]),
    error=st.floats(-8, 1).map(lambda power: 10.0**power),
    special=st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(SPECIAL), st.integers(0, 2)), max_size=2),
    detail=st.sampled_from(LEAST),
    tolerance=st.sampled_from(
        [
            Tolerance(),
            Tolerance(standards=("default", "allclose")),
            Tolerance(standards=(), cosine_similarity=0.9999),
            Tolerance(standards=(), max_abs_error=0.01),
            Tolerance(standards=(), worst_row_error=0.01, mean_abs_error=0.001),
            Tolerance(standards=(), ulp_distance=4),
        ]
    ),
)
def test_less_evidence_never_says_otherwise(seed, shape, types, error, special, detail, tolerance):
    rng = np.random.default_rng(seed)
    both = [rng.standard_normal(shape)] * 2
    both[1] = both[0] + error * rng.standard_normal(shape)
    for place, value, where in special:
        for number, array in enumerate(both):
            if where in (number, 2):
                array.reshape(-1)[place % array.size] = value
    with np.errstate(over="ignore"):
        left, right = (array.astype(NUMPY_DTYPES[name]) for array, name in zip(both, types, strict=True))
    known, whole = pairs(left, right, detail)
    found, true = status_under(known, tolerance), status_under(whole, tolerance)
    assert found in {"pass", "undecided", "blind", *WRONG}
    if found in {"pass", "blind"}:
        assert true in {"pass", "blind"}
    if found in WRONG:
        assert true in WRONG


@pytest.mark.parametrize(("detail", "decided"), [("digest", 0), ("statistics", 0), ("sketch", 17)])
def test_how_much_each_detail_decides_of_clean_noise(detail, decided):
    rng = np.random.default_rng(5)
    found = []
    for power in np.linspace(-9, -1, 20):
        left = rng.standard_normal((40, 80)).astype(np.float32)
        right = (left + 10**power * rng.standard_normal(left.shape)).astype(np.float32)
        if np.array_equal(left, right):
            continue
        found.append(status_under(pairs(left, right, detail)[0], Tolerance()))
    assert len(found) - found.count("undecided") >= decided
