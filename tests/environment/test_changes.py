"""What a recipe changed is told as both sides counted it, and what changed nothing is not told."""

import pytest

from precflow.agent.contract import CHANGES
from precflow.dumps.header import Header
from precflow.environment.changes import describe_changes, find_changes


def header(**counts):
    changes = [
        {"what": what, "count": count, "places": [f"{what}.{number}" for number in range(count)]}
        for what, count in counts.items()
    ]
    return Header(determinism={"changes": changes})


def texts(reference, target):
    return [change.text for change in find_changes(reference, target)]


def test_the_same_on_both_sides_is_told_once_and_another_number_for_each():
    assert texts(header(dropout=33), header(dropout=33)) == ["dropout removed (33 places)"]
    assert texts(header(dropout=1), header(dropout=2)) == ["dropout removed (1 place on the reference, 2 on the target)"]
    assert texts(header(), header(draws=2)) == ["draws moved to the CPU (on the target, 2 places)"]
    assert texts(header(seeds=1), header()) == ["seeds set (on the reference)"]
    (change,) = find_changes(header(dropout=1), header(dropout=2))
    assert change.places == ("reference: dropout.0", "target: dropout.0", "target: dropout.1")


def test_nothing_is_claimed_of_a_dump_that_changed_nothing_or_does_not_say():
    assert texts(header(), Header()) == []
    assert describe_changes(()) == ""


@pytest.mark.parametrize("what", CHANGES)
def test_every_change_has_words(what):
    (text,) = texts(header(**{what: 2}), header(**{what: 2}))
    assert describe_changes(find_changes(header(**{what: 2}), header(**{what: 2}))) == f"with {text}"


def test_the_most_important_comes_first():
    found = find_changes(header(algorithms=1, seeds=1, dropout=3), header(algorithms=1, seeds=1, dropout=3))
    assert describe_changes(found) == "with dropout removed (3 places), seeds set and deterministic algorithms"
