"""What comes after both passes takes the newest."""

from pathlib import Path

import pytest

from precflow.dumps.views.two_passes import TwoPasses
from precflow.stages.second_pass.passes import latest, open_evidence, second

ONE, TWO = Path("one"), Path("two")


def test_the_second_pass_has_the_name_of_the_first_with_a_mark():
    assert second("dump.target") == "dump.target@2"


def test_the_newest_folder_of_what_there_is():
    assert latest({"judge": ONE}, "judge") == ONE
    assert latest({"judge": ONE, "judge@2": TWO}, "judge") == TWO
    assert latest({"judge@2": TWO}, "judge") == TWO
    with pytest.raises(KeyError):
        latest({}, "judge")


def test_evidence_of_one_pass_is_its_dump_and_of_two_is_both(pair):
    folder = pair()
    assert open_evidence({"dump.target": folder / "target"}, "target").path.name == "target"
    both = open_evidence({"dump.target": folder / "target", "dump.target@2": folder / "reference"}, "target")
    assert isinstance(both, TwoPasses)
    assert (both.first.path.name, both.second.path.name) == ("target", "reference")
