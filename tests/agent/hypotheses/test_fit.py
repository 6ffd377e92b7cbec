"""How much of an output's error another computation explains."""

import math

import pytest
import torch

from precflow.agent.hypotheses.fit import Aim, round_results

RIGHT = torch.arange(1.0, 9.0, dtype=torch.float64)
LONG = torch.arange(1.0, 65.0, dtype=torch.float64)


def measure(output, right, other, **facts):
    """Measure one output, as computed exactly and as rounded to its type."""
    target = {"0": output}
    ways = [[each, round_results(each, target)] for each in ({"0": right}, {} if other is None else {"0": other})]
    return Aim(target, ways[0], **facts).measure(ways[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_computation_that_gives_the_output_explains_all_of_it(dtype):
    found = measure((LONG * 1.1).to(dtype), LONG, LONG * 1.1)
    assert found.share > 0.999
    assert found.sure == found.share
    assert found.places == 64


def test_what_two_computations_agree_on_is_explained_by_neither():
    assert measure(RIGHT.float() + 1, RIGHT, RIGHT + 1e-12) is None


def test_an_output_that_is_right_as_far_as_its_type_allows_needs_no_explanation():
    assert measure((LONG / 3).bfloat16(), LONG / 3, LONG / 3 * 1.01) is None


def test_half_of_the_error_is_half_explained():
    wrong = RIGHT.clone()
    wrong[[0, 1]] += 1.0
    other = RIGHT.clone()
    other[0] += 1.0
    found = measure(wrong.float(), RIGHT, other)
    assert (found.share, found.places) == (pytest.approx(0.5), 1)


def test_several_outputs_count_in_units_of_their_sizes():
    target = {"0": LONG * 1.1, "1": 1e6 * LONG * 1.1}
    right = {"0": LONG, "1": 1e6 * LONG}
    aim = Aim(target, [right])
    assert aim.measure([{"0": LONG * 1.1, "1": 1e6 * LONG}]).share == pytest.approx(0.5)
    assert aim.measure([target]).share == 1.0


def test_infinite_terms_are_no_size():
    assert measure(LONG * 1.1, LONG, LONG * 1.05, sizes={"0": math.inf}).share == pytest.approx(0.75)
    assert measure(LONG * 1.1, LONG, LONG * 1.1, sizes={"0": math.inf}).sure == 1.0


def test_what_is_left_is_in_units_of_the_error_of_the_reference():
    other = 1.1 * LONG + 0.01 * (-1.0) ** LONG
    own = float((0.01 * torch.ones(64)).square().sum() / LONG.square().sum())
    assert measure(1.1 * LONG, LONG, other, own=own).left == pytest.approx(1.0, rel=1e-6)
    assert measure(1.1 * LONG, LONG, other).left is None


def test_a_few_elements_may_be_explained_by_chance():
    wrong = LONG.clone()
    wrong[:3] *= 1.1
    assert measure(wrong, LONG, wrong).share == 1.0
    assert measure(wrong, LONG, wrong).sure == 0.0
    assert measure(RIGHT * 1.1, RIGHT, RIGHT * 1.1 + 1e-7).sure > 0.99
    assert measure(RIGHT * 1.1, RIGHT, RIGHT * 1.101).sure == 0.0


def test_next_to_a_result_that_is_nearly_zero_zeros_explain_nothing():
    tiny = 1e-9 * LONG
    target = LONG + 0.01 * (-1.0) ** LONG
    assert measure(target, target - tiny * 1e6, torch.zeros(64, dtype=torch.float64)).sure == 0.0
    assert measure(tiny, tiny + 1.0, tiny * 2).share > 0.999
    assert measure(tiny, tiny + 1.0, tiny * 2).sure == 0.0


def test_another_shape_explains_nothing_and_the_shape_of_the_output_speaks_for_itself():
    assert not measure(RIGHT.float() + 1, RIGHT, RIGHT[:4]).share > 0.0
    assert not measure(RIGHT.float() + 1, RIGHT, None).share > 0.0
    found = measure(RIGHT[:4].float(), RIGHT, RIGHT[:4])
    assert (found.share, found.places) == (1.0, 4)


def test_whole_numbers_count_by_places():
    right, other = torch.arange(4), torch.tensor([0, 1, 3, 2])
    found = measure(other, right, other)
    assert (found.share, found.places) == (1.0, 2)
    assert measure(torch.tensor([0, 1, 3, 3]), right, other).share == 0.0
    assert measure(other, right, right) is None


def test_infinities_are_left_to_the_judge_and_complex_numbers_count_by_their_parts():
    other = RIGHT.clone()
    other[3] = -math.inf
    found = measure(other.float(), RIGHT, other)
    assert (found.share, found.places) == (1.0, 1)
    assert not measure(RIGHT.float() + 1, RIGHT, other).share > 0.0
    assert measure((1j * RIGHT).to(torch.complex64), RIGHT + 0j, 1j * RIGHT).places == 16
