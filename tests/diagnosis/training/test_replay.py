"""Steps of torch's own optimizers, recorded by hand: the target's settings say one thing and its optimizer does another."""

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.agent.contract import Identity
from precflow.diagnosis.evaluation import PairedCall, name_call
from precflow.diagnosis.training.replay import choose_cause, judge_steps, list_proven, replay_steps
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError


class Tensors:
    """A dump of nothing but tensors by identity text."""

    def __init__(self):
        self.held = {}
        self.broken = set()

    def tensor(self, record):
        if record.index in self.broken:
            raise DumpError("damaged")
        return self.held[record.text]


def to_numpy(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.detach().float().numpy().astype(ml_dtypes.bfloat16)
    return tensor.detach().clone().numpy()


def record(side, name, role, index, tensor, *, stored=True):
    array = to_numpy(tensor)
    identity = Identity(name, 0, "", 0, "optimizer", role, index, 0, 0)
    dtype = str(tensor.dtype).removeprefix("torch.")
    made = Record.of(identity, 0, dtype, array.shape, "content", stored=stored, source=None, weight="")
    side.held[made.text] = array
    return made


def step(side, name, *, optimizer="AdamW", number=3, said=None, spoil=None, dtype=torch.float32, size=(8, 6), **settings):
    """Run some steps of an optimizer and return the call of the last one; ``said`` is what the record says of its settings."""
    torch.manual_seed(len(name))
    parameter = torch.nn.Parameter(torch.randn(size).to(dtype))
    made = getattr(torch.optim, optimizer)([parameter], **{"lr": 1e-2, **settings})
    for _ in range(number):
        parameter.grad = (torch.randn(size) * 1e-2).to(dtype)
        before = {key: value for key, value in made.state[parameter].items() if isinstance(value, torch.Tensor)}
        inputs = [
            record(side, name, "input", "weight", parameter.grad),
            record(side, name, "input", "weight.before", parameter),
        ]
        inputs += [record(side, name, "input", f"weight.{key}", value) for key, value in before.items()]
        made.step()
    if spoil is not None:
        spoil(parameter)
    outputs = [record(side, name, "output", "weight", parameter)]
    outputs += [
        record(side, name, "output", f"weight.{key}", value)
        for key, value in made.state[parameter].items()
        if isinstance(value, torch.Tensor)
    ]
    group = {key: value for key, value in made.param_groups[0].items() if key != "params"}
    arguments = {key: repr(value) for key, value in {"optimizer": optimizer, **group, **(said or {})}.items()}
    about = {"level": "module", "class_name": "Linear", "call": 0, "operator": "", "ordinal": 0, "phase": "optimizer"}
    facts = {"site": "", "movement": False, "compiled": False, "step": 0, "rank": 0, "order": 0}
    return Call(module=name, arguments=arguments, inputs=tuple(inputs), outputs=tuple(outputs), **about, **facts)


def replay(reference=None, target=None, *, names=("first", "second")):
    """Replay a step of two parameters, with these options on the reference and on the target."""
    sides = Tensors(), Tensors()
    pairs = []
    for name in names:
        calls = [step(side, name, **(options or {})) for side, options in zip(sides, (reference, target), strict=True)]
        pairs.append(PairedCall(name_call(calls[0]), *calls))
    return replay_steps(*sides, pairs), pairs


MORE = [
    {"optimizer": "Adadelta", "weight_decay": 0.1},
    {"optimizer": "Adamax", "weight_decay": 0.1},
    {"optimizer": "Adamax", "maximize": True},
    {"optimizer": "NAdam", "weight_decay": 0.1},
    {"optimizer": "NAdam", "weight_decay": 0.1, "decoupled_weight_decay": True},
    {"optimizer": "RAdam", "weight_decay": 0.1},
    {"optimizer": "RAdam", "weight_decay": 0.1, "decoupled_weight_decay": True},
]
CORRECT = [
    {},
    {"optimizer": "Adam", "weight_decay": 0.1},
    {"optimizer": "SGD", "momentum": 0.9, "nesterov": True},
    {"optimizer": "RMSprop"},
    {"optimizer": "Adagrad"},
    *(
        {**options, "dtype": dtype, "number": number, "size": (24, 16)}
        for options in MORE
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
        for number in (1, 8)
    ),
    {"dtype": torch.bfloat16},
    {"number": 1},
    {"lr": 1e-6},
]


@pytest.mark.parametrize("options", CORRECT)
def test_a_correct_step_follows_by_a_wide_margin(options):
    replayed, pairs = replay(options, options)
    assert [one.is_fault for one in replayed] == [False, False]
    assert max(max(one.reference, one.target) for one in replayed) < 0.8
    assert not any(one.is_fault for one in judge_steps(replayed, pairs))
    assert choose_cause(replayed) == ("", 0)


FAULTS = [
    ({"eps": 1e-3, "said": {"eps": 1e-8}}, "eps is 0.001 in place of 1e-08"),
    ({"betas": (0.9, 0.95), "said": {"betas": (0.9, 0.999)}}, "betas is (0.9, 0.95) in place of (0.9, 0.999)"),
    ({"lr": 0.013, "said": {"lr": 0.01}}, "lr is 0.013 in place of 0.01"),
    ({"weight_decay": 0.3, "said": {"weight_decay": 0.01}}, "weight_decay is 0.3 in place of 0.01"),
    ({"weight_decay": 0.0, "said": {"weight_decay": 0.01}}, "weight_decay is 0 in place of 0.01"),
    ({"amsgrad": True, "betas": (0.9, 0.5), "said": {"amsgrad": False}}, "amsgrad is True in place of False"),
]


@pytest.mark.parametrize(("options", "cause"), FAULTS)
def test_the_setting_that_explains_the_step_is_named(options, cause):
    reference = {key: value for key, value in {**options, **options["said"]}.items() if key != "said"}
    replayed, _ = replay(reference, options)
    assert all(one.is_fault for one in replayed)
    assert choose_cause(replayed) == (cause, 2)


def test_coupled_decay_is_told_from_decoupled():
    coupled = {"optimizer": "Adam", "weight_decay": 0.1, "said": {"optimizer": "AdamW", "decoupled_weight_decay": True}}
    replayed, _ = replay({"weight_decay": 0.1}, coupled)
    assert choose_cause(replayed) == ("decay is part of the gradient (Adam)", 2)


def test_a_fused_adam_may_decay_in_either_way_but_in_one_on_both_sides():
    fused = {"weight_decay": 0.1, "said": {"optimizer": "FusedAdam", "decoupled_weight_decay": None}}
    for optimizer in ("Adam", "AdamW"):
        replayed, _ = replay({**fused, "optimizer": optimizer}, {**fused, "optimizer": optimizer})
        assert [(one.optimizer, one.is_fault) for one in replayed] == [(optimizer, False)] * 2
    replayed, _ = replay({**fused, "optimizer": "Adam"}, fused)
    assert choose_cause(replayed) == ("decay is taken from the weight itself (AdamW)", 2)


def test_momentum_of_sgd_is_named():
    target = {"optimizer": "SGD", "momentum": 0.8, "said": {"momentum": 0.9}}
    replayed, _ = replay({"optimizer": "SGD", "momentum": 0.9}, target)
    assert choose_cause(replayed) == ("momentum is 0.8 in place of 0.9", 2)


def test_a_step_that_nothing_explains_has_no_cause():
    replayed, pairs = replay({}, {"spoil": lambda weight: weight.data.mul_(torch.linspace(0.9, 1.1, 6))})
    assert [one.is_fault for one in replayed] == [True, True]
    assert choose_cause(replayed) == ("", 0)
    (first, _) = judge_steps(replayed, pairs)
    assert first.is_fault
    assert first.measure == "step"
    assert "its optimizer's formula" in first.text


def test_a_reference_that_does_not_follow_proves_nothing():
    spoilt = {"spoil": lambda weight: weight.data.add_(0.1)}
    replayed, pairs = replay(spoilt, spoilt)
    assert not any(one.proves for one in replayed)
    assert judge_steps(replayed, pairs) == []


def test_other_settings_that_each_side_follows_are_no_wrong_step():
    replayed, _ = replay({"lr": 0.01}, {"lr": 0.02})
    assert not any(one.is_fault for one in replayed)


BFLOAT16 = {"dtype": torch.bfloat16, "number": 1}
SETTINGS = [
    ({}, {"eps": 1e-7}, "eps is 1e-07 in place of 1e-08"),
    ({"number": 1}, {"betas": (0.9, 0.99)}, "betas is (0.9, 0.99) in place of (0.9, 0.999)"),  # its state alone
    ({}, {"lr": 0.0101}, "lr is 0.0101 in place of 0.01"),
    ({}, {"amsgrad": True}, "amsgrad is True in place of False"),
    (BFLOAT16, {"eps": 1e-4}, "eps is 0.0001 in place of 1e-08"),
    (BFLOAT16, {"lr": 0.0101}, "lr is 0.0101 in place of 0.01"),
    ({"optimizer": "SGD", "momentum": 0.9}, {"momentum": 0.8}, "momentum is 0.8 in place of 0.9"),
    ({"optimizer": "SGD", "momentum": 0.9}, {"nesterov": True}, "nesterov is True in place of False"),
    ({"optimizer": "Adam", "weight_decay": 0.1}, {"optimizer": "AdamW"}, "the optimizer is AdamW in place of Adam"),
    ({"optimizer": "RMSprop"}, {"alpha": 0.9}, "alpha is 0.9 in place of 0.99"),
    ({"optimizer": "Adadelta"}, {"rho": 0.95}, "rho is 0.95 in place of 0.9"),
    ({"optimizer": "Adamax"}, {"eps": 1e-4}, "eps is 0.0001 in place of 1e-08"),
    ({"optimizer": "NAdam"}, {"momentum_decay": 0.01}, "momentum_decay is 0.01 in place of 0.004"),
    ({"optimizer": "RAdam", "number": 8}, {"eps": 1e-4}, "eps is 0.0001 in place of 1e-08"),
]


@pytest.mark.parametrize(("options", "other", "text"), SETTINGS)
def test_a_step_that_follows_its_own_settings_and_not_the_references_is_proven(options, other, text):
    options = {"size": (64, 48), **options}
    replayed, pairs = replay(options, {**options, **other})
    assert list_proven(replayed) == [text]
    assert [one.settings for one in replayed] == [(text,)] * 2
    for one in judge_steps(replayed, pairs):
        assert one.is_fault
        assert one.measure == "settings"
        assert text in one.text


SAME_NUMBERS = [
    ({}, {"fused": True}),
    ({}, {"foreach": True}),
    ({}, {"said": {"capturable": True, "differentiable": True}}),
    ({}, {"said": {"initial_lr": 0.5, "hook": None}}),
    ({"number": 1}, {"amsgrad": True}),
    ({"optimizer": "SGD", "number": 1}, {"momentum": 0.9}),
    ({"optimizer": "Adam"}, {"optimizer": "AdamW", "weight_decay": 0.0}),
    (BFLOAT16, {"eps": 1e-9}),  # no weight is another number of its type
]


@pytest.mark.parametrize(("options", "other"), SAME_NUMBERS)
def test_settings_that_change_no_number_are_not(options, other):
    options = {"size": (64, 48), **options}
    replayed, pairs = replay(options, {**options, **other})
    assert list_proven(replayed) == []
    assert [one.is_fault for one in judge_steps(replayed, pairs)] == [False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [{"lr": 0.010002}, {"eps": 3e-8}, {"weight_decay": 0.011}, {"betas": (0.9, 0.99901)}])
def test_a_setting_that_is_only_said_is_not_proven(other, dtype):
    """The target says another setting, and computes with the reference's."""
    options = {"dtype": dtype, "size": (64, 48)}
    replayed, _ = replay(options, {**options, "said": other})
    assert list_proven(replayed) == []


def test_a_bias_towards_zero_is_no_proof_of_more_decay():
    """Arithmetic that cuts off what rounding to nearest would round up gives smaller weights, as more decay does."""

    def cut_off(weight):
        torch.manual_seed(len("first"))
        exact = torch.randn(weight.shape).to(weight.dtype).double() - 1e-2 * weight.grad.double()
        weight.data = (exact.float().view(torch.int32) & -(1 << 16)).view(torch.float32).to(weight.dtype)

    options = {"optimizer": "SGD", "dtype": torch.bfloat16, "size": (64, 48), "number": 1}
    replayed, _ = replay(options, {**options, "spoil": cut_off, "said": {"weight_decay": 0.1}}, names=("first",))
    assert [one.is_fault for one in replayed] == [False]
    assert list_proven(replayed) == []


def test_a_schedule_is_named_by_its_first_step():
    steps = [replay({"lr": rate}, {"lr": 2 * rate})[0] for rate in (0.01, 0.02)]
    assert list_proven([one for some in steps for one in some]) == ["lr is 0.02 in place of 0.01"]


def test_groups_are_proven_each_by_its_own_settings():
    sides = Tensors(), Tensors()
    pairs = []
    for name, decays in (("weight", (0.1, 0.1)), ("bias", (0.0, 0.1))):
        calls = [step(side, name, weight_decay=decay) for side, decay in zip(sides, decays, strict=True)]
        pairs.append(PairedCall(name_call(calls[0]), *calls))
    replayed = replay_steps(*sides, pairs)
    assert [one.settings for one in replayed] == [(), ("weight_decay is 0.1 in place of 0",)]


def test_what_is_not_known_is_not_replayed():
    sides = Tensors(), Tensors()
    calls = [step(side, "first", said={"optimizer": "Muon"}) for side in sides]
    assert replay_steps(*sides, [PairedCall("first", *calls)]) == []


def test_damaged_tensors_are_not_replayed():
    sides = Tensors(), Tensors()
    calls = [step(side, "first") for side in sides]
    sides[1].broken.add("weight.before")
    assert replay_steps(*sides, [PairedCall("first", *calls)]) == []


def test_a_wrong_step_in_few_elements_is_seen():
    def spoil(weight):
        weight.data[3, 2] += 1e-3

    replayed, _ = replay({}, {"spoil": spoil})
    assert all(one.is_fault for one in replayed)
    assert all(np.isfinite(one.target) for one in replayed)
