"""Capture of another device than the CPU: the emulated one, in a process of its own."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from precflow.agent import emulated
from precflow.agent.capture.recorder import Recorder

PROGRAM = """
    import sys, torch
    from precflow.agent import emulated
    from precflow.agent.capture.recorder import Recorder
    from precflow.agent.dump.writer import Writer

    emulated.install()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True), torch.nn.LayerNorm(3))
    x = torch.arange(6.0).reshape(3, 2)
    found = []
    for device in ("cpu", "npu"):
        writer = Writer(sys.argv[1]) if device == "npu" else None
        recorder = Recorder(writer)
        with recorder.watch(model.to(device)), torch.no_grad():
            recorder.begin_step(0)
            model(x.to(device).t())
        found.append(recorder.contents)
    writer.seal({})
    print(len(found[0]), found[0] == found[1], writer.counts["tensors"])
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(emulated.describe_problem()), reason="this torch cannot emulate a device")
def test_equal_bits_on_another_device_are_equal_contents(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().split() == ["8", "True", "4"]
    assert (tmp_path / "rank0/step0/tensors-0.safetensors").stat().st_size > 4 * 24


def test_modules_with_a_fused_path_take_the_other_one_under_capture():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.linspace(-1, 1, 48).reshape(2, 3, 8)
    recorder = Recorder(None)
    with torch.no_grad():
        expected = layer(x)
        with recorder.watch(layer):
            result = layer(x)
    torch.testing.assert_close(result, expected)
    assert "self_attn/multi_head_attention_forward.0/forward.output.0" in recorder.contents
