"""A chip that rounds once or twice more inside of a norm, a softmax or an activation is no fault; a wrong element still is."""

import pytest
import torch
from torch.nn import functional

from benchmarks.faults.chips import Chip
from precflow.agent.replay.calls import RecordedCall
from precflow.agent.replay.inner_terms import find_inner_terms
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_all

torch.manual_seed(3)
CHANNELS, WEIGHT, BIAS = 24, 1 + 0.2 * torch.randn(64), 0.3 * torch.randn(64)
OF_CHANNELS = (WEIGHT[:CHANNELS], BIAS[:CHANNELS])
STATISTICS = 0.1 * torch.randn(CHANNELS), 1 + torch.rand(CHANNELS)
NORMS = {
    "layer_norm": lambda x, w, b, *_: functional.layer_norm(x, (64,), w, b),
    "group_norm": lambda x, _, __, w, b, *___: functional.group_norm(x, 4, w, b),
    "batch_norm": lambda x, _, __, w, b, mean, variance: functional.batch_norm(x, mean, variance, w, b),
    "instance_norm": lambda x, _, __, w, b, *___: functional.instance_norm(x, weight=w, bias=b),
}
FUNCTIONS = {
    **NORMS,
    **{
        name: lambda x, *_, name=name: getattr(functional, name)(x)
        for name in ("gelu", "silu", "tanh", "sigmoid", "softplus", "mish", "elu", "hardswish")
    },
    "log_sigmoid": lambda x, *_: functional.logsigmoid(x),
    "softmax": lambda x, *_: x.softmax(-1),
    "log_softmax": lambda x, *_: x.log_softmax(-1),
}


def decide(dumped, name, dtype, target, size=1.5):
    """Return what float64 says about two calls of a function, of which ``target`` wraps the target's."""
    given = [one.to(dtype) for one in (WEIGHT, BIAS, *OF_CHANNELS, *STATISTICS)]
    values = [(size * torch.randn(4, CHANNELS, 64, generator=torch.Generator().manual_seed(at))).to(dtype) for at in (1, 2)]

    def work(side):
        for x in values:
            with target(name) if side == "target" else Chip(()):
                FUNCTIONS[name](x, *given)

    lines = dumped(work).evaluated(name)
    evaluated = [
        Evaluated(**{**line, "sides": {side: SideNumbers(**facts) for side, facts in line["sides"].items()}}) for line in lines
    ]
    assert len(evaluated) == len(values)
    return decide_all(evaluated, {one.call: name for one in evaluated})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_more_roundings_inside_are_no_fault(name, dtype, dumped):
    for part in ("rounds_once_more", "rounds_twice_more"):
        found = decide(dumped, name, dtype, lambda _, part=part: Chip((part,)))
        assert [one for one in found if one.is_fault] == []
        assert max(one.share for one in found) < 0.9


class WrongElement(Chip):
    """A chip that makes one element of a result wrong, which is small beside the largest."""

    def __init__(self, _):
        super().__init__(())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        first = made[0] if isinstance(made, tuple) else made
        if first.numel() == 4 * CHANNELS * 64 and func.overloadpacket.__name__ not in {"view", "repeat"}:
            first.view(-1)[77] += 0.25 * first.abs().max()
        return made


@pytest.mark.parametrize("name", [*NORMS, "softmax", "log_softmax", "gelu", "tanh"])
def test_one_wrong_element_still_is(name, dumped):
    found = decide(dumped, name, torch.bfloat16, WrongElement)
    assert all(one.is_fault for one in found), found


@pytest.mark.parametrize(
    ("operator", "arguments", "tensors", "expected"),
    [
        ("layer_norm", {}, {"input": [-1.0, 1.0], "weight": [1.0, 1.0], "bias": [1.0, 1.0]}, [1.0, 1.0]),
        ("layer_norm", {}, {"input": [-1.0, 1.0]}, None),  # without a bias nothing is added
        ("rms_norm", {}, {"0": [-1.0, 1.0]}, None),
        ("softplus", {"1": "2.0"}, {"0": [-9.0, 9.0]}, [0.5, 1.0]),
        ("elu", {"alpha": "0.5"}, {"0": [-9.0, 9.0]}, [0.5, 1.0]),
    ],
)
def test_what_is_added_inside_is_read_from_the_call(operator, arguments, tensors, expected):
    call = RecordedCall("a/f.0", "api", operator, "", "forward", arguments, {})
    given = {path: torch.tensor(values, dtype=torch.float64) for path, values in tensors.items()}
    found = find_inner_terms(call, given, {"0": torch.tensor([0.0, 1.0] if operator != "elu" else [-0.0001, 1.0]).double()})
    assert (found["0"].tolist() if found else None) == (expected and pytest.approx(expected, rel=1e-3))
