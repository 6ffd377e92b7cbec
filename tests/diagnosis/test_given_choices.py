"""Which choices of the reference a run is given, and where they lie."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precflow.diagnosis.given_choices import write_choices
from precflow.dumps.shards import Location

SCORES = np.float32([[0.3, 0.7, 0.1]])


@pytest.fixture
def listed(hand_made, tmp_path):
    """Return a function that lists the choices of a hand-made dump, which keeps all tensors but those of some operators."""

    def run(dump, lost=(), detail="tensors"):
        dump.header = replace(dump.header, capture={"detail": detail})
        dump.locate = lambda record: None if record.whose.operator in lost else Location(Path("/s"), 8, 16)
        count = write_choices(tmp_path / "choices.json", dump)
        choices = json.loads((tmp_path / "choices.json").read_text())["choices"]
        assert count == len(choices)
        return {each["record"]: each for each in choices}

    return run


def test_indices_masks_draws_and_whole_numbers_are_listed_and_nothing_else(hand_made, listed):
    dump = hand_made()
    scores = dump.operator("gate", "softmax", {"value": SCORES}, value=SCORES)
    index = dump.operator("gate", "argmax", scores, value=np.array([1]), arguments={"dim": "1"})
    dump.operator("gate", "gt", scores, value=SCORES > 0.2)
    dump.operator("gate", "multinomial", scores, value=np.array([[2]]))
    dump.operator("gate", "round", scores, value=np.round(SCORES))
    dump.operator("gate", "one_hot", index, value=np.array([[0, 1, 0]]))
    dump.operator("gate", "median", scores, value=np.float32(0.3))
    choices = listed(dump)
    assert [record.split("/")[1] for record in choices] == ["argmax.0", "gt.0", "multinomial.0", "round.0"]
    assert [each["dimension"] for each in choices.values()] == [1, None, None, None]
    assert choices["gate/argmax.0/forward.output.0"]["tensor"] == {
        "index": "0",
        "dtype": "int64",
        "shape": [1],
        "file": "/s",
        "begin": 8,
        "bytes": 8,
        "content": "",
    }


def test_where_not_all_calls_are_kept_only_what_every_pass_keeps_is_given(hand_made, listed):
    dump = hand_made()
    scores = dump.operator("gate", "softmax", {"value": SCORES}, value=SCORES)
    dump.operator("gate", "gt", scores, value=SCORES > 0.2)
    dump.operator("gate", "argmax", scores, value=np.array([1]))
    assert [record.split("/")[1] for record in listed(dump, detail="sketch")] == ["argmax.0"]


def test_a_choice_that_was_not_kept_cannot_be_given(hand_made, listed):
    dump = hand_made()
    scores = dump.operator("gate", "softmax", {"value": SCORES}, value=SCORES)
    dump.operator("gate", "argmax", scores, value=np.array([1]))
    dump.operator("gate", "gt", scores, value=SCORES > 0.2)
    assert [record.split("/")[1] for record in listed(dump, lost={"argmax"})] == ["gt.0"]
