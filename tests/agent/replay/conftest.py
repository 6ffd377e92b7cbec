"""Calls recorded from real runs, as the judge hands them to the agent."""

import json
import struct
from pathlib import Path

import pytest
import torch

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.replay.calls import RecordedCall, SideTensors, StoredTensor, TensorFiles
from precflow.agent.replay.evaluate import evaluate_call
from precflow.agent.request import CaptureSection


def stored_in(folder):
    """Return where each content of a dump lies."""
    where = {}
    for path in Path(folder).rglob("*.safetensors"):
        with path.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            index = json.loads(stream.read(size))
        for key, facts in index.items():
            if key != "__metadata__":
                begin, end = facts["data_offsets"]
                where[key] = (str(path), 8 + size + begin, end - begin)
    return where


def _tensors(records, where):
    place = {record["content"]: where.get(record["content"], (None, 0, 0)) for record in records}
    return tuple(StoredTensor(each["index"], each["dtype"], tuple(each["shape"]), *place[each["content"]]) for each in records)


class Dumped:
    """Two dumps of the same calls."""

    def __init__(self, folders):
        self.lines, self.where = {}, {}
        for side, folder in folders.items():
            text = (folder / "rank0/step0/records-0.jsonl").read_text(encoding="utf-8")
            self.lines[side] = [json.loads(line) for line in text.splitlines()]
            self.where[side] = stored_in(folder)

    def calls(self, *names):
        """Yield the calls of these operators (all without a name), with the tensors of both sides."""
        for number, line in enumerate(self.lines["reference"]):
            if line["operator"] and (not names or line["operator"] in names):
                sides = {
                    side: SideTensors(*(_tensors(lines[number][role], self.where[side]) for role in ("inputs", "outputs")))
                    for side, lines in self.lines.items()
                }
                name = "{module}/{operator}.{ordinal}/{phase}".format(**line)
                yield RecordedCall(
                    name, line["level"], line["operator"], line["class"], line["phase"], line["arguments"], sides
                )

    def evaluated(self, *names):
        """Return the evaluation of these operators: the lines of all outputs."""
        files = TensorFiles()
        return [line for call in self.calls(*names) for line in evaluate_call(call, files)]


@pytest.fixture
def dumped(tmp_path):
    """Return a function that records ``work(side)`` once a side and returns :class:`Dumped`."""
    count = iter(range(1000))

    def record(work, model=None, *, levels=("api",), phases=("forward",), sides=("reference", "target")):
        folders = {}
        model = model or torch.nn.Module()
        for side in sides:
            folder = folders[side] = tmp_path / f"{next(count)}-{side}"
            folder.mkdir()
            writer = Writer(str(folder))
            recorder = Recorder(writer, CaptureSection(level=levels, phase=phases))
            with recorder.watch(model):
                work(side)
            writer.seal({"sites": recorder.sites})
        return Dumped(folders)

    return record


@pytest.fixture
def write_calls():
    """Return a function that writes the calls of two dumps as the judge does."""

    def write(record, folder):
        with (folder / "calls.jsonl").open("w") as stream:
            for call in record.calls():
                plain = {
                    "call": call.call,
                    "level": call.level,
                    "operator": call.operator,
                    "class": call.class_name,
                    "phase": call.phase,
                    "arguments": dict(call.arguments),
                    "sides": {
                        side: {role: [each._asdict() for each in getattr(tensors, role)] for role in ("inputs", "outputs")}
                        for side, tensors in call.sides.items()
                    },
                }
                stream.write(json.dumps(plain) + "\n")

    return write
