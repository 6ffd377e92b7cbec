import numpy as np
import pytest

from precflow.comparison.detail.record import compare_inputs, examine_record
from precflow.dumps import lookup
from precflow.dumps.formats import read_dump

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def both(build):
    """Return a function that writes both sides and opens them; it gets one builder after the other."""

    def write(fill):
        dumps = []
        for number, side in enumerate(("reference", "target")):
            made = build(side, side=side)
            fill(made, number)
            dumps.append(read_dump(made.write()))
        return dumps

    return write


def detail(dumps, text):
    left, right = (lookup.find(dump, text) for dump in dumps)
    return examine_record(*dumps, left, right)


def test_a_pair_is_examined(both):
    def fill(made, side):
        made.call("a", "linear", [X + side], [X]).call("b", "relu", [X], [X + side])
        made.lines[0, 0][1]["inputs"][0]["source"] = [0, "0"]

    found = detail(both(fill), "a/linear.0")
    assert (found.record, found.name) == ("a/linear.0/forward.output.0", "a / linear")
    assert found.detail.where == "everywhere alike"
    assert (found.reference, found.target, found.reason) == (None, None, "")
    assert found.feeds == ("b / relu",)
    assert [(one.index, one.state) for one in found.inputs] == [("0", "equal bits")]


def test_other_shapes_are_described_alone(both):
    found = detail(both(lambda made, side: made.call("a", "linear", [X[: 2 - side]])), "a/linear.0")
    assert found.detail is None
    assert found.reason == "the shapes differ: [2, 3] on the reference, [1, 3] on the target"
    assert (found.reference.shape, found.target.shape) == ((2, 3), (1, 3))


def test_what_one_side_did_not_keep(both):
    found = detail(both(lambda made, side: made.call("a", "linear", [X], store=not side)), "a/linear.0")
    assert found.reason == "the target kept no tensor of it"
    assert found.reference.extent.elements == 6
    assert found.target is None


def test_a_damaged_side_is_named(both):
    dumps = both(lambda made, side: made.call("a", "linear", [X]))
    shard = dumps[1].path / "rank0" / "step0" / "tensors-0.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    found = detail(dumps, "a/linear.0")
    assert found.reason.startswith("target: ")
    assert found.reference is not None


def test_states_of_inputs(both):
    weight = {"content": "", "stored": False, "weight": "linear.weight"}

    def fill(made, side):
        given = {"same": X, "other": X + side, "shape": X[: 2 - side], "type": X.astype(np.float16 if side else np.float32)}
        given |= {"weight": X, ("here", "there")[side]: X, "blank": X}
        made.call("a", "linear", [X], given)
        for entry in made.lines[0, 0][0]["inputs"]:
            entry.update(weight if entry["index"] == "weight" else {"content": ""} if entry["index"] == "blank" else {})

    dumps = both(fill)
    found = detail(dumps, "a/linear.0")
    assert {one.index: one.state for one in found.inputs} == {
        "same": "equal bits",
        "other": "differs",
        "shape": "another shape",
        "type": "another type",
        "weight": "equal before casting",
        "blank": "unknown",
        "here": "on the reference only",
        "there": "on the target only",
    }
    left, right = (lookup.find(dump, "a/linear.0") for dump in dumps)
    assert next(one for one in compare_inputs(left, right) if one.index == "weight").state == "unknown"
