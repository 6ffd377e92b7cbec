"""Rounded partial sums: against loops over slices, rounded by hand."""

import itertools
import math

import pytest
import torch
from torch.nn import functional

from benchmarks.faults.chips import Chip
from precflow.agent.replay.calls import CannotCompute, GradientGraph, RecordedCall, Result, Slot
from precflow.agent.replay.calls import Function as Called
from precflow.agent.replay.computation import Computation, SideValues, float64_defaults
from precflow.agent.replay.gradients import GradientComputation
from precflow.agent.replay.partial_sums import (
    add_in_parts,
    find_summed,
    find_summed_of_gradient,
    mask_parts,
    split_operands,
)
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_introduced

DIGITS = {torch.float16: 11, torch.bfloat16: 8}


def draw(*shape, seed=0, dtype=torch.float16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_hand(parts, dtype):
    """Round every number of float64 parts to the digits of a type, and every sum of two; from both ends, the worse of each."""

    def rounded(number):
        significand, exponent = math.frexp(number)
        return math.ldexp(round(math.ldexp(significand, DIGITS[dtype])), exponent - DIGITS[dtype])

    made = []
    for numbers in zip(*[part.flatten().tolist() for part in parts], strict=True):
        sums = []
        for first, *rest in (numbers, numbers[::-1]):
            total = rounded(first)
            for number in rest:
                total = rounded(total + rounded(number))
            sums.append(total)
        forth, back = (abs(total - math.fsum(numbers)) for total in sums)
        made.append(sums[0] if forth >= back else sums[1])
    return torch.tensor(made, dtype=torch.float64).reshape(parts[0].shape)


def slices(size, count):
    """Return where parts begin and end: ``count`` of them, as even as they can be, the shorter ones first."""
    edges = [-(-size * part // count) for part in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(edges)]


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize(("terms", "count"), [(16, 1), (31, 1), (32, 2), (50, 3), (256, 16), (1500, 64)])
def test_a_product_is_added_up_in_at_most_64_parts_of_at_least_16_terms(dtype, terms, count):
    left, right = draw(3, terms, dtype=dtype).double(), draw(terms, 2, seed=1, dtype=dtype).double()
    cut = split_operands({"a": left, "b": right}, {"a": (1,), "b": (0,)})
    made = add_in_parts((part["a"] @ part["b"] for part in cut), dtype)
    assert torch.equal(made, add_in_parts((part @ right for part in mask_parts(left, (1,))), dtype))
    expected = by_hand([left[:, each] @ right[each] for each in slices(terms, count)], dtype)
    assert torch.equal(made, expected)


def run_call(operator, tensors, output, **arguments):
    """Return what a call gives with rounded parts; tensors are float16, by path."""
    computation = Computation(RecordedCall("c", "api", operator, "", "forward", arguments, {}), "matmul")
    side = SideValues(tensors, {"0": output}, {}, {})
    with float64_defaults(), torch.no_grad():
        computation.run(side)
        return computation.run_in_parts(side)["0"]


X, W, B = draw(5, 64), draw(7, 64, seed=1), draw(7, seed=2)
BATCH, IMAGE, KERNEL = draw(2, 5, 64, seed=3), draw(2, 16, 6, 6, seed=4), draw(4, 16, 3, 3, seed=5)


def test_the_parts_of_a_linear_layer_are_added_up_before_its_bias():
    made = run_call("linear", {"0": X, "1": W, "2": B}, functional.linear(X, W, B))
    parts = [X[:, each].double() @ W[:, each].double().T for each in slices(64, 4)]
    assert torch.equal(made, by_hand([by_hand(parts, torch.float16) + B.double()], torch.float16))


@pytest.mark.parametrize(
    ("operator", "arguments", "tensors"),
    [
        ("matmul", {}, {"0": BATCH, "1": W.T}),
        ("bmm", {}, {"0": BATCH, "1": BATCH.transpose(1, 2)}),
        ("matmul", {}, {"0": X, "other": W.T}),
        ("einsum", {"0": "'bti,oi->bto'"}, {"1": BATCH, "2": W}),
    ],
)
def test_other_products_are_cut_along_what_they_sum_over(operator, arguments, tensors):
    left, right = (tensor.double() for tensor in tensors.values())
    right = right.T if operator == "einsum" else right
    exact = left @ right
    made = run_call(operator, tensors, exact.half(), **arguments)
    assert torch.equal(made, by_hand([left[..., each] @ right[..., each, :] for each in slices(64, 4)], torch.float16))


def test_a_convolution_sums_over_channels_and_places_of_its_kernel():
    made = run_call("conv2d", {"0": IMAGE, "1": KERNEL}, functional.conv2d(IMAGE, KERNEL), stride="1")
    columns = functional.unfold(IMAGE.double(), 3)
    rows = KERNEL.double().flatten(1)
    parts = [(rows[:, each] @ columns[:, each]).reshape(2, 4, 4, 4) for each in slices(144, 9)]
    assert torch.equal(made, by_hand(parts, torch.float16))


def test_the_weight_of_a_linear_layer_is_summed_over_all_rows():
    gradients, rows = draw(3, 20, 6, seed=7), draw(3, 20, 8, seed=8)
    exact = torch.einsum("abo,abi->oi", gradients.double(), rows.double())
    made = run_call("einsum", {"1": gradients, "2": rows}, exact.half(), **{"0": "'abo,abi->oi'"})
    flat = gradients.double().reshape(60, 6), rows.double().reshape(60, 8)
    assert torch.equal(made, by_hand([flat[0][each].T @ flat[1][each] for each in slices(60, 3)], torch.float16))


def test_of_an_operator_whose_sums_are_not_known_nothing_is_said():
    for operator, arguments in (("scaled_dot_product_attention", {}), ("einsum", {"0": "'...i,oi->...o'"}), ("lstm", {})):
        with pytest.raises(CannotCompute):
            find_summed(operator, arguments, {"0": BATCH, "1": BATCH})
        with pytest.raises(CannotCompute):
            find_summed_of_gradient(operator, arguments, "0", (2, 5, 64), (2, 5, 64), is_product=True)


def test_of_large_operands_that_would_have_to_be_masked_nothing_is_said():
    with pytest.raises(CannotCompute):
        next(mask_parts(torch.zeros(1).expand(1 << 11, 1 << 11), (1,)))


def pull_back(name, given, output, gradient, wanted, **arguments):
    """Return gradients with rounded parts of one function's inputs, by path."""
    slots = {path: Slot(path, "float16", tuple(tensor.shape)) for path, tensor in given.items()}
    call = RecordedCall(name, "api", name, "", "forward", arguments, {})
    function = Called(call, slots, {"0": Slot("made", "float16", tuple(output.shape))}, is_whole=True)
    results = tuple(Result(path, path, "m", path) for path in wanted)
    computation = GradientComputation(GradientGraph((function,), {"made": "g"}, {}, results))
    recorded = {path: torch.zeros_like(given[path]) for path in wanted}
    with float64_defaults(), torch.no_grad():
        return computation.run_in_parts({**given, "made": output, "g": gradient}, recorded)


def test_gradients_of_a_linear_layer_are_sums_over_features_and_over_rows():
    weight, gradient = draw(64, 8, seed=9), draw(2, 20, 64, seed=10)
    given = {"0": draw(2, 20, 8, seed=11), "1": weight, "2": draw(64, seed=12)}
    made = pull_back("linear", given, functional.linear(*given.values()), gradient, ["0", "1", "2"])
    wide, rows, flat = gradient.double(), given["0"].double().reshape(40, 8), gradient.double().reshape(40, 64)
    features = [wide[..., each] @ weight.double()[each] for each in slices(64, 4)]
    assert torch.equal(made["0"], by_hand(features, torch.float16))
    assert torch.equal(made["1"], by_hand([flat[each].T @ rows[each] for each in slices(40, 2)], torch.float16))
    assert torch.equal(made["2"], by_hand([flat[each].sum(0) for each in slices(40, 2)], torch.float16))


def test_gradients_of_a_product_that_was_repeated_for_each_sample_are_summed_over_samples_too():
    given = {"0": draw(3, 20, 32, seed=13), "1": draw(32, 8, seed=14)}
    gradient = draw(3, 20, 8, seed=15)
    made = pull_back("matmul", given, given["0"] @ given["1"], gradient, ["0", "1"])
    assert torch.equal(made["0"], by_hand([gradient.double() @ given["1"].double().T], torch.float16))
    rows, flat = given["0"].double().reshape(60, 32), gradient.double().reshape(60, 8)
    assert torch.equal(made["1"], by_hand([rows[each].T @ flat[each] for each in slices(60, 3)], torch.float16))


@pytest.mark.parametrize(
    ("name", "tensors", "run", "arguments", "axes"),
    [
        ("layer_norm", {"0": (40, 8), "weight": (8,)}, lambda x, w: functional.layer_norm(x, (8,), w), {"1": "(8,)"}, (0,)),
        ("mul", {"0": (40, 8), "1": (1, 8)}, torch.mul, {}, (0,)),
        ("conv2d", {"0": (2, 3, 8, 8), "1": (4, 3, 1, 1)}, functional.conv2d, {}, (0, 2, 3)),
    ],
)
def test_gradients_of_what_was_repeated_are_summed_over_its_copies(name, tensors, run, arguments, axes):
    given = {path: draw(*shape, seed=seed) for seed, (path, shape) in enumerate(tensors.items())}
    wide = [tensor.double().requires_grad_() for tensor in given.values()]
    output = run(*wide)
    gradient, path = draw(*output.shape, seed=20), list(given)[1]
    sizes = [output.shape[axis] if axis in axes else 1 for axis in range(output.dim())]
    terms = math.prod(sizes)
    parts = []
    for each in slices(terms, terms // 16):
        mask = torch.zeros(terms)
        mask[each] = 1.0
        arriving = gradient.double() * mask.reshape(sizes)
        parts.append(torch.autograd.grad(output, wide[1], arriving, retain_graph=True)[0])
    made = pull_back(name, given, output.detach().half(), gradient, [path], **arguments)
    assert torch.equal(made[path], by_hand(parts, torch.float16))


def test_the_gradient_of_a_table_is_summed_over_the_rows_that_were_read():
    ids = torch.arange(64) % 3
    table, gradient = draw(100, 4), draw(64, 4, seed=21)
    given = {"0": ids, "1": table}
    slots = {"0": Slot("0", "int64", (64,)), "1": Slot("1", "float16", (100, 4))}
    call = RecordedCall("embedding", "api", "embedding", "", "forward", {}, {})
    function = Called(call, slots, {"0": Slot("made", "float16", (64, 4))}, is_whole=True)
    graph = GradientGraph((function,), {"made": "g"}, {}, (Result("1", "1", "m", "weight"),))
    with float64_defaults(), torch.no_grad():
        values = {**given, "made": table[ids], "g": gradient}
        made = GradientComputation(graph).run_in_parts(values, {"1": torch.zeros_like(table)})["1"]
    parts = [torch.zeros(100, 4, dtype=torch.float64).index_add(0, ids[e], gradient[e].double()) for e in slices(64, 4)]
    assert torch.equal(made, by_hand(parts, torch.float16))


class OtherWeights(Chip):
    """A chip whose product has weights that are off by a share of themselves, at random."""

    def __init__(self, share):
        super().__init__(())
        self.share = share

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "mm":
            args = (args[0], (args[1].float() * (1 + self.share * draw(*args[1].shape, seed=9).float())).to(args[1].dtype))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reference", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("chip", "wrong"),
    [(OtherWeights(0.02), True), (OtherWeights(2.0**-9), False), (Chip(("split_k",)), False), (Chip(("chunk64",)), False)],
)
def test_a_product_in_16_bits_is_held_to_its_rounding_whatever_type_the_reference_has(reference, chip, wrong, dumped):
    """Rounding of operands leaves half a percent, and partial sums what they are off by; a weight that is off by 2 % more."""
    given = draw(48, 96, dtype=torch.bfloat16), draw(64, 96, seed=1, dtype=torch.bfloat16)

    def work(side):
        with chip if side == "target" else Chip(()):
            functional.linear(*(one.to(reference if side == "reference" else torch.bfloat16) for one in given))

    (line,) = dumped(work).evaluated("linear")
    sides = {name: SideNumbers(**facts) for name, facts in line["sides"].items()}
    assert decide_introduced(Evaluated(**{**line, "sides": sides})).is_fault == wrong
