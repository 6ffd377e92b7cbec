"""The agent's command line, in a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precflow import __version__
from precflow.agent import __main__

FULL = Path("/dev/full")


def agent(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "precflow.agent", *map(str, words)], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture
def forked(warm_server, tmp_path):
    """Return a function that does as `agent`, in a fork that has torch imported already."""

    def run(*words):
        ended = warm_server.run(words, module="precflow.agent", cwd=tmp_path, env=dict(os.environ), timeout=120)
        return subprocess.CompletedProcess(words, *ended)

    return run


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_request_it_explains_itself():
    done = agent()
    assert done.returncode == 2
    assert "python precflow-agent.pyz request.json" in done.stderr
    assert agent("--help").returncode == 0


def test_version():
    done = agent("--version")
    assert (done.returncode, done.stdout) == (0, f"precflow-agent {__version__}\n")


@pytest.mark.parametrize(
    ("text", "expected"), [("{", "is not JSON"), ('{"schema": 99}', "request schema 99; this agent reads schema 1")]
)
def test_a_bad_request_is_one_event_and_exit_code_2(tmp_path, text, expected):
    path = tmp_path / "request.json"
    path.write_text(text)
    done = agent(path)
    assert done.returncode == 2
    assert [event["kind"] for event in lines(done)] == ["bad_request"]
    assert expected in lines(done)[0]["message"]
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_facts(forked, written, tmp_path):
    done = forked(written(action="environment"))
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "output" / "facts.json").read_text())
    assert facts["device"]["kind"] == "cpu"
    assert facts["switches"]["deterministic_algorithms"] == "True"
    assert {event["event"] for event in lines(done)} == {"progress"}


def test_a_dump(forked, written, tmp_path):
    done = forked(written())
    assert done.returncode == 0, done.stderr
    header = json.loads((tmp_path / "output" / "dump.json").read_text())
    assert header["format"] == "precflow-dump"
    assert [event["step"] for event in lines(done) if "step" in event][-2:] == ["facts", "seal"]
    assert "precflow-agent: this request calls " in done.stderr  # no judge started it: whoever did sees what it runs


@pytest.mark.usefixtures("emulation")
def test_a_missing_device_is_an_event_that_says_what_would_work(forked, written):
    done = forked(written(device=["npu"]))
    assert done.returncode == 2
    last = lines(done)[-1]
    assert last["kind"] == "device_missing"
    assert "target.device=emulated" in last["next_step"]


def test_an_exception_of_the_model_reaches_the_log_whole(forked, written, tmp_path):
    done = forked(written(workload=raising()))
    assert done.returncode == 2
    assert lines(done)[-1]["kind"] == "workload"
    assert "ValueError: the third layer is upset (toy_workload.py:" in lines(done)[-1]["message"]
    assert 'raise ValueError("the third layer is upset")' in done.stderr
    assert done.stderr.splitlines()[1].startswith("Traceback")  # behind the line that says what the request runs
    output = tmp_path / "output"
    assert not (output / "dump.json").exists()
    assert "the third layer is upset" in json.loads((output / "error.json").read_text())["traceback"]
    assert (output / "rank0/step0/records-0.jsonl").read_text().count("\n") >= 3


def raising():
    return {"model": {"_target_": "toy_workload.build", "kind": "Raising"}, "inputs": {"_target_": "toy_workload.inputs"}}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_said_and_leaves_no_seal(forked, written, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(output)], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        inputs = {"_target_": "toy_workload.inputs", "rows": 4096, "width": 64}
        model = {"_target_": "toy_workload.build", "width": 64}
        done = forked(written(workload={"model": model, "inputs": inputs}))
        assert done.returncode == 2
        last = lines(done)[-1]
        assert last["kind"] == "disk_full"
        assert f"no space left in {output}" in last["message"]
        assert not (output / "dump.json").exists()
    finally:
        subprocess.run(["umount", str(output)], check=True)


@pytest.mark.skipif(not FULL.exists(), reason="needs a file that is always full")
def test_a_log_that_cannot_be_written_does_not_hide_why(tmp_path):
    path = tmp_path / "request.json"
    path.write_text("{")
    with FULL.open("w") as full:
        words = [sys.executable, "-u", "-m", "precflow.agent", str(path)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert done.returncode == 2
    assert "is not JSON" in lines(done)[-1]["message"]


CHILD = (
    "import os, time; from precflow.agent.__main__ import die_with; die_with(os.getppid());"
    "print(os.getpid(), flush=True); time.sleep(60)"
)


def test_an_agent_dies_with_its_judge():
    judge = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
        "sys.stdout.write(child.stdout.readline().decode()); sys.stdout.flush(); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", judge, CHILD], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        assert _alive(child)
        process.kill()
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def test_a_judge_that_is_gone_already_ends_the_agent():
    script = "from precflow.agent.__main__ import die_with; die_with(1 << 22); print('still here')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""


def test_a_system_without_prctl_goes_on(monkeypatch):
    monkeypatch.setattr(__main__.ctypes, "CDLL", lambda _: object())
    assert __main__.die_with(os.getppid()) is None


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_this_process_is_not_bound():
    assert _alive(os.getpid())
