"""The driver of the emulated device fails as a real one does, and writes logs of the levels that are asked for."""

import pytest
import torch

from precflow.agent.emulated import driver, rules
from precflow.agent.session.failed_call import describe_failure


@pytest.fixture
def planted(npu):
    """Return a function that has an operator of the device fail, until the test ends."""
    yield lambda how: rules.configure([{"operator": "sigmoid", "rule": "fail", "how": how}])
    rules.configure([])


def raised(work):
    try:
        work()
    except (RuntimeError, NotImplementedError) as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_operator_without_a_kernel(planted):
    planted("operator")
    found = describe_failure(raised(lambda: torch.ones(3, device="npu").sigmoid()))
    assert (found["missing"], found["missing_in"]) == ("aten::sigmoid", "NPU")


def test_a_full_memory_and_what_is_alive_on_the_device(planted):
    planted("memory")
    activations = torch.ones(500, 100, device="npu")
    model = torch.nn.Sequential(torch.nn.Linear(2000, 100), torch.nn.Sigmoid()).to("npu")
    error = raised(lambda: model(torch.ones(1, 2000, device="npu")))
    memory = describe_failure(error, tops=[("net", model)])["memory"]
    assert (memory["device"], memory["asked"]) == ("npu", "1.00 MiB")
    assert memory["largest"][0]["name"] == "weight net.0.weight"
    assert memory["bytes"] >= 800_000 + activations.nbytes
    rules.configure([{"operator": "sigmoid_backward", "rule": "fail", "how": "memory"}])
    found = describe_failure(raised(lambda: model(torch.ones(1, 2000, device="npu")).sum().backward()))
    assert (found["phase"], found["memory"]["device"]) == ("backward", "npu")


@pytest.mark.parametrize(("level", "lines"), [("0", 4), ("2", 3), ("3", 2), ("", 2)])
def test_the_log_has_the_levels_that_are_asked_for(planted, tmp_path, monkeypatch, level, lines):
    planted("device")
    monkeypatch.setenv("ASCEND_PROCESS_LOG_PATH", str(tmp_path))
    monkeypatch.setenv("ASCEND_GLOBAL_LOG_LEVEL", level)
    assert "error code is 507011" in str(raised(lambda: torch.ones(3, device="npu").sigmoid()))
    (log,) = tmp_path.glob("debug/plog/plog-*.log")
    assert len(log.read_text(encoding="utf-8").splitlines()) == lines


def test_an_unknown_way_is_refused(planted):
    with pytest.raises(ValueError, match="how must be one of operator, memory"):
        planted("other")
    assert "hang" in driver.WAYS
