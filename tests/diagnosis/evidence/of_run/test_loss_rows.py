"""Tokens that a loss leaves out have a gradient of zero at the model's output."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import precflow
from precflow.diagnosis.evidence.of_run import loss_rows
from precflow.dumps.formats import read_dump


@pytest.fixture
def compare(tmp_path):
    """Return the evidence for labels of both sides, -100 where a token is ignored."""

    def record(name, labels, dtype, scale, detail):
        torch.manual_seed(1)
        model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 11)).to(dtype), torch.randn(2, 12, 8)
        with precflow.capture(model, tmp_path / name, detail=detail, phase=("forward", "backward")):
            (functional.cross_entropy(model(x.to(dtype)).flatten(0, 1), labels.flatten()) * scale).backward()
        return read_dump(tmp_path / name)

    def run(ignored=(), *, on_reference=(), dtype=torch.float32, scale=1.0, detail="tensors"):
        plain = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(2))
        sides = []
        for rows in (on_reference, ignored):
            labels = plain.clone().flatten()
            labels[list(rows)] = -100
            sides.append(labels)
        dumps = [
            record(name, labels, dtype, factor, detail)
            for name, labels, factor in (("reference", sides[0], 1.0), ("target", sides[1], scale))
        ]
        return loss_rows.find_rows(*dumps)

    return run


@pytest.mark.parametrize("detail", ["tensors", "sketch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_that_are_left_out_are_named_with_what_the_others_have_more(compare, dtype, detail):
    found = compare([22, 23], dtype=dtype, detail=detail)
    assert found["tokens_left_out"] == "2 of 24 (rows 22, 23)"
    assert found["tokens_ratio"] == pytest.approx(24 / 22, rel=0.01)


def test_padding_that_the_target_does_not_ignore_is_named(compare):
    found = compare([4], on_reference=[4, 7, 8, 9, 10, 11, 12])
    assert found["tokens_added"] == "6 of 24 (rows 7, 8, 9, 10, 11 and 1 more)"


def test_the_same_tokens_on_both_sides_say_nothing(compare):
    assert compare([3], on_reference=[3]) == {}


def test_other_tokens_in_place_of_some_and_another_loss_are_no_loss_of_fewer(compare):
    assert compare([3], on_reference=[4]) == {}


def test_a_loss_of_another_size_is_more_than_fewer_tokens(compare):
    assert compare([3], scale=3.0) == {}


def test_a_maximum_over_tokens_that_chooses_otherwise_is_no_loss_of_fewer():
    same = np.ones(6)
    assert loss_rows.compare_rows(same, np.array([1.0, 1.0, 1.4, 1.0, 1.0, 0.0])) == {}
    assert loss_rows.compare_rows(same, np.array([1.2, 1.2, 1.2, 1.2, 1.2, 0.0]))["tokens_left_out"] == "1 of 6 (row 5)"
    assert loss_rows.compare_rows(same * [1, 1, 1, 1, 1, 0.01], np.array([1.2, 1.2, 1.2, 1.2, 1.2, 0.0])) == {}  # it vanished


@pytest.mark.parametrize("detail", ["tensors", "sketch"])
@pytest.mark.parametrize(("places", "ignored"), [(-1, [0, 1, 9, 10, 11]), (1, [0, 1, 2, 3, 11])])
def test_rows_that_count_one_place_further_in_every_text_are_a_shift(compare, detail, places, ignored):
    prompt_and_padding = [0, 1, 2, 10, 11]  # of a text of 12 tokens
    sides = [[text + row for text in (0, 12) for row in rows] for rows in (prompt_and_padding, ignored)]
    found = compare(sides[1], on_reference=sides[0], detail=detail)
    assert found == {"labels_shifted": places, "labels_shifted_rows": 4}


def test_a_shift_in_one_text_alone_is_none(compare):
    assert compare([0, 1, 9, 10, 11, 12, 13, 14, 22, 23], on_reference=[0, 1, 2, 10, 11, 12, 13, 14, 22, 23]) == {}


def test_the_tokens_of_the_whole_step_may_divide_the_loss_of_a_micro_batch():
    here, there = np.array([1.0] * 6 + [0.0] * 6), np.array([0.8] * 12)
    assert loss_rows.compare_rows(here, there) == {}  # neither 6 / 12 nor 1
    assert loss_rows.compare_rows(here, there, whole=0.8)["tokens_ratio"] == pytest.approx(0.8)
