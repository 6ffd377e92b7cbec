"""Disturbances as small as rounding: how large they are, what they leave alone, and that capture sees their results."""

from functools import partial

import pytest
import torch

from precflow.agent.capture.recorder import Recorder
from precflow.agent.request import CaptureSection
from precflow.agent.session import disturbance
from precflow.agent.session.disturbance import Chunks, Directions, Jitter, RoundedOnce

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
UNSEEN = lambda: False  # noqa: E731


@pytest.fixture(autouse=True)
def drawn_alike():
    torch.manual_seed(71)


def jitter():
    return Jitter(UNSEEN, Directions())


def chunks():
    return Chunks(UNSEEN, Directions())


def ulps(moved, plain):
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    return moved.view(integer).long() - plain.view(integer).long()


@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_moves_by_one_ulp_in_both_directions_and_a_few_by_two(dtype):
    plain = torch.randn(40, 50).to(dtype)
    plain[plain.abs() < 1e-3] = 1.0  # subnormals of float16 stay
    moved = plain.clone()
    Directions().move(moved)
    steps = ulps(moved, plain)
    low = dtype in {torch.float16, torch.bfloat16}
    assert steps.unique().tolist() == ([-1, 1] if low else [-2, -1, 1, 2])
    assert low or 1 / 32 < (steps.abs() == 2).double().mean() < 1 / 8
    assert abs(steps.double().mean()) < 0.1


def test_zeros_nonfinite_values_and_mask_fills_stay():
    largest = torch.finfo(torch.float32).max
    plain = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, largest, -largest, 1e-40])
    moved = plain.clone()
    Directions().move(moved)
    assert torch.equal(moved.view(torch.int32), plain.view(torch.int32))


def test_complex_and_strided_tensors_move_and_integers_do_not():
    values = torch.randn(6, 4, dtype=torch.complex64)
    moved = values.clone()
    Directions().move(moved)
    assert set(ulps(torch.view_as_real(moved), torch.view_as_real(values)).unique().tolist()) <= {-2, -1, 1, 2}
    turned, whole = torch.randn(6, 4).t(), torch.arange(4)
    before = turned.clone()
    Directions().move(turned)
    Directions().move(whole)
    assert ulps(turned, before).abs().min() == 1
    assert whole.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_large_tensor_moves_in_blocks_as_it_would_at_once(dtype, monkeypatch):
    """The floor of a model does not depend on how its weights are cut."""
    values = torch.randn(70, 9, generator=torch.Generator().manual_seed(3)).to(dtype)
    whole, blocks = values.clone(), values.clone()
    Directions().move(whole)
    monkeypatch.setattr(disturbance, "_BLOCK", 64)
    Directions().move(blocks)
    assert torch.equal(whole, blocks)
    assert not torch.equal(whole, values)


def test_what_rounds_is_moved_and_what_only_moves_or_chooses_values_is_not():
    values = torch.randn(8, 16)
    with jitter():
        rounded = values * 3.0
        exact = [values.t(), values.relu(), values[2:], -values, values.clone(), torch.zeros(3), values.max(), values.float()]
    assert ulps(rounded, values * 3.0).abs().min() == 1
    plain = [values.t(), values.relu(), values[2:], -values, values, torch.zeros(3), values.max(), values]
    assert all(torch.equal(one, other) for one, other in zip(exact, plain, strict=True))


def test_what_an_operator_writes_into_its_argument_is_moved_too_but_no_counter():
    values, counter = torch.ones(100), torch.zeros(1)
    with jitter():
        values.mul_(3.0)
        counter += 1
        torch._foreach_add_([values], 1.0)
    assert set(values.unique().tolist()) - {3.0, 4.0}
    assert counter.item() == 1


def test_backward_is_disturbed_and_the_default_random_numbers_are_not_touched():
    layer, values = torch.nn.Linear(16, 16), torch.randn(4, 16)

    def gradient(mode):
        layer.zero_grad()
        with mode:
            layer(values).pow(2).sum().backward()
        return layer.weight.grad.clone()

    state = torch.get_rng_state()
    plain, moved, chunked = gradient(torch.enable_grad()), gradient(jitter()), gradient(chunks())
    assert torch.equal(torch.get_rng_state(), state)
    for other in (moved, chunked):
        assert 0 < (other - plain).norm() / plain.norm() < 1e-6


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b,
        lambda a, b: torch.addmm(a[0, 0], a, b, beta=0.5, alpha=2.0),
        lambda a, b: torch.bmm(a[None], b[None]),
        lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
        lambda a, b: torch.nn.functional.linear(a, b, a[0]),
        lambda a, b: torch.nn.functional.conv2d(a.view(1, 40, 5, 8), b.view(5, 40, 2, 4)[:, :, :, :], padding=1),
        lambda a, b: torch.nn.functional.conv_transpose1d(a.view(1, 40, 40), b.view(40, 20, 2), stride=2),
    ],
)
def test_a_product_in_parts_differs_by_rounding_only(dtype, product):
    left, right = torch.randn(40, 40).to(dtype), torch.randn(40, 40).to(dtype)
    plain = product(left, right)
    with chunks():
        parts = product(left, right)
    assert parts.dtype == plain.dtype
    assert parts.shape == plain.shape
    error = (parts.double() - plain.double()).norm() / plain.double().norm()
    assert error < 8 * torch.finfo(dtype).eps  # of up to 320 products
    assert error > 0 or dtype in {torch.float16, torch.bfloat16}


def truncate(values):
    """Return float64 numbers as float32, rounded towards zero."""
    nearest = values.float()
    return torch.where(nearest.double().abs() > values.abs(), torch.nextafter(nearest, torch.zeros(())), nearest)


@pytest.mark.parametrize("shift", [0.0, 1.0])  # sums that cancel, and sums that grow
@pytest.mark.parametrize("length", [64, 512, 4096])
def test_sums_in_parts_lose_what_an_accumulator_loses_that_rounds_towards_zero(shift, length):
    left, right = torch.randn(24, length) + shift, torch.randn(length, 24) + shift
    accumulator = torch.zeros(24, 24)
    for start in range(0, length, 16):  # rounded after every 16 products
        products = left[:, start : start + 16].double() @ right[start : start + 16].double()
        accumulator = truncate(accumulator.double() + products)
    exact = left.double() @ right.double()
    with chunks():
        parts = left @ right
    lost, modelled = exact - accumulator.double(), exact - parts.double()
    assert 0.5 < (modelled.norm() / lost.norm()) < 2.0
    assert (lost * modelled).sum() / (lost.norm() * modelled.norm()) > (0.5 if length > 64 else 0.1)  # in the same direction


POINTS = torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0], dtype=torch.float64)


def by_tiles(values, kernels):
    """Convolve in float32 with padding 1 by F(4x4, 3x3): from tiles of 6 x 6 for results of 4 x 4 (Winograd, Toom and Cook)."""
    powers = torch.cat([POINTS[:, None] ** torch.arange(6), torch.eye(6)[5:].double()])  # the last point is infinity
    others = [torch.cat([POINTS[:place], POINTS[place + 1 :]]) for place in range(5)]
    scale = torch.tensor([*(float((POINTS[place] - rest).prod()) for place, rest in enumerate(others)), 1.0]).double()
    of_kernel = torch.cat([powers[:5, :3], torch.eye(3)[2:].double()]) / scale[:, None]
    of_values = torch.linalg.inv(powers).T * scale[:, None]
    back = torch.cat([powers[:5, :4], torch.eye(4)[3:].double()]).T
    of_kernel, of_values, back = (each.float() for each in (of_kernel, of_values, back))
    tiles = torch.nn.functional.pad(values, (1, 1, 1, 1)).unfold(2, 6, 4).unfold(3, 6, 4)
    products = torch.einsum("ocij,nchwij->nohwij", of_kernel @ kernels @ of_kernel.T, of_values @ tiles @ of_values.T)
    made = back @ products @ back.T
    return made.permute(0, 1, 2, 4, 3, 5).reshape(len(values), len(kernels), *values.shape[2:])


@pytest.mark.parametrize("channels", [4, 32, 256])
@pytest.mark.parametrize("kind", [lambda x: x, torch.relu, lambda x: x * (torch.rand_like(x) < 0.05)])
def test_a_convolution_is_as_far_off_as_one_from_transformed_tiles(channels, kind):
    values, kernels = kind(torch.randn(2, channels, 20, 20)), torch.randn(16, channels, 3, 3)
    exact = torch.nn.functional.conv2d(values.double(), kernels.double(), padding=1)
    with chunks():
        disturbed = torch.nn.functional.conv2d(values, kernels, padding=1)
    true, modelled = by_tiles(values, kernels).double() - exact, disturbed.double() - exact
    direct = torch.nn.functional.conv2d(values, kernels, padding=1).double() - exact
    assert true.norm() > 2 * direct.norm()  # kernels of some processors are no better than that with 256 channels
    assert 0.5 < modelled.norm() / true.norm() < 3.0  # long sums lose more, by the accumulator
    assert 0.4 < modelled.norm(dim=-1).amax() / true.norm(dim=-1).amax() < 4.0
    assert 0.3 < modelled.abs().amax() / true.abs().amax() < 3.0


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"stride": 2}, torch.float32),
        ({"dilation": 2}, torch.float32),
        ({"groups": 2}, torch.float32),
        ({}, torch.float64),
        ({}, torch.bfloat16),
    ],
)
def test_convolutions_that_are_not_computed_from_tiles_are_disturbed_by_no_more_than_their_parts(options, dtype):
    values, kernels = torch.randn(2, 8, 12, 12).to(dtype), torch.randn(6, 8 // options.get("groups", 1), 3, 3).to(dtype)
    plain = torch.nn.functional.conv2d(values, kernels, **options)
    with chunks():
        disturbed = torch.nn.functional.conv2d(values, kernels, **options)
    assert (disturbed.double() - plain.double()).norm() / plain.double().norm() < 3 * torch.finfo(
        dtype
    ).eps  # by tiles: 5 and more


def test_the_gradients_of_a_convolution_are_as_far_off_as_those_from_transformed_tiles():
    values, kernels = torch.randn(2, 16, 16, 16, requires_grad=True), torch.randn(12, 16, 3, 3, requires_grad=True)
    direction = torch.randn(2, 12, 16, 16)

    def gradients(of, mode):
        with mode:
            made = torch.nn.functional.conv2d(*of, padding=1)
            return torch.autograd.grad(made, of, direction.to(made.dtype))

    exact = gradients((values.double(), kernels.double()), torch.enable_grad())
    disturbed = gradients((values, kernels), chunks())
    true = by_tiles(direction, kernels.detach().transpose(0, 1).flip(2, 3)).double() - exact[0]
    assert 0.5 < (disturbed[0].double() - exact[0]).norm() / true.norm() < 2.0
    # F(3x3, 4x4) of the filter's gradient was measured apart: 14 to 38 units of 2^-24 of the root of the squared products.
    squares = torch.nn.grad.conv2d_weight(values.double() ** 2, kernels.shape, direction.double() ** 2, padding=1)
    units = ((disturbed[1].double() - exact[1]) / squares.sqrt() * 2**24).square().mean().sqrt()
    assert 14 < units < 40


def test_sums_in_float64_lose_nothing():
    left, right = torch.randn(24, 4096).double(), torch.randn(4096, 24).double()
    with chunks():
        parts = left @ right
    assert torch.allclose(parts, left @ right, rtol=1e-12, atol=1e-12)


def test_the_gradients_of_a_convolution_in_parts_are_those_of_the_whole():
    layer, values = torch.nn.Conv2d(6, 9, 3, padding=1).double(), torch.randn(5, 6, 8, 8, dtype=torch.float64)
    values.requires_grad_()

    def gradients(mode):
        layer.zero_grad()
        values.grad = None
        with mode:
            layer(values).pow(2).sum().backward()
        return [each.grad.clone() for each in (values, layer.weight, layer.bias)]

    for plain, parts in zip(gradients(torch.enable_grad()), gradients(chunks()), strict=True):
        assert torch.allclose(parts, plain, rtol=1e-12, atol=1e-12)


def test_operators_that_arrive_whole_in_inference_mode_are_taken_apart():
    values, weight = torch.randn(4, 64), torch.randn(8, 64)
    with torch.inference_mode():
        plain = torch.nn.functional.linear(values, weight)
        with chunks():
            parts = torch.nn.functional.linear(values, weight)
    assert 0 < (parts - plain).norm() / plain.norm() < 1e-6


def test_capture_sees_the_disturbed_result_and_its_own_sums_are_left_alone():
    model, values = torch.nn.Linear(16, 16), torch.randn(4, 16)
    contents = []
    for disturbed in (False, True, True):
        recorder = Recorder(None, CaptureSection(level=("module", "api", "operator"), detail="sketch"))
        mode = Jitter(partial(getattr, recorder.without_recording(), "is_held"), Directions()) if disturbed else torch.no_grad()
        with torch.no_grad(), mode, recorder.watch(model):
            model(values)
        contents.append(dict(recorder.contents))
    plain, first, second = contents
    assert first == second  # of the same generator; sums that were disturbed would depend on how many there were before
    assert plain.keys() == first.keys()
    assert plain["(model)/forward.output.0"] != first["(model)/forward.output.0"]


@pytest.mark.parametrize("levels", [("module", "api"), ("module", "api", "operator")])
def test_what_capture_runs_does_not_come_by_a_mode_that_steps_aside(levels):
    model, values = torch.nn.Linear(16, 16), torch.randn(4, 16)
    recorder = Recorder(None, CaptureSection(level=levels, detail="sketch"))
    guard, left_alone = recorder.without_recording(), []

    def is_quiet():
        left_alone.append(guard.is_held)
        return guard.is_held

    mode = Jitter(is_quiet, Directions())
    guard.modes.append(mode)
    for step in range(2):
        recorder.begin_step(step)
        with torch.no_grad(), mode, recorder.watch(model):
            model(values)
    assert len(left_alone) >= 4  # the operators of the model, in both steps
    assert not any(left_alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_16_bits_are_those_of_float32_rounded_once(dtype):
    values, weight, bias = torch.randn(24, 96).to(dtype), torch.randn(40, 96).to(dtype), torch.randn(40).to(dtype)
    with RoundedOnce(UNSEEN):
        product, sums = values @ weight.t(), torch.nn.functional.linear(values, weight, bias)
        fine = torch.nn.functional.linear(values.float(), weight.float(), bias.float())
    assert torch.equal(product, (values.float() @ weight.float().t()).to(dtype))
    assert (sums.float() - fine).abs().max() <= torch.finfo(dtype).eps / 2 * fine.abs().max()
    assert sums.dtype == dtype
    assert torch.equal(fine, torch.nn.functional.linear(values.float(), weight.float(), bias.float()))


def test_an_operator_between_a_tensor_and_a_number_still_runs():
    whole = torch.arange(8)
    with jitter():
        assert (whole & 3).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
