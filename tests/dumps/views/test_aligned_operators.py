"""Calls of an operator keep their partners although one side runs that operator once more before them."""

import pytest
import torch
from torch import nn

import precflow
from precflow.dumps.formats import read_dump
from precflow.dumps.views.aligned_operators import find_operator_numbers
from precflow.stages.two_dumps import compare_dumps


class Scaled(nn.Module):
    """Three products with a weight each, and further ones: ``early`` by 1 before them, ``late`` by another factor between."""

    def __init__(self, *, early=False, late=1.0, swapped=False):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(16)) for _ in range(3))
        self.early, self.late, self.swapped = early, late, swapped

    def forward(self, x):
        x = x * 1.0 if self.early else x
        x = torch.tanh(x * self.a)
        x = x * (self.c if self.swapped else self.b)
        x = x * self.late if self.late != 1.0 else x
        return torch.sigmoid(x) * (self.b if self.swapped else self.c)


@pytest.fixture
def record(tmp_path):
    """Return a function that records one forward of a model on each side."""

    def run(reference, target, detail="tensors"):
        dumps = []
        for side, model in (("reference", reference), ("target", target)):
            where = tmp_path / side
            with (
                torch.no_grad(),
                precflow.capture(model, where, side=side, level=["module", "api"], detail=detail) as recording,
            ):
                model(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
                recording.step()
            dumps.append(read_dump(where))
        return dumps

    return run


def numbers(dumps):
    return {own: new for (_, own), new in find_operator_numbers(*(dump.calls() for dump in dumps)).items()}


@pytest.mark.parametrize("detail", ["tensors", "statistics"])
def test_calls_behind_one_more_of_their_operator_keep_their_partners(record, detail):
    found = numbers(record(Scaled(), Scaled(early=True), detail))
    assert {own: new for own, new in found.items() if own} == {1: 0, 2: 1, 3: 2}
    assert found[0] >= 3  # a number that the reference lacks


def test_it_does_not_matter_which_side_has_one_more(record):
    assert numbers(record(Scaled(early=True), Scaled())) == {0: 1, 1: 2, 2: 3}


def test_nothing_is_renumbered_where_both_sides_run_it_as_often_or_a_partner_is_missing(record, tmp_path):
    assert numbers(record(Scaled(), Scaled(swapped=True))) == {}
    other = Scaled(early=True)
    other.c = nn.Parameter(torch.randn(4, 16))  # of another shape: no partner of the third
    for folder in ("reference", "target"):
        (tmp_path / folder).rename(tmp_path / f"first-{folder}")
    assert numbers(record(Scaled(), other)) == {}


def test_one_more_product_that_changes_nothing_is_no_fault(record):
    model = compare_dumps(*record(Scaled(), Scaled(early=True)), command="", evaluates=False)
    assert model.verdict.verdict == "aligned"
    assert not any(row.measure.join == "unpaired_reference" for row in model.rows)


@pytest.mark.parametrize("early", [False, True])
def test_one_more_product_that_changes_something_is_named_and_no_weight_is_blamed(record, early):
    dumps = record(Scaled(), Scaled(early=early, late=1.01))
    model = compare_dumps(*dumps, command="", evaluates=False)
    assert (model.verdict.verdict, model.findings[0].rule) == ("misaligned", "PF234")
    assert not {"PF405", "PF203"} & {finding.rule for finding in model.findings}
