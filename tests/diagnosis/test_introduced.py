"""What the numbers of an evaluated call say: fault, note or nothing."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from precflow.agent.replay.numbers import measure
from precflow.agent.replay.partial_sums import add_in_parts, mask_parts
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_all, decide_introduced, find_classes, group_by_call
from precflow.judgement import lines

FLOAT32, BFLOAT16 = 2.0**-24, 2.0**-9


def side(unit=FLOAT32, **given):
    control = {"variance": 1.0, "slope": 1.0, "curve": 1.0, "largest": 1.7}
    plain = {"dtype": "float32" if unit == FLOAT32 else "bfloat16", "elements": 64, "unit": unit, "control": control}
    return SideNumbers(**{**plain, **given})


def decide(reference, target, kind="other"):
    return decide_introduced(
        Evaluated("a/linear.0", "0", kind, evaluated=True, sides={"reference": reference, "target": target})
    )


def test_an_error_of_the_references_size_is_no_fault():
    found = decide(side(eta=5e-8), side(eta=1e-7))
    assert not found.is_fault
    assert found.rho == pytest.approx(2.0)


def test_an_error_many_times_the_references_is_a_fault():
    found = decide(side(eta=5e-8), side(eta=1e-6))
    assert found.is_fault
    assert found.measure == "rho"
    assert "20 times" in found.text


def test_a_reference_that_is_exact_by_luck_does_not_make_a_fault_of_one_rounding():
    assert not decide(side(eta=0.0), side(eta=FLOAT32)).is_fault
    assert decide(side(eta=0.0), side(eta=20 * FLOAT32)).is_fault


@pytest.mark.parametrize(("rho", "fault", "noted"), [(5, False, False), (30, False, True), (200, True, False)])
def test_matmul_has_a_line_of_its_own_and_a_note_below_it(rho, fault, noted):
    found = decide(side(eta=1e-7), side(eta=rho * 1e-7, cosine=0.02), "matmul")
    assert (found.is_fault, bool(found.note)) == (fault, noted)


def test_the_note_tells_a_truncating_accumulator_from_shortened_operands():
    assert "towards zero" in decide(side(eta=1e-7), side(eta=2e-6, cosine=0.9), "matmul").note
    assert "shortened operands" in decide(side(eta=1e-7), side(eta=2e-6, cosine=0.01), "matmul").note


def test_a_sum_that_cancels_is_held_to_the_rounding_of_its_type_and_no_less():
    lucky = side(BFLOAT16, eta=1e-7, variance=1.0)
    rounded = side(BFLOAT16, eta=2 * BFLOAT16, variance=100.0, largest=50.0)  # partial sums in 16 bits
    assert decide(lucky, rounded, "matmul").is_fault
    assert not decide(lucky, rounded, "reduction").is_fault
    assert decide(lucky, side(BFLOAT16, eta=10 * BFLOAT16), "reduction").is_fault


def test_movement_is_judged_by_its_bits_alone():
    assert decide(side(equal=True), side(equal=False), "movement").is_fault
    assert not decide(side(equal=True), side(equal=True), "movement").is_fault
    # What the evaluation does is not what the reference does, so it says nothing about the target.
    assert decide(side(equal=False), side(equal=False), "movement") is None


def test_random_operators_and_calls_that_were_not_evaluated_say_nothing():
    assert decide(side(), side(eta=1.0), "random") is None
    assert decide_introduced(Evaluated("a", "0", why="no composition for it")) is None


def test_nan_is_a_fault_and_never_a_pass():
    assert decide(side(eta=1e-7), side(eta=math.nan)).is_fault
    assert decide(side(eta=1e-7), side(eta=1e-7, misplaced=3)).is_fault
    assert not decide(side(eta=1e-7, misplaced=3), side(eta=1e-7, misplaced=3)).is_fault


def low(**given):
    return side(BFLOAT16, eta=1.66e-3, variance=1.0, slope=2.0, curve=3.0, largest=1.7, **given)


@pytest.mark.parametrize(
    ("residue", "value", "systematic"), [("slope", 40.0, True), ("curve", 100.0, True), ("variance", 41.0, False)]
)
def test_low_precision_is_judged_by_what_rounding_leaves(residue, value, systematic):
    plain = {"eta": 1.7e-3, "variance": 1.1, "slope": 3.0, "curve": 4.0, "largest": 1.8}
    found = decide(low(), side(BFLOAT16, **{**plain, residue: value}))
    assert (found.is_fault, found.measure, found.is_systematic) == (True, residue, systematic)


def test_inputs_of_few_values_leave_residues_on_correct_chips_too():
    coarse = {"variance": 1.0, "slope": 100.0, "curve": 131.0, "largest": 1.7}
    found = decide(low(), side(BFLOAT16, eta=1.7e-3, variance=1.0, slope=110.0, curve=140.0, largest=1.7, control=coarse))
    assert not found.is_fault


def test_more_rounding_in_all_calls_of_an_operator_is_the_chips_and_in_one_of_them_a_fault():
    def evaluated(call, variance):
        target = side(BFLOAT16, eta=2e-3, variance=variance, slope=2.0, curve=3.0, largest=4.0)
        return Evaluated(call, "0", "other", evaluated=True, sides={"reference": low(), "target": target})

    calls = {f"layers.{number}/softmax.0": "softmax" for number in range(6)}
    every = [evaluated(call, 9.0) for call in calls]
    assert not any(one.is_fault for one in decide_all(every, calls))
    one_of_them = [*every[:-1], evaluated("layers.5/softmax.0", 28.0)]
    assert [one.call for one in decide_all(one_of_them, calls) if one.is_fault] == ["layers.5/softmax.0"]
    all_narrow = [evaluated(call, 41.0) for call in calls]
    assert len([one for one in decide_all(all_narrow, calls) if one.is_fault]) == 6


def test_only_the_same_output_of_other_calls_says_what_is_usual():
    """native_layer_norm returns mean and rstd too, whose rounding is that of float32 sums."""
    calls = {f"layers.{number}/native_layer_norm.0": "native_layer_norm" for number in range(4)}
    every = [
        Evaluated(call, index, evaluated=True, sides={"reference": low(), "target": replace(low(), variance=variance)})
        for call in calls
        for index, variance in (("0", 4.2), ("1", 1.0), ("2", 1.0))
    ]
    assert not any(one.is_fault for one in decide_all(every, calls))


def test_functions_that_are_off_by_ulps_everywhere_are_the_chips_and_another_curve_is_a_fault():
    def evaluated(call, curve, variance=2.0):
        target = side(BFLOAT16, eta=2e-3, variance=variance, slope=2.0, curve=curve, largest=4.0)
        return Evaluated(call, "0", "other", evaluated=True, sides={"reference": low(), "target": target})

    calls = {f"layers.{number}/silu.0": "silu" for number in range(2)}
    assert not any(one.is_fault for one in decide_all([evaluated(call, 62.0, variance=25.0) for call in calls], calls))
    one_of_them = [evaluated("layers.0/silu.0", 40.0), evaluated("layers.1/silu.0", 9.0)]
    assert [one.call for one in decide_all(one_of_them, calls) if one.is_fault] == ["layers.0/silu.0"]
    assert not any(one.is_fault for one in decide_all([evaluated(call, 40.0) for call in calls], calls))
    assert all(one.is_fault for one in decide_all([evaluated(call, 62.0) for call in calls], calls))


@pytest.mark.parametrize(
    ("wrong", "measure"), [({"eta": 4e-4, "worst_row": 1e-4}, "rho"), ({"eta": 4e-5, "worst_row": 6e-3}, "worst_row")]
)
def test_a_matmul_in_16_bits_is_measured_by_the_references_own_error(wrong, measure):
    plain = {"eta": 1.2e-5, "worst_row": 1.5e-5, "variance": 1.0, "slope": 2.0, "curve": 3.0, "largest": 1.7}
    reference = side(BFLOAT16, **plain)
    found = decide(reference, side(BFLOAT16, **{**plain, **wrong}), "matmul")
    assert (found.is_fault, found.measure) == (True, measure)
    assert not decide(reference, side(BFLOAT16, **{**plain, "eta": 2e-5, "worst_row": 2.5e-5}), "matmul").is_fault
    assert not decide(reference, side(BFLOAT16, **{**plain, **wrong, "elements": 16}), "matmul").is_fault
    assert not decide(side(**plain), side(BFLOAT16, **{**plain, **wrong}), "matmul").is_fault  # of another type: no measure


def test_a_sum_that_is_exact_on_the_reference_may_be_off_by_a_rounding_and_no_more():
    plain = {"variance": 0.0, "slope": 0.0, "curve": 0.0, "largest": 0.0}
    reference = side(BFLOAT16, eta=0.0, worst_row=0.0, **plain)

    def is_fault(eta, worst_row, partial_sums):
        target = side(BFLOAT16, eta=eta * BFLOAT16, worst_row=worst_row * BFLOAT16, partial_sums=partial_sums, **plain)
        return decide(reference, target, "matmul").is_fault

    exact = {"eta": 0.0, "worst_row": 0.0}
    assert not is_fault(0.0, 0.0, exact)
    assert [is_fault(units, 0.0, exact) for units in (1.0, 2.4, 2.6)] == [False, False, True]
    assert [is_fault(0.1, units, exact) for units in (1.0, 4.9, 5.1)] == [False, False, True]  # two and a half last places
    assert not is_fault(2.6, 5.1, {"eta": 1.4 * BFLOAT16, "worst_row": 1.8 * BFLOAT16})
    assert [is_fault(units, 0.0, {}) for units in (3.9, 4.1)] == [False, True]  # what partial sums are off by is not known


def test_one_wrong_element_is_a_fault_unless_the_reference_has_such_elements_too():
    target = side(BFLOAT16, eta=1.7e-3, variance=1.5, slope=2.0, curve=3.0, largest=300.0)
    found = decide(low(), target)
    assert (found.is_fault, found.measure) == (True, "largest")
    reference = side(BFLOAT16, eta=1.66e-3, variance=1.5, slope=2.0, curve=3.0, largest=20.0)
    assert not decide(reference, target).is_fault


def test_a_matmul_may_round_its_partial_sums():
    target = side(BFLOAT16, eta=4e-3, variance=91.0, slope=7.0, curve=8.0, largest=5.0)
    assert not decide(low(), target, "matmul").is_fault
    assert decide(low(), target).is_fault


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(3))
def test_partial_sums_that_are_rounded_are_no_fault_where_the_terms_cancel_either(dtype, seed):
    draw = torch.Generator().manual_seed(seed)
    features, gradients = (torch.randn(512, 64, generator=draw) for _ in range(2))
    features[:, 3] += 10.0  # an outlying feature, times gradients that add up to nothing as those of keys do
    left, right = (gradients - gradients.mean(0)).T.to(dtype), features.to(dtype)
    whole = (left.float() @ right.float()).to(dtype)
    total = torch.zeros_like(whole)
    for one, other in zip(left.tensor_split(8, 1), right.tensor_split(8, 0), strict=True):
        total += (one.float() @ other.float()).to(dtype)
    exact, terms = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    reference, target = (SideNumbers(**measure(made, exact, terms)) for made in (whole, total))
    assert target.eta > 2.5 * reference.eta
    assert not decide(reference, target, "matmul").is_fault


def add_up(parts, order, dtype):
    """Round float64 parts to a type and add them in it: one after the other, or neighbours first."""
    parts = [part.to(dtype) for part in parts]
    while len(parts) > 1:
        pair = [parts[0] + parts[1]]
        parts = [*parts[2:], *pair] if order == "neighbours" else [*pair, *parts[2:]]
    return parts[0]


def draw_product(kind, terms, dtype, seed):
    """Return two operands, ``[32, terms]`` and ``[terms, 16]``."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(*shape, generator=generator) for shape in ((32, terms), (terms, 16)))
    if kind == "features far off":
        left[:, ::64] *= 40.0
    if kind == "rows far off":  # times gradients that add up to nothing
        left, right = left + 40 * torch.randn(32, 1, generator=generator), right - right.mean(0)
    if kind == "attention":
        left, right = (3 * left).softmax(-1), right + 5.0
    if kind == "sum of rows":
        left = torch.ones(32, terms)
    if kind == "drift":
        left, right = left.cumsum(1) / terms**0.5, right - right.mean(0)
    return left.to(dtype), (right / terms**0.5).to(dtype)


KINDS = ("plain", "features far off", "rows far off", "attention", "sum of rows", "drift")


def measure_product(left, right, made):
    """Return the numbers of one rounding, and of what was made with those of rounded partial sums beside it."""
    wide, other = left.double(), right.double()
    exact, terms = wide @ other, wide.abs() @ other.abs()
    parts = add_in_parts((part @ other for part in mask_parts(wide, (1,))), left.dtype).to(left.dtype)
    reference, target, summed = (measure(each, exact, terms) for each in (exact.to(left.dtype), made, parts))
    sums = {name: summed[name] for name in ("eta", "worst_row")}
    return SideNumbers(**reference), SideNumbers(**target, partial_sums=sums)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_no_way_to_add_up_to_16_rounded_parts_is_a_fault(kind, dtype):
    far = 0
    for seed, terms in enumerate((64, 512)):
        left, right = draw_product(kind, terms, dtype, seed)
        for count in {2, 4, min(16, terms // 16)}:
            blocks = list(zip(left.double().tensor_split(count, 1), right.double().tensor_split(count, 0), strict=True))
            strands = [(left.double()[:, start::count], right.double()[start::count]) for start in range(count)]
            for parts, order in itertools.product((blocks, blocks[::-1], strands), ("one by one", "neighbours")):
                made = add_up([one @ other for one, other in parts], order, dtype)
                reference, target = measure_product(left, right, made)
                assert not decide(reference, target, "matmul").is_fault, (terms, count, order)
                far += decide(reference, replace(target, partial_sums={}), "matmul").is_fault
    if kind == "rows far off":
        assert far > 20  # without what partial sums may be off by


@pytest.mark.parametrize("terms", [32, 64])
@pytest.mark.parametrize("kind", ["plain", "attention"])
def test_a_product_in_float16_that_went_through_bfloat16_is_a_fault(kind, terms):
    left, right = draw_product(kind, terms, torch.float16, 0)
    made = (left.double() @ right.double()).bfloat16().half()
    sides = measure_product(left, right, made)
    found = decide(*sides, "matmul")
    assert found.is_fault
    assert decide(*[replace(each, partial_sums={}) for each in sides], "matmul").share < found.share


def test_the_error_of_partial_sums_moves_the_line_both_ways_and_without_it_the_line_is_fixed():
    plain = {"eta": 1.0e-5, "worst_row": 1.0e-5, "variance": 1.0, "slope": 2.0, "curve": 3.0, "largest": 1.7}
    reference = side(BFLOAT16, **plain)

    def is_fault(times, **partial_sums):
        target = side(BFLOAT16, **{**plain, "eta": times * 1e-5}, partial_sums=partial_sums)
        return decide(reference, target, "matmul").is_fault

    assert [is_fault(times) for times in (7.9, 8.1)] == [False, True]
    assert [is_fault(times, eta=1.2e-5, worst_row=1.2e-5) for times in (4.9, 5.1)] == [False, True]
    assert [is_fault(times, eta=2.55e-5, worst_row=2.55e-5) for times in (5.0, 5.2)] == [False, True]
    assert [is_fault(times, eta=1e-3, worst_row=1e-3) for times in (190, 210)] == [False, True]


def test_the_size_of_an_error_is_no_fault_either_where_partial_sums_are_off_by_as_much():
    reference = side(BFLOAT16, eta=1.5e-3)
    beyond = side(BFLOAT16, eta=0.3)
    allowed = replace(beyond, partial_sums={"eta": 0.15, "worst_row": 0.15})
    assert [decide(reference, each, "reduction").is_fault for each in (beyond, allowed)] == [True, False]


def test_a_reference_in_another_type_is_no_control_of_the_residue():
    reference = side(FLOAT32, eta=5e-8, variance=1e6, slope=1e6, curve=1e6, largest=1e6)
    assert decide(reference, side(BFLOAT16, eta=1.7e-3, variance=40.0)).is_fault
    assert not decide(reference, side(BFLOAT16, eta=1.7e-3, variance=1.0)).is_fault


def test_a_class_is_named_when_nearly_all_of_its_calls_are():
    operators = {f"layers.{number}": "linear" for number in range(10)} | {"norm": "layer_norm"}
    assert find_classes(operators, [f"layers.{number}" for number in range(10)]) == {"linear": "all 10 calls of linear"}
    assert find_classes(operators, [f"layers.{number}" for number in range(9)]) == {"linear": "9 of 10 calls of linear"}
    assert find_classes(operators, ["layers.0", "layers.1"]) == {}
    assert find_classes(operators, ["norm"]) == {}  # one call is no class


def test_a_call_is_as_bad_as_its_worst_output():
    good = decide(side(eta=1e-7), side(eta=1e-7))
    bad = decide(side(eta=1e-7), side(eta=1e-3))
    assert group_by_call([good, bad]) == {"a/linear.0": bad}


def test_lines_stand_between_what_was_measured_of_correct_operators_and_of_faults():
    assert 5.5 < lines.INTRODUCED < 29
    assert 34 < lines.INTRODUCED_MATMUL < 170
    assert lines.RESIDUE > 2.1


def test_an_error_that_is_no_number_is_the_worst_output_of_its_call():
    numbers = {"reference": side(eta=5e-8), "target": side(eta=math.nan)}
    broken = Evaluated("a/topk.0", "1", evaluated=True, sides=numbers)
    fine = Evaluated("a/topk.0", "0", evaluated=True, sides={**numbers, "target": side(eta=5e-8)})
    for both in ((broken, fine), (fine, broken)):
        assert group_by_call(decide_all(both, {}))["a/topk.0"].is_fault


def test_a_target_of_nan_alone_is_misplaced_where_float64_has_numbers():
    found = decide(side(eta=5e-8), side(eta=None, misplaced=64, nonfinite=64))
    assert (found.is_fault, found.measure) == (True, "misplaced")
    assert decide(side(eta=5e-8), side(eta=None, nonfinite=64)) is None  # its inputs are NaN too


def test_a_reference_that_is_itself_off_is_said_to_be():
    assert decide(side(eta=20 * FLOAT32), side(eta=20 * FLOAT32)).is_reference_off
    assert not decide(side(eta=2 * FLOAT32), side(eta=2 * FLOAT32)).is_reference_off
    assert not decide(side(eta=20 * FLOAT32), side(eta=20 * FLOAT32), "matmul").is_reference_off


def test_a_function_that_is_off_by_two_ulps_in_a_tables_way_is_a_property_of_the_chip():
    coarse = side(BFLOAT16, eta=1e-3, variance=25.0, slope=29.0, curve=90.0, largest=8.7)
    assert not decide(side(BFLOAT16, eta=1e-3), coarse).is_fault
    wrong = side(BFLOAT16, eta=1e-3, variance=1.4, slope=29.0, curve=9.0, largest=2.5)  # as much, in one direction
    assert decide(side(BFLOAT16, eta=1e-3), wrong).is_fault


@pytest.mark.parametrize(("kind", "explained"), [("other", False), ("matmul", True)])
def test_what_one_factor_leaves_is_held_to_the_line_of_the_operator(kind, explained):
    reference, angle = side(eta=FLOAT32), 20 * FLOAT32 / 1e-3  # a factor of 1.001, and 20 roundings beside it
    target = side(eta=1e-3, cosine=math.cos(angle))
    assert (decide(reference, target, kind).factor_share <= 1) == explained


def test_what_one_factor_leaves_in_16_bits_is_one_rounding():
    reference = side(BFLOAT16, eta=BFLOAT16)
    exact, uneven = (side(BFLOAT16, eta=0.03, cosine=math.sqrt(1 - (rest * BFLOAT16 / 0.03) ** 2)) for rest in (1.0, 12.0))
    assert decide(reference, exact).factor_share < 0.27
    assert decide(reference, uneven).factor_share > 1


SMALL = torch.cat([torch.randn(256), torch.randn(32) * 2e-6]).bfloat16()  # few enough that no residue shows them
WAYS = {  # of computing tanh in float32: 1 + something leaves steps of 2^-24 or 2^-25, other ones on the two sides of zero
    "tanh": torch.tanh,
    "by exp(2x)": lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1),
    "by exp(-2x)": lambda x: (1 - (-2 * x).exp()) / (1 + (-2 * x).exp()),
    "by sigmoid": lambda x: 2 * (2 * x).sigmoid() - 1,
    "by one division": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "flushed": lambda x: torch.where(x.abs() < 2**-24, 0.0, x.tanh()),
    "two steps off": lambda x: x.tanh() * (1 + 2.0**-7 * torch.sin(1e9 * x)),
}


def judge_bfloat16(given, right, wrong, operator):
    exact = right(given.double())
    sides = [SideNumbers(**measure(compute(given.float()).bfloat16(), exact)) for compute in (right, wrong)]
    evaluated = Evaluated(
        f"a/{operator}.0", "0", "other", evaluated=True, sides=dict(zip(("reference", "target"), sides, strict=True))
    )
    return decide_introduced(evaluated, operator=operator)


@pytest.mark.parametrize("operator", ["tanh", "sin", "silu", "gelu"])
def test_small_values_tell_that_bfloat16_was_computed_in_float16(operator):
    function = getattr(torch, operator, None) or getattr(torch.nn.functional, operator)
    found = judge_bfloat16(SMALL, function, lambda x: function(x.half()).float(), operator)
    assert found.is_fault
    assert found.has_half_steps
    assert not judge_bfloat16(SMALL, function, function, operator).is_fault


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_adds_something_to_one_has_no_steps_of_float16(way):
    for given in (SMALL, SMALL.abs(), -SMALL.abs()):
        assert not judge_bfloat16(given, torch.tanh, WAYS[way], "tanh").has_half_steps


def test_a_softmax_has_small_values_on_one_side_only():
    scores = (torch.randn(16, 64) * 5).bfloat16()
    found = judge_bfloat16(scores, lambda x: x.softmax(-1), lambda x: x.half().softmax(-1).float(), "softmax")
    assert found.has_half_steps
    sigmoid = judge_bfloat16(-SMALL.abs() * 1e6 - 10, torch.sigmoid, lambda x: 1 - 1 / (1 + x.exp()), "sigmoid")
    assert not sigmoid.has_half_steps


@pytest.mark.parametrize("elements", [1, 2, 6])
def test_a_function_that_is_right_to_two_units_is_no_fault_however_few_elements_there_are(elements):
    """Just above 1, two units in the last place are more than eight halves of a rounding; many are off by less."""
    exact = 1.0 + (torch.arange(elements, dtype=torch.float64) + 0.9) * 2.0**-23
    plain = exact.float()
    moved, wrong = ((plain.view(torch.int32) + units).view(torch.float32) for units in (2, 12))
    reference, target, broken = (SideNumbers(**measure(value, exact)) for value in (plain, moved, wrong))
    assert not decide(reference, target).is_fault
    assert decide(reference, broken).is_fault


_ONE_OF_16_BITS = [torch.bfloat16, torch.float16]


def _off(values, exact, units):
    """Move numbers by whole units in the last place, away from zero."""
    return SideNumbers(**measure((values.view(torch.int16) + units.to(torch.int16)).view(values.dtype), exact))


@pytest.mark.parametrize("dtype", _ONE_OF_16_BITS)
@pytest.mark.parametrize("count", [1, 2, 4, 15, 16, 64])
def test_few_numbers_of_a_function_that_is_two_units_off_are_no_fault_however_well_the_reference_rounded(dtype, count):
    draw = torch.Generator().manual_seed(count)
    others = [f"{number}/mean.0" for number in range(3)]
    wrong = 0
    for _ in range(30):
        evaluated = []
        for name in others:
            exact = torch.exp2(2 * torch.rand(count, generator=draw, dtype=torch.float64))
            units = torch.randint(-2, 3, (count,), generator=draw)
            rounded = exact.to(dtype)
            sides = {"reference": _off(rounded, exact, 0 * units), "target": _off(rounded, exact, units)}
            evaluated.append(Evaluated(name, "0", "other", evaluated=True, sides=sides))
        wrong += sum(one.is_fault for one in decide_all(evaluated, dict.fromkeys(others, "mean")))
    assert not wrong


@pytest.mark.parametrize("dtype", _ONE_OF_16_BITS)
@pytest.mark.parametrize("below", [0, 1])  # units that the number is below the next power of two
def test_a_single_number_in_16_bits_is_held_to_two_and_a_half_units(dtype, below):
    exact = torch.tensor([2.0], dtype=dtype)
    exact = (exact.view(torch.int16) - below).view(dtype).double()
    reference = SideNumbers(**measure(exact.to(dtype), exact))
    for units, fault in ((1, False), (2, False), (4, True), (-2, False), (-6, True), (100, True)):
        assert decide(reference, _off(exact.to(dtype), exact, torch.tensor([units]))).is_fault == fault, units
