"""Artifacts come back as they were written, and say so where they do not."""

import dataclasses
import json
import math
import tracemalloc

import numpy as np
import pytest

from precflow.comparison.measure import Measure
from precflow.errors import StoreError
from precflow.judgement.verdicts import Verdict
from precflow.metrics import METRICS
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


@pytest.mark.parametrize("change", [{"more": 1}, {"counts": None}, {"verdict": 3}, {"coverage": "1.0"}, {"warnings": {}}])
def test_a_value_with_another_key_or_type_is_refused(tmp_path, change):
    artifacts.write_value(tmp_path / "v.json", Verdict("aligned", counts={"pass": 2}))
    data = json.loads((tmp_path / "v.json").read_text())
    (tmp_path / "v.json").write_text(json.dumps({key: item for key, item in (data | change).items() if item is not None}))
    with pytest.raises(StoreError, match="is not a Verdict"):
        artifacts.read_value(tmp_path / "v.json", Verdict)


@pytest.mark.parametrize("value", [1.5, math.inf])
@pytest.mark.parametrize("change", [{"more": 1}, {"site": None}, {"order": "3"}, {"order": 3.5}, {"metrics": {"rmse": "0"}}])
def test_a_line_with_another_key_or_type_is_refused(tmp_path, change, value):
    artifacts.write_lines(tmp_path / "m.jsonl", [dataclasses.replace(MEASURE, share=value)])
    data = json.loads((tmp_path / "m.jsonl").read_text())
    (tmp_path / "m.jsonl").write_text(json.dumps({key: item for key, item in (data | change).items() if item is not None}))
    with pytest.raises(StoreError, match="is not a Measure"):
        artifacts.read_lines(tmp_path / "m.jsonl", Measure)


def test_numbers_of_numpy_are_numbers(tmp_path):
    artifacts.write_lines(tmp_path / "m.jsonl", [dataclasses.replace(MEASURE, share=np.float64(0.5), order=np.int64(3))])
    assert artifacts.read_lines(tmp_path / "m.jsonl", Measure) == [dataclasses.replace(MEASURE, share=0.5)]


def test_plain_lines_are_read_as_python_reads_them(tmp_path):
    plain = [{"a": 5e-324, "b": [1.7976931348623157e308, -0.0, 2**70]}, "\u00e4\U0001f600", None, {"1": {}}]
    path = tmp_path / "lines.jsonl"
    artifacts.write_lines(path, plain)
    assert repr(artifacts.read_json_lines(path)) == repr(plain)
    path.write_text('{"a": NaN}\n\n[1e400, "\\ud800"]\n')  # what Python's json reads and others do not
    assert repr(artifacts.read_json_lines(path)) == repr([{"a": float("nan")}, [float("inf"), "\ud800"]])
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(StoreError, match=r"lines\.jsonl:2 is damaged"):
        artifacts.read_json_lines(path)


def test_a_file_is_read_once_where_stages_follow_each_other(tmp_path):
    asked = []

    def read(path):
        asked.append(path)
        return object()

    assert artifacts.read_once(read, tmp_path) is not artifacts.read_once(read, tmp_path)
    with artifacts.cache_reads():
        with artifacts.cache_reads():
            found = artifacts.read_once(read, tmp_path)
        assert artifacts.read_once(read, tmp_path) is found
        assert artifacts.read_once(read, tmp_path / "other") is not found
    assert artifacts.read_once(read, tmp_path) is not found
    assert len(asked) == 5


def test_missing_file_is_said(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        artifacts.read_value(tmp_path / "absent.json", Verdict)


def test_nothing_half_written_stays(tmp_path):
    artifacts.write_value(tmp_path / "v.json", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["v.json"]


def test_thousands_of_measures_are_read_in_little_memory(tmp_path):
    metrics = {name: 1.0 / place for place, name in enumerate(METRICS, start=3)}
    counts = {"elements": 16, "ordinary": 16, "small": 0, "sentinel": 0, "nonfinite": 0}
    common = {"metrics": metrics, "counts": counts, "reference_shape": (2, 8), "target_shape": (2, 8), "site": "model.py:12"}
    every = [
        dataclasses.replace(MEASURE, record=f"layers.{number}/mlp.0/linear.0/api.forward.output.0@0.0", order=number, **common)
        for number in range(3_000)
    ]
    artifacts.write_lines(tmp_path / "m.jsonl", every)
    before = artifacts.read_lines(tmp_path / "m.jsonl", Measure)  # Python's table of texts grows by doubling: not below
    tracemalloc.start()
    try:
        read = artifacts.read_lines(tmp_path / "m.jsonl", Measure)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert before == read == every
    assert taken < 1_000 * len(read)  # some 700 bytes each; with dictionaries and texts of its own, each took 3 200
    assert read[0].counts is read[-1].counts
    assert read[0].reference_shape is read[-1].reference_shape


def test_lines_longer_than_a_piece_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "_PIECE", 100)
    infinite = dataclasses.replace(MEASURE, metrics={"max_rel_error": math.inf})
    artifacts.write_lines(tmp_path / "m.jsonl", [MEASURE, infinite, MEASURE])
    assert artifacts.read_lines(tmp_path / "m.jsonl", Measure) == [MEASURE, infinite, MEASURE]
    text = (tmp_path / "m.jsonl").read_text()
    (tmp_path / "m.jsonl").write_text(text + "{}\n")
    with pytest.raises(StoreError, match="4 is not a Measure"):
        artifacts.read_lines(tmp_path / "m.jsonl", Measure)
