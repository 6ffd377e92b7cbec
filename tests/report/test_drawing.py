import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.report.record_details import HEIGHT, WIDTH, bars, outline

COUNTS = st.lists(st.integers(0, 10**12), max_size=60)


def coordinates(path):
    across = [float(number) for number in re.findall(r"[MH]([-\d.]+)", path)]
    down = [float(number) for number in re.findall(r"V([-\d.]+)", path)]
    return across, down


@given(COUNTS, st.booleans())
def test_every_path_stays_in_its_box(counts, logarithmic):
    for path in (bars(counts, logarithmic=logarithmic), outline(counts, logarithmic=logarithmic)):
        assert re.fullmatch(r"[MVHZ\d. ]*", path)
        across, down = coordinates(path)
        assert all(0 <= number <= WIDTH for number in across)
        assert all(0 <= number <= HEIGHT for number in down)


@given(COUNTS)
def test_what_is_not_0_is_a_bar(counts):
    assert bars(counts).count("M") == sum(count > 0 for count in counts)


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_nothing_is_flat(counts):
    assert bars(counts) == ""
    assert set(coordinates(outline(counts))[1]) <= {HEIGHT}


def test_two_outlines_share_a_scale():
    _, down = coordinates(outline([1], 3, logarithmic=False))
    assert down[0] == 48
