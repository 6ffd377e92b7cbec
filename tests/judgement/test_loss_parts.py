"""Two forms of the same loss are aligned, and a loss that is another one is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import precflow

FORMS = {
    "cross entropy": functional.cross_entropy,
    "by hand": lambda scores, labels: -scores.log_softmax(-1).gather(1, labels[:, None]).mean(),
    "rows turned": lambda scores, labels: functional.cross_entropy(scores.flip(0), labels.flip(0)),
    "logsumexp": lambda scores, labels: functional.nll_loss(scores - scores.logsumexp(-1, keepdim=True), labels),
}


@pytest.fixture
def train(tmp_path):
    """Return a function that trains two steps, recorded with what runs outside of the model."""

    def run(name, find_loss, *, also=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draws = torch.Generator().manual_seed(3)
        folder = tmp_path / name.replace(" ", "_")
        with precflow.capture(model, folder, optimizer=optimizer, step=[0, 1], level=["module", "api"]) as recording:
            for _ in range(2):
                inputs, labels = torch.randn(7, 6, generator=draws), torch.randint(0, 5, (7,), generator=draws)
                scores = model(inputs)
                if also is not None:
                    also(scores, labels)
                loss = find_loss(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recording.step()
        return folder

    return run


def compare(*sides):
    return precflow.compare(*sides, evaluate=False)


def penalise(scores, labels):
    return functional.cross_entropy(scores, labels), 0.01 * scores.square().mean(), 0.1 * scores.abs().mean()


@pytest.mark.parametrize("form", list(FORMS)[1:])
def test_another_form_of_the_same_loss_is_aligned(train, form):
    result = precflow.compare(train("a", FORMS["cross entropy"]), train("b", FORMS[form]))
    assert (result.verdict, result.start) == ("aligned", "")
    covered = [row for row in result.records if row.status == "covered"]
    assert all("both sides compute the loss by other calls" in row.reason for row in covered)
    assert bool(covered) == (form != "rows turned")  # `flip` moves values, which is not judged


def test_terms_of_a_loss_may_be_added_in_another_order(train):
    """No call is without a partner; what ``add`` of one side takes is not what the other's takes."""

    def forwards(*given):
        first, second, third = penalise(*given)
        return first + second + third

    def backwards(*given):
        first, second, third = penalise(*given)
        return third + second + first

    assert compare(train("a", forwards), train("b", backwards)).verdict == "aligned"


@pytest.mark.parametrize(
    "other",
    [
        lambda scores, labels: functional.nll_loss(scores.log_softmax(0), labels),  # the wrong axis
        lambda scores, labels: functional.nll_loss(scores.log_softmax(-1), labels, reduction="sum"),
        lambda scores, labels: functional.nll_loss(scores.log_softmax(-1), labels) + 0.5,  # the same gradients
        lambda scores, labels: functional.nll_loss(scores.log_softmax(-1), labels) - scores[0, 0] + scores[0, 0].detach(),
    ],
)
def test_a_loss_that_is_another_one_is_misaligned(train, other):
    result = compare(train("a", FORMS["cross entropy"]), train("b", other))
    assert result.verdict in {"misaligned", "inconclusive"}
    assert not any(row.status == "covered" for row in result.records)


def test_what_the_loss_is_not_made_of_is_not_covered_by_it(train):
    def measure(scores, labels):
        return (scores.argmax(-1) == labels).float().mean() * 100

    result = compare(train("a", FORMS["cross entropy"]), train("b", FORMS["by hand"], also=measure))
    assert result.verdict == "inconclusive"
    assert "(outside)/mul.0/forward.output.0" in {row.name for row in result.records if row.status == "unpaired_target"}


def test_the_same_calls_of_the_same_tensors_have_to_agree(train):
    """A wrong call is not covered because what comes of it is hidden."""

    def hide(factor):
        return lambda scores, labels: functional.cross_entropy(scores, labels) + 0.0 * (scores.abs() * factor).mean()

    result = compare(train("a", hide(1.0)), train("b", hide(2.0)))
    assert result.verdict == "misaligned"
