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


def test_of_a_board_firmware_and_compatibility_are_read_and_no_serial_number(tmp_path, tool, monkeypatch):
    said = "NPU ID : 0\n Serial Number   : 025VLB10K7000275\n Software Version : 25.5.0\n"
    tool("npu-smi", said + " Firmware Version                : 7.1.0.4.218\n Compatibility : NOK\n")
    driver = tmp_path / "version.info"
    driver.write_text("Version=25.5.0\ncompatible_version_fw=[7.0.0,7.7.99]\n")
    monkeypatch.setitem(machine._DRIVERS, "ascend_driver", str(driver))
    state = machine.collect(str(tmp_path))
    assert state["npu_board"] == {"firmware": "7.1.0.4.218", "compatibility": "NOK"}
    assert (state["ascend_driver"], state["ascend_firmware_range"]) == ("25.5.0", ["7.0.0", "7.7.99"])
    assert "025VLB" not in json.dumps({name: value for name, value in state.items() if name != "npu_smi"})


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
