import gc
import threading

import numpy as np
import pytest

from precflow.cli import main
from precflow.comparison.compare import compare
from precflow.dumps import garbage
from precflow.dumps.formats import read_dump
from precflow.dumps.garbage import MANY, collector_off, freezing_allowed

pytestmark = pytest.mark.usefixtures("nothing_frozen")


def read(*numbers):
    with collector_off() as made:
        made.extend(numbers)


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
    with freezing_allowed():
        read(MANY - 1)
        assert gc.get_freeze_count() == 0
        read(MANY // 2, MANY // 2)
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_who_imports_precflow_and_reads_a_dump_keeps_a_collector_that_sees_everything():
    read(MANY)
    assert gc.get_freeze_count() == 0


def test_the_outermost_block_decides_when_the_collector_sees_them_again():
    with freezing_allowed():
        with freezing_allowed():
            read(MANY)
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_it_sees_them_again_after_a_failure_too():
    with pytest.raises(ValueError, match="torn"), freezing_allowed():
        read(MANY)
        raise ValueError("torn")
    assert gc.get_freeze_count() == 0


def test_what_the_program_froze_itself_stays_frozen():
    gc.freeze()
    before = gc.get_freeze_count()
    with freezing_allowed():
        kept = [[] for _ in range(10)]
        read(MANY)
        assert gc.get_freeze_count() <= before, "and nothing is added to it"
    assert 0 < gc.get_freeze_count() <= before
    assert len(kept) == 10


def test_a_block_of_another_thread_keeps_them_out_of_sight():
    entered, leave = threading.Event(), threading.Event()

    def elsewhere():
        with freezing_allowed():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(10)
    with freezing_allowed():
        read(MANY)
    assert gc.get_freeze_count() > 0
    leave.set()
    thread.join()
    assert gc.get_freeze_count() == 0


@pytest.fixture
def frozen(monkeypatch):
    """Return how often the collector was told to leave out what is there; a few values count as many."""
    times = []
    freeze = gc.freeze
    monkeypatch.setattr(garbage, "MANY", 1)
    monkeypatch.setattr(gc, "freeze", lambda: times.append(freeze()))
    return times


def test_a_comparison_spares_the_records_that_it_reads_and_is_done_with_it(build, frozen):
    sides = [read_dump(build(side).call("a", "linear", [np.ones(3)]).write()) for side in ("reference", "target")]
    assert len(compare(*sides)) == 1
    assert frozen
    assert gc.get_freeze_count() == 0


def test_so_does_the_command_line(build, frozen, capsys):
    folder = build().call("a", "linear", [np.ones(3)]).write()
    assert main(["inspect", str(folder)]) == 0
    assert "1 call" in capsys.readouterr().out
    assert frozen
    assert gc.get_freeze_count() == 0
