"""The state of a machine, with a toolkit and tools of drivers that tests have made."""

import json
import socket
import sys

import pytest

from precflow.agent import worker
from precflow.agent.failures import AgentError
from precflow.agent.session import machine


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a program of a driver first in the path, which prints a text and ends with a code."""

    def make(name, text, code=0):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({code})\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return make


def test_the_state_is_plain_data_without_processes(tmp_path, tool):
    tool(
        "npu-smi",
        "| npu-smi 24.1.rc3   Version: 24.1.rc3 |\n| NPU  Chip  | Process id | Process name |\n| 0  0 | 77 | secret_job |",
    )
    tool("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    state = machine.collect(str(tmp_path))
    assert "24.1.rc3" in state["npu_smi"]["text"]
    assert "secret_job" not in json.dumps(state)
    assert state["nvidia_smi"]["code"] == 18
    assert abs(state["clock"]["now"] - state["clock"]["disk"]) < 60


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("version.cfg", "# version: 1.0\nruntime_running_version=[7.3.0.1:8.0.0] (8.0.0)\n", "8.0.0"),
        ("compiler/version.info", "Version=8.0.RC3\n", "8.0.RC3"),
        ("notes.txt", "", "unknown"),
    ],
)
def test_the_toolkit_says_its_version(tmp_path, monkeypatch, name, text, version):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{tmp_path}/lib64")
    state = machine.collect(str(tmp_path))
    assert state["cann"] == version
    assert state["toolkit"] == {"home": str(tmp_path), "sourced": True, "in_library_path": True, "atb": False}


def test_a_port_that_is_taken_is_named(monkeypatch):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(machine, "HCCL_PORTS", 1)
        assert machine._try_ports(str(port))["taken"] == [port]


def test_a_torch_that_breaks_in_its_import_is_a_reason_and_no_crash(monkeypatch, tmp_path):
    class Broken:
        """Finder under which torch fails as it does beside a torch_npu without its libraries."""

        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise RuntimeError("Failed to load the backend extension: torch_npu.") from ImportError("libhccl.so")

    class Silent:
        """Events that go nowhere."""

        def time_part(self, *_):
            import contextlib

            return contextlib.nullcontext()

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(AgentError, match=r"torch does not load here: Failed to load the backend .*libhccl\.so"):
        worker.import_torch(Silent())
