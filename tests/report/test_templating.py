from hypothesis import given
from hypothesis import strategies as st

from precflow.report import templating


def test_html_is_escaped_and_markdown_is_not():
    assert templating._is_html("html/verdict.j2")
    assert templating._is_html("report.html.j2")
    assert templating._is_html(None)
    assert not templating._is_html("report.md.j2")


@given(st.text())
def test_prose_never_holds_markup_or_a_second_line(text):
    prose = templating.escape_prose(text)
    assert "<" not in prose
    assert "\n" not in prose
    assert "|" not in prose.replace("\\|", "")


@given(st.text())
def test_code_never_ends_early(text):
    code = templating.escape_code(text)
    assert "\n" not in code
    assert "|" not in code
    if code.startswith("`"):
        assert code.count("`") == 2
    else:
        assert code.count("<") == 2


def test_filters_say_what_the_other_formats_say():
    render = templating.load_templates().from_string(
        "{{ 0.0140 | number }} {{ 1214 | count }} {{ 0.62 | share }} {{ 38 | duration }}"
    )
    assert render.render() == "1.4e-2 1 214 62 % 38 s"
