import math

import numpy as np
import pandas as pd
import pytest

from precflow.comparison.measure import Measure
from precflow.curves.outcome import CurveOutcome, Point
from precflow.judgement.verdicts import STATUSES, Judged
from precflow.report import frames
from precflow.report.highlights import SEVERITY
from precflow.report.row import Row


def row_of(record, *, module="layers.0", operator="", phase="forward", status="pass", metrics=None, **decided):
    measure = Measure(record, "the name", module, operator, "module", phase, 0, "paired", metrics=metrics or {})
    return Row(measure, Judged(record, status, **decided), "agrees")


def test_a_metric_is_a_column_and_one_that_a_record_lacks_is_no_number(misaligned):
    table = frames.make_record_frame(misaligned.rows, ["relative_l2", "ulp_distance"])
    assert len(table) == len(misaligned.rows)
    assert table.index.is_unique
    moving = np.array([row.measure.movement for row in misaligned.rows])
    assert moving.any()
    assert table["relative_l2"].isna().tolist() == moving.tolist()
    kept = [row.measure.metrics["relative_l2"] for row in misaligned.rows if not row.measure.movement]
    assert table["relative_l2"].dropna().tolist() == kept
    assert {str(table[name].dtype) for name in ("relative_l2", "ulp_distance", "value", "limit", "ratio")} == {"float64"}


def test_units_stand_beside_the_numbers(misaligned):
    table = frames.make_record_frame(
        misaligned.rows[:3], ["relative_l2", "max_abs_error", "ulp_distance", "sign_flips"], {"run": 3}
    )
    numbers = [name for name in table if table[name].dtype == "float64"]
    assert set(table.attrs["units"]) == set(numbers)
    assert [table.attrs["units"][name] for name in ("relative_l2", "max_abs_error", "ulp_distance", "sign_flips")] == [
        "share",
        "unit of the tensor",
        "ulp",
        "own",
    ]
    assert table.attrs["run"] == 3


def test_the_worst_status_is_the_least():
    rows = [row_of("m/forward.output.0", status=status) for status in STATUSES]
    table = frames.make_record_frame(rows, [])
    assert table["status"].min() == "fail"
    assert table.sort_values("status")["status"].tolist() == list(SEVERITY)


def test_records_of_one_name_in_training_are_told_apart():
    records = {
        "layers.0/gradient.output.weight@2.1": ("gradient", 2, 1, 0, "layers.0.weight", ""),
        "layers.0/optimizer.output.weight.exp_avg@2.1": ("optimizer", 2, 1, 0, "layers.0.weight", "exp_avg"),
        "layers.0~3/linear.2/forward.output.0@1.0": ("forward", 1, 0, 3, None, None),
        "layers.0/linear.2/forward.output.0": ("forward", 0, 0, 0, None, None),
    }
    rows = [row_of(record, phase=place[0], operator="linear" * ("linear" in record)) for record, place in records.items()]
    table = frames.make_record_frame(rows, [])
    columns = ["phase", "step", "rank", "call", "parameter", "state"]
    made = [tuple(None if pd.isna(value) else value for value in one) for one in table[columns].astype(object).to_numpy()]
    assert made == [tuple(value or None if value == "" else value for value in place) for place in records.values()]
    assert table["ordinal"].tolist() == [0, 0, 2, 2]


def test_the_model_itself_has_a_name_and_a_value_has_no_place():
    rows = [row_of("(model)/forward.output.0", module=""), row_of("a/b", module="", phase="")]
    table = frames.make_record_frame(rows, [])
    assert table["module"].isna().tolist() == [False, True]
    assert table["module"][0] == "(model)"
    assert table["step"].tolist() == [0, 0]


def test_infinity_and_no_number_stay_what_they_are():
    numbers = {"relative_l2": math.inf, "max_abs_error": math.nan}
    row = row_of("m/forward.output.0", metrics=numbers, metric="relative_l2", value=math.inf, limit=0.1, ratio=math.nan)
    table = frames.make_record_frame([row], ["relative_l2", "max_abs_error"])
    assert table["relative_l2"][0] == table["value"][0] == math.inf
    assert table[["max_abs_error", "ratio"]].isna().all(axis=None)


@pytest.mark.parametrize("make", [frames.make_finding_frame, frames.make_curve_frame, frames.make_group_frame])
def test_of_nothing_there_is_a_table_without_rows_and_its_columns_have_types(make):
    table = make([])
    assert table.empty
    assert "object" not in {str(kind) for kind in table.dtypes}


def test_findings_are_rows(misaligned):
    table = frames.make_finding_frame(misaligned.findings)
    assert table["rule"].tolist() == ["PF214", "PF102"]
    assert table["certainty"].min() == "certain"
    assert "argument eps: 1e-05 (reference), 0.001 (target)" in table["evidence"][0]


def test_curves_are_joined_by_step_with_their_difference():
    points = (Point(0, 2.0, 2.5, 0.5), Point(5, 0.0, 1.0, 1.0), Point(9, math.nan, 1.0, math.nan))
    table = frames.make_curve_frame([CurveOutcome("loss", "aligned", points=points, logged={"reference": 10, "target": 9})])
    assert table["step"].tolist() == [0, 5, 9]
    assert table["difference"].tolist()[:2] == [0.5, 1.0]
    assert table["relative"].tolist()[:2] == [0.25, math.inf]
    assert table.iloc[2][["difference", "relative"]].isna().all()
    assert table.attrs["logged"] == {"loss": {"reference": 10, "target": 9}}
