"""Artifacts come back as they were written, and say so where they do not."""

import math

import pytest

from precflow.comparison.measures import Measure
from precflow.errors import StoreError
from precflow.judgement.verdicts import Verdict
from precflow.stages import artifacts

MEASURE = Measure(
    record="a/linear.0/forward.output.0", name="a / linear", module="a", operator="linear", level="api", phase="forward",
    order=3, join="paired", reference_shape=(2, 3), metrics={"relative_l2": math.inf, "rmse": 0.5}, counts={"elements": 6},
    arguments={"eps": ("1e-05", "1e-03")}, warnings=("名\u2028\x85",),
)  # fmt: skip


def test_lines_come_back(tmp_path):
    artifacts.write_lines(tmp_path / "m.jsonl", [MEASURE, MEASURE])
    assert artifacts.read_lines(tmp_path / "m.jsonl", Measure) == [MEASURE, MEASURE]


def test_nan_comes_back(tmp_path):
    artifacts.write_value(tmp_path / "v.json", {"value": math.nan})
    assert math.isnan(artifacts.read_plain(tmp_path / "v.json")["value"])


def test_value_comes_back(tmp_path):
    verdict = Verdict("aligned", counts={"pass": 2}, coverage=1.0, standards={"default": True})
    artifacts.write_value(tmp_path / "v.json", verdict)
    assert artifacts.read_value(tmp_path / "v.json", Verdict) == verdict


@pytest.mark.parametrize("text", ["{", '{"verdict": ', '"aligned"', '{"counts": {}}'])
def test_damage_is_said(tmp_path, text):
    (tmp_path / "v.json").write_text(text)
    with pytest.raises(StoreError, match=r"v\.json"):
        artifacts.read_value(tmp_path / "v.json", Verdict)


def test_missing_file_is_said(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        artifacts.read_value(tmp_path / "absent.json", Verdict)


def test_nothing_half_written_stays(tmp_path):
    artifacts.write_value(tmp_path / "v.json", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["v.json"]
