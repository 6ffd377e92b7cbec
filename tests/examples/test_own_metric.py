"""The example of a metric of one's own, and the class that its documentation shows."""

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "03_own_metric"


@pytest.fixture
def sign_flips():
    spec = importlib.util.spec_from_file_location("our_metrics", EXAMPLE / "our_metrics.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SignFlips


def test_it_counts_what_it_says(sign_flips):
    whole, first, second = sign_flips(0.5), sign_flips(0.5), sign_flips(0.5)
    reference, target = np.array([1.0, -1.0, 0.1, 2.0]), np.array([-1.0, -1.0, -0.1, 3.0])
    whole.update(reference, target)
    first.update(reference[:1], target[:1])
    second.update(reference[1:], target[1:])
    first.merge(second)
    assert whole.value() == first.value() == 0.25
    assert sign_flips().value() == 0.0


def test_it_needs_nothing_of_precflow():
    assert "precflow" not in re.sub(r'""".*?"""', "", (EXAMPLE / "our_metrics.py").read_text(), flags=re.DOTALL)


def test_the_class_of_the_documentation_works():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(block, names)
    metric, other = names["Largest"](2.0), names["Largest"](2.0)
    metric.update(np.zeros(3), np.array([1.0, -3.0, 2.0]))
    other.update(np.zeros(1), np.array([8.0]))
    metric.merge(other)
    assert metric.value() == 4.0


@pytest.mark.slow
def test_a_metric_that_raises_leaves_the_run_inconclusive(tmp_path, warm_server):
    for file in EXAMPLE.glob("*.*"):
        shutil.copy(file, tmp_path)
    text = (tmp_path / "our_metrics.py").read_text()
    (tmp_path / "our_metrics.py").write_text(
        text.replace("        told =", '        raise OSError("no licence")\n        told =')
    )
    environment = {**os.environ, "PRECFLOW_TRUST": "our_metrics,our_workload"}
    code, _, said = warm_server.run(["+recipe=two_layers.yaml"], cwd=tmp_path, env=environment, timeout=300)
    assert code == 3, said
    assert "sign_flips is unavailable: it raised OSError: no licence" in said
    result = json.loads((tmp_path / "runs" / "two_layers" / "public" / "result.json").read_text())
    assert result["verdict"]["verdict"] == "inconclusive"
