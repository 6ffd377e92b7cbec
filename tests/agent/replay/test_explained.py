"""How much of an output's error another computation explains."""

import math

import pytest
import torch

from precflow.agent.replay.explained import explain

RIGHT = torch.arange(1.0, 9.0, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_computation_that_gives_the_output_explains_all_of_it(dtype):
    other = RIGHT * 1.1
    found = explain(other.to(dtype), RIGHT, other)
    assert found.share > 0.999
    assert found.places == 8


def test_what_two_computations_agree_on_is_explained_by_neither():
    assert explain(RIGHT.float() + 1, RIGHT, RIGHT + 1e-12) is None


def test_half_of_the_error_is_half_explained():
    wrong = RIGHT.clone()
    wrong[[0, 1]] += 1.0
    other = RIGHT.clone()
    other[0] += 1.0
    found = explain(wrong.float(), RIGHT, other)
    assert (found.share, found.places) == (pytest.approx(0.5), 1)


def test_another_shape_explains_nothing_and_the_shape_of_the_output_speaks_for_itself():
    assert explain(RIGHT.float(), RIGHT, RIGHT[:4]).share == 0.0
    assert explain(RIGHT.float(), RIGHT, None).share == 0.0
    assert explain(RIGHT[:4].float(), RIGHT, RIGHT[:4]) == (1.0, 4)


def test_whole_numbers_are_all_right_or_wrong():
    right, other = torch.arange(4), torch.tensor([0, 1, 3, 2])
    assert explain(other, right, other) == (1.0, 2)
    assert explain(torch.tensor([0, 1, 3, 3]), right, other) == (0.0, 2)
    assert explain(other, right, right) is None


def test_infinities_are_left_to_the_judge_and_complex_numbers_count_by_their_parts():
    other = RIGHT.clone()
    other[3] = -math.inf
    assert explain(other.float(), RIGHT, other) == (1.0, 1)
    assert explain((1j * RIGHT).to(torch.complex64), RIGHT + 0j, 1j * RIGHT).places == 16
