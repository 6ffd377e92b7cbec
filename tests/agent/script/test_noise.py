"""A script that is disturbed makes the same steps, with errors as large as the rounding of the types that it computes in."""

import json

import pytest

from precflow.agent.contract import NOISES
from precflow.comparison.compare import compare

AUTOCAST = """
import json, sys, torch
torch.manual_seed(0)
data = torch.randn(8, 16) / 3.0
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
first = [data.sum().item(), *(float(weight.sum()) for weight in model.parameters())]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(data).float().square().mean()
    loss.backward()
    optimizer.step()
json.dump([first, step], open(sys.argv[1], "w"))
BREAKS
"""
CAPTURE = {"detail": "tensors", "weights": "left_out"}


@pytest.fixture(scope="module")
def path(shared_script):
    return shared_script(AUTOCAST.replace("BREAKS", ""))


@pytest.mark.parametrize("noise", NOISES)
def test_errors_are_as_large_as_the_types_that_it_computes_in(path, watch, watched_once, noise):
    plain = watched_once(path, capture=CAPTURE)
    disturbed = watch(path, capture=CAPTURE, action="noise", noise=noise, workload={"stop_early": True})
    assert disturbed.code == 0, disturbed.log
    outcome = json.loads((disturbed.folder / "noise.json").read_text())
    assert (outcome["problem"], outcome["noises"]) == ("", [noise])
    measures = {one.record: one for one in compare(plain.dump, disturbed.dump)}
    assert {one.join for one in measures.values()} == {"paired"}
    gradient = measures["0/gradient.output.weight"]
    assert gradient.reference_dtype == "float32"
    # Made of products in bfloat16. One unit of a float32 weight is lost there, and so is the order of a sum of few terms.
    assert (2**-16 if noise == "jitter" else 0) <= gradient.metrics["relative_l2"] < 2**-4
    assert {call.step for call in disturbed.dump.calls()} == {0, 1}
    assert disturbed.wrote is None  # it was stopped after its last recorded step


def test_data_and_first_weights_are_those_of_the_plain_run(path, watch, watched_once):
    plain, disturbed = watched_once(path, capture=CAPTURE), watch(path, action="noise", noise="jitter")
    assert disturbed.wrote == plain.wrote
    assert disturbed.dump.header.weights == plain.dump.header.weights


def test_a_script_that_does_not_run_so_leaves_the_reason(script, watch):
    seen = watch(script(AUTOCAST.replace("BREAKS", "raise ValueError('too far off')")), action="noise", noise="chunks")
    assert seen.code == 0, seen.log
    assert "ValueError: too far off" in json.loads((seen.folder / "noise.json").read_text())["problem"]


def test_what_is_compiled_cannot_be_disturbed(script, watch):
    seen = watch(script(AUTOCAST), action="noise", noise="jitter", workload={"compile": "kept"})
    assert "compiled" in json.loads((seen.folder / "noise.json").read_text())["problem"]


CONSTRUCTED = """
import json, sys, torch
from torch.nn.utils.parametrizations import spectral_norm
torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 8)
        width = self.first(torch.zeros(1, 16)).shape[1]
        self.last = spectral_norm(torch.nn.Linear(width, 4))

    def forward(self, x):
        return self.last(self.first(x))


model = Net()
torch.nn.init.normal_(model.last.weight)
data = torch.arange(256.0).view(16, 16) / 3.0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
json.dump([data.tolist(), step], open(sys.argv[1], "w"))
"""


def test_what_runs_while_a_model_is_made_begins_nothing(shared_script, watch, watched_once):
    """Spectral norm runs when it is put on and read, and a constructor tries a part: the data are made after that."""
    path = shared_script(CONSTRUCTED)
    plain, disturbed = watched_once(path, capture=CAPTURE), watch(path, action="noise", noise="jitter", capture=CAPTURE)
    assert plain.code == disturbed.code == 0, (plain.log, disturbed.log)
    assert plain.dump.header.script["models"] == ["model (Net)"]
    first, second = ({call.module for call in plain.dump.calls() if call.step == step} for step in (0, 1))
    assert first == second >= {"first", "last", "last.parametrizations.weight"}
    assert plain.wrote == disturbed.wrote
    assert plain.dump.header.inputs == disturbed.dump.header.inputs
