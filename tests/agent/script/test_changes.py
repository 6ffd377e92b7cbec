"""What was changed in a script is counted where it acted, and its run as it is leaves losses and gradients."""

import json

import pytest
import torch

from precflow.agent.session.changes import count_compiled

REMOVED = {"dropout": "removed"}
SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
SEED
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)
        self.frozen = nn.Dropout(0.5)
    def inner(self, x):
        return nn.functional.dropout(self.drop(self.first(x)), 0.25, self.training)
    def forward(self, x):
        return self.last(self.frozen(checkpoint(self.inner, x, use_reentrant=False)))
model = Net()
model.frozen.eval()
WRAP
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = called(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""
PLAIN = {"SEED": "torch.manual_seed(3)", "WRAP": "called = model"}


@pytest.fixture
def train(script):
    """Return a function that writes the script with some of its lines."""

    def write(**lines):
        text = SCRIPT
        for name, line in {**PLAIN, **lines}.items():
            text = text.replace(name, line)
        return script(text)

    return write


def changes(seen):
    assert seen.code == 0, (seen.error, seen.log, seen.printed)
    counts = {each["what"]: each["count"] for each in seen.dump.header.determinism["changes"]}
    before = count_compiled()  # in this process, by earlier tests: the scripts run in forks of it
    return {what: left for what, count in counts.items() if (left := count - before * (what == "compiled"))}


def test_only_dropout_that_would_have_acted_is_counted(watch, train):
    seen = watch(train(), determinism=REMOVED)
    assert changes(seen) == {"dropout": 2}
    listed = next(each for each in seen.dump.header.determinism["changes"] if each["what"] == "dropout")
    assert listed["places"][0] == "drop"
    assert listed["places"][1].startswith("train.py:") or ".py:" in listed["places"][1]


def test_a_script_that_seeds_itself_draws_from_no_seed_of_ours(watch, train):
    assert changes(watch(train(), determinism={"seed": 7})) == {}
    assert changes(watch(train(SEED=""), determinism={"seed": 7}, folder="unseeded")) == {"seeds": 1}


def test_what_torch_compile_wraps_is_counted(watch, train):
    wrapped = train(WRAP="called = torch.compile(model)")
    assert changes(watch(wrapped)) == {"compiled": 1}
    assert changes(watch(train(), folder="plain")) == {}


def test_what_is_kept_out_of_the_compiler_is_not_compiled():
    before = count_compiled()
    kept_out = torch.compiler.disable(lambda x: x)  # as torch does with the methods of a dispatch mode
    assert (kept_out(1), count_compiled()) == (1, before)


def test_dropout_that_is_removed_is_removed_in_recomputation_too(watch, train):
    first, again = (watch(train(), determinism=REMOVED, folder=name) for name in ("one", "two"))
    kept = watch(train(WRAP="model.drop.p = 0; nn.functional.dropout = lambda x, *_: x; called = model"), folder="none")
    assert first.dump.header.losses == again.dump.header.losses == kept.dump.header.losses


def read(seen, folder):
    assert seen.code == 0, (seen.error, seen.log, seen.printed)
    return json.loads((folder / "as-is-rank0.json").read_text())


def test_a_run_as_it_is_notes_losses_and_gradients_of_the_steps_and_ends(watch, train, tmp_path):
    seen = read(watch(train(), action="as_is", folder="plain", capture={"step": [0, 1]}), tmp_path / "plain")
    assert (seen["problem"], seen["device"], seen["has_drawn"]) == ("", "cpu", False)
    assert [step["step"] for step in seen["steps"]] == [0, 1]
    printed = (tmp_path / "plain" / "output.log").read_text().split()
    assert len(printed) == 2
    assert [step["losses"] for step in seen["steps"]] == [[float(text)] for text in printed]
    for step in seen["steps"]:
        size = sum(value**2 for value in step["sketch"]) ** 0.5
        assert size == pytest.approx(step["norm"], rel=0.2)


def test_a_script_that_fails_as_it_is_says_why(watch, script, tmp_path):
    seen = read(watch(script("raise ValueError('no')"), action="as_is", folder="plain"), tmp_path / "plain")
    assert "raised ValueError: no" in seen["problem"]
    seen = read(watch(script("print(1)"), action="as_is", folder="idle"), tmp_path / "idle")
    assert "no optimizer of torch stepped in" in seen["problem"]
