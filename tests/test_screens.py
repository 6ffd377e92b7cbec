"""Screens on narrow and wide terminals: every line fits, no word is cut, and without colours no escape code is printed."""

import io
import re

import pytest

from precflow import cli, streams

WIDTHS = [48, 80, 120]
SCREENS = {
    "help": ["--help"],
    "short help": [],
    "ls": ["ls"],
    "ls standard": ["ls", "standard"],
    "ls runs": ["ls", "runs"],
    "explain": ["explain", "tolerance.standards"],
    "plan": ["plan", "+recipe=sd_text_encoder"],
    "wrong key": ["+recipe=sd_text_encoder", "target.devise=npu", "+tolerance.cosin_similarity=0.9"],
    "wrong verb": ["lss"],
    "wrong group": ["ls", "recipies"],
    "no recipe": ["+recipe=sd_text"],
    "wrong stage": ["+recipe=sd_text_encoder", "stages=[dmp]"],
}


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def show(clean, monkeypatch, tmp_path):
    """Return a function that gives what a command shows on a terminal of some columns."""
    monkeypatch.setenv("NO_COLOR", "1")

    def shown(words, columns):
        screen = Screen()
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            patch.setattr("sys.stdout", screen)
            patch.setattr("sys.stderr", screen)
            cli.main(words)
        return re.sub("[^\n]*\r", "", screen.getvalue())  # without what was drawn and taken away

    return shown


@pytest.mark.parametrize("words", SCREENS.values(), ids=SCREENS)
def test_every_line_fits_and_no_word_is_cut(words, show):
    whole = show(words, 10_000)
    assert whole.strip()
    for columns in WIDTHS:
        text = show(words, columns)
        assert text.split() == whole.split()
        for line in text.split("\n"):
            one_piece = " " not in line.strip() or streams.fold(line, columns) == line  # a path, or a command to copy
            assert streams.count_cells(line) <= columns or one_piece
    assert "\x1b" not in text


def test_the_screens_of_a_dump_have_no_escape_code_without_colours(show, tmp_path, monkeypatch):
    from precflow.report.screens.paper import Paper

    paper = Paper()
    paper.title("a")
    paper.fact("b", "c", "red")
    assert "\x1b" not in paper.render(colour=False)


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("", [""]),
        ("   a b", ["   a b"]),
        ("   words that have to be folded somewhere", ["   words that have to be folded", "      somewhere"]),
        ("   key   what it means, and how it is typed", ["   key   what it means, and how", "         it is typed"]),
        ("a/very/long/path/that/no/terminal/has/room/for", ["a/very/long/path/that/no/terminal/has/room/for"]),
        (
            "   do:  precflow +recipe=x target.dtype=float16",
            ["   do:", "      precflow +recipe=x target.dtype=float16"],
        ),
        ("   层层层层层层层层层层 层层层层层层", ["   层层层层层层层层层层 层层层层", "      层层"]),
    ],
)
def test_lines_are_folded_between_words(line, folded):
    assert streams.fold(line, 32).split("\n") == folded
    assert streams.fold(line, 0) == line
