"""Which suspects causes are looked for at."""

import pytest

from precflow.agent.contract import Identity, identity_text
from precflow.diagnosis.examined import choose_examined
from precflow.diagnosis.findings import Suspect


def suspects(kinds):
    """Return a suspect for each letter; a small letter is one in backward."""
    made = []
    for number, kind in enumerate(kinds):
        name, phase = f"m{number}", "backward" if kind.islower() else "forward"
        record = identity_text(Identity(name, 0, "x", 0, phase, "output", "0", 0, 0))
        made.append(Suspect(record, name, name, "x", number, ratio=2.0, why="", class_name=kind.upper()))
    return made


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("A" * 25 + "B", [0, 1, 25]),
        ("AAAABAC", [0, 4, 6]),
        ("AaAaAa", [0, 1, 2]),
        ("AA", [0, 1]),
        ("ABCDEFGHIJA", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("AABBCCDD", [0, 2, 4, 6]),
        ("", []),
    ],
)
def test_one_of_each_kind_comes_before_a_second(kinds, expected):
    assert [one.order for one in choose_examined(suspects(kinds))] == expected
