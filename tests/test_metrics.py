import inspect
import re
from pathlib import Path

import pytest

from precflow.comparison import formulas
from precflow.comparison.fused.close_tolerances import RUNGS
from precflow.config.checks import COLUMNS
from precflow.config.key_tree import fields, without_none
from precflow.config.schema import Limits, Ulp
from precflow.metrics import LIMITED, METRICS, find_metric

DOCS = Path(__file__).parents[1] / "docs" / "metrics.md"
WITHOUT_TENSORS = {"content ids": "whether it is 1 or 0", "statistics": "range", "tensors": ""}


def documented(metric):
    where = "limit, column" if metric.name in LIMITED else "column" if metric.name in COLUMNS else "limits of standards"
    without = "estimate, range" if metric.estimated else WITHOUT_TENSORS[metric.source]
    return f"| `{metric.name}` | {metric.meaning} | {metric.formula} | {metric.direction} | {where} | {without} |"


def test_the_documentation_has_the_rows():
    table = re.search(r"\| metric \|.*?\n\|---.*?\n(.*?)\n\n", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert table[1].splitlines() == [documented(metric) for metric in METRICS.values()]


def test_each_row_has_one_function_of_its_name():
    written = {
        name
        for name, member in inspect.getmembers(formulas, inspect.isfunction)
        if member.__module__ == formulas.__name__ and not name.startswith("_")
    }
    assert written - {"measure_all", "find_peak"} == {name for name, metric in METRICS.items() if not metric.dtype}


def test_there_is_an_allclose_share_for_each_type_with_tolerances():
    assert tuple(metric.dtype for metric in METRICS.values() if metric.dtype) == tuple(RUNGS)


def test_recipes_have_a_key_for_each_metric_with_an_example():
    assert tuple(fields(Limits)) == (*LIMITED, "metrics")
    assert without_none(fields(Limits)["ulp_distance"]) is Ulp
    assert Limits(relative_l2=0.5).relative_l2 == 0.5
    assert Limits().cosine_similarity is None


def test_shares_that_should_be_large_mean_at_least():
    assert {name for name, metric in METRICS.items() if metric.at_least} == {
        "cosine_similarity",
        "share_within_one_thousandth",
        "share_within_five_thousandths",
        "allclose_share",
        *(f"allclose_share_{dtype}" for dtype in RUNGS),
        "bitwise_equal",
    }


def test_a_metric_of_the_users_is_an_error_that_is_never_blind():
    metric = find_metric("sign_flips")
    assert metric.direction == "at most"
    assert not metric.is_relative
    assert not metric.is_blind(1e9, 24)
    assert metric.family == "sign_flips"


def test_forms_by_type_are_of_one_family():
    assert find_metric("allclose_share_float16").family == find_metric("allclose_share").family == "allclose_share"
    assert find_metric("rmse").family == "rmse"


@pytest.mark.parametrize(
    ("name", "limit", "digits", "blind"),
    [
        ("relative_l2", 0.1, 24, True),
        ("relative_l2", 0.1, 8, False),
        ("cosine_similarity", 0.995, 24, True),
        ("cosine_similarity", 0.996, 24, False),
        ("ulp_distance", 0.5 * 2**7, 8, True),
        ("ulp_distance", 0.5 * 2**7 - 1, 8, False),
        ("allclose_share", 0.0, 24, True),
        ("allclose_share", 0.01, 24, False),
        ("max_abs_error", 1e30, 24, False),
    ],
)
def test_a_limit_is_blind_from_a_line_on(name, limit, digits, blind):
    assert find_metric(name).is_blind(limit, digits) is blind
