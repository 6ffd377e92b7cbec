"""The page of a rule: what it says, when, what speaks against it. ``precflow show PF214`` and docs/rules.md are made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from precflow.diagnosis.advice.rule_files import AdviceRule, load_rules
from precflow.diagnosis.evidence.names import EVIDENCE

# What a template has: {% if %}a{% else %}b{% endif %}, and in it {{ name | filter }} or {{ 'a' if x else 'b' }}.
_BLOCK = re.compile(r"{%\s*if.*?%}(.*?){%\s*endif\s*%}", re.DOTALL)
_BRANCH = re.compile(r"{%\s*(?:elif.*?|else)\s*%}", re.DOTALL)
_PLACE = re.compile(r"{{(.*?)}}", re.DOTALL)
_QUOTED = re.compile(r"'([^']*)'")
_NAME = re.compile(r"[a-z_]+")

_HEAD = """# Rules

What precflow can say about the cause of a difference, and what speaks for and against it. Each rule is a file of `conf/rule/`;
teams add rules of their own ([teams.md](teams.md)). `precflow show PF214` prints one of these pages. This page is made by
`precflow show rule --markdown > docs/rules.md`, and a test compares the two.

A rule applies where its condition holds over the evidence of a run or a suspect. What speaks against it rules it out, and the
finding says so. A finding about a suspect is `certain` only where the error surely begins there: its inputs are equal bit for
bit, or float64 at its own inputs shows the error. It is at most `possible` where the inputs already use much of their limit,
where float64 finds nothing wrong, or where the error surely begins at another suspect. Where nothing fits the cause is
`unknown`.

| rule | what it finds |
|---|---|
"""


def describe_rule(rule: AdviceRule, summary: str) -> dict[str, Any]:
    """Return the page of a rule as plain data.

    Args:
        rule: The rule.
        summary: The first comment of its file, one sentence.
    """
    return {
        "rule": rule.id,
        "summary": summary,
        "title": simplify(rule.title),
        "why": simplify(rule.why),
        "fix": simplify(rule.fix),
        "when": " ".join(rule.when.split()),
        "likely_when": " ".join(rule.likely_when.split()),
        "certain_when": " ".join(rule.certain_when.split()),
        "certainty": rule.certainty,
        "against": [{"when": condition.when, "because": simplify(condition.because)} for condition in rule.against],
        "evidence": {EVIDENCE[name].label: EVIDENCE[name].meaning for name in rule.evidence},
        "try": simplify(rule.confirm or rule.try_it),
        "sources": list(rule.sources),
    }


def render_page(rule: AdviceRule, summary: str) -> str:
    """Return the page of a rule as Markdown."""
    page = describe_rule(rule, summary)
    return "\n".join(_list_lines(page)).rstrip() + "\n"


def _list_lines(page: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {page['rule']}", "", page["summary"], "", f"*{page['title']}*", "", page["why"], "")
    yield from (f"**Do:** {page['fix']}", "")
    if page["try"]:
        yield from (f"**Try:** `{page['try']}`", "")
    yield f"* applies ({page['certainty']}) when `{page['when']}`"
    yield from (f"* {level} when `{page[f'{level}_when']}`" for level in ("likely", "certain") if page[f"{level}_when"])
    yield from (f"* ruled out when `{one['when']}`: {one['because']}" for one in page["against"])
    yield from (f"* evidence: {label}: {meaning}" for label, meaning in page["evidence"].items())
    yield from ([f"* sources: {'; '.join(page['sources'])}"] if page["sources"] else [])


def render_all(folder: Path) -> str:
    """Return docs/rules.md: all rules of a folder, with a table in front."""
    rules = load_rules([folder])
    summaries = [read_summary(next(folder.glob(f"{rule.id}_*.yaml"))) for rule in rules]
    pairs: Sequence[tuple[AdviceRule, str]] = list(zip(rules, summaries, strict=True))
    rows = "".join(f"| [{rule.id}](#{rule.id.lower()}) | {summary} |\n" for rule, summary in pairs)
    return f"{_HEAD}{rows}\n" + "\n".join(render_page(rule, summary) for rule, summary in pairs)


def read_summary(path: Path) -> str:
    """Return the first comment of a rule's file."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else path.stem


def simplify(template: str) -> str:
    """Return a text of a rule without its template: alternatives with a slash, and names of evidence in brackets.

    >>> simplify("eps of {{ operator }} is {{ 'too ' if a > b else '' }}{{ epsilon_target | shown }}")
    'eps of [operator] is too [epsilon_target]'
    >>> simplify("{% if a %}one{% else %}two{% endif %} of them, {% if a %}No. {% endif %}Yes.")
    'one / two of them, No. Yes.'
    """
    text = _BLOCK.sub(lambda block: _join(_BRANCH.split(block[1])), template)
    return " ".join(_PLACE.sub(lambda place: _simplify_place(place[1]), text).split())


def _simplify_place(expression: str) -> str:
    # Of `'a' if x == 'b' else 'c'` the alternatives are what is not compared with anything.
    alternatives = re.sub(r"\bif\b.*?\belse\b", "|", expression, flags=re.DOTALL) if " if " in expression else ""
    quoted = [text for text in _QUOTED.findall(alternatives) if text.strip()]
    if quoted:
        return _join(quoted)
    name = next((name for name in _NAME.findall(expression) if name in EVIDENCE), "")
    return f"[{name}]" if name else ""


def _join(alternatives: Sequence[str]) -> str:
    """Return alternatives with slashes between them, and a space at the end if one of them has it: text follows it."""
    texts = [text for text in alternatives if text.strip()]
    return " / ".join(text.strip() for text in texts) + " " * any(text[-1].isspace() for text in texts)
