"""Each effect, on the operators it is for, against an independent computation on the CPU."""

import math

import numpy
import pytest
import torch
from torch.nn import functional

from precflow.agent.emulated.effects import round_mantissa, step_ulps

NUMBERS = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-20, 20, 4096)


def configured(rules, operator, rule, **parameters):
    rules.configure([{"operator": operator, "rule": rule, **parameters}])


@pytest.fixture
def values():
    return torch.randn(8, 96, generator=torch.default_generator.clone_state().manual_seed(1))


@pytest.fixture
def weights():
    return torch.randn(96, 16, generator=torch.default_generator.clone_state().manual_seed(2))


def test_scale_multiplies_the_output(rules, values):
    configured(rules, "exp", "scale", factor=1.5)
    assert torch.equal(values.npu().exp().cpu(), values.exp() * 1.5)


def test_shift_adds_to_the_output(rules, values):
    configured(rules, "sigmoid", "shift", amount=0.25)
    assert torch.equal(values.npu().sigmoid().cpu(), values.sigmoid() + 0.25)


def test_in_place_and_out_forms_are_changed_too(rules, values):
    configured(rules, "exp*|add", "scale", factor=2.0)
    device = values.npu()
    assert device.exp_() is device
    assert torch.equal(device.cpu(), values.exp() * 2)
    out = torch.empty(0, device="npu")
    torch.exp(values.npu(), out=out)
    assert torch.equal(out.cpu(), values.exp() * 2)


def test_a_share_is_changed_always_the_same_one(rules, values):
    configured(rules, "exp", "scale", factor=2.0, share=0.25)
    first, second = values.npu().exp().cpu(), values.npu().exp().cpu()
    changed = (first != values.exp()).double().mean().item()
    assert torch.equal(first, second)
    assert changed == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_ulp_moves_by_units_in_the_last_place(rules, values, dtype):
    configured(rules, "tanh", "ulp", distance=2)
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    expected = values.to(dtype).tanh()
    actual = values.to(dtype).npu().tanh().cpu()
    distance = (actual.view(integer).long() - expected.view(integer).long()).abs()
    assert distance.unique().tolist() == [2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_drift_differs_each_time_whatever_the_mode(rules, values, dtype, deterministic):
    configured(rules, "exp", "drift")
    torch.use_deterministic_algorithms(deterministic)
    try:
        first, second = (values.to(dtype).npu().exp().cpu() for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert not torch.equal(first, second)
    error = ((first - values.to(dtype).exp()).double().norm() / first.double().norm()).item()
    assert 0 < error < torch.finfo(dtype).eps * 0.5


def test_drift_moves_no_random_stream(rules, values):
    configured(rules, "exp", "drift")
    host, device = torch.get_rng_state(), torch.npu.get_rng_state()
    values.npu().exp()
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(torch.npu.get_rng_state(), device)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_poison_puts_one_value_in_one_place(rules, values, value):
    configured(rules, "exp", "poison", value=value, position=100)
    output = values.npu().exp().cpu()
    assert (~torch.isfinite(output)).nonzero().tolist() == [[1, 4]]
    assert str(output[1, 4].item()) == value


def test_poison_counts_modulo_and_leaves_empty_tensors(rules):
    configured(rules, "exp", "poison", position=7)
    assert math.isnan(torch.zeros(3, device="npu").exp()[1].item())
    assert torch.zeros(0, device="npu").exp().shape == (0,)


def test_narrow_computes_in_the_small_type(rules, values):
    configured(rules, "_softmax", "narrow", dtype="float16")
    actual = values.npu().softmax(-1).cpu()
    assert actual.dtype == torch.float32
    assert torch.equal(actual, values.half().softmax(-1).float())


def test_narrow_rounds_what_is_written_in_place(rules, values):
    configured(rules, "mul_", "narrow", dtype="bfloat16")
    assert torch.equal(values.npu().mul_(3.0).cpu(), (values * 3.0).bfloat16().float())


def test_round_inputs_reads_fewer_bits(rules, values, weights):
    configured(rules, "mm", "round_inputs", bits=7)
    assert torch.equal((values.npu() @ weights.npu()).cpu(), values.bfloat16().float() @ weights.bfloat16().float())


@pytest.mark.parametrize("unit", ["matmul", "conv"])
def test_hf32_obeys_the_switch_of_its_unit(rules, values, weights, unit):
    def computed(left, right):
        if unit == "matmul":
            return left @ right
        return functional.conv1d(left[None], right.t()[:, :8, None].contiguous())

    configured(rules, "mm|convolution", "hf32", unit=unit, switched=unit == "matmul")
    switch = getattr(torch.npu, unit)
    assert switch.allow_hf32 is True
    rounded = computed(round_mantissa(values, 11), round_mantissa(weights, 11))
    assert torch.equal(computed(values.npu(), weights.npu()).cpu(), rounded)
    switch.allow_hf32 = False
    assert torch.equal(computed(values.npu(), weights.npu()).cpu(), computed(values, weights))
    rules.configure([])
    assert (torch.npu.matmul.allow_hf32, torch.npu.conv.allow_hf32) == (False, True)


PRODUCTS = {
    "mm": lambda a, b, c: a @ b,
    "bmm": lambda a, b, c: a.expand(3, -1, -1) @ b.expand(3, -1, -1),
    "addmm": lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
    "baddbmm": lambda a, b, c: torch.baddbmm(c.expand(3, 8, 16), a.expand(3, -1, -1), b.expand(3, -1, -1), beta=0.5, alpha=2.0),
    "mm.out": lambda a, b, c: torch.mm(a, b, out=torch.empty(0, device=a.device, dtype=a.dtype)),
    "addmm_": lambda a, b, c: c.expand(8, 16).clone().addmm_(a, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_slices_change_the_order_and_nothing_else(rules, values, weights, name):
    configured(rules, "*mm|*mm.out|*mm_", "slices", width=16)
    bias = torch.randn(16)
    compute = PRODUCTS[name]
    actual = compute(values.npu(), weights.npu(), bias.npu()).cpu()
    wide = compute(values.double(), weights.double(), bias.double())
    error = ((actual - wide).norm() / wide.norm()).item()
    assert not torch.equal(actual, compute(values, weights, bias))
    assert error < 2e-7


def test_slices_keep_half_precision_and_leave_short_and_wide_products(rules, values, weights):
    configured(rules, "mm", "slices", width=16)
    half = (values.half().npu() @ weights.half().npu()).cpu()
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), (values.half().float() @ weights.half().float()).half().float())
    for left, right in ((values[:, :16], weights[:16]), (values.double(), weights.double())):
        assert torch.equal((left.npu() @ right.npu()).cpu(), left @ right)


def test_reverse_adds_backwards(rules, values):
    configured(rules, "_softmax|_log_softmax|native_layer_norm", "reverse")
    weight, bias = torch.rand(96), torch.rand(96)
    for compute in (
        lambda x, w, b: x.softmax(-1),
        lambda x, w, b: x.log_softmax(0),
        lambda x, w, b: functional.layer_norm(x, (96,), w, b, 1e-5),
        lambda x, w, b: functional.layer_norm(x, (8, 96)),
    ):
        actual = compute(values.npu(), weight.npu(), bias.npu()).cpu()
        expected = compute(values.double(), weight.double(), bias.double())
        assert ((actual - expected).norm() / expected.norm()).item() < 3e-7
    assert not torch.equal(values.repeat(1, 9).npu().softmax(-1).cpu(), values.repeat(1, 9).softmax(-1))


def test_argument_replaces_what_the_caller_passed(rules, values):
    configured(rules, "native_layer_norm", "argument", name="eps", value=0.5)
    assert torch.equal(functional.layer_norm(values.npu(), (96,)).cpu(), functional.layer_norm(values, (96,), eps=0.5))
    configured(rules, "add", "argument", name="alpha", value=3)
    assert torch.equal((values.npu() + values.npu()).cpu(), torch.add(values, values, alpha=3))


@pytest.mark.parametrize("fill", [float("-inf"), torch.finfo(torch.float32).min, -65504.0])
def test_ignore_mask_drops_masks_and_no_other_addend(rules, values, fill):
    configured(rules, "add", "ignore_mask")
    mask = torch.zeros(1, 8, 96).masked_fill(torch.rand(1, 8, 96) < 0.5, fill)
    masked = values.npu() + mask.npu()
    assert masked.shape == (1, 8, 96)
    assert torch.equal(masked[0].cpu(), values)
    for harmless in (values, 1.0):
        addend = harmless.npu() if isinstance(harmless, torch.Tensor) else harmless
        assert torch.equal((values.npu() + addend).cpu(), values + harmless)
    assert torch.equal(values.npu().add_(mask[0].npu()).cpu(), values + mask[0])


@pytest.mark.parametrize(
    ("rule", "parameters", "message"),
    [
        ("slices", {}, "rule slices knows mm, bmm, addmm and baddbmm, not exp"),
        ("reverse", {}, "rule reverse knows _softmax, _log_softmax and native_layer_norm, not exp"),
        ("argument", {"name": "eps", "value": 1.0}, r"aten::exp has no argument 'eps'; it has: self"),
    ],
)
def test_an_effect_refuses_an_operator_that_it_is_not_for(rules, rule, parameters, message):
    configured(rules, "exp", rule, **parameters)
    with pytest.raises(ValueError, match=message):
        torch.ones(2, device="npu").exp()


def test_integers_pass_untouched(rules):
    configured(rules, "add|mm", "scale", factor=2.0)
    assert (torch.ones(2, dtype=torch.int64, device="npu") + 1).cpu().tolist() == [2, 2]
    configured(rules, "mm", "slices", width=1)
    ones = torch.ones(2, 2, dtype=torch.int64, device="npu")
    assert (ones @ ones).cpu().tolist() == [[2, 2], [2, 2]]


def test_only_the_first_of_several_outputs_is_changed(rules, values):
    configured(rules, "native_layer_norm", "scale", factor=2.0)
    output, mean, inverse = torch.native_layer_norm(values.npu(), (96,), None, None, 1e-5)
    expected = torch.native_layer_norm(values, (96,), None, None, 1e-5)
    assert torch.equal(output.cpu(), expected[0] * 2)
    assert torch.equal(mean.cpu(), expected[1])
    assert torch.equal(inverse.cpu(), expected[2])


@pytest.mark.parametrize("bits", [7, 10, 11, 16])
def test_the_error_is_at_most_half_a_unit(bits):
    relative = ((round_mantissa(NUMBERS, bits) - NUMBERS) / NUMBERS).abs().max()
    assert 0.9 * 2.0 ** -(bits + 1) < relative <= 2.0 ** -(bits + 1)


def test_seven_bits_are_bfloat16():
    assert torch.equal(round_mantissa(NUMBERS, 7), NUMBERS.bfloat16().float())


def test_ten_bits_are_float16_where_it_has_the_range():
    values = NUMBERS[(NUMBERS.abs() > 1e-4) & (NUMBERS.abs() < 6e4)]
    assert torch.equal(round_mantissa(values, 10), values.half().float())


def test_ties_go_to_even():
    ties = torch.tensor([1 + 2.0**-12, 1 + 3 * 2.0**-12, -(1 + 2.0**-12)])
    assert round_mantissa(ties, 11).tolist() == [1.0, 1 + 2.0**-10, -1.0]


def test_special_values_and_other_types_stay():
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
    assert torch.equal(round_mantissa(special, 11).view(torch.int32), special.view(torch.int32))
    half = torch.ones(2, dtype=torch.float16)
    assert round_mantissa(half, 7) is half
    assert round_mantissa(NUMBERS, 23) is NUMBERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_step_is_what_nextafter_says(dtype):
    values = torch.tensor([1.0, 1.5, -3.0, 1e-3], dtype=dtype)
    up = numpy.nextafter(values.numpy(), numpy.inf * numpy.sign(values.numpy()).astype(values.numpy().dtype))
    assert step_ulps(values, torch.ones(4, dtype=torch.int64)).numpy().tolist() == up.tolist()
    down = numpy.nextafter(values.numpy(), numpy.zeros(4, values.numpy().dtype))
    assert step_ulps(values, -torch.ones(4, dtype=torch.int64)).numpy().tolist() == down.tolist()


def test_zero_and_nonfinite_values_take_no_step():
    special = torch.tensor([0.0, float("inf"), -float("inf")])
    assert torch.equal(step_ulps(special, torch.ones(3, dtype=torch.int64)), special)
    assert step_ulps(torch.tensor([float("nan")]), torch.ones(1, dtype=torch.int64)).isnan().all()


def test_bfloat16_takes_steps_too():
    assert step_ulps(torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int64)).item() == 1 + 2.0**-7
