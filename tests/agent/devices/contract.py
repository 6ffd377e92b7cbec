"""What every device must do, run in a process of its own: ``python contract.py emulated``.

Prints ``missing: ...`` where the device is not here, ``fulfilled`` where it does all of it.
"""

import sys

import torch

from precflow.agent.devices.choose import DEVICES


def check(kind):
    device = DEVICES[kind]
    assert device.kind == kind
    reason = device.missing()
    assert isinstance(reason, str)
    if reason:
        return "missing: " + reason
    where = device.start()
    assert isinstance(where, torch.device)
    assert where.type == device.name
    check_seed(device, where)
    check_facts(device)
    return "fulfilled"


def check_seed(device, where):
    device.seed(7)
    first = torch.rand(64, device=where)
    device.seed(7)
    second = torch.rand(64, device=where)
    device.seed(8)
    third = torch.rand(64, device=where)
    device.synchronize()
    assert first.device.type == device.name
    assert torch.equal(first.cpu(), second.cpu())
    assert not torch.equal(first.cpu(), third.cpu())


def check_facts(device):
    before = device.facts()
    device.deterministic("native")
    assert device.facts() == before, "native changes nothing"
    for algorithms in ("warn", "strict"):
        device.deterministic(algorithms)
    found = device.facts()
    assert found.description
    assert ("emulated" in found.description.lower()) == (device.kind == "emulated")
    for part in (found.versions, found.switches):
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in part.items())


if __name__ == "__main__":
    sys.stdout.write(check(sys.argv[1]) + "\n")
