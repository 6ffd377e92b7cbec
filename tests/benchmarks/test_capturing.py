"""The benchmark of capture measures what it says: real captures of real work, and curves that can be read."""

import importlib.util
import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / "capturing" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def case(tmp_path, warm_server):
    """Return a function that runs a program of the benchmark and returns what it says."""

    def run(program, **asked):
        words = {"subject": "small", "folder": str(tmp_path), "rounds": 1, "calls": 200, **asked}
        command = (FOLDER / "capturing" / program, json.dumps(words))
        code, out, err = warm_server.run(command, cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    return run


@pytest.mark.slow
@pytest.mark.parametrize("detail", ["statistics", "tensors"])
def test_a_case_captures_every_call_and_leaves_a_dump(case, tmp_path, detail):
    found = case("ours.py", detail=detail, level="api")
    assert found["calls"] == 200
    assert found["captured"] > found["plain"] > 0
    assert 2 <= found["files"] <= 10
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "dump").rglob("*") if path.is_file())
    assert json.loads((tmp_path / "dump" / "dump.json").read_text())["counts"]["calls"] == 200


def test_the_curve_has_a_point_for_each_value_and_rises_with_it():
    text = loaded("curves").curve("t <1>", "calls", "us", {"ours": [(1000, 40), (64_000, 42)], "peer": [(1000, 530)]})
    root = ET.fromstring(text)
    circles = [(float(point.get("cx")), float(point.get("cy"))) for point in root.iter(f"{SVG}circle")]
    assert len(circles) == 3
    assert circles[0][0] < circles[1][0]
    assert circles[0][1] > circles[2][1]
    assert root.find(f"{SVG}title").text == "t <1>"


def test_a_bare_recorder_sees_each_tensor_once_and_its_gradient(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    bare, seen = loaded("bare"), []
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    inputs = torch.randn(2, 4)
    recorder = bare.Bare(lambda tensor: seen.append(tuple(tensor.shape)))
    for _ in range(2):
        seen.clear()
        recorder.step(model, lambda: model(inputs).sum().backward())
        assert sorted(seen) == [(2, 3)] * 4 + [(2, 4)]
        assert (recorder.tensors, recorder.bytes) == (5, 4 * (4 * 6 + 8))
    model(inputs)
    assert len(seen) == 5


def test_a_bare_recorder_reads_or_writes_all_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    bare = loaded("bare")
    extremes, sums, norms = bare.reductions(torch.ones(4, 512))
    assert (extremes.max.item(), sums.tolist(), norms.tolist()) == (1.0, [512.0] * 4, [pytest.approx(512**0.5)] * 4)
    assert bare.reductions(torch.ones(5, 3))[1].tolist() == [3.0] * 5
    assert bare.reductions(torch.ones(3, dtype=torch.int64)) is None
    values = torch.arange(6, dtype=torch.float32).view(2, 3)
    with (tmp_path / "bytes").open("wb") as file:
        bare.writing(file.fileno())(values.t())
        bare.writing(file.fileno())(torch.empty(0))
    assert (tmp_path / "bytes").read_bytes() == values.t().contiguous().numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("detail", ["statistics", "tensors"])
def test_a_case_of_the_bare_recorder_has_a_ratio(case, tmp_path, detail):
    found = case("bare.py", detail=detail, level="module")
    assert found["ratio"] > 0
    assert found["tensors"] == 1 + 200 // 20
    assert found["bytes"] == 4 * 64 * found["tensors"] == (tmp_path / "bytes").stat().st_size or detail == "statistics"
