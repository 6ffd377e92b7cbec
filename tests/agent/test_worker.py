import json

import pytest
import torch

from precflow.agent import request as requests
from precflow.agent import worker
from precflow.agent.failures import AgentError
from precflow.dumps.formats import read_dump

pytestmark = pytest.mark.usefixtures("restored", "forgotten")


def refused(plain, events):
    with pytest.raises(AgentError) as caught:
        worker.run(requests.parse(plain), events)
    return caught.value


def test_environment_writes_facts_with_the_device_that_was_taken(asked, events, tmp_path):
    worker.run(requests.parse(asked(action="environment", device=["cuda", "cpu"])), events)
    facts = json.loads((tmp_path / "output" / "facts.json").read_text())
    assert facts["device"]["kind"] in ("cuda", "cpu")
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["facts.json"]
    assert any(event["text"].endswith("of cuda, cpu") for event in events.lines())


def test_output_must_be_a_folder(asked, events, tmp_path):
    assert "is not a folder" in refused(asked(output=str(tmp_path / "absent")), events).message


def test_an_old_torch_is_refused(asked, events, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.13.1+cu117")
    error = refused(asked(), events)
    assert (error.kind, error.message) == ("unsupported", "torch 1.13.1+cu117 is too old; expected 2.1 or newer")


def test_a_missing_torch_is_said(asked, events, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    error = refused(asked(), events)
    assert "cannot import torch" in error.message
    assert "pip install 'torch>=2.1'" in error.next_step


def test_faults_need_the_emulated_device(asked, events):
    error = refused(asked(emulate={"name": "reorder", "rules": [{"rule": "noise"}]}), events)
    assert "emulate rules (reorder) need the emulated device; device of target is cpu" in error.message
    assert error.next_step == "target.device=emulated"


@pytest.mark.parametrize("way", ["kept", "eager"])
def test_a_compiled_model_is_recorded_at_its_boundary_or_runs_as_it_was_written(asked, events, tmp_path, way):
    workload = {"model": {"_target_": "toy_workload.compiled"}, "inputs": {"_target_": "toy_workload.pair"}, "mode": "train"}
    worker.run(requests.parse(asked(workload=workload, capture={"compiled": way})), events)
    dump = read_dump(tmp_path / "output")
    modules = {call.module for call in dump.calls() if not call.operator}
    inside = {"linear", "norm", "dropout"}
    assert modules == ({""} if way == "kept" else {"", *inside})
    assert dump.header.compiled.unseen == ({"": len(inside)} if way == "kept" else {})
    assert dump.header.compiled.eager == (() if way == "kept" else ("",))
    assert ("compiled" in dump.header.changes) == (way == "eager")
    assert set(dump.header.inputs.entries) == {"features", "scale"}
    assert set(dump.header.weights.entries) == {"linear.weight", "linear.bias", "norm.weight", "norm.bias", "seen"}
    assert dump.header.determinism["dropouts_removed"] == ["dropout"]


def test_a_device_that_does_not_start_is_missing(asked, events, monkeypatch):
    from precflow.agent.devices.cpu import Cpu

    def broken(self):
        raise RuntimeError("driver too old")

    monkeypatch.setattr(Cpu, "start", broken)
    error = refused(asked(), events)
    assert (error.kind, error.message) == ("device_missing", "device cpu does not start: driver too old")
