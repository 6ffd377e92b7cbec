import importlib.util
from pathlib import Path

import torch

from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection

SPEC = importlib.util.spec_from_file_location("dump_size", Path(__file__).parents[2] / "benchmarks/dump_size.py")
BENCHMARK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BENCHMARK)


def test_tensors_of_records_are_counted_with_and_without_repetition(tmp_path, plain_header):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Identity(), torch.nn.ReLU())
    writer = Writer(str(tmp_path))
    recorder = Recorder(writer, CaptureSection(level=("module",), detail="sketch"))
    with recorder.watch(model), torch.no_grad():
        model(torch.randn(100, 64))
    writer.seal(plain_header)
    found = BENCHMARK.sizes(tmp_path)
    one = 100 * 64 * 4
    assert (found["records"], found["all"], found["once"]) == (8, 8 * one, 3 * one)  # input, linear, relu
    assert found["dump"] == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < one
    assert len(BENCHMARK.table([tmp_path]).splitlines()) == 3
