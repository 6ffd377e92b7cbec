import gc
import weakref

import pytest
import torch

from precflow.agent.emulated.relabel import adopt, is_emulated, to_device, to_host

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_relabelled_tensor_is_a_real_one_over_the_same_memory(npu, dtype):
    host = torch.ones(3, 4, dtype=dtype)
    device = to_device(host, 1)
    assert type(device) is torch.Tensor
    assert device.device == torch.device("npu:1")
    assert device.dtype == dtype
    assert device.data_ptr() == host.data_ptr()


def test_strides_and_offset_survive_both_ways(npu):
    host = torch.arange(24.0).reshape(4, 6).t()[1:, ::2]
    back = to_host(to_device(host, 0))
    assert back.stride() == host.stride()
    assert torch.equal(back, host)
    back[0, 0] = -1
    assert host[0, 0] == -1


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_can_be_relabelled(npu, shape):
    assert to_device(torch.zeros(shape), 0).shape == shape


def test_lazy_conjugate_and_negative_bits_are_kept(npu):
    values = torch.tensor([1 + 2j, 3 - 4j])
    device = values.to("npu")
    assert device.conj().is_conj()
    assert torch.equal(to_host(device.conj()), values.conj().resolve_conj())
    assert device.conj().imag.is_neg()
    assert torch.equal(to_host(device.conj().imag), values.conj().imag.resolve_neg())


def test_memory_lives_as_long_as_either_label_and_no_longer(npu):
    host = torch.ones(5)
    watched = weakref.ref(host)
    device = to_device(host, 0)
    del host
    assert device.cpu().sum() == 5
    del device
    gc.collect()
    assert watched() is None


def test_adopting_takes_storage_shape_and_strides(npu):
    device, host = torch.zeros(2, device="npu"), torch.arange(6.0).reshape(2, 3)
    adopt(device, host)
    assert device.shape == (2, 3)
    assert device.device.index == 0
    assert device.cpu().tolist() == host.tolist()


def test_only_tensors_on_the_device_are_emulated(npu):
    assert is_emulated(torch.ones(1, device="npu"))
    assert not is_emulated(torch.ones(1))
    assert not is_emulated("npu")


def test_sparse_gradients_are_refused_with_what_to_do(npu):
    table = torch.nn.EmbeddingBag(5, 3, sparse=True).npu()
    loss = table(torch.tensor([[1, 2]], device="npu")).sum()
    with pytest.raises(NotImplementedError, match="sparse tensors are not emulated on the npu: use dense ones"):
        loss.backward()
