import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precflow.comparison.fused.close_tolerances import RUNGS
from precflow.config.checks import COLUMNS
from precflow.config.key_tree import fields, without_none
from precflow.config.schema import Limits, Ulp
from precflow.metrics import LIMITED, METRICS, find_metric, list_metrics

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "metrics.md"
WITHOUT_TENSORS = {"content ids": "whether it is 1 or 0", "statistics": "range", "tensors": ""}


def documented(metric):
    where = "limit, column" if metric.name in LIMITED else "column" if metric.name in COLUMNS else "limits of standards"
    without = "estimate, range" if metric.estimated else WITHOUT_TENSORS[metric.source]
    return f"| `{metric.name}` | {metric.meaning} | {metric.formula} | {metric.direction} | {where} | {without} |"


def test_the_documentation_has_the_rows():
    table = re.search(r"\| metric \|.*?\n\|---.*?\n(.*?)\n\n", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert table[1].splitlines() == [documented(metric) for metric in METRICS.values()]


PEAK = '''
"""Metric ``peak_error``: the largest difference over the largest reference."""

from precflow.metrics import Metric

METRIC = Metric(
    "peak_error", "Largest difference over the largest reference", "largest abs d / largest abs y", example="1%", place=85
)


def compute(summary):
    """Return it, of one."""
    return summary.difference_max / summary.largest_reference
'''
USED = """
import precflow
from precflow.verbs.ls import main

result = precflow.compare([1.0, -4.0], [1.0, -3.5], standard=None, peak_error="10%")
print(result)
main(["metric"])
"""


def test_a_new_metric_is_one_file_which_no_other_has_to_name(tmp_path):
    for name in ("conf", "templates", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "precflow", tmp_path / "precflow", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "precflow" / "comparison" / "metrics" / "peak_error.py").write_text(PEAK)
    paths = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", USED], env=paths, capture_output=True, text=True, cwd=tmp_path)
    assert "peak_error 0.125 is 1.25 times its limit 0.1" in done.stdout, done.stderr
    assert re.search(r"^ peak_error +Largest difference over the largest reference: at most", done.stdout, re.MULTILINE)


def test_a_module_without_its_row_is_named(tmp_path):
    (tmp_path / "rmse.py").write_text('METRIC = Metric("other", "", "")\n')
    with pytest.raises(TypeError, match=r"rmse.py has no METRIC = Metric\('rmse'"):
        list_metrics(tmp_path)


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
