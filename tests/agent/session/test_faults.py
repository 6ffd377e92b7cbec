"""Faults need the emulated device, which stays in its process: each dump is an agent's, in a process of its own."""

import json
import os
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("emulation")

LINEAR_OFF = {"operator": "addmm", "rule": "scale", "factor": 1.01, "module": "linear"}
REDRAWN = {"rule": "redraw", "parameter": "linear.weight"}


@pytest.fixture
def dumped(written, tmp_path, warm_server):
    """Return a function that lets an agent dump the toy and returns the finished process and the header."""

    def make(**changes):
        path = written(determinism={"algorithms": "native", "repeat": False}, **changes)
        ended = warm_server.run([path], module="precflow.agent", cwd=tmp_path, env=dict(os.environ), timeout=120)
        done = SimpleNamespace(**dict(zip(("returncode", "stdout", "stderr"), ended, strict=True)))
        header = tmp_path / "output" / "dump.json"
        return done, json.loads(header.read_text()) if header.exists() else {}

    return make


def tensors(header):
    return {name: seal["index"] for name, seal in header["files"].items() if name.endswith("safetensors")}


def test_faults_of_the_emulated_device(dumped):
    _, on_cpu = dumped(device=["cpu"])
    _, exact = dumped(device=["emulated"])
    assert on_cpu["device"]["emulated"] is False
    assert exact["device"] == {**exact["device"], "name": "npu", "kind": "emulated", "emulated": True}
    assert tensors(exact) == tensors(on_cpu), "without rules it is the CPU, bit by bit"

    done, faulty = dumped(device=["emulated"], emulate={"name": "two", "rules": [LINEAR_OFF, REDRAWN]})
    assert done.returncode == 0, done.stderr
    assert faulty["emulate"] == {"name": "two", "rules": [LINEAR_OFF, REDRAWN], "redrawn": ["linear.weight"]}
    entries = exact["weights"]["entries"]
    assert [name for name in entries if faulty["weights"]["entries"][name] != entries[name]] == ["linear.weight"]
    assert tensors(faulty) != tensors(exact)


def test_a_rule_changes_what_the_model_computes_and_not_its_weights(dumped):
    _, exact = dumped(device=["emulated"])
    _, scaled = dumped(device=["emulated"], emulate={"name": "scaled", "rules": [LINEAR_OFF]})
    assert scaled["weights"] == exact["weights"]
    assert scaled["content"] != exact["content"]


def test_a_wrong_rule_is_a_bad_request(dumped):
    done, _ = dumped(device=["emulated"], emulate={"name": "typo", "rules": [{"rule": "scael"}]})
    assert done.returncode == 2
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["kind"] == "bad_request"
    assert "scael" in last["message"]


def test_a_fault_that_finds_nothing_is_refused(dumped):
    elsewhere = {**LINEAR_OFF, "module": "encoder.layers.40.*"}
    done, header = dumped(device=["emulated"], emulate={"name": "elsewhere", "rules": [elsewhere]})
    assert done.returncode == 2
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["message"].endswith("none of that name; it has norm, linear, dropout")
    assert last["next_step"] == "choose one:  emulate.rules.0.module=norm"
    assert header == {}
    beside = {"name": "two", "rules": [LINEAR_OFF, {**REDRAWN, "parameter": "head.weight"}]}
    done, _ = dumped(device=["emulated"], emulate=beside)  # one rule that acts does not hide one that has no place
    assert "emulate.rules.1.parameter=linear.weight" in done.stdout
    never = {**LINEAR_OFF, "operator": "convolution"}
    done, _ = dumped(device=["emulated"], emulate={"name": "never", "rules": [never]})
    assert "matched nothing that ran" in done.stdout
