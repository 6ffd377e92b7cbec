"""Lines for build servers are plain and one a stage; a terminal gets one line a stage too."""

import io
import time

import pytest

from precflow import streams
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


TEXT = "reading the content of 12 files of weights"


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def open_screen(monkeypatch):
    """Return a function that puts a terminal of 88 columns in place of stderr."""
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.setenv("TERM", "xterm")

    def begin():
        screen = Screen()
        monkeypatch.setattr("sys.stderr", screen)  # in the test itself: pytest puts its own there before each part of one
        return screen

    return begin


def test_terminal_says_state_and_note(open_screen):
    screen = open_screen()
    terminal = progress.Terminal()
    with terminal.working("dump", "target"):
        terminal.say("forward [1/2] <script>")
    terminal.done("dump", "target", "run", 21.4, "1214 records [red]")
    terminal.done("environment", "reference", "kept", 0.0, "cpu")
    assert "dump         target       21 s   1214 records [red]" in screen.getvalue()
    assert "= environment  reference    kept   cpu" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()


def test_what_is_put_off_looks_like_nothing_that_was_done(capsys):
    progress.Terminal().done("dump@2", "reference", "skipped", 0.0, "elsewhere")
    assert "? dump@2       reference   later   elsewhere" in capsys.readouterr().err
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


def test_a_bar_is_there_from_the_first_moment(open_screen):
    screen = open_screen()
    terminal = progress.Terminal()
    terminal.expect(2, [None, None])
    with terminal.working("dump", "target"):
        assert screen.getvalue().startswith("\r ██████████░░░░░░░░░░  stage 3 of 4  dump target")
        terminal.say("running the model")
        terminal.advance(3, 10, "steps")
    assert "3 of 10 steps  running the model" in screen.getvalue()
    assert screen.getvalue().endswith(" \r")  # nothing of it stays


def test_what_is_said_meanwhile_has_a_line_of_its_own(open_screen):
    screen = open_screen()
    with progress.Terminal().working("dump", "target"):
        streams.say(" warning: a")
    assert " \r warning: a\n" in screen.getvalue()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_time_left_of_the_run_is_what_its_stages_took_before():
    clock = Clock()
    course = progress.Course(clock)
    assert course.find_left() == (None, None)
    course.expect(1, [60.0, 0.0, 120.0])
    course.begin("dump target")
    clock.now = 20.0
    assert course.find_left() == (160.0, 40.0)
    assert course.draw(87) == f" {'██':░<20}  stage 2 of 4  dump target  about 3 min left"
    clock.now = 70.0  # longer than before: nothing is known of the rest, until it says how far it is
    assert course.find_left() == (None, None)
    assert "left" not in course.draw(87)
    course.advance(1, 2, "steps")
    assert course.find_left() == (190.0, 70.0)
    course.expect(1, [60.0, None, 120.0])  # a stage that was never made: nobody knows when the run ends
    assert course.find_left() == (None, 70.0)
    assert course.draw(87).endswith("1 of 2 steps  about 1 min left in this stage")


def test_a_pace_takes_some_seconds_to_tell_and_the_bar_never_goes_back():
    clock = Clock()
    course = progress.Course(clock)
    course.begin("x")
    for seconds, done, expected in ((2.0, 1, None), (10.0, 0, None), (10.0, 4, None), (10.0, 1, 30.0), (10.0, 7, None)):
        clock.now = seconds
        course.advance(done, 4, "runs")
        assert course.find_left()[1] == expected
    shares = []
    for finished, ahead in ((0, [None] * 9), (3, [None]), (4, [None] * 20), (5, [9.0, 99.0])):
        course.expect(finished, ahead)
        shares.append(course.find_share())
    assert shares == sorted(shares)


@pytest.mark.parametrize("columns", [47, 79, 119])
def test_the_bar_fits_and_no_word_of_it_is_cut(columns):
    course = progress.Course(Clock())
    course.expect(7, [None] * 9)
    course.begin("environment reference")
    course.advance(1_000_000, 2_000_000, "bytes")
    line = course.draw(columns, TEXT, ascii_only=True)
    assert len(line) <= columns
    assert set(line.split()[1:]) <= {*"stage 8 of 16 environment reference 1 of 2 MB".split(), *TEXT.split()}


def test_a_dumb_terminal_gets_lines_alone(open_screen, monkeypatch):
    screen = open_screen()
    monkeypatch.setenv("TERM", "dumb")
    terminal = progress.Terminal()
    with terminal.working("dump", "target"):
        terminal.advance(3, 10, "steps")
    terminal.done("dump", "target", "run", 1.0, "")
    assert screen.getvalue() == " ✓ dump         target        1 s\n"


def test_a_heartbeat_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.05)
    lines = progress.Lines("x")
    with lines.working("dump", "target"):
        lines.advance(1, 3, "steps")
        time.sleep(0.2)
    assert "state=running seconds=0 progress=33%" in capsys.readouterr().err
