"""Sentences that users read are listed by `tests/support/sentences.py`, and none says what nobody would say aloud."""

import re

from sentences import list_sentences

ODD = re.compile(r"be had\b|without sense|\bparts? at\b|in the way of|\bbut for\b|no sense", re.IGNORECASE)
ONE_OF_EACH = [
    ("precflow/dumps/bus_errors.py", "a file of a dump was cut short"),  # an error
    ("precflow/report/wording.py", "its inputs agree, its output does not: the error starts here"),  # page and screen
    ("precflow/diagnosis/evidence/suspect.py", "shape on the reference"),  # evidence
    ("conf/rule/PF103_seeds_differ.yaml", "Give both sides the same seed"),
    ("templates/html/findings.j2", "No rule found anything to fix"),
]


def test_sentences_of_every_kind_are_listed_and_none_is_odd():
    sentences = list(list_sentences())
    for file, text in ONE_OF_EACH:
        assert any(place.startswith(f"{file}:") and text in said for place, said in sentences), text
    assert [f"{place}: {said}" for place, said in sentences if ODD.search(said)] == []
