"""Choices: a disturbed run is given those of the plain one, with its own values."""

import pytest
import torch
import torch.utils.checkpoint

from precflow.agent.session.choices import Choices
from precflow.agent.session.disturbance import Directions, Disturbance, Jitter

UNSEEN = lambda: False  # noqa: E731
TIED = torch.tensor([[1.0, 1.0 + 2**-7, 0.5, 1.0 - 2**-8]] * 64, dtype=torch.bfloat16)  # neighbours in bfloat16


def run_twice(function):
    """Return what a function gives as it is, and disturbed with the choices of the first run."""
    choices = Choices()
    with Disturbance(UNSEEN, choices):
        plain = function(TIED)
    choices.follow()
    with Jitter(UNSEEN, Directions(), choices):
        return plain, function(TIED)


@pytest.mark.parametrize(
    "choose",
    [
        lambda given: torch.topk(given, 2, dim=1),
        lambda given: given.sort(dim=-1, stable=True),
        lambda given: given.sort(-1, descending=True),
        lambda given: given.max(dim=1),
        lambda given: given.max(1, keepdim=True),
        lambda given: given.t().kthvalue(3, 0),
        lambda given: given.median(dim=1),
    ],
)
def test_a_disturbed_run_takes_its_own_values_where_the_plain_run_chose(choose):
    (_, where), (values, chosen) = run_twice(lambda given: choose(given * 1.5))
    with Jitter(UNSEEN, Directions()):
        alone = choose(TIED * 1.5)[1]
    assert not torch.equal(alone, where)  # or the test would show nothing
    assert torch.equal(chosen, where)
    with Jitter(UNSEEN, Directions()):
        moved = TIED * 1.5
    wide = where if where.dim() == 2 else where.unsqueeze(1)
    assert torch.equal(values, moved.gather(1, wide).view(values.shape))


def test_comparisons_and_single_indices_are_given_too():
    def choose(given):
        scores = given * 1.5
        return scores > scores[:, :1] * 1.0, scores.argmax(-1), scores[:, 1].max(0)[1]

    plain, other = run_twice(choose)
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


def test_where_the_runs_part_the_rest_chooses_for_itself():
    choices = Choices()
    with Disturbance(UNSEEN, choices):
        torch.topk(TIED[:2], 1)
        torch.topk(TIED, 1)
    choices.follow()
    other = -TIED
    with Disturbance(UNSEEN, choices):
        assert torch.topk(other, 1).indices.flatten().tolist() == [2] * 64
        assert torch.topk(other, 1).indices.flatten().tolist() == [2] * 64


def test_the_workspace_of_a_kernel_is_no_choice():
    choices = Choices()
    given, space = torch.zeros(3), torch.zeros(3, dtype=torch.uint8)
    choices.settle("rnn", (given,), {}, (given, space))
    choices.follow()
    assert choices.settle("rnn", (given,), {}, (given, space + 1))[1].tolist() == [1, 1, 1]


NEAR = torch.rand(64, 8, generator=torch.Generator().manual_seed(0)).mul(0.05).add(1).to(torch.bfloat16)  # of seven numbers


def run_near(function, *, by_operator=False):
    """Return what a function gives of values that are nearly equal: as it is, and disturbed with what was kept."""
    choices = Choices(by_operator=by_operator)
    with Disturbance(UNSEEN, choices):
        plain = function(NEAR)
    choices.follow()
    with Jitter(UNSEEN, Directions(), choices):
        return plain, function(NEAR)


def pool(given):
    return torch.nn.functional.max_pool1d(given.unsqueeze(0), 4)


@pytest.mark.parametrize(
    "choose",
    [
        lambda given: given.amax(1),
        lambda given: torch.maximum(given[:, 0], given[:, 1]),
        lambda given: given.clamp(max=1.54),
        pool,
        lambda given: torch.quantile(given.float(), 0.7, dim=1),
        lambda given: given.float().nanquantile(0.2, 1),
        lambda given: given.msort()[3:9],
        lambda given: given[0].median(),
    ],
    ids=["amax", "maximum", "clamp", "pooling", "quantile", "nanquantile", "msort", "median"],
)
@pytest.mark.parametrize("by_operator", [False, True])
def test_a_choice_that_no_record_shows_is_noise_unless_operators_are_recorded(choose, by_operator):
    def find_gradient(given):
        leaf = given.clone().requires_grad_()
        choose(leaf * 1.5).sum().backward()
        return leaf.grad  # comparing it is a choice of its own

    plain, disturbed = run_near(find_gradient, by_operator=by_operator)
    assert torch.equal(plain != 0, disturbed != 0) == by_operator


def test_operators_that_torch_takes_apart_in_inference_mode_run_once():
    def multiply(given):
        with torch.inference_mode():
            return torch.ops.aten.matmul(given, given.t()), torch.quantile(given.float(), 0.5)

    plain, disturbed = run_near(multiply)
    assert [one.shape for one in plain] == [one.shape for one in disturbed] == [(64, 64), ()]


def test_what_a_checkpoint_computes_again_chooses_as_its_forward_did():
    def find_chosen(given):
        found = []

        def choose(scores):
            found.append(scores.mul(1.5).topk(2, dim=1).indices)
            return scores.mul(1.5).square()

        leaf = given.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(choose, leaf, use_reentrant=False).square().sum().backward()
        return found

    (forward, again), disturbed = run_near(find_chosen)
    assert torch.equal(forward, again)
    assert all(torch.equal(forward, each) for each in disturbed)
    assert len(disturbed) == 2
