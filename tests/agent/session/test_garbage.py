import gc
import weakref

import pytest

from precflow.agent.session.garbage import collect_rarely


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)


pytestmark = pytest.mark.usefixtures("nothing_frozen")


def test_what_was_there_is_left_out_and_comes_back():
    before = gc.get_threshold()
    old = Node()
    with collect_rarely():
        assert gc.get_freeze_count() > 1000
        assert not any(each is old for each in gc.get_objects())
        assert gc.get_threshold() == (10 * before[0], *before[1:])
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
    assert any(each is old for each in gc.get_objects())


def test_cycles_that_a_model_makes_are_still_collected():
    with collect_rarely():
        found = cycle()
        gc.collect()
        assert found() is None


def test_inside_itself_it_does_nothing():
    with collect_rarely():
        count, thresholds = gc.get_freeze_count(), gc.get_threshold()
        with collect_rarely():
            assert gc.get_threshold() == thresholds
        assert gc.get_freeze_count() >= count - 100 > 0


def test_an_exception_brings_it_all_back():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collect_rarely():
        assert 1 / 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
