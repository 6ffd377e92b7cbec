"""Pages of rules, and docs/rules.md, which is made of them."""

from pathlib import Path

from precflow import resources
from precflow.diagnosis.advice.rule_files import AdviceRule, Objection
from precflow.diagnosis.advice.rule_pages import render_all, render_page, simplify

DOCS = Path(__file__).parents[3] / "docs" / "rules.md"
RULE = AdviceRule(
    id="PF901",
    title="{{ operator }} is wrong",
    when="scale_share > 0.9",
    why="It is {{ 'high' if ratio == 1 else 'low' }}.",
    fix="Mend it.",
    certain_when="scale_share > 0.99",
    against=(Objection("variant", "it is {{ variant }}"),),
    evidence=("scale_share",),
    sources=("a book",),
)


def test_a_page_has_everything_that_a_rule_says():
    page = render_page(RULE, "It is summed up.")
    for text in (
        "## PF901",
        "It is summed up.",
        "*[operator] is wrong*",
        "It is high / low.",
        "**Do:** Mend it.",
        "applies (possible) when `scale_share > 0.9`",
        "certain when `scale_share > 0.99`",
        "ruled out when `variant`: it is [variant]",
        "evidence: explained by that factor: Share of the error's energy.",
        "sources: a book",
    ):
        assert text in page


def test_no_page_has_templates():
    assert "{%" not in render_all(resources.directory("conf") / "rule")
    assert "{{" not in render_all(resources.directory("conf") / "rule")


def test_a_name_that_is_no_evidence_is_left_out():
    assert simplify("{{ unknown_name | round }} of them") == "of them"


def test_the_document_is_made_of_the_rules():
    made = render_all(resources.directory("conf") / "rule")
    assert DOCS.read_text(encoding="utf-8").rstrip() == made.rstrip(), "precflow show rule --markdown > docs/rules.md"
