import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from precflow.config.schema import Side
from precflow.errors import SideError, StoreError
from precflow.sides import launch
from precflow.sides.agent_log import read_last_lines
from precflow.sides.launch import Agents, build_command, imply_variables, run_agent


def run(request, output, side=None, **options):
    options = {"variables": {}, "timeout": 120.0, **options}
    run_agent(request, side=side or Side(), folder=output, **options)


def failed(request, output, side=None, **options):
    with pytest.raises(SideError) as caught:
        run(request, output, side, **options)
    return caught.value


@pytest.mark.usefixtures("cold_agents")
def test_a_dump_is_made_and_progress_is_heard(asked, output):
    heard = []
    run(asked(), output, on_progress=heard.append)
    assert json.loads((output / "dump.json").read_text())["recipe"] == "toy"
    assert "building the model" in heard
    assert "a line of the user's own" in (output / "agent.log").read_text()
    assert json.loads((output / "request.json").read_text())["parent"] == os.getpid()


@pytest.mark.usefixtures("cold_agents")
def test_facts_show_the_variables_that_were_set_before_python(asked, output):
    request = asked(action="environment", determinism={"seed": 11, "algorithms": "warn"})
    run(request, output, variables={"HCCL_DETERMINISTIC": "strict"})
    variables = json.loads((output / "facts.json").read_text())["variables"]
    assert variables["PYTHONHASHSEED"] == "11"
    assert variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert variables["HCCL_DETERMINISTIC"] == "strict", "the side's own variables win"
    assert variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_waiting_threads_do_not_spin_unless_the_user_says_so(asked, output, tmp_path, monkeypatch):
    """Facts do not record this variable, so the side's set-up file writes it down, and ends: no interpreter need start."""
    setup = tmp_path / "setup.sh"
    setup.write_text(f"echo $GOMP_SPINCOUNT > {tmp_path}/spin\nexit 3\n")
    for own, expected in (None, "0"), ("7", "7"):
        monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
        if own:
            monkeypatch.setenv("GOMP_SPINCOUNT", own)
        failed(asked(action="environment"), output, Side(setup=(str(setup),)))
        assert (tmp_path / "spin").read_text().strip() == expected


def test_what_determinism_implies():
    assert "CUBLAS_WORKSPACE_CONFIG" not in imply_variables({"determinism": {"algorithms": "native"}})
    assert "PYTHONHASHSEED" not in imply_variables({"determinism": {"seed": "script"}})
    assert imply_variables({"determinism": {"seed": 2**32 + 5}})["PYTHONHASHSEED"] == "5"


def test_a_refusal_carries_message_and_next_step(asked, output):
    error = failed(asked(device=["npu"]), output)
    assert error.message.startswith("target: no device for target.device=npu here")
    assert "target.device=emulated" in error.next_step
    assert error.log == ()
    assert error.kind == "device_missing"


def test_an_exception_of_the_workload_names_its_line_and_leaves_its_traceback_in_the_log(asked, output):
    error = failed(asked("raises"), output)
    assert "the workload raised ValueError: upset (toy_launched.py:" in error.message
    assert error.log == ()
    assert "ValueError: upset" in (output / "agent.log").read_text()
    assert not (output / "dump.json").exists()
    assert (output / "error.json").exists()


@pytest.mark.parametrize(("kind", "signal"), [("abort", "SIGABRT"), ("killed", "SIGKILL")])
def test_a_crash_names_the_signal_and_the_last_lines(asked, output, kind, signal):
    error = failed(asked(kind), output)
    assert f"was killed by {signal}" in error.message
    assert any("a line of the user's own" in line for line in error.log)
    assert ("enough memory" if signal == "SIGKILL" else "below Python crashed") in error.next_step
    assert any("toy_launched.py" in line and "in forward" in line for line in error.log) == (signal == "SIGABRT")


@pytest.mark.parametrize(
    ("kind", "said"), [("leaves", "SystemExit: 0"), ("interrupts", "KeyboardInterrupt: without a message")]
)
def test_a_workload_that_ends_the_process_is_an_error_at_its_line(asked, output, kind, said):
    error = failed(asked(kind), output)
    assert f"the workload raised {said} (toy_launched.py:" in error.message
    assert error.log == ()


def test_an_exit_without_a_word_shows_its_code_and_the_log(asked, output, impostor):
    side = impostor("import sys\nfor n in range(40): print('line', n, file=sys.stderr)\nsys.exit(7)")
    error = failed(asked(), output, side)
    assert "ended with exit code 7" in error.message
    assert error.log == tuple(f"line {number}" for number in range(25, 40))


def test_an_end_without_a_result_is_not_success(asked, output, impostor):
    error = failed(asked(), output, impostor("print('all is well')"))
    assert "ended without a result" in error.message
    assert "os._exit" in error.next_step
    assert (output / "agent.log").read_text() == "all is well\n"


def test_what_an_earlier_request_has_left_is_no_result(asked, output, impostor):
    (output / "dump.json").write_text("{}")
    assert "ended without a result" in failed(asked(), output, impostor("print('all is well')")).message


def test_a_side_that_hangs_is_stopped_with_all_it_started(asked, output, impostor, tmp_path):
    child = tmp_path / "child"
    side = impostor(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(child)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    started = time.monotonic()
    error = failed(asked(), output, side, timeout=1.5)
    assert time.monotonic() - started < 15
    assert "did not finish within 1.5 s" in error.message
    assert "capture.timeout" in error.next_step
    assert _gone(int(child.read_text()))


@pytest.fixture
def late_once(monkeypatch):
    """Return a function after which an hour has passed for the launcher as soon as the toy runs, which a log tells."""

    def wait_for(log):
        def monotonic():
            runs = log.is_file() and b"a line of the user's own" in log.read_bytes()
            return 3600.0 if runs else 0.0

        monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=monotonic))

    return wait_for


def test_a_workload_that_hangs_shows_the_line_where_it_was_stopped(asked, output, late_once):
    late_once(output / "agent.log")
    error = failed(asked("hangs"), output, timeout=60.0)  # of a clock that jumps as soon as it hangs
    assert "did not finish within 60 s" in error.message
    assert any("toy_launched.py" in line and "in forward" in line for line in error.log)


def test_one_that_ignores_the_request_to_end_is_killed(asked, output, impostor, monkeypatch):
    monkeypatch.setattr(launch, "_GRACE", 0.3)
    side = impostor("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)")
    assert "was stopped" in failed(asked(), output, side, timeout=1.0).message


def test_one_that_closes_its_output_and_goes_on_is_stopped_too(asked, output, impostor):
    side = impostor("import os, time\nos.close(1)\ntime.sleep(60)")
    assert "did not finish" in failed(asked(), output, side, timeout=1.0).message


def test_a_child_that_keeps_the_pipe_open_holds_nobody_up(asked, output, impostor):
    side = impostor("import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])")
    started = time.monotonic()
    assert "without a result" in failed(asked(), output, side).message
    assert time.monotonic() - started < 15


def test_ending_the_busy_ones_ends_an_agent_of_another_thread_and_starts_no_more(asked, output, impostor, tmp_path):
    """What is made beside a stage that failed is not waited for."""
    place = tmp_path / "pid"
    side = impostor(f"import os, time\nopen({str(place)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    with closing(Agents()) as agents, ThreadPoolExecutor(1) as beside:
        running = beside.submit(failed, asked(), output, side, agents=agents)
        while not (place.exists() and place.read_text()):
            time.sleep(0.02)
        agents.end_busy()
        assert "SIGTERM" in running.result(10).message
        assert _gone(int(place.read_text()))
        assert "was not started" in failed(asked(), output, side, agents=agents).message


def test_an_interrupt_ends_the_agent(asked, output, impostor, tmp_path):
    pid = tmp_path / "pid"
    side = impostor(
        f"import json, os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "print(json.dumps({'event': 'progress', 'text': 'x'}), flush=True)\ntime.sleep(60)"
    )

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked(), output, side, on_progress=interrupt)
    assert _gone(int(pid.read_text()))


def test_a_missing_interpreter_is_named(asked, output):
    assert "interpreter /nowhere/python does not exist" in failed(asked(), output, Side(interpreter="/nowhere/python")).message


def test_a_file_that_may_not_be_executed_is_named(asked, output, tmp_path):
    (tmp_path / "python").write_text("")
    assert "is not executable" in failed(asked(), output, Side(interpreter=str(tmp_path / "python"))).message


def test_a_launcher_that_is_not_there_is_named(asked, output):
    assert "cannot start no-such-launcher" in failed(asked(), output, Side(launcher=("no-such-launcher",))).message


def test_an_interpreter_without_torch_is_told_what_to_install(asked, output, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    error = failed(asked(), output, Side(interpreter=str(tmp_path / "bare" / "bin" / "python")))
    assert "cannot import torch" in error.message
    assert "pip install 'torch>=2.1'" in error.next_step


def test_set_up_files_are_sourced_before_python_starts(asked, output, tmp_path):
    file = tmp_path / "set env.sh"
    file.write_text('echo "sourced"; export OMP_WAIT_POLICY="from the file"')
    run(asked(action="environment"), output, Side(setup=(str(file),)))
    assert json.loads((output / "facts.json").read_text())["variables"]["OMP_WAIT_POLICY"] == "from the file"
    assert "sourced" in (output / "agent.log").read_text()


def test_a_set_up_file_that_fails_stops_the_side(asked, output, tmp_path):
    (tmp_path / "set_env.sh").write_text("echo no driver here; return 1")
    error = failed(asked(), output, Side(setup=(str(tmp_path / "set_env.sh"),)))
    assert "exit code 2" in error.message
    assert error.log == ("no driver here",)


def test_a_missing_set_up_file_is_named(asked, output):
    assert (
        "set-up file /nowhere/set_env.sh does not exist"
        in failed(asked(), output, Side(setup=("/nowhere/set_env.sh",))).message
    )


def test_the_command_stands_where_the_launcher_wants_it():
    last = build_command(Side(launcher=("nice", "-n", "5")), "r.json")
    assert last[:4] == ["nice", "-n", "5", sys.executable]
    assert last[-1] == "r.json"
    inside = build_command(Side(launcher=("run", "{command}", "--then", "stop")), "r.json")
    assert (inside[0], inside[1], inside[-2:]) == ("run", sys.executable, ["--then", "stop"])


def test_behind_a_launcher_the_parent_is_not_ours(asked, output):
    run(asked(action="environment"), output, Side(launcher=("env", "OMP_SCHEDULE=static")))
    assert json.loads((output / "request.json").read_text())["parent"] is None
    assert json.loads((output / "facts.json").read_text())["variables"]["OMP_SCHEDULE"] == "static"


def test_quoting_survives_the_shell(tmp_path):
    file = tmp_path / "it's; here.sh"
    file.write_text("")
    words = build_command(Side(setup=(str(file),), launcher=("echo", "a b", "$HOME", "{command}")), "r q.json")
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a b $HOME ")
    assert done.stdout.endswith("r q.json\n")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to(asked):
    with pytest.raises(StoreError, match=r"cannot write /proc/request\.json"):
        run(asked(), Path("/proc"))


def test_no_log_has_no_lines(tmp_path):
    assert read_last_lines(tmp_path) == []


def records(folder):
    """Return what a dump says of the values: the lines of its records, and the header without times and its own id."""
    header = json.loads((folder / "dump.json").read_text())
    lines = sorted((folder / "rank0/step0").glob("records-*.jsonl"))
    return [line.read_text() for line in lines], {key: header[key] for key in header.keys() - {"seconds", "id", "checksum"}}


@pytest.fixture
def started(monkeypatch):
    """Return a list that grows by the words of each process that is started for an agent."""
    found = []
    start = launch._start

    def counted(words, *arguments, **options):
        found.append(words)
        return start(words, *arguments, **options)

    monkeypatch.setattr(launch, "_start", counted)
    return found


@pytest.fixture
def folders(tmp_path):
    """Return a function that makes an empty folder for one request."""

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        return folder

    return make


def test_one_process_tells_the_facts_of_a_side_and_makes_its_dump(asked, folders, started):
    alone, facts, dump = (folders(name) for name in ("alone", "facts", "dump"))
    run(asked(output=str(alone)), alone)
    with closing(Agents()) as agents:
        run(asked(action="environment", output=str(facts)), facts, agents=agents)
        (agent,) = agents._waiting.values()
        assert agent.process.poll() is None
        heard = []
        run(asked(output=str(dump)), dump, agents=agents, on_progress=heard.append)
        assert agent.process.poll() is None, "a second pass or an evaluation may follow"
    assert _gone(agent.process.pid)
    assert len(started) == 2
    assert records(dump) == records(alone)
    assert "importing torch" in heard
    assert "a line of the user's own" in (dump / "agent.log").read_text()
    assert (facts / "agent.log").read_text() == ""


def test_facts_are_the_same_whoever_tells_them_and_a_refusal_ends_nobody(asked, folders, started):
    alone, refused, other = (folders(name) for name in ("alone", "refused", "other"))
    request = asked(action="environment", device=["emulated"])
    run({**request, "output": str(alone)}, alone)
    with closing(Agents()) as agents:
        run({**request, "output": str(other)}, other, agents=agents)
        error = failed({**request, "output": str(refused), "device": ["npu"]}, refused, agents=agents)
        assert error.message.startswith("target: no device for target.device=npu here")
        assert "no device for" in (refused / "agent.log").read_text()
        run({**request, "output": str(other)}, other, agents=agents)
    assert (alone / "facts.json").read_text() == (other / "facts.json").read_text()
    assert len(started) == 2


STAYING = """
import json, os, sys
requests = (json.loads(line) for line in sys.stdin) if sys.argv[2] == "--stay" else sys.argv[2:]
for request in requests:
    with open(os.path.join(os.path.dirname(request), "facts.json"), "w") as stream:
        json.dump(sys.argv[2:], stream)
    if sys.argv[2] == "--stay":
        print(json.dumps({"event": "done", "code": "0"}), flush=True)
"""


def test_sides_variables_and_launchers_have_processes_of_their_own(asked, folders, started, impostor):
    side = impostor(STAYING)
    with closing(Agents()) as agents:
        for number, (name, launcher, variables) in enumerate(
            [
                ("reference", (), {}),
                ("target", (), {}),
                ("target", (), {"OMP_SCHEDULE": "static"}),
                ("target", ("env",), {}),
                ("target", (), {}),
            ]
        ):
            folder = folders(str(number))
            request = asked(action="environment", side=name, output=str(folder))
            run(request, folder, replace(side, launcher=launcher), agents=agents, variables=variables)
        waiting = [agent.process.pid for agent in agents._waiting.values()]
    assert ["--stay" in words for words in started] == [True, True, True, False]
    assert len(waiting) == 3
    assert all(_gone(process) for process in waiting)


def test_one_that_ended_while_it_waited_is_started_again(asked, folders, started, impostor):
    one, other = folders("one"), folders("other")
    side = impostor(STAYING)
    with closing(Agents()) as agents:
        run(asked(action="environment", output=str(one)), one, side, agents=agents)
        (agent,) = agents._waiting.values()
        agent.process.kill()
        agent.process.wait()
        run(asked(action="environment", output=str(other)), other, side, agents=agents)
    assert (other / "facts.json").is_file()
    assert len(started) == 2


def test_a_crash_after_the_facts_is_told_of_the_dump(asked, folders):
    facts, dump = folders("facts"), folders("dump")
    with closing(Agents()) as agents:
        run(asked(action="environment", output=str(facts)), facts, agents=agents)
        error = failed(asked("abort", output=str(dump)), dump, agents=agents)
        assert agents._waiting == {}
    assert "was killed by SIGABRT" in error.message
    assert "a line of the user's own" in (dump / "agent.log").read_text()
    assert any("toy_launched.py" in line and "in forward" in line for line in error.log)
    assert (facts / "agent.log").read_text() == ""


def test_a_dump_that_hangs_is_stopped_with_its_stack_although_its_process_stayed(asked, folders, late_once):
    facts, dump = folders("facts"), folders("dump")
    with closing(Agents()) as agents:
        run(asked(action="environment", output=str(facts)), facts, agents=agents)
        (agent,) = agents._waiting.values()
        late_once(dump / "agent.log")
        error = failed(asked("hangs", output=str(dump)), dump, agents=agents, timeout=900.0)
    assert "did not finish within 900 s" in error.message
    assert any("toy_launched.py" in line and "in forward" in line for line in error.log)
    assert _gone(agent.process.pid)


def test_a_judge_that_is_killed_takes_the_agent_and_its_request_along(asked, folders, tmp_path):
    facts, dump = folders("facts"), folders("dump")
    judge = tmp_path / "judge.py"
    requests = [(asked(action="environment", output=str(facts)), str(facts)), (asked("hangs", output=str(dump)), str(dump))]
    judge.write_text(
        "import json, sys\nfrom contextlib import closing\nfrom pathlib import Path\n"
        "from precflow.sides.launch import Agents, run_agent\nfrom precflow.config.schema import Side\n"
        "with closing(Agents()) as agents:\n"
        "    for request, folder in json.loads(sys.argv[1]):\n"
        "        run_agent(request, side=Side(), folder=Path(folder), variables={}, timeout=0, agents=agents)\n"
    )
    with subprocess.Popen([sys.executable, str(judge), json.dumps(requests)]) as process:
        log = dump / "agent.log"
        deadline = time.monotonic() + 120
        while not (log.is_file() and "of the user's own" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        family = descendants(process.pid)
        process.kill()
    assert len(family) == 2
    assert all(_gone(each) for each in family)


def descendants(process):
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children] + [grand for child in children for grand in descendants(child)]


def _gone(process):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False
