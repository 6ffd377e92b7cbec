"""Without a rule, an eager transformer gives the bits of the CPU: whatever a test sees then, it asked for."""

import copy

import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def outcome(model, ids):
    hidden = model(ids).last_hidden_state
    hidden.float().pow(2).sum().backward()
    gradients = {name: parameter.grad.cpu() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return hidden.detach().cpu(), gradients


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_states_and_gradients_are_those_of_the_cpu(npu, clip, tokens, dtype, device):
    host = clip().to(dtype)
    moved = copy.deepcopy(host).to(device)
    expected, expected_gradients = outcome(host, tokens)
    actual, gradients = outcome(moved, tokens.to(device))
    assert torch.equal(actual, expected)
    assert len(gradients) == len(expected_gradients) > 30
    assert [name for name in gradients if not torch.equal(gradients[name], expected_gradients[name])] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_module_has_the_bits_of_the_cpu(npu, clip, tokens, dtype):
    def outputs(model, ids):
        seen = {}
        for name, module in model.named_modules():
            if not list(module.children()):
                module.register_forward_hook(lambda _m, _a, output, name=name: seen.update({name: output.detach().cpu()}))
        model(ids)
        return seen

    host = clip().to(dtype)
    moved = copy.deepcopy(host).npu()
    expected, actual = outputs(host, tokens), outputs(moved, tokens.npu())
    assert list(actual) == list(expected)
    assert [name for name in actual if not torch.equal(actual[name], expected[name])] == []


def test_weights_move_there_and_back_unchanged(npu, clip):
    model = clip()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = model.npu().half().float().cpu().state_dict()
    assert all(torch.equal(before[name].half().float(), after[name]) for name in before)


def test_automatic_mixed_precision_repeats_itself(npu, clip, tokens):
    model = clip().npu()
    with torch.no_grad(), torch.autocast("npu", dtype=torch.bfloat16):
        first, second = (model(tokens.npu()).last_hidden_state.cpu() for _ in range(2))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
