import numpy as np
import pytest
import torch

from precflow.diagnosis.training.optimizers import OPTIMIZERS, WEIGHT, StepInputs, find_optimizers, read_settings

CASES = [
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"maximize": True}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True, "maximize": True}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("RMSprop", {"weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_three_steps_are_those_of_torch(name, settings):
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(5, 3, dtype=torch.float64))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.05, foreach=False, **settings)
    for number in range(1, 4):
        parameter.grad = torch.randn(5, 3, dtype=torch.float64)
        state = {key: value.numpy().copy() for key, value in optimizer.state[parameter].items() if value is not None}
        group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        given = StepInputs(parameter.detach().numpy().copy(), parameter.grad.numpy(), state, number, group)
        results = OPTIMIZERS[name](given)
        optimizer.step()
        np.testing.assert_allclose(results.values[WEIGHT], parameter.detach().numpy(), rtol=1e-13, atol=1e-15)
        held = {key: value for key, value in optimizer.state[parameter].items() if value is not None and key != "step"}
        assert results.values.keys() - {WEIGHT} == held.keys()
        for key, value in held.items():
            np.testing.assert_allclose(results.values[key], value.numpy(), rtol=1e-13, atol=1e-15)
        assert all(
            (results.terms[key] >= np.abs(value) * 0.999).all() for key, value in results.values.items() if key != WEIGHT
        )


def test_settings_are_read_from_their_text():
    arguments = {
        "optimizer": "'AdamW'",
        "lr": "1e-3",
        "betas": "(0.9, 0.95)",
        "foreach": "None",
        "loss_scale": "<object at 0x>",
    }
    assert read_settings(arguments) == {"optimizer": "AdamW", "lr": 1e-3, "betas": (0.9, 0.95), "foreach": None}


@pytest.mark.parametrize(
    ("name", "found"),
    [("SGD", ["SGD"]), ("FusedSGD", ["SGD"]), ("Adam", ["Adam", "AdamW"]), ("NpuFusedAdamW", ["AdamW", "Adam"]), ("Muon", [])],
)
def test_fused_optimizers_are_known_by_their_names(name, found):
    assert find_optimizers(name) == found
