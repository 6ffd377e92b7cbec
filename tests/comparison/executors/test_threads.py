"""Threads of this process: batches in order, small pairs together, large ones cut, and no thread left behind."""

import threading

from precflow.comparison.batches import make_batches
from precflow.comparison.executors import threads
from precflow.comparison.executors.threads import Threads
from precflow.comparison.reading import ReadOptions


def test_threads_yield_batches_in_order(sides, readings):
    work = list(make_batches(readings, ReadOptions()))
    done = list(Threads(3).run(work, *sides, ReadOptions()))
    assert [batch for batch, _ in done] == work
    assert [len(found) for _, found in done] == [len(batch.readings) for batch in work]
    assert [bool(one.problem) for _, found in done for one in found].count(True) == 1


def test_small_pairs_share_a_task_and_large_ones_are_cut(sides, readings, monkeypatch):
    monkeypatch.setattr(threads, "_ENOUGH", 60_000)
    opened = [
        threads._open_pair(one, *sides, ReadOptions())
        for batch in make_batches(readings[:6], ReadOptions())
        for one in batch.readings
    ]
    assert [len(task) for task in threads._make_tasks(opened)] == [2, 2, 2]
    monkeypatch.setattr("precflow.comparison.reading.PART", 1 << 14)
    assert sum(len(task) for task in threads._make_tasks(opened)) == 18


def test_who_leaves_early_leaves_no_thread_behind(sides, readings):
    run = Threads(2).run(list(make_batches(readings, ReadOptions())), *sides, ReadOptions())
    next(run)
    run.close()
    assert not [thread.name for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]


def test_pages_are_given_back_within_a_task_and_behind_it_each_view_once(sides, readings, monkeypatch):
    released = []
    monkeypatch.setattr(threads, "release", lambda *views: released.append([view.size for view in views]))
    opened = [
        threads._open_pair(one, *sides, ReadOptions())
        for batch in make_batches(readings[:6], ReadOptions())
        for one in batch.readings
    ]
    (task,) = threads._make_tasks(opened)
    monkeypatch.setattr(threads, "_HELD", opened[0].size + 1)
    threads._read_task(task)
    assert len(released) > 2
    assert sum(size for sizes in released for size in sizes) == 2 * sum(pair.size for pair in opened)
