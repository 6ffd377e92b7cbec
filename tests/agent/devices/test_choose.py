import pytest

from precflow.agent import devices
from precflow.agent.contract import DEVICE_KINDS, list_modules
from precflow.agent.devices import choose as module
from precflow.agent.devices.choose import DEVICES, choose
from precflow.agent.failures import AgentError


class Fake:
    """A device that is here, or not."""

    name = "fake"

    def __init__(self, kind, reason=""):
        self.kind = kind
        self.reason = reason

    def missing(self):
        return self.reason


@pytest.fixture
def machine(monkeypatch):
    """Return a function that decides which devices are here."""

    def have(*kinds):
        for kind in DEVICES:
            monkeypatch.setitem(module.DEVICES, kind, Fake(kind, "" if kind in kinds else f"no {kind} here"))

    return have


def test_a_file_alone_adds_a_device(tmp_path, monkeypatch):
    text = "class Abacus:\n    name = kind = 'abacus'\n    def missing(self):\n        return ''\nDEVICE = Abacus()\n"
    (tmp_path / "abacus.py").write_text(text)
    monkeypatch.setattr(devices, "__path__", [*devices.__path__, str(tmp_path)])
    assert list_modules(str(tmp_path)) == ("abacus",)
    monkeypatch.setattr(module, "DEVICES", module.find_devices([*DEVICE_KINDS, "abacus"]))
    assert choose(["npu", "abacus"], ci=False).kind == "abacus"


def test_the_first_that_is_here(machine):
    machine("cpu", "emulated", "cuda")
    assert choose(["npu", "emulated"], ci=False).kind == "emulated"
    assert choose(["cuda", "cpu"], ci=False).kind == "cuda"


def test_npu_alone_means_hardware_and_the_message_says_what_would_work(machine):
    machine("cpu", "emulated")
    with pytest.raises(AgentError, match=r"no device for target\.device=npu here\. npu: no npu here") as caught:
        choose(["npu"], ci=False)
    assert caught.value.kind == "device_missing"
    assert "target.device=emulated" in caught.value.next_step


def test_what_would_not_work_is_not_offered(machine):
    machine("cpu")
    with pytest.raises(AgentError) as caught:
        choose(["npu"], ci=False, side="reference")
    assert caught.value.next_step == "this would work here: reference.device=cpu"


def test_every_reason_is_given(machine):
    machine("cpu")
    with pytest.raises(AgentError, match=r"device=\[npu,emulated\] here. npu: no npu here; emulated: no emulated here"):
        choose(["npu", "emulated"], ci=False)


def test_ci_never_falls_back_to_the_emulation(machine):
    machine("cpu", "emulated")
    with pytest.raises(AgentError, match="not taken in CI unless it is named alone"):
        choose(["npu", "emulated"], ci=True)
    assert choose(["emulated"], ci=True).kind == "emulated"


def test_an_unknown_name_offers_a_near_one():
    with pytest.raises(
        AgentError, match=r"unknown device 'cdua'; known are cpu, cuda, emulated, npu\. Did you mean cuda"
    ) as caught:
        choose(["cdua"], ci=False)
    assert caught.value.kind == "bad_request"


def test_a_later_unknown_name_is_found_too():
    with pytest.raises(AgentError, match="unknown device 'tpux'"):
        choose(["cpu", "tpux"], ci=False)


def test_an_empty_list_is_refused():
    with pytest.raises(AgentError, match="empty list"):
        choose([], ci=False)


def test_every_kind_that_a_recipe_may_name_is_a_device():
    assert tuple(DEVICES) == DEVICE_KINDS
