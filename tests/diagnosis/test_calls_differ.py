"""Calls that the sides made differently, told by the calls that made their inputs."""

import pytest

from precflow.diagnosis.calls_differ import find_different_calls
from precflow.diagnosis.evaluation import pair_calls


@pytest.fixture
def wire(hand_made):
    """Both sides run norm, dropout and dense; ``dense`` takes what ``norm`` or ``dropout`` returned."""

    def sides(source_here, source_there, *, dropout_returns_here=1, same_bits=False):
        made = []
        for source, returns in ((source_here, dropout_returns_here), (source_there, 1)):
            dump = hand_made()
            norm = dump.module("norm", {"content": "x"})
            dropout = dump.module("dropout", norm, returns=returns)
            before = {"norm": norm, "dropout": dropout}[source]
            dump.module("dense", {"content": "y" if same_bits else source, "source": (before.order, "0")})
            made.append(dump)
        here, there = made
        return find_different_calls(pair_calls(here, there), here.calls(), there.calls(), same_dtype=True)

    return sides


def test_a_call_that_takes_the_output_of_another_call_is_found(wire):
    (different,) = wire("norm", "dropout")
    assert different.sources == ("its input 0 comes from norm on the reference, and from dropout on the target",)
    assert wire("dropout", "dropout") == []
    assert wire("norm", "dropout", same_bits=True) == []


def test_what_one_side_alone_returns_is_no_other_wiring(wire):
    """A dropout that is off hands on what it was given, so that the next call takes that from the call before."""
    assert wire("norm", "dropout", dropout_returns_here=0) == []


def test_a_module_and_the_one_inside_it_return_the_same_gradient(hand_made):
    """Where a cast follows inside a block, a gradient has the bits of what the block returned, and not of its convolution."""
    sides = []
    for taken in ("block.conv", "block"):
        dump = hand_made()
        made = {name: dump.module(name, {"content": "g"}, phase="backward") for name in ("block.conv", "block")}
        dump.module("act", {"content": "y", "source": (made[taken].order, "0")}, phase="backward")
        sides.append(dump)
    here, there = sides
    assert find_different_calls(pair_calls(here, there), here.calls(), there.calls(), same_dtype=True) == []
