"""Mixed precision against torch's own autocast and scaler, and against a plain loop with master weights."""

import copy

import pytest
import torch
from torch import nn

from precflow.agent import request as requests
from precflow.agent.capture.recorder import Recorder
from precflow.agent.failures import AgentError
from precflow.agent.request import CaptureSection, PrecisionSection
from precflow.agent.session import precision

CPU = torch.device("cpu")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def data():
    torch.manual_seed(1)
    return torch.randn(12, 8)


def settings(**given):
    return PrecisionSection(**{"level": "O1", **given})


def compute(chosen, model, inputs):
    precision.cast_model(chosen, model, CPU)
    contexts = list(precision.computing(chosen, CPU))
    for context in contexts:
        context.__enter__()
    try:
        return model(inputs.to(precision.input_type(chosen, torch.float32)))
    finally:
        for context in reversed(contexts):
            context.__exit__(None, None, None)


def types_inside(model):
    found = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: found.update({name: output.dtype}))
    return found


def test_without_a_level_nothing_changes():
    model = network()
    assert precision.cast_model(PrecisionSection(), model, CPU) == []
    assert list(precision.computing(PrecisionSection(), CPU)) == []
    assert precision.run_type(PrecisionSection(), "float32") == "float32"


def test_o1_is_torchs_autocast():
    model = network()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = network()(data())
    assert torch.equal(compute(settings(), model, data()), expected)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert precision.run_type(settings(), "float32") == "bfloat16"


def test_a_module_in_float32_computes_in_float32_under_autocast():
    model = network()
    found = types_inside(model)
    result = compute(settings(float32_modules=("4",)), model, data())
    assert (found["0"], found["4"], result.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_o2_casts_all_but_batch_norms():
    model = network()
    kept = precision.cast_model(settings(level="O2"), model, CPU)
    assert kept == ["1"]
    types = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {name for name, dtype in types.items() if dtype == torch.float32} == {"1.weight", "1.bias"}
    assert model[1].running_mean.dtype == torch.float32


def test_o2_computes_in_16_bits_around_modules_in_float32():
    model = network()
    found = types_inside(model)
    result = compute(settings(level="O2", float32_modules=("3",)), model, data())
    assert set(found.values()) == {torch.bfloat16}
    assert result.dtype == torch.bfloat16
    assert model[3].weight.dtype == torch.float32


def test_an_operator_runs_in_the_type_that_is_asked_for():
    class Attends(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.t(), dim=-1)

    assert compute(settings(), Attends(), data()).dtype == torch.bfloat16  # on a GPU autocast runs it in float32
    assert compute(settings(operators={"softmax": "float32"}), Attends(), data()).dtype == torch.float32
    assert compute(settings(operators={"matmul": "float32"}), Attends(), data()).dtype == torch.float32


def test_a_pattern_that_matches_no_module_is_refused():
    with pytest.raises(AgentError) as caught:
        precision.cast_model(settings(float32_modules=("*.nrom",)), network(), CPU)
    assert "*.nrom matches no module" in caught.value.message


# Master weights


def test_master_weights_train_as_float32_copies_do():
    model = network()
    precision.cast_model(settings(level="O2"), model, CPU)
    plain = {name: parameter.detach().clone().float() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    masters = precision.MasterWeights(optimizer)
    assert len(masters.pairs) == 6
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)
        masters.take_gradients()
        optimizer.step()
        masters.give_back()
        plain = {
            name: value - 1e-4 * torch.full_like(value, 0.3).to(model.get_parameter(name).dtype).float()
            for name, value in plain.items()
        }
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, plain[name].to(parameter.dtype))
    held = {id(parameter): master for master, parameter in masters.pairs}
    torch.testing.assert_close(held[id(model[0].weight)].detach(), plain["0.weight"])
    assert not torch.equal(held[id(model[0].weight)].detach(), model[0].weight.detach().float())  # the rest that bfloat16 loses


def test_master_weights_go_by_the_names_of_their_weights(tmp_path):
    model = nn.Linear(4, 4).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masters = precision.MasterWeights(optimizer)
    recorder = Recorder(None, CaptureSection(level=("module",), phase=("optimizer",)))
    with recorder.watch(nn.Sequential(model), optimizer, masters.pairs):
        model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        masters.take_gradients()
        optimizer.step()
    assert sorted(recorder.contents) == ["0/optimizer.output.bias", "0/optimizer.output.weight"]


# Loss scale


def scaled(parameter, scale, value):
    parameter.grad = torch.full_like(parameter, value * scale)


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has no scaler for the CPU")
def test_a_dynamic_scale_is_that_of_torch():
    overflows = [True, True, False, False, False, True, False, False, False, False]
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    other = copy.deepcopy(parameter)
    theirs = torch.amp.GradScaler("cpu", growth_interval=3)
    stepped = torch.optim.SGD([other], lr=0.1)
    ours = precision.LossScale(settings(loss_scale="dynamic", growth_interval=3))
    for step, overflow in enumerate(overflows):
        assert ours.now == theirs.get_scale()
        value = float("inf") if overflow else 0.25
        theirs.scale(torch.ones(()))
        scaled(other, theirs.get_scale(), value)
        theirs.step(stepped)
        theirs.update()
        scaled(parameter, ours.now, value)
        made = ours.unscale(optimizer)
        assert made is not overflow
        if made:
            optimizer.step()
        ours.update(step, made=made)
    assert torch.equal(parameter, other)
    assert ours.skipped == [0, 1, 5]


def test_a_fixed_scale_never_skips_and_never_changes():
    parameter = nn.Parameter(torch.ones(3))
    scale = precision.LossScale(settings(loss_scale="1024"))
    scaled(parameter, scale.now, 0.5)
    assert scale.unscale(torch.optim.SGD([parameter], lr=0.1))
    assert torch.equal(parameter.grad, torch.full((3,), 0.5))
    scaled(parameter, scale.now, float("nan"))
    assert scale.unscale(torch.optim.SGD([parameter], lr=0.1))
    scale.update(0, made=True)
    assert scale.now == 1024


def test_what_was_in_effect_is_described():
    scale = precision.LossScale(settings(loss_scale="dynamic"))
    scale.update(2, made=False)
    found = precision.describe(settings(loss_scale="dynamic", operators={"softmax": "float32"}), ["norm"], scale)[
        "mixed_precision"
    ]
    assert found["level"] == "O1"
    assert found["loss_scale_at_the_end"] == 32768
    assert found["skipped_steps"] == "2"
    assert found["operators"] == "softmax: float32"
    assert precision.describe(PrecisionSection(), [], None) == {}


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"level": "O3"}, "mixed_precision.level"),
        ({"dtype": "float32"}, "mixed_precision.dtype"),
        ({"loss_scale": "-1"}, "mixed_precision.loss_scale"),
        ({"loss_scale": "much"}, "mixed_precision.loss_scale"),
        ({"operators": {"softmax": "int8"}}, "mixed_precision.operators"),
        ({"growth_interval": 0}, "mixed_precision.growth_interval"),
    ],
)
def test_a_wrong_request_is_refused(asked, section, problem):
    with pytest.raises(AgentError) as caught:
        requests.parse(asked(mixed_precision=section))
    assert problem in caught.value.message
