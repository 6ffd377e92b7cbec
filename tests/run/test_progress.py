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
