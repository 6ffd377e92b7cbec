"""The script that runs one call without precflow."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.nn import functional

from precflow.diagnosis.advice import repro
from precflow.diagnosis.advice.repro import write_repro
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.findings import Suspect

torch.manual_seed(2)
X, W = torch.randn(6, 8), torch.rand(8) + 0.5
NORM = {"normalized_shape": "(8,)", "eps": "1e-05"}


@pytest.fixture
def observed(hand_made):
    """Return a function that observes one operator, given as right and wrong output and inputs by index."""

    def of(operator, right, wrong, inputs, arguments=None, wrong_arguments=None, **options):
        import msgspec

        sides = []
        for value, texts in ((right, arguments), (wrong, wrong_arguments or arguments)):
            dump = hand_made()
            given = [{"value": one} for one in inputs.values()]
            call = dump.operator("b", operator, *given, value=value, arguments=texts or {}, **options)
            records = [msgspec.structs.replace(one, index=index) for one, index in zip(call.inputs, inputs, strict=True)]
            dump.tensors.update({one.text: value for one, value in zip(records, inputs.values(), strict=True)})
            dump.made[0] = msgspec.structs.replace(call, inputs=tuple(records))
            sides.append(dump)
        call = sides[0].made[0]
        (found,) = observe(*sides, [Suspect(call.outputs[0].text, call.name, "b", operator, 0, 3.0, "because")])
        return found

    return of


AS_ERRORS = """
import runpy, sys, warnings
warnings.simplefilter("error")
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.fixture
def run(warm_server, tmp_path):
    """Return a function that runs the script from elsewhere, without its folder on the path and with warnings as errors."""
    (tmp_path / "as_errors.py").write_text(AS_ERRORS)

    def said(folder):
        words = [tmp_path / "as_errors.py", folder / "repro.py"]
        code, text, wrong = warm_server.run(words, cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
        assert code == 0, wrong
        return text

    return said


def run_as_a_stranger(folder):
    """Run the script in an interpreter of its own, as somebody without precflow would."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(folder / "repro.py")],
        capture_output=True, text=True, cwd=folder.parent, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_layer_norm_runs_alone_and_shows_the_recorded_error(observed, tmp_path):
    right, wrong = (functional.layer_norm(X, (8,), W, None, epsilon).numpy() for epsilon in (1e-5, 1e-1))
    inputs = {"0": X.numpy(), "2": W.numpy()}
    assert write_repro(observed("layer_norm", right, wrong, inputs, NORM), tmp_path / "repro")
    said = run_as_a_stranger(tmp_path / "repro").splitlines()
    assert said[0].startswith("layer_norm")
    alone, recorded = (float(line.rpartition("float64 ")[2]) for line in said[-2:])
    assert alone < 1e-6
    assert 1e-2 < recorded < 1


def test_another_argument_of_the_target_is_an_error_against_the_reference(observed, tmp_path, run):
    right, wrong = (functional.layer_norm(X, (8,), W, None, epsilon).numpy() for epsilon in (1e-5, 1e-1))
    inputs = {"0": X.numpy(), "2": W.numpy()}
    assert write_repro(observed("layer_norm", right, wrong, inputs, NORM, {**NORM, "eps": "0.1"}), tmp_path / "repro")
    alone, recorded = (float(line.rpartition("float64 ")[2]) for line in run(tmp_path / "repro").splitlines()[-2:])
    assert alone == pytest.approx(recorded, rel=1e-3)


def test_bfloat16_and_lists_of_tensors_run(observed, tmp_path, run):
    one, other = (value.numpy().astype(ml_dtypes.bfloat16) for value in (X, X + 1))
    value = np.concatenate([one, other], 1)
    assert write_repro(observed("cat", value, value, {"0.0": one, "0.1": other}, {"dim": "1"}), tmp_path / "repro")
    assert "error against float64 0" in run(tmp_path / "repro")


def test_what_cannot_run_alone_has_no_script(observed, tmp_path, monkeypatch):
    value = X.numpy()
    assert not write_repro(observed("relu", value, value, {"0": value}, phase="backward"), tmp_path / "repro")
    assert not write_repro(observed("", value, value, {"0": value}), tmp_path / "repro")
    assert not write_repro(observed("abs", value, value, {"0": value.astype(np.complex64)}), tmp_path / "repro")
    monkeypatch.setattr(repro, "LARGEST", 100)
    assert not write_repro(observed("relu", value, value, {"0": value}), tmp_path / "repro")
    assert not (tmp_path / "repro").exists()
