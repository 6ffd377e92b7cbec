"""Recording small models: the lines of a run, and its gradients, with and without capture."""

import json

import pytest

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection


class Run:
    """What was recorded of one run."""

    def __init__(self, lines, recorder):
        self.lines = lines
        self.recorder = recorder

    def of(self, phase, level="module"):
        return [line for line in self.lines if line["phase"] == phase and line["level"] == level]

    def line(self, phase, module, call=0):
        (found,) = [line for line in self.of(phase) if (line["module"], line["call"]) == (module, call)]
        return found

    @staticmethod
    def indices(line):
        return [record["index"] for record in line["inputs"]], [record["index"] for record in line["outputs"]]


@pytest.fixture
def recorded(tmp_path):
    """Return a function that runs ``work(model)`` under capture and returns a :class:`Run`."""
    count = iter(range(100))

    def record(model, work, optimizer=None, **options):
        options.setdefault("phase", ("forward", "backward"))
        options.setdefault("level", ("module",))
        folder = tmp_path / str(next(count))
        folder.mkdir()
        writer = Writer(str(folder))
        recorder = Recorder(writer, CaptureSection(**options))
        with recorder.watch(model, optimizer):
            work(model)
        writer.seal({"sites": recorder.sites})
        text = (folder / "rank0/step0/records-0.jsonl").read_text(encoding="utf-8")
        return Run([json.loads(line) for line in text.splitlines()], recorder)

    return record


@pytest.fixture
def gradients():
    """Return a function that gives copies of a model's gradients, and forgets them."""

    def taken(model):
        found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        for each in model.parameters():
            each.grad = None
        return found

    return taken
