"""An output head that reads a copy of the embedding: who reads it is told, and that nothing updates it."""

import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

functional = nn.functional


class Tied(nn.Module):
    """A language model whose head is its embedding: the weight itself, a cast or a copy of it; or a module, tied or not."""

    def __init__(self, head):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = nn.Embedding(40, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight if head != "own" else nn.Parameter(self.embed.weight.detach().clone())
        self.kind, self.copy = head, [self.embed.weight.detach().clone()]

    def forward(self, ids):
        hidden = torch.tanh(self.layer(self.embed(ids)))
        if self.kind in {"own", "shared"}:
            return self.head(hidden)
        weight = {"tied": self.embed.weight, "cast": self.embed.weight.double().float(), "copy": self.copy[0]}[self.kind]
        return functional.linear(hidden, weight)


@pytest.fixture
def compare(tmp_path):
    """Return a function that trains a model with each head and compares the sides."""

    def run(reference, target, steps=2, **capture):
        dumps = []
        for side, head in (("reference", reference), ("target", target)):
            model = Tied(head)
            optimizer = torch.optim.SGD([model.embed.weight, *model.layer.parameters()], lr=0.1)
            options = {"optimizer": optimizer, "step": list(range(steps)), **capture}
            with precflow.capture(model, tmp_path / side, **options) as recording:
                for step in range(steps):
                    ids = torch.randint(0, 40, (4, 9), generator=torch.Generator().manual_seed(step))
                    functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    recording.step()
            dumps.append(read_dump(tmp_path / side))
        return compare_dumps(*dumps, command="", evaluates=False)

    return run


def about_copies(model):
    return [finding for finding in model.findings if finding.rule == "PF413"]


def test_a_copy_that_no_step_updates_is_the_cause(compare):
    model = compare("tied", "copy")
    first = model.findings[0]
    assert (first.rule, first.certainty, first.where) == ("PF413", "certain", "(model) / linear")
    assert first.title == "(model) / linear reads a copy of embed.weight on the target, which no step updates"
    assert (model.verdict.verdict, model.region.start) == ("misaligned", "embed.weight (gradient)")


def test_of_one_step_a_copy_is_possible_only(compare):
    """Whether anything updates it is not known yet."""
    assert [(one.certainty, one.title[-26:]) for one in about_copies(compare("tied", "copy", steps=1))] == [
        ("possible", ", and not the weight itself"[-26:])
    ]


def test_a_weight_that_is_made_anew_in_each_forward_is_no_copy(compare):
    model = compare("tied", "cast")
    assert (about_copies(model), model.verdict.verdict) == ([], "aligned")


@pytest.mark.parametrize("level", ["module", ["module", "api"]])
def test_a_head_of_its_own_is_told_as_one_that_is_tied_on_one_side_only(compare, level):
    model = compare("shared", "own", level=level)
    assert (model.verdict.verdict, model.region.start) == ("misaligned", "embed.weight (gradient)")
    assert (model.findings[0].rule, model.findings[0].title) == (
        "PF411",
        "head.weight is tied to embed.weight on the reference only",
    )
