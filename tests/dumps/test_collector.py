import gc

import pytest

from precflow.dumps.collector import MANY, collector_off


@pytest.fixture(autouse=True)
def thawed():
    """Leave no test's values out of the collector's sight."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("on", [True, False])
def test_it_is_off_inside_and_as_it_was_behind(on):
    (gc.enable if on else gc.disable)()
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled() is on
    with pytest.raises(ValueError, match="torn"), collector_off():
        raise ValueError("torn")
    assert gc.isenabled() is on


def test_many_values_are_left_alone_and_few_are_not():
    gc.unfreeze()
    with collector_off() as made:
        made += [MANY - 1]
    assert gc.get_freeze_count() == 0
    with collector_off() as made:
        made += [MANY // 2, MANY // 2]
    assert gc.get_freeze_count() > 0
