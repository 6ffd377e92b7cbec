"""One step of a script runs without hooks and is compared with the watched one: what watching changes is named."""

import pytest

CHECKED = {"observer": "checked"}


@pytest.fixture
def observe(watch):
    """Return a function that runs a script without hooks, then watched, and returns what was compared."""

    def run(script, *words, **more):
        plain = watch(script, *words, action="plain", folder="plain", determinism=CHECKED, **more)
        assert plain.code == 0, (plain.error, plain.log, plain.printed)
        seen = watch(script, *words, plain_run=plain, determinism=CHECKED, **more)
        assert seen.code == 0, (seen.error, seen.log, seen.printed)
        return seen.dump.header.observer

    return run


@pytest.mark.parametrize(
    ("name", "words"), [("plain.py", ()), ("adversarial.py", ()), ("closures.py", ("--careless",)), ("two_optimizers.py", ())]
)
def test_watching_changes_no_bit(observe, name, words):
    observer = observe(name, *words, capture={"step": [1]})
    assert observer.checked
    assert observer.step == 1
    assert observer.different == ()


SCRIPT = """
import random, torch
from torch.nn.modules import module
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
random.random()  # seeded by nobody, so it differs from run to run: that is not the observer's doing
for step in range(2):
    watched = bool(module._global_forward_pre_hooks)
    loss = model(torch.randn(8, 4)).square().mean()
    CHANGE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("change", "different"),
    [
        ("pass", []),
        ("if watched: loss = loss * 2", ["loss (", "weight Sequential.0.weight", "weight Sequential.0.bias"]),
        ("if watched: torch.rand(1)", ["generator of torch"]),
        ("if watched: model[0].bias.data[0] = 1e3", ["weight Sequential.0.bias"]),
        ("if not watched: break", ["number of the optimizers' steps"]),
    ],
)
def test_what_differs_is_named(observe, script, change, different):
    found = observe(script(SCRIPT.replace("CHANGE", change)), capture={"step": [0], "level": ["module"]}).different
    assert len(found) == len(different)
    assert all(text.startswith(start) for text, start in zip(found, different, strict=True))


def test_a_script_that_is_not_compared_does_not_look_checked(watch):
    seen = watch("plain.py", determinism=CHECKED, capture={"level": ["module"]})
    assert not seen.dump.header.observer.checked
    assert seen.dump.header.determinism["observer"] == "checked"
