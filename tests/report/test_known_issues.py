"""Known issues of a run's versions, in every form of the report."""

import dataclasses

import pytest

from precflow.environment.known_issues import KnownIssue, MetIssue
from precflow.report import html, markdown, terminal

ISSUE = KnownIssue(
    "SDPA drops <b>a bias</b>",
    {"transformers": ">=4.57"},
    "none",
    "no bias has an effect",
    "attn_implementation=eager",
    ("https://example.org/1",),
)


@pytest.fixture
def with_issue(misaligned):
    def build(*findings):
        met = MetIssue(ISSUE, {"target": "transformers 5.23.0"}, findings)
        return dataclasses.replace(misaligned, known_issues=(met,))

    return build


def show(model):
    return terminal.render_summary(model, report_path="runs/x/report.html", exit_code=1)


def test_an_issue_at_a_finding_stands_in_every_form(with_issue):
    model = with_issue("PF301   layers.0 / scaled_dot_product_attention")
    page = html.render(model)
    assert "SDPA drops &lt;b&gt;a bias&lt;/b&gt;" in page
    assert "<b>a bias</b>" not in page
    assert "not fixed in the latest version looked at" in page
    assert "PF301" in page
    assert "SDPA drops" in markdown.render(model)
    assert "(target: transformers 5.23.0): attn_implementation=eager" in " ".join(show(model).split())


def test_one_that_no_finding_is_about_stands_on_the_page_alone(with_issue):
    model = with_issue()
    assert "SDPA drops" in html.render(model)
    assert "SDPA drops" not in show(model)
    assert "SDPA drops" not in markdown.render(model)
