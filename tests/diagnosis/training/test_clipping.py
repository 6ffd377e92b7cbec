"""Loops that clip gradients on one side only or otherwise, most of which are too large to be kept whole."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import precflow
from precflow.dumps.formats import read_dump
from precflow.stages.two_dumps import compare_dumps

SGD = {"kind": torch.optim.SGD, "momentum": 0.9, "lr": 0.05}
ADAMW = {"kind": torch.optim.AdamW, "lr": 3e-3}


class Twice(torch.optim.AdamW):
    """Makes another step than it says."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.sub_(weight.grad, alpha=0.01)


def leave(_groups):
    pass


def by_norm(limit):
    return lambda groups: clip_grad_norm_([weight for group in groups for weight in group], limit)


def by_value(limit):
    return lambda groups: clip_grad_value_([weight for group in groups for weight in group], limit)


def each_group(*limits):
    def clip(groups):
        for group, limit in zip(groups, limits, strict=True):
            clip_grad_norm_(group, limit)

    return clip


def record(
    folder, side, treat=leave, *, optimizer=ADAMW, micro=1, steps=2, loss_scale=1.0, times=1.0, dtype=torch.float32, **capture
):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 8)).to(dtype)
    groups = [[one for one in net.parameters() if one.ndim > 1], [one for one in net.parameters() if one.ndim == 1]]
    settings = {name: value for name, value in optimizer.items() if name != "kind"}
    made = optimizer["kind"]([{"params": groups[0], "weight_decay": 0.05}, {"params": groups[1]}], **settings)
    options = {"level": "module", "detail": "sketch", "step": list(range(steps)), **capture}
    with precflow.capture(net, folder / side, optimizer=made, side=side, **options) as recording:
        for _ in range(steps):
            made.zero_grad()
            for _ in range(micro):
                loss = functional.cross_entropy(net(torch.randn(16, 48).to(dtype)), torch.randint(0, 8, (16,))) / micro
                (loss * loss_scale * times).backward()
            for weight in net.parameters():
                weight.grad.div_(loss_scale)
            treat(groups)
            made.step()
            recording.step()
    return read_dump(folder / side)


def compare(folder, reference, target, **settings):
    sides = ("reference", "target")
    return compare_dumps(
        *(record(folder, side, one, **settings) for side, one in zip(sides, (reference, target), strict=True)), command=""
    )


def slow(loop):
    return pytest.param(loop, marks=pytest.mark.slow)


LOOPS = [
    {},
    slow({"micro": 2}),
    slow({"optimizer": SGD}),
    slow({"micro": 2, "optimizer": SGD}),
    slow({"detail": "statistics"}),
    slow({"micro": 2, "detail": "tensors"}),
    slow({"level": ("module", "api")}),
]
PAIRS = [
    (by_norm(100.0), by_norm(0.1), "unchanged", "all multiplied by"),
    (leave, by_norm(0.1), "unchanged", "all multiplied by"),
    (by_norm(0.1), leave, "all multiplied by", "unchanged"),
    (by_norm(0.2), by_norm(0.1), "all multiplied by", "all multiplied by"),
    (leave, by_value(1e-3), "unchanged", "cut off at 0.001"),
    (by_value(2e-3), by_value(1e-3), "cut off at 0.002", "cut off at 0.001"),
    (by_norm(0.1), by_value(1e-3), "all multiplied by", "cut off at 0.001"),
    (by_norm(0.1), each_group(0.1, 0.05), "all multiplied by", "multiplied by"),
    (each_group(0.2, 0.05), each_group(0.1, 0.05), "multiplied by", "multiplied by"),
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("reference", "target", "here", "there"), PAIRS)
def test_another_clipping_is_told_and_nothing_else_is_made_of_it(tmp_path, reference, target, here, there, loop):
    model = compare(tmp_path, reference, target, **loop)
    found = {one.rule: one for one in model.findings}
    assert found["PF805"].certainty == "certain"
    assert f": {here}" in found["PF805"].title
    assert f"on the reference, {there}" in found["PF805"].title
    if "level" not in loop:  # else the calls of clipping are recorded too, with the limit as an argument
        assert [*found] == ["PF805"]
        assert model.region.start in {"0.weight (optimizer)", "0.bias (optimizer)"}


HALF = by_norm(0.6)
BFLOAT16 = {"dtype": torch.bfloat16}
CONTROLS = {
    "no clipping": ({}, {}),
    "the same clipping": ({"treat": by_norm(0.1)}, {"treat": by_norm(0.1)}),
    "the same clipping, in bfloat16": ({"treat": by_norm(0.1)}, {"treat": by_norm(0.1), **BFLOAT16}),
    "the same limits of values, in bfloat16": ({"treat": by_value(1.2e-3)}, {"treat": by_value(1.2e-3), **BFLOAT16}),
    "the same limits of values": ({"treat": by_value(1e-3)}, {"treat": by_value(1e-3)}),
    "a wrong step": ({}, {"optimizer": {**ADAMW, "kind": Twice}}),
    "a wrong step behind clipping": ({"treat": by_norm(0.1)}, {"treat": by_norm(0.1), "optimizer": {**ADAMW, "kind": Twice}}),
    "scaled gradients": ({}, {"times": 4.0}),
    "scaled gradients that both clip": ({"treat": HALF}, {"treat": HALF, "times": 4.0}),
    "scaled gradients that only one limit reaches": ({"treat": by_norm(2.0)}, {"treat": by_norm(2.0), "times": 4.0}),
    "scaled gradients, values": ({"treat": by_value(0.05)}, {"treat": by_value(0.05), "times": 4.0}),
    "a loss scale": ({}, {"loss_scale": 65536.0}),
    "another loss scale": ({"loss_scale": 3.0}, {"loss_scale": 65536.0}),
    "a loss scale and clipping": ({"treat": by_norm(0.1)}, {"treat": by_norm(0.1), "loss_scale": 1000.0}),
}


@pytest.mark.parametrize(
    "loop", [{}, slow({"micro": 2, "optimizer": SGD}), slow({"detail": "statistics"}), slow({"detail": "tensors"})]
)
@pytest.mark.parametrize(("reference", "target"), CONTROLS.values(), ids=CONTROLS.keys())
def test_the_same_treatment_is_no_difference(tmp_path, reference, target, loop):
    sides = {"reference": reference, "target": target}
    model = compare_dumps(*(record(tmp_path, side, **{**loop, **own}) for side, own in sides.items()), command="")
    assert "PF805" not in {one.rule for one in model.findings}


SCALE = {"loss_scale": 65536.0}
FACTORS = {
    "a loss scale that is taken off": ({}, SCALE, "PF823", "likely"),
    "the reference's loss scale": (SCALE, {}, "PF823", "likely"),
    "another loss scale": ({"loss_scale": 3.0}, SCALE, "PF823", "likely"),
    "a scaled loss": ({}, {"times": 4.0}, "PF804", "certain"),
    "a scaled loss, both with a loss scale": (SCALE, {**SCALE, "times": 4.0}, "PF804", "certain"),
    "a scaled loss that clipping hides, or a loss scale": ({"treat": HALF}, {"treat": HALF, "times": 4.0}, "PF804", "possible"),
}


@pytest.mark.parametrize(
    "loop", [{}, {"detail": "statistics"}, slow({"micro": 2, "optimizer": SGD}), slow({"detail": "tensors"})], ids=str
)
@pytest.mark.parametrize(("reference", "target", "rule", "certainty"), FACTORS.values(), ids=FACTORS.keys())
def test_a_factor_that_is_taken_off_before_the_optimizer_is_no_fault(tmp_path, reference, target, rule, certainty, loop):
    sides = {"reference": reference, "target": target}
    model = compare_dumps(*(record(tmp_path, side, **{**loop, **own}) for side, own in sides.items()), command="")
    if loop.get("detail") == "statistics" and certainty == "certain":
        certainty = "likely"  # four numbers of each gradient have the factor, and not each element
    assert [(one.rule, one.certainty) for one in model.findings] == [(rule, certainty)]
