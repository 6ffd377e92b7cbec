"""The registry of evidence, and how values are shown."""

import pytest

from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT
from precflow.diagnosis.evidence.pieces import format_evidence


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (1e-5, "1e-05"),
        (0.99998, "0.99998"),
        (1.01, "1.01"),
        (0.123456, "0.123"),
        (12, "12"),
        ([1, 2], "1, 2"),
        ("a", "a"),
        (["a"], "a"),
        ([], "none"),
        (list("abcdefg"), "a, b, c, d, e, and 2 more"),
    ],
)
def test_shown(value, text):
    assert format_evidence(value) == text


def test_every_name_has_words_and_a_meaning_that_is_a_sentence():
    assert all(named.label and named.meaning.endswith(".") for named in EVIDENCE.values())
    assert set(EVIDENCE) > OF_SUSPECT


def test_labels_are_not_repeated():
    labels = [named.label for named in EVIDENCE.values()]
    assert len(labels) == len(set(labels))
