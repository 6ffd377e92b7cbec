import random
import subprocess
import sys

import numpy
import pytest
import torch

from precflow.agent.devices.cpu import Cpu
from precflow.agent.request import DeterminismSection
from precflow.agent.session import determinism

pytestmark = pytest.mark.usefixtures("restored")


def settings(**changes):
    return DeterminismSection(1234, "warn", "cpu", "removed", repeat=True)._replace(**changes)


def drawn():
    return random.random(), of_numpy(), float(torch.rand(1))


def of_numpy():
    return float(numpy.random.rand())  # noqa: NPY002  the legacy generator is the one that workloads draw from


def test_one_seed_reaches_every_generator():
    determinism.reseed(settings(), Cpu())
    first = drawn()
    determinism.reseed(settings(), Cpu())
    assert drawn() == first


def test_another_seed_gives_other_numbers_everywhere():
    determinism.reseed(settings(), Cpu())
    first = drawn()
    determinism.reseed(settings(seed=5), Cpu())
    assert all(new != old for new, old in zip(drawn(), first))  # noqa: B905  also runs on Python 3.8


def test_a_workload_that_seeds_itself_is_left_alone():
    torch.manual_seed(99)
    expected = torch.rand(1)
    torch.manual_seed(99)
    determinism.reseed(settings(seed=None), Cpu())
    assert torch.equal(torch.rand(1), expected)


def test_a_seed_too_large_for_numpy_is_folded():
    determinism.reseed(settings(seed=2**40 + 3), Cpu())
    assert of_numpy() == numpy.random.RandomState(3).rand()


@pytest.mark.parametrize(
    ("algorithms", "enabled", "warns"), [("strict", True, False), ("warn", True, True), ("native", False, False)]
)
def test_algorithms(algorithms, enabled, warns):
    torch.use_deterministic_algorithms(mode=False)
    determinism.apply(settings(algorithms=algorithms), Cpu())
    found = determinism.read_switches()
    assert found["deterministic_algorithms"] == str(enabled)
    assert found["deterministic_warn_only"] == str(warns)


def test_the_compiler_is_not_imported_for_its_switch_and_finds_it_set():
    code = """
import sys, torch
from precflow.agent.session import determinism
from precflow.agent.devices.cpu import Cpu
from precflow.agent.request import DeterminismSection
determinism.apply(DeterminismSection(1, sys.argv[1], "cpu", "removed", repeat=True), Cpu())
light = "torch._inductor.config" not in sys.modules
import torch._inductor.config as compiler
here = getattr(compiler, "deterministic", None)
torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=sys.argv[1] == "warn")
print(light, here == getattr(compiler, "deterministic", None))
"""
    done = subprocess.run([sys.executable, "-c", code, "warn"], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_memory_is_not_filled_in_deterministic_mode():
    determinism.apply(settings(), Cpu())
    assert determinism.read_switches()["fill_uninitialized_memory"] in ("False", "unknown")


def test_dropout_is_removed_by_name_and_the_model_repeats():
    model = torch.nn.ModuleDict(
        {
            "plain": torch.nn.Dropout(0.1),
            "deep": torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.AlphaDropout(0.5)),
            "attention": torch.nn.MultiheadAttention(4, 1, dropout=0.2),
            "recurrent": torch.nn.LSTM(4, 4, num_layers=2, dropout=0.3),
            "none": torch.nn.Dropout(0.0),
        }
    )
    assert list(determinism.remove_dropout(model)) == ["plain", "deep.1", "attention", "recurrent"]
    model.train()
    values = torch.randn(64, 4)
    assert torch.equal(model["plain"](values), values)
    assert torch.equal(model["deep"](values), model["deep"](values))
    assert not determinism.remove_dropout(model)
