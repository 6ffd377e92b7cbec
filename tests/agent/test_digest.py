import hashlib
import struct

import numpy as np
import pytest
import torch

from precflow.agent import digest
from precflow.agent.digest import byte_count, byte_pieces, content_id, dtype_name, readable, to_host


def expected(head, data):
    """The definition, written down a second time: type[sizes] and the raw bytes."""
    return hashlib.blake2b(head.encode() + data, digest_size=16).hexdigest()


def test_definition_holds_for_a_known_tensor():
    tensor = torch.tensor([[1.0, -2.5]], dtype=torch.float32)
    assert content_id(tensor) == expected("float32[1,2]", struct.pack("<2f", 1.0, -2.5))


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 4)])
def test_bytes_are_those_of_numpy(name, shape):
    tensor = (torch.rand(shape) * 10).to(getattr(torch, name))
    sizes = ",".join(str(size) for size in shape)
    assert content_id(tensor) == expected(f"{name}[{sizes}]", tensor.numpy().tobytes())


def test_bfloat16_has_the_high_half_of_float32():
    tensor = torch.tensor([1.0, 3.140625, -7.0], dtype=torch.bfloat16)
    high = (tensor.float().numpy().view(np.uint32) >> 16).astype("<u2")
    assert content_id(tensor) == expected("bfloat16[3]", high.tobytes())


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_read_where_torch_has_it(name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    raw = torch.tensor([0, 56, 200], dtype=torch.uint8)
    assert content_id(raw.view(dtype)) == expected(f"{name}[3]", bytes([0, 56, 200]))


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
    monkeypatch.setattr(digest, "PIECE_BYTES", 16)
    pieces = [bytes(piece) for piece in byte_pieces(to_host(tensor))]
    assert len(pieces) == 15
    assert b"".join(pieces) == tensor.contiguous().numpy().tobytes()
    assert content_id(tensor) == whole


def test_tensors_without_plain_bytes_have_no_content():
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        assert not readable(tensor)
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
