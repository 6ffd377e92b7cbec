import numpy
import pytest
import torch

from precflow.agent.emulated.rounding import keep_bits, step

VALUES = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-20, 20, 4096)


@pytest.mark.parametrize("bits", [7, 10, 11, 16])
def test_the_error_is_at_most_half_a_unit(bits):
    relative = ((keep_bits(VALUES, bits) - VALUES) / VALUES).abs().max()
    assert 0.9 * 2.0 ** -(bits + 1) < relative <= 2.0 ** -(bits + 1)


def test_seven_bits_are_bfloat16():
    assert torch.equal(keep_bits(VALUES, 7), VALUES.bfloat16().float())


def test_ten_bits_are_float16_where_it_has_the_range():
    values = VALUES[(VALUES.abs() > 1e-4) & (VALUES.abs() < 6e4)]
    assert torch.equal(keep_bits(values, 10), values.half().float())


def test_ties_go_to_even():
    ties = torch.tensor([1 + 2.0**-12, 1 + 3 * 2.0**-12, -(1 + 2.0**-12)])
    assert keep_bits(ties, 11).tolist() == [1.0, 1 + 2.0**-10, -1.0]


def test_special_values_and_other_types_stay():
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    assert torch.equal(keep_bits(special, 11).view(torch.int32), special.view(torch.int32))
    half = torch.ones(2, dtype=torch.float16)
    assert keep_bits(half, 7) is half
    assert keep_bits(VALUES, 23) is VALUES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_step_is_what_nextafter_says(dtype):
    values = torch.tensor([1.0, 1.5, -3.0, 1e-3], dtype=dtype)
    up = numpy.nextafter(values.numpy(), numpy.inf * numpy.sign(values.numpy()).astype(values.numpy().dtype))
    assert step(values, torch.ones(4, dtype=torch.int64)).numpy().tolist() == up.tolist()
    down = numpy.nextafter(values.numpy(), numpy.zeros(4, values.numpy().dtype))
    assert step(values, -torch.ones(4, dtype=torch.int64)).numpy().tolist() == down.tolist()


def test_zero_and_nonfinite_values_take_no_step():
    special = torch.tensor([0.0, float("inf"), -float("inf")])
    assert torch.equal(step(special, torch.ones(3, dtype=torch.int64)), special)
    assert step(torch.tensor([float("nan")]), torch.ones(1, dtype=torch.int64)).isnan().all()


def test_bfloat16_takes_steps_too():
    assert step(torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int64)).item() == 1 + 2.0**-7
