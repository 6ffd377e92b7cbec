import math

import pytest

from precflow.diagnosis.training.gradients import GradientRow
from precflow.report import training


def row(name="a.weight", step=0, reference=1.0, target=1.0, cosine=1.0, rank=0):
    return GradientRow(name, step, rank, reference, target, cosine)


def draw(*rows):
    return training.draw_gradients(rows)


def test_nothing_recorded_has_no_picture():
    assert draw() is None


def test_two_grids_have_a_cell_for_each_parameter_and_step():
    picture = draw(*(row(name, step) for step in (0, 1) for name in ("a", "b", "c")))
    assert len(picture.cells) == 2 * 6
    assert [name for _, name in picture.names] == ["a", "b", "c"]
    assert [step for _, step in picture.heads] == ["0", "1", "0", "1"]
    assert {cell.level for cell in picture.cells} == {0}
    assert max(cell.x for cell in picture.cells) + picture.width <= training.WIDTH + 0.1
    assert max(cell.y for cell in picture.cells) + training.ROW <= picture.height


def test_cells_say_ratio_and_cosine():
    norm, direction = draw(row(target=4.0, cosine=0.25)).cells
    assert (norm.text, direction.text) == ("×4", "0.25")
    assert (norm.level, direction.level) == (5, 5)
    assert norm.title == "a.weight, step 0: norm 1 / 4, cosine 0.25"


@pytest.mark.parametrize(
    ("given", "texts", "levels"),
    [
        (row(reference=None, target=None, cosine=None), ("?", "?"), (-1, -1)),
        (row(reference=0.0, target=0.0, cosine=None), ("0 / 0", "?"), (0, 0)),
        (row(reference=0.0, target=2.0, cosine=None), ("new", "?"), (5, -1)),
        (row(cosine=-1.0), ("×1", "-1"), (0, 5)),
    ],
)
def test_what_is_not_known_is_no_agreement(given, texts, levels):
    cells = draw(given).cells
    assert tuple(cell.text for cell in cells) == texts
    assert tuple(cell.level for cell in cells) == levels


def test_of_many_parameters_the_most_different_are_shown_in_order_of_the_network():
    rows = [row(f"layers.{number}", target=1.0 + (number % 50) / 50) for number in range(100)]
    picture = draw(*rows)
    assert len(picture.names) == training.MOST_PARAMETERS
    assert picture.left_out == 60
    numbers = [int(name.rpartition(".")[2]) for _, name in picture.names]
    assert numbers == sorted(numbers)
    assert {number % 50 for number in numbers} == set(range(30, 50))


def test_many_steps_are_thinned_and_hold_no_text():
    picture = draw(*(row(step=step) for step in range(100)))
    assert len({text for _, text in picture.heads}) <= training.MOST_STEPS
    assert {cell.text for cell in picture.cells} == {""}


def test_the_summary_counts_what_is_apart():
    assert draw(row("a"), row("b", target=2.0)).summary == (
        "Gradients of 2 parameters in 1 step: 1 is more than 1 % apart in norm or direction."
    )
    assert not math.isnan(draw(row("a")).height)
