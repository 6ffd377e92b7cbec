import json

import torch

from precflow.agent.capture.frames import Frames
from precflow.agent.capture.lines import Heading, Lines
from precflow.agent.capture.weights import Weights
from precflow.agent.digest import content_id
from precflow.agent.writer import Writer

KEYS = "order level module class call operator ordinal phase step rank site forward movement compiled arguments inputs outputs"
KEYS = KEYS.split()


def heading(operator="add"):
    frame = Frames(["*"]).enter("layers.0", "Block", compiled=False)
    return Heading("api", frame, operator, 2, 5, movement=False, arguments={"alpha": "1"})


def made(writer=None, *, store=True, rank=0):
    lines = Lines(writer, Weights(), store=store, rank=rank)
    lines.begin(4)
    return lines


def test_a_line_has_the_keys_of_the_contract_in_order(tmp_path):
    writer = Writer(str(tmp_path))
    lines = made(writer, rank=1)
    tensor = torch.ones(2, 3)
    lines.emit(heading(), lines.describe([("0", tensor)], store=True), [])
    line = json.loads((tmp_path / "rank1/step4/records-0.jsonl").read_text())
    assert list(line) == KEYS
    assert [line[key] for key in KEYS[:11]] == [0, "api", "layers.0", "Block", 0, "add", 2, "forward", 4, 1, 5]
    assert line["inputs"] == [
        {
            "index": "0",
            "dtype": "float32",
            "shape": [2, 3],
            "content": content_id(tensor),
            "stored": True,
            "source": None,
            "weight": "",
        }
    ]


def test_order_counts_lines_and_starts_anew_with_a_step():
    lines = made()
    assert [lines.emit(heading(), [], []) for _ in range(3)] == [0, 1, 2]
    lines.begin(5)
    assert lines.emit(heading(), [], []) == 0


def test_outputs_are_kept_by_identity():
    lines = made()
    lines.emit(heading(), [], lines.describe([("0", torch.ones(1))], store=False))
    assert lines.outputs == {"layers.0/add.2/forward.output.0@4.0": content_id(torch.ones(1))}
    assert lines.records == 1
    lines.begin(5)
    assert lines.outputs == {}
    assert lines.records == 1


def test_weights_are_named_and_not_read():
    weights, linear = Weights(), torch.nn.Linear(2, 2)
    weights.learn(linear)
    lines = Lines(None, weights, store=True, rank=0)
    (found,) = lines.describe([("1", linear.weight)], store=True)
    assert (found["weight"], found["content"], found["stored"], found["source"]) == ("weight", "", False, None)


def test_digests_only_store_nothing(tmp_path):
    writer = Writer(str(tmp_path))
    lines = made(writer, store=False)
    (found,) = lines.describe([("0", torch.ones(1))], store=True)
    assert found["stored"] is False
    assert found["content"] == content_id(torch.ones(1))
    assert writer.counts["tensors"] == 0
