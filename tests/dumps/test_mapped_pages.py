"""Mapped files: pages go, values stay; nothing else is touched."""

from pathlib import Path

import numpy as np
import pytest

from precflow.comparison.fused.summarize import PairOfTensors
from precflow.dumps.mapped_pages import mapping_of, release


def resident():
    """Return how many bytes of files this process holds in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssFile"))


@pytest.fixture
def written(tmp_path):
    """Return the path of 64 MiB of float32."""
    path = tmp_path / "data"
    np.arange(1 << 24, dtype=np.float32).tofile(path)
    return path


def test_pages_are_given_back_and_can_be_read_again(written):
    values = np.memmap(written, np.float32, "r", offset=12).view(np.ndarray)[1:]
    before = resident()
    total = values.sum(dtype=np.float64)
    held = resident() - before
    release(values)
    assert held > 50 << 20
    assert resident() - before < 1 << 20
    assert values.sum(dtype=np.float64) == total


def test_small_views_are_given_back_together_by_the_one_that_reaches_the_end_of_a_window(written):
    values = np.memmap(written, np.float32, "r").view(np.ndarray)
    before = resident()
    small = [values[start : start + 1000] for start in range(0, values.size - 1000, 1000)]
    for view in small:
        assert view[-1] == view[0] + 999
        release(view)
    assert resident() - before < 8 << 20


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_in_a_writable_mapping_are_kept(written, mode):
    values = np.memmap(written, np.float32, mode)
    values[5] = -1
    values.flags.writeable = False
    release(values)
    assert values[5] == -1


def test_other_arrays_have_no_mapping():
    values = np.arange(5000.0)
    values.flags.writeable = False
    release(values)
    release(values[:0])
    assert mapping_of(values) is None
    assert values.sum() == 4999 * 2500
    assert mapping_of(np.frombuffer(b"12345678", np.float64)) is None


@pytest.fixture(params=[False, True])
def begun(request, written):
    """Return a pair of tensors, one of them mapped, and whether it is read by the compiled pass, which works by now."""
    pytest.importorskip("numba")
    values = np.memmap(written, np.float32, "r", shape=1 << 23).view(np.ndarray)
    pair = PairOfTensors(values, values[::-1].copy())
    pair.summary(0, 5000, compiled=request.param)
    return pair, request.param


def test_a_comparison_holds_little_of_the_file_at_a_time(begun, grown):
    pair, compiled = begun
    before = resident()
    assert pair.summary(compiled=compiled).elements == 1 << 23
    assert resident() - before < 4 << 20
    assert grown() < 24 << 20


def test_many_small_views_leave_nothing_behind(written):
    values = np.memmap(written, np.float32, "r").view(np.ndarray)
    before = resident()
    for start in range(0, values.size, 10_000):
        part = values[start : start + 10_000]
        part.sum()
        release(part)
    assert resident() - before < 1 << 20


def test_neighbours_that_are_given_back_together_are_told_to_the_system_once(written, monkeypatch):
    values = np.memmap(written, np.float32, "r").view(np.ndarray)
    told = []
    monkeypatch.setattr(
        "precflow.dumps.mapped_pages._MappedStretch.release", lambda stretch: told.append((stretch.first, stretch.last))
    )
    quarter = 1 << 20  # elements, 4 MiB
    release(*(values[start : start + quarter] for start in (0, quarter, 2 * quarter, 8 * quarter)), np.zeros(3))
    windows = sorted(told)
    assert len(windows) == 2
    assert windows[0][0] == 0
    assert 12 << 20 <= windows[0][1] <= 14 << 20
    assert 30 << 20 <= windows[1][0] <= 32 << 20
