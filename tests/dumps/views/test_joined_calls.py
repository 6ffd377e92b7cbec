"""A model that one side calls on parts of a batch is compared with one call on the whole batch."""

import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.formats import read_dump
from precflow.dumps.views.joined_calls import join_calls
from precflow.stages.two_dumps import compare_dumps

BATCH = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))


class Denoiser(nn.Module):
    """Attention over tokens whose heads are cut by the size of the batch, and a step that all samples share."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.factor = 1.0

    def forward(self, sample, step):
        size = sample.shape[0]
        hidden = torch.tanh(self.inner(sample)) * step
        heads = self.query(hidden).view(size, -1, 2, 4).transpose(1, 2)
        mixed = torch.softmax(heads @ heads.transpose(-1, -2), -1) @ heads
        return self.out(mixed.transpose(1, 2).reshape(size, -1, 8)) * self.factor


def in_parts(*sizes, fault=None):
    """Return a function that calls a model on parts of a batch of these sizes, with a factor of its own in one of them."""

    def call(model, sample, step):
        made = []
        for number, part in enumerate(sample.split(list(sizes))):
            model.factor = 1.01 if number == fault else 1.0
            made.append(model(part, step))
        return torch.cat(made)

    return call


def whole(model, sample, step):
    return model(sample, step)


def backwards(model, sample, step):
    second = model(sample[2:], step)
    return torch.cat([model(sample[:2], step), second])


@pytest.fixture
def record(tmp_path):
    """Return a function that records three steps of a sampler, given how it calls its model."""

    def run(side, call, *, graded=False):
        model, sample = Denoiser(), BATCH
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if graded else None
        with precflow.capture(model, tmp_path / side, optimizer=optimizer, level=["module", "api"]) as recording:
            for step in range(3):
                with torch.set_grad_enabled(graded):
                    made = call(model, sample, torch.tensor(1.0 + step))
                if graded:
                    made.square().mean().backward()
                sample = sample - 0.1 * made.detach()
            if optimizer is not None:
                optimizer.step()
            recording.step()
        return read_dump(tmp_path / side)

    return run


@pytest.mark.parametrize("call", [in_parts(3, 1), in_parts(1, 1, 1, 1), backwards])
def test_parts_of_the_batch_are_compared_as_the_whole(record, call):
    sides = record("reference", whole), record("target", call)
    model = compare_dumps(*sides, command="")
    assert model.verdict.verdict == "aligned", model.verdict.reasons
    assert not model.findings
    assert model.verdict.compared == model.verdict.total > 40
    assert any("on parts of its batch, which are compared joined" in text for text in model.verdict.warnings)


def test_either_side_may_have_the_parts(record):
    model = compare_dumps(record("reference", in_parts(2, 2)), record("target", whole), command="")
    assert model.verdict.verdict == "aligned", model.verdict.reasons


def test_a_fault_in_one_part_starts_where_it_is(record):
    model = compare_dumps(record("reference", whole), record("target", in_parts(2, 2, fault=1)), command="")
    assert model.verdict.verdict == "misaligned"
    assert model.region.start == "(model) / mul.1"


def test_parts_of_another_batch_are_other_data(record):
    def other(model, sample, step):
        return torch.cat([model(sample[:2], step), model(sample[2:] + 1, step)])

    model = compare_dumps(record("reference", whole), record("target", other), command="")
    assert model.verdict.verdict == "inconclusive"
    assert "PF402" in [finding.rule for finding in model.findings]


def test_calls_that_are_trained_and_calls_that_do_not_add_up_stay_as_they_are(record):
    reference = record("reference", whole, graded=True)
    trained = record("trained", in_parts(2, 2), graded=True)
    assert join_calls(reference, trained) == (reference, trained)

    def short(model, sample, step):
        return torch.cat([model(sample[:2], step), model(sample[2:3], step), sample[3:]])

    reference, target = record("whole", whole), record("short", short)
    assert join_calls(reference, target) == (reference, target)
