import contextlib
import gc

import pytest
import torch
from torch import nn

from precflow.agent.capture.recorder import Recorder
from precflow.agent.capture.updates import find_owners
from precflow.agent.contract import LEFT_OUT
from precflow.agent.measure.content_id import content_id
from precflow.agent.request import CaptureSection

X = torch.linspace(-1, 1, 12).reshape(3, 4)
PHASES = ("forward", "backward", "gradient", "optimizer")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def train(optimizer, *, passes=1):
    def step(model):
        optimizer.zero_grad()
        for _ in range(passes):
            model(X).pow(2).sum().backward()
        optimizer.step()

    return step


def trained(recorded, model, optimizer, *, passes=1, **options):
    return recorded(model, train(optimizer, passes=passes), optimizer, **{"phase": PHASES, **options})


def test_gradients_are_recorded_as_backward_leaves_them(recorded):
    model = network()
    run = recorded(model, lambda each: each(X).pow(2).sum().backward(), phase=PHASES)
    found = {(line["module"], line["outputs"][0]["index"]): line["outputs"][0]["content"] for line in run.of("gradient")}
    expected = {tuple(name.split(".")): content_id(each.grad) for name, each in model.named_parameters()}
    assert found == expected
    assert run.of("optimizer") == []


def test_gradients_come_before_the_optimizer(recorded):
    model = network()
    run = trained(recorded, model, torch.optim.SGD(model.parameters(), lr=0.1))
    orders = {phase: [line["order"] for line in run.of(phase)] for phase in PHASES}
    assert max(orders["forward"]) < min(orders["gradient"])
    assert max(orders["gradient"]) < min(orders["optimizer"])


def test_accumulated_gradients_are_counted(recorded):
    model = network()
    run = trained(recorded, model, torch.optim.SGD(model.parameters(), lr=0.1), passes=3)
    lines = [line for line in run.of("gradient") if line["module"] == "0" and line["outputs"][0]["index"] == "weight"]
    assert [line["call"] for line in lines] == [0, 1, 2]
    seen = next(line for line in run.of("optimizer") if line["module"] == "0")["inputs"][0]["content"]
    assert seen == lines[-1]["outputs"][0]["content"] != lines[0]["outputs"][0]["content"]


def test_frozen_and_unused_parameters_have_no_gradient(recorded):
    model = network()
    model[0].requires_grad_(requires_grad=False)
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    run = trained(recorded, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for phase in ("gradient", "optimizer"):
        assert {(line["module"], line["outputs"][0]["index"]) for line in run.of(phase)} == {("2", "weight"), ("2", "bias")}


def test_a_shared_parameter_is_recorded_once_at_its_first_name(recorded):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert find_owners(model)[id(model[1].weight)][:1] == ("0",)
    run = trained(recorded, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for phase in ("gradient", "optimizer"):
        names = [(line["module"], line["outputs"][0]["index"]) for line in run.of(phase)]
        assert sorted(names) == [("0", "bias"), ("0", "weight"), ("1", "bias")]


OPTIMIZERS = {
    "SGD": ({"momentum": 0.9}, ["momentum_buffer"]),
    "Adam": ({}, ["step", "exp_avg", "exp_avg_sq"]),
    "AdamW": ({"amsgrad": True}, ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
    "Adagrad": ({}, ["step", "sum"]),
    "RMSprop": ({}, ["step", "square_avg"]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("foreach", [False, True])
def test_weights_and_state_after_the_step(name, foreach, recorded):
    settings, state = OPTIMIZERS[name]
    model = network()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, foreach=foreach, **settings)
    before = content_id(model[0].weight)
    run = trained(recorded, model, optimizer)
    line = next(line for line in run.of("optimizer") if line["module"] == "0")
    found = {record["index"]: record["content"] for record in line["outputs"]}
    state = [
        key for key in state if isinstance(optimizer.state[model[0].weight][key], torch.Tensor)
    ]  # old versions count in int
    assert sorted(found) == sorted(["weight", *("weight." + key for key in state)])
    assert found["weight"] == content_id(model[0].weight) != before
    held = optimizer.state[model[0].weight]
    assert all(found["weight." + key] == content_id(held[key]) for key in state)
    assert [record["index"] for record in line["inputs"]][:2] == ["weight", "weight.before"]
    assert line["inputs"][1]["content"] == before
    assert line["class"] == "Linear"


@pytest.mark.parametrize("foreach", [False, True])
def test_state_before_the_step_is_that_of_before(foreach, recorded):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=foreach)
    train(optimizer)(model)
    held = optimizer.state[model[0].weight]
    before = {key: content_id(held[key]) for key in ("exp_avg", "exp_avg_sq")}
    run = trained(recorded, model, optimizer)
    line = next(line for line in run.of("optimizer") if line["module"] == "0")
    given = {record["index"]: record for record in line["inputs"]}
    assert {key: given["weight." + key]["content"] for key in before} == before
    assert given["weight.exp_avg"]["weight"] == "0.weight.exp_avg"
    assert given["weight.before"]["weight"] == "0.weight"
    assert given["weight"]["weight"] == ""


def test_what_went_before_is_kept_only_with_tensors_and_weights(recorded):
    for options in ({"detail": "sketch"}, {"weights": LEFT_OUT}):
        model = network()
        run = trained(recorded, model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
        assert {len(line["inputs"]) for line in run.of("optimizer")} == {1}, options


def test_settings_of_the_group_are_arguments(recorded):
    model = network()
    groups = [{"params": [model[0].weight], "weight_decay": 0.0}, {"params": model[2].parameters(), "lr": torch.tensor(0.5)}]
    run = trained(recorded, model, torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.95), foreach=False))
    arguments = {line["module"]: line["arguments"] for line in run.of("optimizer")}
    assert (arguments["0"]["weight_decay"], arguments["2"]["weight_decay"]) == ("0.0", "0.01")
    assert (arguments["0"]["lr"], arguments["2"]["lr"]) == ("0.1", "0.5")
    assert arguments["0"]["betas"] == "(0.8, 0.95)"
    assert arguments["0"]["optimizer"] == "'AdamW'"
    assert "params" not in arguments["0"]


def test_what_an_optimizer_has_computed_is_no_setting(recorded):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def loss():
        optimizer.zero_grad()
        total = model(X).pow(2).sum()
        total.backward()
        return total

    def step(model):
        loss()
        optimizer.step(loss)

    (first, *_) = recorded(model, step, optimizer, phase=PHASES).of("optimizer")
    assert {"al", "prev_loss", "t", "old_dirs"} <= optimizer.state[next(model.parameters())].keys()
    assert {"lr", "max_iter", "n_iter"} <= first["arguments"].keys()
    assert not {"al", "prev_loss", "t", "old_dirs"} & first["arguments"].keys()


def test_an_optimizer_of_ones_own_is_named_with_that_of_torch(recorded):
    class Trainer(torch.optim.AdamW):
        pass

    model = network()
    run = trained(recorded, model, Trainer(model.parameters(), lr=0.1))
    assert {line["arguments"]["optimizer"] for line in run.of("optimizer")} == {"'Trainer(AdamW)'"}


def test_fused_optimizers(recorded):
    model = network()
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    except RuntimeError:
        pytest.skip("this torch has no fused optimizer on the CPU")
    run = trained(recorded, model, optimizer, level=("module", "api", "operator"))
    line = next(line for line in run.of("optimizer") if line["module"] == "0")
    assert {record["index"]: record["content"] for record in line["outputs"]}["weight"] == content_id(model[0].weight)


def test_clipping_shows_between_gradient_and_optimizer(recorded):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work(each):
        each(X).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(each.parameters(), 1e-3)
        optimizer.step()

    run = recorded(model, work, optimizer, phase=PHASES)
    made = next(line for line in run.of("gradient") if line["module"] == "0" and line["outputs"][0]["index"] == "weight")
    seen = next(line for line in run.of("optimizer") if line["module"] == "0")
    assert seen["inputs"][0]["content"] != made["outputs"][0]["content"]


def test_a_parameter_outside_of_the_model_goes_by_its_place(recorded):
    model, extra = network(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [extra]}], lr=0.1)

    def work(each):
        (each(X).pow(2).sum() + extra.sum()).backward()
        optimizer.step()

    run = recorded(model, work, optimizer, phase=PHASES)
    (line,) = [line for line in run.of("optimizer") if line["module"] == "(outside)"]
    assert [record["index"] for record in line["outputs"]] == ["1.0"]


def test_a_step_that_the_scaler_leaves_out_has_no_record(recorded):
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch scales gradients on CUDA only")

    def run_with(factor):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def work(each):
            scaler.scale(each(X).pow(2).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()

        return recorded(model, work, optimizer, phase=PHASES)

    taken, left_out = run_with(1.0), run_with(float("inf"))
    assert len(taken.of("optimizer")) == len(taken.of("gradient")) == len(left_out.of("gradient")) == 4
    assert left_out.of("optimizer") == []
    scaled = {(line["module"], each["index"]): each["content"] for line in taken.of("gradient") for each in line["outputs"]}
    unscaled = {
        (line["module"], each["index"]): each["content"] for line in taken.of("optimizer") for each in line["inputs"][:1]
    }
    assert scaled.keys() == unscaled.keys()
    assert not set(scaled.values()) & set(unscaled.values())


def test_weights_are_trained_to_the_same_bits():
    def weights(*, watch):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        recorder = Recorder(None, CaptureSection(level=("module", "api", "operator"), phase=PHASES))
        for number in range(3):
            recorder.begin_step(number)
            with recorder.watch(model, optimizer) if watch else contextlib.nullcontext():
                train(optimizer)(model)
        return [each.detach() for each in model.parameters()]

    plain, watched = weights(watch=False), weights(watch=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched))  # noqa: B905  Python 3.8 has no strict


def test_nothing_is_left_on_optimizer_and_parameters():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    recorder = Recorder(None, CaptureSection(phase=PHASES))
    with recorder.watch(model, optimizer):
        train(optimizer)(model)
    count = recorder.records
    assert "step" not in vars(optimizer)
    assert not any(getattr(each, "_post_accumulate_grad_hooks", None) for each in model.parameters())
    train(optimizer)(model)
    gc.collect()
    assert recorder.records == count


def test_a_schedule_that_wraps_the_step_keeps_working():
    model, recorder = network(), Recorder(None, CaptureSection(phase=PHASES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorder.watch(model, optimizer):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        train(optimizer)(model)
        schedule.step()
    count = recorder.records
    assert any("/optimizer." in text for text in recorder.contents)
    train(optimizer)(model)
    assert recorder.records == count


def test_an_optimizer_that_raises_does_not_end_the_recording(recorded):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work(each):
        with contextlib.suppress(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        train(optimizer)(each)

    run = recorded(model, work, optimizer, phase=PHASES)
    assert len(run.of("optimizer")) == 4
    assert run.of("forward")


def test_what_the_optimizer_runs_is_no_operator(recorded):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    run = recorded(model, train(optimizer), optimizer, phase=("forward",), level=("api", "operator"))
    assert not {"addcdiv_", "lerp_", "addcmul_", "sqrt"} & {line["operator"] for line in run.lines}


def test_scope_holds_for_parameters(recorded):
    model = network()
    run = trained(recorded, model, torch.optim.SGD(model.parameters(), lr=0.1), phase=("gradient", "optimizer"), scope=["2"])
    assert {line["module"] for line in run.lines} == {"2"}
