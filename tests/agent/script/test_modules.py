"""A script that is started as `python -m package.train`: with its package around it, and the same bits."""

import pytest

from precflow.agent.contract import COPY_IN

TRAIN = """
import json, sys, torch
from .net import make
torch.manual_seed(0)
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(2):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with open(sys.argv[1], "w") as file:
    json.dump([losses, __package__, __name__, sys.argv[0].rpartition("/")[2]], file)
"""
NET = """
import torch


def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
"""


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    (folder / "__main__.py").write_text(TRAIN)
    return folder


def test_a_module_runs_as_python_runs_it(plain, watch, package):
    seen = watch("-m bundle.train", capture={"level": ["module"]})
    assert seen.code == 0, (seen.error, seen.log, seen.printed)
    assert seen.wrote == plain("-m bundle.train")
    script = seen.dump.header.script
    assert (script["file"], script["steps"], script["models"]) == ("bundle.train", 2, ["model (Sequential)"])
    assert script["seeds"]["sites"] == ["bundle.train:4 manual_seed"]


def test_a_package_is_run_by_its_main_module(watch, package):
    seen = watch("-m bundle", capture={"level": ["module"]})
    assert seen.code == 0, (seen.error, seen.log, seen.printed)
    assert seen.wrote[1:] == ["bundle", "__main__", "__main__.py"]


def test_a_module_that_is_not_there_is_named(watch, package):
    seen = watch("-m bundle.absent")
    assert seen.code == 2
    assert "workload.script=-m bundle.absent: there is no such module" in seen.error["message"]


AVERAGED = """
import copy, sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 3)
teacher = torch.nn.Linear(4, 3).requires_grad_(False)
average = copy.deepcopy(net).requires_grad_(False)
critic = torch.nn.Linear(3, 1)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, critic)]
for step in range(3):
    given = torch.ones(2, 4)
    (net(given) - teacher(given)).pow(2).sum().backward()
    optimizers[0].step(), optimizers[0].zero_grad()
    average.weight.lerp_(net.weight.detach(), 0.1)
    critic(average(given)).sum().backward()
    optimizers[1].step(), optimizers[1].zero_grad()
"""


def test_weights_of_a_model_that_follows_another_one_are_no_start(watch, shared_script):
    """A frozen model that was met before the first step has its weights from elsewhere; one met later may have been trained."""
    seen = watch(shared_script(AVERAGED))
    assert seen.code == 0, seen.log + seen.printed
    assert set(seen.dump.header.weights.entries) == {
        f"{model}.{name}" for model in ("net", "teacher", "critic") for name in ("weight", "bias")
    }
    assert any(call.module == "average" for call in seen.dump.calls())


def test_each_of_several_models_has_its_copies(watch, tmp_path):
    """The average of a GAN's generator has the generator's own names, which begin with its variable in records."""
    seen = watch("adversarial.py", capture={"level": ["module"], "step": [1]})
    assert seen.code == 0, seen.log + seen.printed
    copies = {(call.module, record.index) for call in seen.dump.calls() for record in call.outputs if COPY_IN in record.index}
    assert copies == {(f"generator.{at}", f"{name}.{COPY_IN}average") for at in (0, 2) for name in ("weight", "bias")}


AVERAGED_STATISTICS = """
import copy, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(2):
    net(torch.randn(5, 4)).exp().sum().backward()
    optimizer.step(), optimizer.zero_grad()
    for slow, fast in zip(average.parameters(), net.parameters()):
        slow.lerp_(fast.detach(), 0.1)
"""


def test_an_average_has_the_statistics_of_its_batch_norms(watch, shared_script):
    """An average of weights without those of its batch norms is another model in evaluation."""
    seen = watch(shared_script(AVERAGED_STATISTICS), capture={"level": ["module"], "step": [1]})
    assert seen.code == 0, seen.log + seen.printed
    copies = {
        record.index for call in seen.dump.calls() if call.module == "1" for record in call.outputs if COPY_IN in record.index
    }
    assert copies == {
        *(f"{name}.{COPY_IN}average" for name in ("weight", "bias")),
        *(f"weight.{COPY_IN}average.{name}" for name in ("running_mean", "running_var")),
    }


COPIES = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 3).bfloat16()
copies = [weight.detach().float().requires_grad_() for weight in net.parameters()]
factor = torch.nn.Parameter(torch.zeros(()))
optimizer = torch.optim.AdamW([*copies, factor])
for step in range(2):
    loss = net(torch.ones(2, 4, dtype=torch.bfloat16)).float().square().mean()
    (torch.exp(-factor) * loss + factor).backward()
    for copy, weight in zip(copies, net.parameters()):
        copy.grad = weight.grad.float()
    optimizer.step()
    with torch.no_grad():
        for copy, weight in zip(copies, net.parameters()):
            weight.copy_(copy)
"""


def test_parameters_that_no_module_holds_are_trained_outside(watch, shared_script):
    seen = watch(shared_script(COPIES))
    assert seen.code == 0, seen.log + seen.printed
    steps = [call for call in seen.dump.calls() if call.phase == "optimizer" and call.step == 0]
    assert {(call.module, call.outputs[0].index) for call in steps} == {("(outside)", f"0.{number}") for number in range(3)}
