import pytest
import torch
from torch import nn

LOW = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_products_run_low_and_sums_in_float32(npu, dtype):
    linear, norm = nn.Linear(4, 4).npu(), nn.LayerNorm(4).npu()
    with torch.autocast("npu", dtype=dtype):
        assert torch.is_autocast_enabled("npu")
        product = linear(torch.randn(2, 4, device="npu"))
        assert product.dtype == dtype
        assert norm(product).dtype == torch.float32
        assert torch.softmax(product, -1).dtype == torch.float32
        assert product.sum().dtype == torch.float32
        assert (product + product).dtype == dtype
    assert not torch.is_autocast_enabled("npu")


def test_the_widest_type_wins_where_types_meet(npu):
    half, single = torch.ones(2, dtype=torch.float16, device="npu"), torch.ones(2, device="npu")
    with torch.autocast("npu"):
        assert torch.cat([half, single]).dtype == torch.float32
        assert torch.cat([half, half]).dtype == torch.float16


def test_outside_tensors_and_integers_are_left_alone(npu):
    with torch.autocast("npu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.arange(4, device="npu").sum().dtype == torch.int64
        double = torch.ones(2, 2, dtype=torch.float64, device="npu")
        assert (double @ double).dtype == torch.float64


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_gradients_arrive_in_the_type_of_the_weights(npu, dtype):
    convolution = nn.Conv1d(3, 3, 1).npu()
    with npu.amp.autocast(dtype=dtype):
        output = convolution(torch.randn(2, 3, 4, device="npu"))
    output.float().sum().backward()
    assert output.dtype == dtype
    assert convolution.weight.grad.dtype == torch.float32


def test_the_same_numbers_as_autocast_on_the_cpu(npu):
    linear = nn.Linear(8, 8)
    values = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = linear(values)
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert torch.equal(linear.npu()(values.npu()).cpu(), expected)


@pytest.mark.parametrize("healthy", [True, False])
def test_the_scaler_steps_or_halves_its_scale(npu, healthy):
    linear = nn.Linear(4, 2).npu()
    before = linear.weight.detach().cpu().clone()
    optimizer = torch.optim.SGD(linear.parameters(), 0.1)
    scaler = npu.amp.GradScaler(init_scale=16.0)
    with torch.autocast("npu"):
        loss = linear(torch.ones(2, 4, device="npu") * (1.0 if healthy else float("inf"))).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(linear.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == (16.0 if healthy else 8.0)
    assert torch.equal(linear.weight.detach().cpu(), before) is not healthy
