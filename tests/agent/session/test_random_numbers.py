"""The CPU cannot show that numbers are moved: another process does, with the emulated device."""

import os

import pytest
import torch

from precflow.agent.session.random_numbers import RandomNumbers

EMULATED = """
import torch
from precflow.agent import emulated
from precflow.agent.session.random_numbers import RandomNumbers
emulated.install()
here = torch.ones(64, device="npu")

def draws():
    torch.manual_seed(5)
    torch.npu.manual_seed_all(5)
    own = torch.Generator(device="npu").manual_seed(7)
    twice = [torch.randn(3, device="npu", generator=own), torch.randn(3, device="npu", generator=own)]
    assert not torch.equal(twice[0].cpu(), twice[1].cpu())
    made = [
        torch.rand(3, device="npu"), torch.randn_like(here),
        torch.randint(0, 9, (5,), device="npu"), torch.randperm(7, device="npu"),
        torch.empty(5, device="npu").normal_(1.0, 2.0), torch.empty(5, device="npu").uniform_(),
        torch.nn.init.normal_(torch.empty(3, device="npu")),
        torch.bernoulli(here * 0.5), torch.multinomial(here, 4), torch.empty(4, device="npu").exponential_(),
        torch.nn.functional.dropout(here, 0.5, True),
        torch.nn.Parameter(torch.empty(3, device="npu")).data.normal_(), *twice,
    ]
    assert all(each.device.type == "npu" for each in made), [each.device for each in made]
    return [each.cpu() for each in made]

def on_cpu():
    torch.manual_seed(5)
    own = torch.Generator().manual_seed(7)
    twice = [torch.randn(3, generator=own), torch.randn(3, generator=own)]
    ones = torch.ones(64)
    return [
        torch.rand(3), torch.randn(64), torch.randint(0, 9, (5,)), torch.randperm(7),
        torch.empty(5).normal_(1.0, 2.0), torch.empty(5).uniform_(),
        torch.nn.init.normal_(torch.empty(3)),
        torch.bernoulli(ones * 0.5), torch.multinomial(ones, 4), torch.empty(4).exponential_(),
        torch.nn.functional.dropout(ones, 0.5, True), torch.empty(3).normal_(), *twice,
    ]

with RandomNumbers(move=True, remove_dropout=False) as moving:
    moved = draws()
assert all(torch.equal(a, b) for a, b in zip(moved, on_cpu()))
assert {draw.operator for draw in moving.draws} == {
    "rand", "randn", "randn_like", "randint", "randperm", "normal_", "uniform_",
    "bernoulli", "multinomial", "exponential_", "dropout",
}, moving.draws
assert all(draw.moved and draw.device == "npu" and " in draws" in draw.site for draw in moving.draws), moving.draws
with RandomNumbers(move=False, remove_dropout=False) as reporting:
    own = draws()
assert not torch.equal(own[0], moved[0])
assert not any(draw.moved for draw in reporting.draws)
assert len(reporting.draws) == len(moving.draws)
print("the same")
"""


@pytest.mark.usefixtures("emulation")
def test_draws_on_a_device_are_the_cpus(tmp_path, warm_server):
    script = tmp_path / "draws.py"
    script.write_text(EMULATED)
    _, said, wrong = warm_server.run([script], cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
    assert said == "the same\n", wrong


@pytest.mark.parametrize("move", [True, False])
def test_draws_on_the_cpu_are_as_ever_and_not_reported(move):
    torch.manual_seed(3)
    expected = torch.randn(4), torch.empty(4).uniform_(), torch.randperm(5)
    torch.manual_seed(3)
    with RandomNumbers(move=move, remove_dropout=False) as numbers:
        found = torch.randn(4), torch.empty(4).uniform_(), torch.randperm(5)
    assert all(torch.equal(one, other) for one, other in zip(found, expected))  # noqa: B905  also runs on Python 3.8
    assert numbers.draws == []


def test_functional_dropout_is_removed_and_its_place_noted():
    values = torch.ones(32)
    with RandomNumbers(move=True, remove_dropout=True) as numbers:
        for _ in range(2):
            assert torch.nn.functional.dropout(values, 0.5, training=True) is values
        assert torch.nn.functional.dropout(input=values, p=0.5) is values
    assert len(numbers.removed) == 2
    assert all("test_random_numbers.py" in site for site in numbers.removed)


def test_dropout_that_drops_nothing_is_not_touched():
    with RandomNumbers(move=True, remove_dropout=True) as numbers:
        torch.nn.functional.dropout(torch.ones(4), 0.5, training=False)
        torch.nn.functional.dropout(torch.ones(4), 0.0, training=True)
    assert numbers.removed == []


@pytest.mark.parametrize(
    ("positional", "named"),
    [((), {"dropout_p": 0.5, "is_causal": True}), ((None, 0.5), {"is_causal": True}), ((None, 0.5, True), {})],
    ids=["by name", "by position", "all by position"],
)
def test_dropout_inside_attention_is_removed(positional, named):
    values = torch.randn(1, 1, 4, 8)
    attention = torch.nn.functional.scaled_dot_product_attention
    with RandomNumbers(move=True, remove_dropout=True) as numbers:
        found = attention(values, values, values, *positional, **named)
    assert torch.allclose(found, attention(values, values, values, is_causal=True))
    assert len(numbers.removed) == 1


def test_other_functions_pass_through():
    with RandomNumbers(move=True, remove_dropout=True):
        assert torch.equal(torch.add(torch.ones(2), 1), torch.full((2,), 2.0))
