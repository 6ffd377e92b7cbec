"""Logs of a device are found by their names, cut to size, freed of secrets, and shown around the earliest error."""

import os
import time

import pytest

from precflow.sides import device_log
from precflow.sides.device_log import FOLDER, collect, log_variables

TOKEN = "hf_" + "a1B2c3D4e5F6g7H8i9J0"


def line(level, text, second=1):
    return f"[{level}] RUNTIME(7,python):2026-01-01-10:00:{second:02}.000.000 [task.cc:1]7 {text}\n"


@pytest.fixture
def place(tmp_path):
    """Return the folder of a run, the variables of its side, and a function that writes a log as a driver does."""
    run, home = tmp_path / "run", tmp_path / "home"
    run.mkdir()

    def write(name, text, age=0.0, root=home / "ascend" / "log"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (time.time() - age,) * 2)
        return path

    return run, {"HOME": str(home)}, write


def test_the_earliest_error_comes_first_and_secrets_are_gone(place):
    run, variables, write = place
    lines = [line("INFO", f"step {number}") for number in range(9)]
    write("debug/plog/plog-7_20260101.log", "".join([*lines, line("ERROR", f"halMemAlloc failed token={TOKEN}", 5), *lines]))
    write("debug/device-0/device-7_20260101.log", line("ERROR", "aicore timeout", 3))
    write("run/plog/plog-7_20260101.log", line("INFO", "no error here"))
    write("debug/plog/plog-6_20251231.log", line("ERROR", "of a run before"), age=100)
    write("debug/plog/notes.txt", line("ERROR", "no log"))
    first, second = collect(run, variables, time.time() - 10)
    assert (first.file, first.lines[first.at].rpartition(" ")[2]) == ("debug/device-0/device-7_20260101.log", "timeout")
    assert (second.line, second.at, len(second.lines)) == (10, 5, 15)
    assert "halMemAlloc failed" in second.lines[second.at]
    kept = run / FOLDER / second.file
    assert TOKEN not in second.lines[second.at] + kept.read_text(encoding="utf-8")
    assert (run / FOLDER / "run/plog/plog-7_20260101.log").is_file()
    assert not list((run / FOLDER).rglob("plog-6*"))


def test_a_link_is_not_followed(place, tmp_path):
    run, variables, write = place
    (tmp_path / "private.log").write_text(line("ERROR", "private"), encoding="utf-8")
    write("debug/plog/plog-1.log", "").unlink()
    (tmp_path / "home/ascend/log/debug/plog/plog-1.log").symlink_to(tmp_path / "private.log")
    assert collect(run, variables, 0) == ()


def test_a_large_log_is_cut_around_its_error(place, monkeypatch):
    monkeypatch.setattr(device_log, "_LARGEST", 4000)
    run, variables, write = place
    much = line("INFO", "x" * 60) * 200
    write("slog/host-0/host-0_20260101.log", much + line("ERROR", "here") + much)
    write("debug/plog/plog-2.log", much)
    (found,) = collect(run, variables, 0)
    assert "here" in found.lines[found.at]
    for kept in (run / FOLDER).rglob("*.log"):
        assert kept.stat().st_size < 4200
        assert kept.read_text(encoding="utf-8").startswith("[precflow] ")


def test_what_cuda_and_nccl_say_is_an_error_too(place):
    run, _, write = place
    write("cuda.log", "[10:00:00.1][7][CUDA][E] no kernel image\n", root=run / FOLDER)
    write("nccl-host-7.log", "host:7:7 [0] NCCL INFO x\nhost:7:7 [0] NCCL WARN timed out\n", root=run / FOLDER)
    assert sorted(log.line for log in collect(run, {}, 0)) == [1, 2]


@pytest.mark.parametrize(("level", "number", "nccl"), [("debug", "0", "TRACE"), ("info", "1", "INFO"), ("error", "3", "WARN")])
def test_levels_are_those_of_cann(tmp_path, level, number, nccl):
    variables = log_variables(level, tmp_path)
    assert (variables["ASCEND_GLOBAL_LOG_LEVEL"], variables["NCCL_DEBUG"]) == (number, nccl)
    assert variables["ASCEND_PROCESS_LOG_PATH"] == str(tmp_path / FOLDER)
