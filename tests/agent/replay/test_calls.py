import json
import math
import struct

import pytest
import torch

from precflow.agent.capture.arguments import format_argument
from precflow.agent.failures import AgentError
from precflow.agent.replay.calls import CannotCompute, StoredTensor, TensorFiles, parse_argument, read_calls


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5e-6,
        1 - 2j,
        "bhij,bhjd->bhid",
        (1, [2, None]),
        {"a": (1,)},
        (slice(None, -1, None), ..., 0),
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.Size([2, 3]),
        range(1, 5),
        -math.inf,
        [],
        -3.4028234663852886e38,
    ],
)
def test_what_capture_writes_is_read_back(value):
    assert parse_argument(format_argument(value)) == value


def test_nan_is_read_back():
    assert math.isnan(parse_argument(format_argument(math.nan)))


@pytest.mark.parametrize("value", [torch.device("cuda", 1), torch.device("cpu"), torch.device("meta")])
def test_every_device_is_the_cpu(value):
    assert parse_argument(format_argument(value)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (format_argument("x" * 300), "was cut"),
        (format_argument(list(range(5000))), "was not written out: list of 5000"),
        ("<torch._C.Generator object at 0x>", "cannot be read"),
        ("__import__('os').system('true')", "cannot be read"),
        ("torch.load", "cannot be read"),
        ("1 if True else 2", "cannot be read"),
        ("a" * 90, "cannot be read"),
        ("(" * 5000, "cannot be read"),
    ],
)
def test_everything_else_is_refused_and_never_run(text, why):
    with pytest.raises(CannotCompute, match=why):
        parse_argument(text)


def shard(path, tensors):
    """Write tensors as safetensors files have them; return where each lies."""
    index, data, where = {}, b"", {}
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
        index[name] = {"dtype": "X", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        where[name] = (len(data), len(raw))
        data += raw
    head = json.dumps(index).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return {name: (8 + len(head) + begin, size) for name, (begin, size) in where.items()}


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool", "complex64", "float8_e5m2"]
)
def test_tensors_are_read_where_they_lie(tmp_path, dtype):
    kind = getattr(torch, dtype)
    value = torch.tensor([[1, 0, 3], [1, 1, 0]]).to(kind)
    places = shard(tmp_path / "a.safetensors", {"odd": torch.tensor([7], dtype=torch.uint8), "x": value})
    stored = StoredTensor("0", dtype, (2, 3), str(tmp_path / "a.safetensors"), *places["x"])
    found = TensorFiles().read(stored)
    assert found.dtype == kind
    assert found.to(torch.complex64).tolist() == value.to(torch.complex64).tolist()


def test_a_write_reaches_neither_the_file_nor_fails(tmp_path):
    places = shard(tmp_path / "a", {"x": torch.ones(4)})
    before = (tmp_path / "a").read_bytes()
    TensorFiles().read(StoredTensor("0", "float32", (4,), str(tmp_path / "a"), *places["x"])).add_(1)
    assert (tmp_path / "a").read_bytes() == before


def test_scalars_and_empty_tensors_are_read(tmp_path):
    places = shard(tmp_path / "a", {"x": torch.tensor(2.5)})
    files = TensorFiles()
    assert files.read(StoredTensor("0", "float32", (), str(tmp_path / "a"), *places["x"])).item() == 2.5
    assert files.read(StoredTensor("0", "float32", (0, 3), str(tmp_path / "a"), 0, 0)).shape == (0, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"file": None}, "tensor weight was not kept"),
        ({"bytes": 12}, "has 12 bytes; 16 were expected"),
        ({"begin": 1 << 20}, "lies outside of"),
        ({"dtype": "float7"}, "element type float7 is unknown"),
        ({"dtype": "nn"}, "element type nn is unknown"),
        ({"file": "/nowhere/a"}, "/nowhere/a cannot be read: No such file"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, changes, why):
    places = shard(tmp_path / "a", {"x": torch.ones(4)})
    stored = StoredTensor("weight", "float32", (4,), str(tmp_path / "a"), *places["x"])
    with pytest.raises(CannotCompute, match=why):
        TensorFiles().read(stored._replace(**changes))


CALL = {
    "call": "fc/linear.0/forward",
    "level": "api",
    "operator": "linear",
    "class": "Linear",
    "phase": "forward",
    "arguments": {"eps": "1e-05"},
    "sides": {"reference": {"inputs": [{"index": "0", "dtype": "float32", "shape": [2], "file": None}], "outputs": []}},
}


def test_calls_are_read_line_by_line(tmp_path):
    (tmp_path / "calls.jsonl").write_text(json.dumps(CALL) + "\n" + json.dumps({**CALL, "call": "other"}) + "\n")
    first, second = read_calls(str(tmp_path / "calls.jsonl"))
    assert (first.call, first.class_name, second.call) == ("fc/linear.0/forward", "Linear", "other")
    assert first.arguments == {"eps": "1e-05"}
    assert first.sides["reference"].inputs == (StoredTensor("0", "float32", (2,), None, 0, 0),)


@pytest.mark.parametrize("bad", ["{", "[]", json.dumps({**CALL, "sides": 3}), json.dumps({"call": "x"})])
def test_a_damaged_line_is_named(tmp_path, bad):
    (tmp_path / "calls.jsonl").write_text(json.dumps(CALL) + "\n" + bad + "\n")
    with pytest.raises(AgentError, match=r"line 2 of .*calls\.jsonl is not a call"):
        list(read_calls(str(tmp_path / "calls.jsonl")))


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(AgentError, match=r"cannot read .*calls\.jsonl: No such file"):
        list(read_calls(str(tmp_path / "calls.jsonl")))
