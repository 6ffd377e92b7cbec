import pytest
import torch

from precflow.agent.emulated import fallback


@pytest.mark.parametrize(("other", "named"), [("cpu", "npu:0 and cpu"), ("npu:1", "npu:0 and npu:1")])
def test_two_devices_in_one_operator_are_refused_as_on_hardware(npu, other, named):
    with pytest.raises(RuntimeError, match=rf"Expected all tensors to be on the same device.*{named}"):
        torch.ones(2, device="npu") + torch.ones(2, device=other)


def test_a_cpu_scalar_goes_with_every_device(npu):
    assert (torch.ones(2, device="npu:1") * torch.tensor(3.0)).cpu().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x % 3,
        lambda x: x.clone().remainder_(3),
        lambda x: x.fmod(2),
        lambda x: x.int() & 2,
        lambda x: x.int().bitwise_xor_(5),
        lambda x: torch.bitwise_right_shift(x.int(), 1),
        lambda x: torch.xlogy(x, 2),
        lambda x: torch.copysign(x, -1.0),
        lambda x: torch.bitwise_and(x.int(), 3, out=torch.empty_like(x.int())),
    ],
)
def test_a_number_beside_a_tensor_counts_as_on_the_cpu(npu, compute, dtype):
    for values in (torch.arange(1, 6, dtype=dtype), torch.tensor(7, dtype=dtype)):
        found, expected = compute(values.to("npu")), compute(values)
        assert found.dtype == expected.dtype
        assert torch.equal(found.cpu(), expected)


def test_numpy_is_refused_as_on_hardware(npu):
    with pytest.raises(TypeError, match=r"can't convert npu:0 device type tensor to numpy"):
        torch.ones(2, device="npu").numpy()


def test_views_share_memory_and_the_version_counter(npu):
    whole = torch.arange(12.0, device="npu").view(3, 4)
    part = whole.t()[1]
    part.mul_(10)
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert whole[:, 1].cpu().tolist() == [10.0, 50.0, 90.0]
    assert whole._version == part._version == 1


def test_in_place_on_a_view_reaches_the_gradient(npu):
    host, device = torch.ones(4, requires_grad=True), torch.ones(4, device="npu", requires_grad=True)
    for tensor in (host, device):
        copy = tensor * 2
        copy[1:3].mul_(5)
        copy.sum().backward()
    assert torch.equal(device.grad.cpu(), host.grad)


def test_out_arguments_are_filled_and_resized(npu):
    out = torch.empty(0, device="npu")
    returned = torch.add(torch.ones(2, 3, device="npu"), 1, out=out)
    assert returned is out
    assert out.cpu().tolist() == [[2.0] * 3] * 2


def test_several_out_arguments(npu):
    values, places = torch.empty(0, device="npu"), torch.empty(0, dtype=torch.int64, device="npu")
    torch.sort(torch.tensor([3.0, 1.0, 2.0], device="npu"), out=(values, places))
    assert (values.cpu().tolist(), places.cpu().tolist()) == ([1.0, 2.0, 3.0], [1, 2, 0])


def test_indexing_with_masks_and_indices_of_either_side(npu):
    values = torch.arange(6.0, device="npu")
    assert values[values > 3].cpu().tolist() == [4.0, 5.0]
    assert values[torch.tensor([0, 5])].cpu().tolist() == [0.0, 5.0]
    values[torch.tensor([1], device="npu")] = -1.0
    assert values[1].item() == -1.0


def test_lists_of_tensors_go_through(npu):
    pieces = torch.arange(6.0, device="npu:1").split(2)
    assert torch.cat(pieces[::-1]).cpu().tolist() == [4.0, 5.0, 2.0, 3.0, 0.0, 1.0]
    assert all(piece.device.index == 1 for piece in torch.meshgrid(*pieces[:2], indexing="ij"))


def test_an_interceptor_sees_every_computation_and_can_be_taken_off(npu):
    seen = []

    def wrap(operator, compute):
        seen.append(operator.overload)
        return compute

    fallback.intercept(wrap)
    try:
        torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")
    finally:
        fallback.intercept(None)
    torch.ones(2, device="npu").exp()
    assert "mm" in seen
    assert "exp" not in seen


def test_dispatch_modes_see_the_operators_of_the_device(npu):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            self.names.append(str(function))
            return function(*arguments, **(named or {}))

    tensor = torch.ones(2, device="npu")
    with Names() as mode:
        tensor + 1
    assert mode.names == ["aten.add.Tensor"]
