"""Which calls are paired for float64, and where their pairs are doubtful."""

import pytest
import torch
from evaluated import evaluate_pair
from msgspec import structs
from torch.nn import functional

import precflow
from precflow.diagnosis.calls_differ import find_different_calls
from precflow.diagnosis.evaluation import choose_level, find_doubtful_pairs, find_other_implementations, pair_calls
from precflow.dumps.formats import read_dump


@pytest.fixture
def attention(hand_made):
    """Return a function that makes an attention: eager, or fused with other transposes."""

    def make(*, fused, extra=False):
        dump = hand_made()
        stream = dump.operator("attn", "transpose", {"content": "x"}, movement=True, arguments={"1": "1" if fused else "2"})
        if extra:
            stream = dump.operator("attn", "clone", stream, movement=True)
        for name in ["scaled_dot_product_attention"] if fused else ["matmul", "softmax"]:
            stream = dump.operator("attn", name, stream)
        norm = dump.operator("norm", "layer_norm", stream, arguments={"eps": "1e-05"})
        dump.module("norm", stream, content=norm.outputs[0].content)
        return dump

    return make


def test_a_module_that_runs_other_operators_is_another_implementation(attention):
    eager, fused = attention(fused=False), attention(fused=True)
    assert {key[0] for key in find_other_implementations(eager.made, fused.made)} == {"attn"}
    assert find_other_implementations(eager.made, attention(fused=False, extra=True).made) == set()


def test_where_implementations_differ_arguments_say_nothing(attention):
    eager, fused = attention(fused=False), attention(fused=True)
    pairs = pair_calls(eager, fused)
    assert [pair.reference.name for pair in pairs] == ["attn / transpose", "norm / layer_norm", "norm"]
    assert find_different_calls(pairs, eager.made, fused.made, same_dtype=True) == []
    others = find_other_implementations(eager.made, fused.made)
    assert find_doubtful_pairs(pairs, others) == {pairs[0].name}
    assert find_doubtful_pairs(pairs, set()) == set()


def test_gradients_of_a_modules_parameters_are_pairs_of_their_own(hand_made):
    """A module has a line for each parameter: without the parameter in their name the bias would stand for the weight."""

    def record():
        dump = hand_made()
        dump.module("fc", {"content": "x"}, returns=2)
        for name in ("weight", "bias"):
            call = dump.module("fc", phase="gradient", content=name)
            dump.made[-1] = structs.replace(call, outputs=tuple(structs.replace(one, index=name) for one in call.outputs))
        return dump

    pairs = pair_calls(record(), record())
    shown = [(pair.reference.phase, pair.reference.outputs[0].index, pair.target.outputs[0].index) for pair in pairs]
    assert shown == [("forward", "0", "0"), ("gradient", "weight", "weight"), ("gradient", "bias", "bias")]


def test_torch_functions_are_evaluated_where_they_were_recorded_and_modules_only_where_nothing_else_was(hand_made):
    dump = hand_made()
    dump.operator("a", "linear", {"content": "x"})
    dump.module("a", {"content": "x"})
    assert choose_level(dump.made) == {"forward": "api"}
    alone = hand_made()
    alone.module("a", {"content": "x"})
    assert choose_level(alone.made) == {"forward": "module"}


def record_modules(folder, **wrong):
    """Record modules alone; some of them return something else."""
    parts = {"first": torch.nn.GELU(), "second": torch.nn.GELU(approximate="tanh"), "third": torch.nn.SiLU()}
    model = torch.nn.Sequential()
    for number, (name, module) in enumerate(parts.items()):
        linear = torch.nn.Linear(32, 32)
        with torch.no_grad():
            linear.weight.copy_(torch.randn(32, 32, generator=torch.Generator().manual_seed(number)) / 3)
            linear.bias.zero_()
        model.append(linear)
        model.add_module(name, module)
        if name in wrong:
            module.register_forward_hook(lambda _, given, made, change=wrong[name]: change(given[0], made))
    with precflow.capture(model, folder, level="module", detail="tensors", phase="forward"):
        model(torch.randn(16, 32, generator=torch.Generator().manual_seed(9)))
    return read_dump(folder)


def test_activations_are_evaluated_by_their_class_and_the_form_that_the_reference_shows(tmp_path):
    """A second wrong activation stands behind the first, where first divergence cannot see it."""
    reference = record_modules(tmp_path / "reference")
    target = record_modules(
        tmp_path / "target",
        first=lambda x, _: functional.gelu(x, approximate="tanh"),
        second=lambda x, _: functional.gelu(x),
    )
    found = evaluate_pair(tmp_path, reference, target)
    assert {key[0]: one.is_fault for key, one in found.items()} == {"first": True, "second": True, "third": False}
    found = evaluate_pair(tmp_path, reference, record_modules(tmp_path / "again"))
    assert {key[0]: one.is_fault for key, one in found.items()} == {"first": False, "second": False, "third": False}


def test_a_module_that_is_not_what_its_class_says_is_not_evaluated(tmp_path):
    sides = [record_modules(tmp_path / name, third=lambda x, made: made + 0.1 * x) for name in ("reference", "target")]
    assert {key[0] for key in evaluate_pair(tmp_path, *sides)} == {"first", "second"}
