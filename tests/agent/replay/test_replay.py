"""Running recorded calls alone on a device: the CPU here, and the emulated one in a process of its own."""

import json
import os
import textwrap

import pytest
import torch
from torch.nn import functional

from precflow.agent import request as requests
from precflow.agent import worker
from precflow.agent.replay.calls import TensorFiles
from precflow.agent.replay.replay import replay_call

CPU = torch.device("cpu")
X, Y = (
    torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(6, 5, generator=torch.Generator().manual_seed(2)),
)
HEADS = torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(4))

WORKS = {
    "matmul": lambda x: x @ Y,
    "linear": lambda x: functional.linear(x, Y.t().contiguous()),  # strides are not recorded: another layout adds up otherwise
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, (6,)),
    "sub": lambda x: 1 - x,
    "add_": lambda x: x.clone().add_(x),
    "embedding": lambda x: functional.embedding(torch.tensor([1, 2]), x),
    "topk": lambda x: x.topk(2),
    "rms_norm": lambda x: functional.rms_norm(x, (6,)),
    "scaled_dot_product_attention": lambda x: functional.scaled_dot_product_attention(HEADS, HEADS, HEADS + x[0, 0]),
}


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_device_gives_the_same_bits(dumped, name, dtype):
    if dtype is torch.bfloat16 and name in ("matmul", "linear", "scaled_dot_product_attention"):
        pytest.skip("its other tensors are float32")
    # the target's inputs are others: as behind an operator that was wrong
    record = dumped(lambda side: WORKS[name]((X * (1.0 if side == "reference" else 1.01)).to(dtype)))
    calls = list(record.calls(name))
    assert calls
    for call in calls:
        for line in replay_call(call, TensorFiles(), CPU):
            assert (line["replayed"], line["why"], line["same_bits"]) == (True, "", True)
            for numbers in line["runs"].values():
                assert numbers["eta"] is None or numbers["eta"] < 4 * numbers["unit"]


def test_an_operator_that_was_wrong_in_place_is_clean_in_replay(dumped):
    record = dumped(lambda side: torch.exp(X) if side == "reference" else torch.exp(X).mul_(1.001))
    (call,) = record.calls("exp")
    tensors = call.sides["target"]
    (changed,) = [each.sides["target"] for each in dumped(lambda _: X.exp() * 1.001).calls("mul")]
    call = call._replace(sides={**call.sides, "target": tensors._replace(outputs=changed.outputs)})
    (line,) = replay_call(call, TensorFiles(), CPU)
    assert (line["replayed"], line["same_bits"]) == (True, False)
    assert all(each["eta"] < 2 * each["unit"] for each in line["runs"].values())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"operator": "rand"}, "draws random numbers"),
        ({"operator": "npu_unheard_of"}, "no computation is known"),
        ({"arguments": {"dim": "99"}}, "no computation fits"),
    ],
)
def test_a_call_that_cannot_run_says_why(dumped, changes, why):
    (call,) = dumped(lambda _: X.exp()).calls("exp")
    (line,) = replay_call(call._replace(**changes), TensorFiles(), CPU)
    assert not line["replayed"]
    assert why in line["why"]


def test_the_action_writes_a_line_for_each_output(dumped, asked, events, tmp_path, write_calls):
    request = asked(action="replay", device=["cpu"])
    write_calls(dumped(lambda _: (X @ Y, X.topk(2))), tmp_path / "output")
    worker.run(requests.parse(request), events)
    found = [json.loads(line) for line in (tmp_path / "output" / "replayed.jsonl").read_text().splitlines()]
    assert [(line["index"], line["replayed"], line["same_bits"]) for line in found] == [("0", True, True)] * 2 + [
        ("1", True, True)
    ]


def test_a_fault_of_the_device_is_seen_at_both_inputs(dumped, tmp_path, write_calls, warm_server):
    """The emulated device cannot be taken out of a process again, so it runs in one of its own."""
    output = tmp_path / "replayed"
    output.mkdir()
    write_calls(dumped(lambda side: (X + (side == "target")).exp().sigmoid()), output)
    rules = [{"operator": "sigmoid", "rule": "shift", "amount": 0.001}]
    request = {
        "schema": 1,
        "action": "replay",
        "output": str(output),
        "device": ["emulated"],
        "emulate": {"name": "x", "rules": rules},
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    program = textwrap.dedent("""
        import sys
        from precflow.agent import emulated
        if emulated.describe_problem():
            sys.exit(77)
        from precflow.agent.__main__ import main
        sys.exit(main(sys.argv[1:]))
    """)
    (tmp_path / "agent.py").write_text(program)
    words = [tmp_path / "agent.py", tmp_path / "request.json"]
    code, _, wrong = warm_server.run(words, cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
    if code == 77:
        pytest.skip("this torch has no emulated device")
    assert code == 0, wrong
    found = {
        json.loads(line)["call"].split("/")[1]: json.loads(line)
        for line in (output / "replayed.jsonl").read_text().splitlines()
    }
    for numbers in found["sigmoid.0"]["runs"].values():
        assert numbers["eta"] > 100 * numbers["unit"]
    assert found["sigmoid.0"]["same_bits"] is False
    assert all(numbers["eta"] < 4 * numbers["unit"] for numbers in found["exp.0"]["runs"].values())
