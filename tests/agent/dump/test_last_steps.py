import json

import pytest
import torch

from precflow.agent.dump.last_steps import Alarm, LastSteps, format_numbers, is_finite, parse_numbers
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.content_id import content_id

FINE = [0.0, 1.0, 1.0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0]
NAN = [0.0, 1.0, 1.0, 1.0, 3, 0, 0, 0, 0, 0, 0, 0]
INF = [0.0, 1.0, 1.0, 1.0, 0, 0, 1, 0, 0, 0, 0, 0]


def line(outputs, inputs=(), operator="mul", arguments=None):
    entries = [[{"index": "0", "content": "", "statistics": one} for one in some] for some in (inputs, outputs)]
    facts = {"order": 0, "level": "api", "module": "a", "call": 0, "operator": operator, "ordinal": 0, "phase": "forward"}
    return {**facts, "arguments": arguments or {}, "inputs": entries[0], "outputs": entries[1]}


def test_the_last_steps_are_kept():
    ring = LastSteps(2)
    gone = [ring.finish((step, 0)) for step in range(5)]
    assert gone == [[], [], [(0, 0)], [(1, 0)], [(2, 0)]]
    assert ring.dropped == [(0, 0), (1, 0), (2, 0)]


def test_what_is_held_stays_and_what_follows_goes_round_again():
    ring = LastSteps(2)
    for step in range(4):
        ring.finish((step, 0))
    ring.hold((4, 0))
    for step in range(4, 9):
        ring.finish((step, 0))
    assert ring.held == {(3, 0), (4, 0)}
    assert [step for step, _ in ring.dropped] == [0, 1, 2, 5, 6]


@pytest.mark.parametrize("wrong", [NAN, INF])
def test_the_call_that_makes_a_nan_rings_once(wrong):
    alarm = Alarm()
    assert not alarm.rings(line([FINE]))
    assert alarm.rings(line([wrong], [FINE]))
    assert not alarm.rings(line([wrong], [FINE])), "it is known"
    assert alarm.rings(line([wrong], [FINE], operator="softmax"))


def test_what_hands_a_nan_on_or_was_told_to_make_one_does_not_ring():
    alarm = Alarm()
    assert not alarm.rings(line([NAN], [FINE, NAN]))
    assert not alarm.rings(line([INF], [FINE], "masked_fill", {"value": "-inf"}))
    assert not alarm.rings(line([None], [None]))


def test_without_statistics_the_stored_tensors_tell():
    alarm = Alarm()
    entry = {"index": "0", "content": "aa"}
    assert not alarm.rings({**line([]), "outputs": [entry]})
    alarm.note_content("aa")
    assert alarm.rings({**line([]), "outputs": [entry]})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64", "float8_e5m2"])
def test_finite_in_every_type(dtype):
    kind = getattr(torch, dtype)
    assert is_finite(torch.ones(3).to(kind))
    assert not is_finite(torch.tensor([1.0, float("inf")]).to(kind))
    assert is_finite(torch.ones(3, dtype=torch.int64))


def test_numbers_are_written_as_a_recipe_writes_steps():
    for numbers in ([], [5], [0, 1, 2], [0, 2, 3, 9]):
        assert parse_numbers(format_numbers(numbers)) == numbers
    assert format_numbers([9, 0, 1, 3]) == "0-1,3,9"


def steps(folder):
    return sorted(int(path.name[4:]) for path in folder.glob("rank0/step*"))


def record(writer, step, value=1.0):
    writer.open_step(step, 0)
    tensor = torch.tensor([value, float(step % 2)])
    content = content_id(tensor)
    writer.tensor(content, tensor)
    entry = {"index": "0", "content": content, "stored": True}
    writer.call({**line([]), "order": 0, "outputs": [entry]})


def test_a_dump_keeps_its_last_steps_each_whole_in_itself(tmp_path):
    writer = Writer(str(tmp_path), keep_last=3)
    for step in range(8):
        record(writer, step)
    sealed = writer.seal({})
    assert steps(tmp_path) == [5, 6, 7]
    assert sealed["dropped"] == {"0": "0-4"}
    assert sealed["counts"] == {"calls": 3, "records": 3, "tensors": 3, "bytes": 24}
    assert len([name for name in sealed["files"] if name.endswith(".safetensors")]) == 3


def test_the_budget_counts_what_is_there(tmp_path):
    writer = Writer(str(tmp_path), keep_last=1, budget_bytes=1200)
    for step in range(30):
        record(writer, step)
    assert writer.seal({})["dropped"] == {"0": "0-28"}


def test_a_nan_keeps_the_steps_before_it(tmp_path):
    writer = Writer(str(tmp_path), keep_last=2)
    for step in range(9):
        record(writer, step, float("nan") if step >= 5 else 1.0)
    sealed = writer.seal({})
    assert steps(tmp_path) == [4, 5, 7, 8]
    assert sealed["dropped"] == {"0": "0-3,6"}
    assert json.loads((tmp_path / "rank0/step5/step.json").read_text())["held"] is True


def test_a_person_can_hold_too_and_without_a_ring_everything_is_kept(tmp_path):
    for name, keep_last, kept in (("ring", 1, [2, 5]), ("all", 0, [0, 1, 2, 3, 4, 5])):
        folder = tmp_path / name
        folder.mkdir()
        writer = Writer(str(folder), keep_last=keep_last)
        for step in range(6):
            record(writer, step)
            if step == 2:
                writer.hold()
        writer.seal({})
        assert steps(folder) == kept


def test_content_of_a_held_step_is_not_stored_again(tmp_path):
    writer = Writer(str(tmp_path), keep_last=1)
    record(writer, 0)
    writer.hold()
    record(writer, 1)
    record(writer, 2)
    sealed = writer.seal({})
    assert steps(tmp_path) == [0, 2]
    assert [name for name in sealed["files"] if name.endswith(".safetensors")] == ["rank0/step0/tensors-0.safetensors"]
