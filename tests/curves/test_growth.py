"""Which growth is recognized, how often wrongly, and the probabilities against SciPy."""

from collections import Counter

import numpy as np
import pytest

from precflow.curves.growth import FEWEST, explain_growth, student_probability

DRAWS = 200


def count_kinds(make, count):
    """Return how often each kind is said of ``DRAWS`` curves."""
    random = np.random.default_rng(0)
    steps = np.arange(count)
    return Counter(explain_growth(steps, make(random, steps)).kind for _ in range(DRAWS))


def walk(random, steps):
    return np.cumsum(random.normal(size=len(steps)))


def test_student_by_scipy():
    from scipy import stats  # a second to import, which only the worker of this test takes

    for degrees in range(1, 40):
        for t in (0.0, 0.3, 1.7, 4.0, 30.0):
            assert student_probability(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), abs=1e-14)


@pytest.mark.parametrize("count", [60, 1000, 5000])
def test_a_walk_is_noise_and_hardly_ever_taken_for_a_bias(count):
    kinds = count_kinds(walk, count)
    assert kinds["noise"] > 0.7 * DRAWS
    assert kinds["bias"] + kinds["faster"] <= 0.03 * DRAWS


@pytest.mark.parametrize("count", [30, 60, 1000])
def test_fluctuation_around_a_value_does_not_grow(count):
    for offset in (0, 5):
        kinds = count_kinds(lambda random, steps, offset=offset: offset + random.normal(size=len(steps)), count)
        assert kinds["steady"] >= 0.97 * DRAWS


@pytest.mark.parametrize("offset", [0.1, 1e-4, 3.0])
def test_an_offset_does_not_grow_although_its_subtraction_rounds(offset):
    steps = np.arange(200)
    loss = 2 + 8 * np.exp(-steps / 40)
    assert explain_growth(steps, (loss + offset) - loss).kind == "steady"


@pytest.mark.parametrize("count", [100, 1000])
def test_a_line_is_a_bias(count):
    def line(random, steps):
        return 0.3 * steps + random.normal(size=len(steps))

    assert count_kinds(line, count)["bias"] >= 0.97 * DRAWS
    assert count_kinds(lambda *args: -line(*args), count)["bias"] >= 0.97 * DRAWS


def test_a_line_that_is_too_short_is_not_called_noise():
    kinds = count_kinds(lambda random, steps: 0.3 * steps + random.normal(size=len(steps)), 30)
    assert kinds["noise"] + kinds["steady"] <= 0.03 * DRAWS


@pytest.mark.parametrize("count", [60, 1000])
def test_what_shrinks_does_not_grow(count):
    steps = np.arange(count)
    noise = np.random.default_rng(3).normal(size=count)
    for shape in (np.exp(-5 * steps / count), 1 - steps / (2 * count), -1 + steps / (2 * count)):
        assert explain_growth(steps, shape + 0.02 * noise).kind == "shrinks"
    assert explain_growth(steps, (np.exp(-5 * steps / count) + 0.02) * noise).kind == "shrinks"
    assert explain_growth(steps, steps / count - 0.3 + 0.02 * noise).kind == "bias"  # through 0, and away from it


def test_an_explosion_is_neither():
    kinds = count_kinds(lambda random, steps: np.exp(8 * steps / len(steps)) * (1 + random.normal(size=len(steps)) / 10), 300)
    assert kinds == {"faster": DRAWS}


def test_the_slope_and_the_size_of_a_walk_are_found():
    random = np.random.default_rng(1)
    steps = np.arange(0, 20_000, 10)  # logged every ten steps
    line = explain_growth(steps, 1e-4 * steps + 1e-3 * random.normal(size=len(steps)))
    assert line.per_step == pytest.approx(1e-4, rel=0.01)
    assert line.per_step_uncertainty < 1e-6
    sizes = [explain_growth(steps, np.cumsum(random.normal(size=2000) * 10**0.5)).per_root_step for _ in range(50)]
    assert np.mean(sizes) == pytest.approx(1, rel=0.1)


def test_which_fit_explains_more():
    steps = np.arange(1, 1001)
    root, line = explain_growth(steps, np.sqrt(steps)), explain_growth(steps, 1.0 * steps)
    assert root.noise_fit > 0.999 > root.bias_fit
    assert line.bias_fit > 0.999 > line.noise_fit
    assert root.exponent == pytest.approx(0.5, abs=0.02)
    assert line.exponent == pytest.approx(1, abs=0.03)


def test_too_few_steps_and_no_difference():
    steps = np.arange(FEWEST - 1)
    assert explain_growth(steps, 1.0 * steps).kind == "unknown"
    assert explain_growth(steps, 0.0 * steps).kind == "none"
    assert explain_growth(steps[:0], 1.0 * steps[:0]).kind == "unknown"
