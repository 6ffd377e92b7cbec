"""The benchmark of disks does what it says: files out of memory, real comparisons, real captures, plain work beside them."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def disk(monkeypatch):
    """Return the benchmark as a module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("disk", FOLDER / "disk.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_in_memory_are_counted_and_taken_from_there(disk, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * 4096 + 1))
    (tmp_path / "empty").write_bytes(b"")
    assert disk.resident(path) == (11, 11)
    assert disk.resident(tmp_path / "empty") == (0, 0)
    assert disk.forget(tmp_path) in (0.0, 1.0)  # on a disk, in a tmpfs
    disk.read(tmp_path, 2)
    assert disk.resident(path) == (11, 11)


@pytest.mark.xdist_group("compiled")
def test_two_dumps_are_compared_cold_and_cached(disk, tmp_path):
    found = disk.compared(tmp_path, 0.01, 1)
    assert found["bytes"] > 0.01 * 1e9
    assert all(found[name] > 0 for name in ("read", "read by two", "compare", "compare cached", "share"))
    assert 0 <= found["left"] <= 1


def test_a_step_is_captured_beside_writes_of_the_same_bytes(disk, tmp_path):
    from capturing import work

    found = disk.captured(tmp_path, work.Case("small", "tensors", "api", "", 1, 200), 1)
    assert found["bytes"] > 100 * 64 * 4  # each of the tensors once
    assert found["captured"] > found["plain"]
    assert found["share"] > 0 < found["share_synced"]
    assert not list(tmp_path.iterdir())


def test_tables_and_ratios_name_everything(disk, tmp_path, capsys, monkeypatch):
    cold = {"read": 2.0, "read by two": 1.0, "compare": 1.25, "compare cached": 0.5, "bytes": 10**9, "left": 0.0, "share": 0.8}
    capture = {"plain": 1.0, "captured": 2.0, "captured, synced": 3.0, "write": 0.5, "write, synced": 1.5, "bytes": 10**9}
    found = {"compare": cold, "capture": {**capture, "share": 0.5, "share_synced": 0.75}}
    monkeypatch.setattr(disk, "measure", lambda *_, **__: found)
    monkeypatch.setattr("sys.argv", ["disk.py", "--json", "--folder", str(tmp_path), "--write", str(tmp_path / "out")])
    disk.main()
    said = json.loads(capsys.readouterr().out)
    assert (said["cold_compare_share_of_read"], said["capture_share_of_synced_write"]) == (0.8, 0.75)
    assert (said["captured_step"], said["captured_step_synced"]) == (2.0, 3.0)
    table = (tmp_path / "out" / "disk.md").read_text()
    assert "| compare | 1.25 | 0.8 |" in table
    assert "| plain | 1 | - |" in table
    assert json.loads((tmp_path / "out" / "disk.json").read_text()) == found


def test_a_folder_in_memory_is_refused(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "compared", lambda *_: {"left": 1.0})
    with pytest.raises(SystemExit, match=r"100% of .* stays in memory"):
        disk.measure(tmp_path, quick=True)
