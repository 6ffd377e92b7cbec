"""The benchmark of capture measures what it says: real captures of real work, and curves that can be read."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / "capturing" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case(tmp_path, **changes):
    words = {"subject": "small", "detail": "statistics", "level": "api", "folder": str(tmp_path), "rounds": 1, "calls": 200}
    command = [sys.executable, FOLDER / "capturing" / "ours.py", json.dumps(words | changes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("detail", ["digest", "statistics", "sketch", "tensors"])
def test_a_case_captures_every_call_and_leaves_a_dump(tmp_path, detail):
    found = case(tmp_path, detail=detail)
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
