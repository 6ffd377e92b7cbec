import pytest

from precflow.report.screens.paper import Paper, draw_bars, format_shape, format_size


def test_lines_are_neither_broken_nor_cut():
    paper = Paper()
    paper.title("x" * 400)
    paper.fact("label", "[bold]not markup[/bold] :smile: " + "y" * 300)
    title, fact = paper.render().split("\n")
    assert title == " " + "x" * 400
    assert fact.startswith("   label       [bold]not markup[/bold] :smile: yyy")


def test_what_is_empty_is_not_written():
    paper = Paper()
    paper.fact("label", "")
    paper.facts("more", [])
    paper.table([])
    assert paper.render() == ""


def test_a_label_is_written_once():
    paper = Paper()
    paper.facts("sites", ["a", "b"])
    assert paper.render().split("\n") == ["   sites       a", "               b"]


def test_columns_are_straight_also_with_wide_letters():
    paper = Paper()
    paper.table([("name", "x"), ("模型", "y"), ("long name", "z")])
    assert paper.render().split("\n") == ["   name        x", "   模型        y", "   long name   z"]


def test_nothing_moves_the_cursor():
    paper = Paper()
    paper.title("\x1b[2J")
    paper.line("\x07")
    paper.fact("a\x1b", "b\r")
    paper.table([("\x1b[31m",)])
    shown = paper.render(colour=True)
    assert "\x1b[2J" not in shown
    assert "\\x1b[2J" in shown
    assert "\r" not in shown


def test_colour_is_wanted_or_not():
    paper = Paper()
    paper.title("title")
    assert paper.render() == " title"
    assert "\x1b[1m" in paper.render(colour=True)


def test_ascii():
    paper = Paper()
    paper.line("a · ✗ " + draw_bars([0, 1, 8]))
    assert paper.render(ascii_only=True).isascii()


@pytest.mark.parametrize(("counts", "text"), [([], ""), ([0, 0], "  "), ([5], "█"), ([1, 100], "▁█")])
def test_bars(counts, text):
    assert draw_bars(counts) == text


def test_units():
    assert [format_size(number) for number in (1, 999, 1000, 2_500_000_000)] == ["1 byte", "999 bytes", "1 kB", "2.5 GB"]
    assert format_shape(()) == "[] (one number)"
