"""Lines for build servers are plain and one a stage; a terminal gets one line a stage too."""

import io
import time

import pytest
from rich.console import Console

from precflow.run import progress


def test_lines_are_one_a_stage(capsys):
    lines = progress.Lines("sd_text_encoder")
    with lines.working("dump", "target"):
        lines.say("building the model")
    lines.done("dump", "target", "run", 21.4, "1214 records")
    lines.done("judge", "", "kept", 0.0, "")
    assert capsys.readouterr().err == (
        "precflow sd_text_encoder stage=dump side=target state=done seconds=21\n"
        "precflow sd_text_encoder stage=judge state=kept seconds=0\n"
    )


def test_a_long_stage_beats(capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.05)
    with progress.Lines("x").working("dump", "target"):
        time.sleep(0.2)
    assert "precflow x stage=dump side=target state=running" in capsys.readouterr().err


def test_terminal_says_state_and_note():
    out = io.StringIO()
    terminal = progress.Terminal(Console(file=out, width=88, force_terminal=False))
    with terminal.working("dump", "target"):
        terminal.say("forward [1/2] <script>")
    terminal.done("dump", "target", "run", 21.4, "1214 records [red]")
    terminal.done("environment", "reference", "kept", 0.0, "cpu")
    assert "dump         target       21 s   1214 records [red]" in out.getvalue()
    assert "= environment  reference    kept   cpu" in out.getvalue()


def test_what_is_put_off_looks_like_nothing_that_was_done(capsys):
    out = io.StringIO()
    progress.Terminal(Console(file=out, width=88)).done("dump@2", "reference", "skipped", 0.0, "elsewhere")
    assert "? dump@2       reference   later   elsewhere" in out.getvalue()
    progress.Lines("x").done("dump@2", "reference", "skipped", 0.0, "")
    assert "stage=dump@2 side=reference state=skipped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "ci", "kind"),
    [
        ("quiet", True, progress.Quiet),
        ("ci", False, progress.Lines),
        ("auto", True, progress.Lines),
        ("terminal", True, progress.Terminal),
    ],
)
def test_output_chooses(output, ci, kind):
    assert isinstance(progress.choose(output, "x", ci=ci), kind)


def test_quiet_says_nothing(capsys):
    quiet = progress.Quiet()
    with quiet.working("dump", "target"):
        quiet.say("x")
    quiet.done("dump", "target", "run", 1.0, "x")
    assert capsys.readouterr() == ("", "")


def test_a_bar_says_what_is_done_and_what_is_left():
    out = io.StringIO()
    terminal = progress.Terminal(Console(file=out, width=88, force_terminal=True, color_system=None))
    with terminal.working("dump", "target"):
        terminal.say("running the model")
        terminal.advance(3, 10, "steps")
        time.sleep(0.3)
    assert "3 of 10 steps" in out.getvalue()
    assert "running the model" in out.getvalue()


def test_the_time_left_follows_from_the_pace():
    assert progress.format_bar(1, 4, "runs", 10.0).endswith("1 of 4 runs, 30 s left")
    assert progress.format_bar(1, 4, "runs", 2.0).endswith("1 of 4 runs")
    assert progress.format_bar(4, 4, "runs", 10.0).endswith("4 of 4 runs")
    assert progress.format_bar(0, 4, "runs", 10.0).endswith("0 of 4 runs")
    assert "7 of 5 runs" in progress.format_bar(7, 5, "runs", 10.0)


def test_a_dumb_terminal_gets_lines_alone(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    terminal = progress.Terminal(Console(file=out, width=88, force_terminal=True))
    with terminal.working("dump", "target"):
        terminal.advance(3, 10, "steps")
        time.sleep(0.3)
    terminal.done("dump", "target", "run", 1.0, "")
    assert out.getvalue().strip().endswith("1 s")
    assert "steps" not in out.getvalue()


def test_a_heartbeat_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.05)
    lines = progress.Lines("x")
    with lines.working("dump", "target"):
        lines.advance(1, 3, "steps")
        time.sleep(0.2)
    assert "state=running seconds=0 progress=33%" in capsys.readouterr().err
