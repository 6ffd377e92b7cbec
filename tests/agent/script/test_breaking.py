"""A side that crashes, hangs or ends in silence: which call it had begun, and where in the script."""

import os

import pytest

from precflow.config.schema import Side
from precflow.errors import SideError
from precflow.sides.launch import Agents, run_agent

SCRIPT = """
import os, signal, time, torch

class Breaking(torch.nn.Module):
    def forward(self, x):
        if step == 1:
            BREAKS
        return torch.relu(x)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 2), Breaking())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def agents():
    pool = Agents()
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("breaks", "timeout", "message", "kind"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", 0, "was killed by SIGSEGV", "crash"),
        ("os._exit(0)", 0, "ended without a result", "silence"),
        ("time.sleep(600)", 4, "did not finish within 4 s", "hang"),
    ],
)
def test_the_last_call_is_named(script, tmp_path, agents, breaks, timeout, message, kind):
    output = tmp_path / "dump"
    output.mkdir()
    request = {
        "schema": 1,
        "action": "dump",
        "side": "target",
        "output": str(output),
        "device": ["cpu"],
        "workload": {"script": script(SCRIPT.replace("BREAKS", breaks))},
        "determinism": {"seed": 0, "algorithms": "native", "dropout": "kept", "repeat": False},
        "capture": {"step": [0, 1], "detail": "digest"},
        "parent": os.getpid(),
    }
    with pytest.raises(SideError) as failed:
        run_agent(request, side=Side(), folder=output, variables={}, timeout=timeout, agents=agents)
    assert message in failed.value.message
    assert "the last call that it began: 1 (forward of step 1) at train.py:15 in <module>" in failed.value.message
    broke = failed.value.breakdown
    assert broke.kind == kind
    assert dict(broke.rows()) == {
        "phase": "forward of step 1",
        "module": "1 (Breaking)",
        "line": "train.py:15 in <module>",
        "given": "0 float32 [3, 2]",
        "last record": "0/forward.output.0@1.0",
    }
