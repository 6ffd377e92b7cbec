"""Action ``noise``: a dump for each disturbance, near the reference's own and different from it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from precflow.agent import request as requests
from precflow.agent.contract import NOISES
from precflow.agent.devices.cpu import Cpu
from precflow.agent.failures import AgentError
from precflow.agent.session.dump import dump
from precflow.agent.session.noise import noise
from precflow.dumps.formats import read_dump

pytestmark = pytest.mark.usefixtures("restored", "forgotten")
TRAINED = {
    "model": {"_target_": "toy_workload.build", "kind": "Losing"},
    "inputs": {"_target_": "toy_workload.labelled"},
    "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.01},
}


@pytest.fixture
def made(asked, events, tmp_path):
    """Return a function that writes the reference's dump and those of the disturbances, and opens all of them."""

    def run(**changes):
        folder = tmp_path / "reference"
        folder.mkdir()
        dump(requests.parse(asked(**changes, output=str(folder))), Cpu(), torch.device("cpu"), events)
        output = Path(changes.get("output", tmp_path / "noise"))
        output.mkdir()
        settings = {**changes.pop("determinism", {}), "repeat": False}
        asking = asked(**changes, action="noise", determinism=settings, output=str(output))
        noise(requests.parse(asking), Cpu(), torch.device("cpu"), events)
        facts = json.loads((output / "noise.json").read_text())
        return facts, {
            "reference": read_dump(folder),
            **{name: read_dump(output / name) for name in NOISES if not facts["problem"]},
        }

    return run


def outputs(dump):
    return {record.text: record for call in dump.calls() for record in call.outputs}


def distance(dumps, name, text):
    plain, other = (dump.tensor(outputs(dump)[text]).astype(np.float64) for dump in (dumps["reference"], dumps[name]))
    return np.linalg.norm(other - plain) / np.linalg.norm(plain)


def test_each_disturbance_leaves_a_sealed_dump_with_the_same_records(made):
    facts, dumps = made()
    assert (facts["problem"], facts["noises"]) == ("", list(NOISES))
    for name in NOISES:
        assert dumps[name].sealed
        assert outputs(dumps[name]).keys() == outputs(dumps["reference"]).keys()
        assert not dumps[name].header.weights.entries  # nobody asks whether these runs had the same weights
        assert 0 < distance(dumps, name, "linear/forward.output.0") < 3e-7


def test_backward_gradients_and_optimizer_are_disturbed_from_the_same_state(made):
    phases = ["forward", "backward", "gradient", "optimizer"]
    _, dumps = made(workload=TRAINED, capture={"phase": phases, "step": [0, 1], "level": ["module", "operator"]})
    gradient = next(text for text in outputs(dumps["reference"]) if text.endswith("gradient.output.weight"))
    for name in NOISES:
        assert 0 < distance(dumps, name, gradient) < 1e-5
        assert outputs(dumps[name]).keys() == outputs(dumps["reference"]).keys()


def test_what_the_workload_draws_is_the_same_as_in_the_reference_s_run(made):
    workload = {"model": {"_target_": "toy_workload.build", "kind": "Drawing"}, "inputs": {"_target_": "toy_workload.inputs"}}
    _, dumps = made(workload=workload)
    drawn = next(text for text in outputs(dumps["reference"]) if "/randn.0/" in text)
    assert {outputs(dump)[drawn].content for dump in dumps.values()} == {outputs(dumps["reference"])[drawn].content}


def test_disturbed_runs_choose_as_the_plain_one_so_that_what_depends_on_a_near_tie_has_a_floor(made):
    workload = {
        "model": {"_target_": "toy_workload.build", "kind": "Routing"},
        "inputs": {"_target_": "toy_workload.inputs", "rows": 32},
    }
    _, dumps = made(workload=workload, dtype="bfloat16")
    chosen = next(text for text in outputs(dumps["reference"]) if "/topk.0/" in text and text.endswith("output.1"))
    assert len({outputs(dump)[chosen].content for dump in dumps.values()}) == 1
    assert 0 < distance(dumps, "jitter", next(text for text in outputs(dumps["reference"]) if "/where.0/" in text)) < 0.02


@pytest.mark.parametrize(("kind", "times"), [("Losing", 0), ("Routing", 1)])
def test_only_a_model_that_chooses_runs_once_more_for_its_choices(kind, times, asked, events, tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr("precflow.agent.session.noise.run_unrecorded", lambda *given: runs.append(given))
    inputs = {"_target_": "toy_workload.labelled" if kind == "Losing" else "toy_workload.inputs"}
    workload = {"model": {"_target_": "toy_workload.build", "kind": kind}, "inputs": inputs}
    noise(requests.parse(asked(action="noise", workload=workload)), Cpu(), torch.device("cpu"), events)
    assert len(runs) == times


def test_a_workload_that_does_not_run_so_leaves_the_reason_and_no_dumps(asked, events, tmp_path):
    workload = {"model": {"_target_": "toy_workload.build", "kind": "Raising"}, "inputs": {"_target_": "toy_workload.inputs"}}
    request = requests.parse(asked(action="noise", workload=workload))
    noise(request, Cpu(), torch.device("cpu"), events)
    facts = json.loads(Path(request.output, "noise.json").read_text())
    assert "the third layer is upset" in facts["problem"]
    assert not any(Path(request.output, name).exists() for name in NOISES)


def test_a_dump_that_exceeds_its_budget_is_an_error(asked, events):
    with pytest.raises(AgentError, match="exceed its budget"):
        noise(requests.parse(asked(action="noise", capture={"budget": 100})), Cpu(), torch.device("cpu"), events)
