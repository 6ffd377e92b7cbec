import subprocess
import sys

import pytest

from precflow.agent.failures import AgentError


def test_parts_are_announced_and_measured(events):
    with events.time_part("model", "building"):
        pass
    assert events.lines() == [{"event": "progress", "step": "model", "text": "building"}]
    assert events.seconds["model"] >= 0


def test_a_part_that_fails_is_measured_too(events):
    with pytest.raises(ValueError, match="no"), events.time_part("model", "building"):
        raise ValueError("no")
    assert "model" in events.seconds


def test_the_same_part_adds_up(events):
    events.seconds["forward"] = 10.0
    with events.time_part("forward", "again"):
        pass
    assert events.seconds["forward"] >= 10.0


def test_a_failure_is_one_line(events):
    events.report_failure(AgentError("workload", "line one\nline two", "do this"))
    expected = {"event": "error", "kind": "workload", "message": "line one\nline two", "next_step": "do this"}
    assert events.lines() == [expected]


def test_what_others_print_goes_to_stderr():
    script = (
        "import os; from precflow.agent.events import Events, claim_stdout; e = Events(claim_stdout());"
        "print('from a model'); os.system('echo from a process'); e.report_progress('a', 'b')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == '{"event": "progress", "step": "a", "text": "b"}\n'
    assert sorted(done.stderr.splitlines()) == ["from a model", "from a process"]


def test_amounts_of_nested_parts_add_up(events, monkeypatch):
    monkeypatch.setattr("precflow.agent.events._OFTEN", 0.0)
    for run in range(2):
        with events.nth_of(run, 2):
            for step in range(3):
                events.report_amount(step + 1, 3, "steps")
    assert [(line["done"], line["total"]) for line in events.lines()] == [(str(done), "6") for done in range(1, 7)]
    assert events.lines()[0] == {"event": "amount", "done": "1", "total": "6", "unit": "steps"}


def test_amounts_come_seldom_and_the_last_one_always(events):
    for done in range(1, 1001):
        events.report_amount(done, 1000, "calls")
    assert [line["done"] for line in events.lines()] == ["1", "1000"]
    events.report_amount(1, 1, "steps")
    assert len(events.lines()) == 2
