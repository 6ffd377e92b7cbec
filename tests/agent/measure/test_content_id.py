import json
from pathlib import Path

import numpy as np
import pytest
import torch

from precflow.agent.measure import checksums, transfer
from precflow.agent.measure.content_id import content_id, dtype_name, has_plain_bytes
from precflow.agent.measure.transfer import byte_count, byte_pieces, to_host

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/digest.json").read_text())


def golden_bytes(case):
    """The bytes of a case: given, or the words mix32(seed + i)."""
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    width = torch.empty(0, dtype=getattr(torch, case["dtype"])).element_size()
    size = width * int(np.prod(case["shape"], dtype=int))
    return mixed_words(case["mix32"], -(-size // 4)).tobytes()[:size]


def mixed_words(seed, count):
    x = np.arange(count, dtype="<u4") + np.uint32(seed)
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def tensor_of(case):
    dtype, data = getattr(torch, case["dtype"]), golden_bytes(case)
    return torch.tensor(list(data), dtype=torch.uint8).view(dtype).reshape(case["shape"])


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['dtype']}{case['shape']}")
def test_golden_contents(case):
    if not hasattr(torch, case["dtype"]):
        pytest.skip(f"this torch has no {case['dtype']}")
    assert content_id(tensor_of(case)) == case["content"]


def test_golden_cases_differ():
    assert len({case["content"] for case in GOLDEN}) == len(GOLDEN)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.expand(3, 4, 6),
        lambda x: x[1:, 1],
        lambda x: x.diagonal(),
        lambda x: x.requires_grad_(),
    ],
)
def test_strides_do_not_count(view):
    tensor = view(torch.arange(24, dtype=torch.float32).reshape(4, 6))
    assert content_id(tensor) == content_id(tensor.detach().clone(memory_format=torch.contiguous_format))


def test_pending_conjugation_and_negation_are_resolved():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert content_id(tensor.conj()) == content_id(torch.tensor([1 - 2j, 3 + 4j]))
    assert content_id(tensor.conj().imag) == content_id(torch.tensor([-2.0, 4.0]))


@pytest.mark.parametrize(
    "other",
    [torch.zeros(6), torch.zeros(2, 3, dtype=torch.int32), torch.zeros(3, 2), torch.zeros(1, 2, 3), -torch.zeros(2, 3)],
)
def test_type_shape_and_every_bit_count(other):
    assert content_id(torch.zeros(2, 3)) != content_id(other)


def test_large_strided_tensor_is_read_in_pieces(monkeypatch):
    tensor = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5).permute(2, 0, 1)
    whole = content_id(tensor)
    monkeypatch.setattr(transfer, "PIECE_BYTES", 16)
    monkeypatch.setattr(checksums, "PIECE_BYTES", 16)
    pieces = [bytes(piece) for piece in byte_pieces(to_host(tensor))]
    assert len(pieces) == 15
    assert b"".join(pieces) == tensor.contiguous().numpy().tobytes()
    assert content_id(tensor) == whole


def test_tensors_without_plain_bytes_have_no_content():
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        assert not has_plain_bytes(tensor)
        assert content_id(tensor) == ""


def test_tensors_inside_vmap_have_no_content():
    found = []

    def look(row):
        found.append(content_id(row))
        return row + 1

    torch.func.vmap(look)(torch.ones(2, 3))
    assert found == [""]


def test_reading_leaves_the_tensor_as_it_was():
    tensor = torch.ones(2, 2, requires_grad=True) * 2
    version, before = tensor._version, tensor.detach().clone()
    content_id(tensor)
    assert tensor._version == version
    assert tensor.grad_fn is not None
    assert torch.equal(tensor.detach(), before)


def test_names_and_sizes():
    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert byte_count(torch.zeros(3, 4, dtype=torch.int16).t()) == 24


@pytest.mark.parametrize("name", ["float32", "float16", "int64", "bool", "complex64"])
def test_a_column_of_a_single_row_has_the_content_of_its_element(name):
    row = torch.arange(8).reshape(1, 8).to(getattr(torch, name))
    for column in (row[:, 3], row[:, 3:4], row[:, 3:4].t(), row[0, 3].expand(1)):
        assert content_id(column) == content_id(torch.arange(8)[3:4].reshape(column.shape).to(row.dtype))


def test_a_tensor_whose_memory_was_given_back_has_none():
    """FSDP frees the weights that it has gathered and keeps the tensors: reading one would end the process."""
    tensor = torch.ones(1 << 20)
    tensor.untyped_storage().resize_(0)
    assert content_id(tensor) == ""
    assert content_id(torch.ones(0)) != ""
