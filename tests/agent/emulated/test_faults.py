"""The shipped faults do what their files say, on a small encoder whose modules have the names of the real one."""

import copy
from pathlib import Path

import pytest
import torch
import yaml

FOLDER = Path(__file__).parents[3] / "conf" / "emulate"
FILES = sorted(FOLDER.glob("*.yaml"))
LIMIT = {torch.float32: 2.0**-16, torch.float16: 2.0**-8}
FIRST = {  # where each fault must be seen first, among modules without children
    "sigmoid_inexact": "encoder.layers.0.mlp.activation_fn",
    "softmax_half": "encoder.layers.0.self_attn.out_proj",
    "layernorm_eps": "encoder.layers.0.layer_norm1",
    "hf32_matmul": "encoder.layers.0.self_attn.q_proj",
    "scaled_linear": "encoder.layers.5.mlp.fc1",
    "mask_dropped": "encoder.layers.4.self_attn.out_proj",
    "nan_in_layer": "encoder.layers.6.mlp.fc2",
    "weights_from_device_rng": "encoder.layers.7.mlp.fc1",
}
SEEN_IN_HALF = ("layernorm_eps", "scaled_linear", "mask_dropped", "nan_in_layer")
OF_TRAINING = ("gelu_backward",)  # shows in gradients only: examples/05_dit_training finds it
OF_WRITING = ("cache_heads_exchanged", "cache_slot_lost", "cache_stale")  # tests/end_to_end/test_generation.py finds them
OF_BREAKING = ("device_error", "operator_missing", "out_of_memory")  # tests/end_to_end/test_breaking.py has them
HARMLESS = ("exact", "reorder", "ascend_like", "nondeterministic_op")


def rules_of(name):
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))["rules"]


def outputs(model, ids):
    seen = {}
    handles = [
        module.register_forward_hook(lambda _m, _a, output, name=name: seen.update({name: output.detach().cpu()}))
        for name, module in model.named_modules()
        if not list(module.children())
    ]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return seen


def relative_l2(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture(scope="module")
def encoder(npu, clip):
    return clip(layers=8, width=64)


@pytest.fixture(scope="module")
def reference(encoder, tokens):
    return outputs(encoder, tokens)


@pytest.fixture
def errors(rules, encoder, reference, tokens):
    """Return a function: relative L2 of each module under a fault, in a type, against float32 on the CPU."""

    def measured(name, dtype=torch.float32):
        rules.configure(rules_of(name))
        model = copy.deepcopy(encoder)
        rules.redraw(model)
        model = model.to(dtype).npu()
        watch = rules.Watch(model)
        seen = outputs(model, tokens.npu())
        watch.remove()
        assert list(seen) == list(reference)
        return {module: relative_l2(seen[module], reference[module]) for module in seen}

    return measured


def over(errors, dtype):
    return [module for module, error in errors.items() if not error <= LIMIT[dtype]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_it_is_how_to_run_it_and_holds_known_rules(rules, path):
    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    comment = [line for line in text.splitlines() if line.startswith("#")]
    assert list(content) == ["name", "title", "rules"]
    assert content["name"] == path.stem
    assert isinstance(content["title"], str)
    recipe = "dit_training workload.script=train.py" if path.stem in OF_TRAINING else "sd_text_encoder target.dtype=float32"
    recipe = "llm_generate" if path.stem in OF_WRITING else recipe
    command = f"precflow +recipe={recipe} +emulate={path.stem}"
    if path.stem in OF_BREAKING:
        command = f"precflow '+recipe=[sd_text_encoder,symptom/crash]' +emulate={path.stem} sides=[target]"
    assert comment[-1] == f"#   {command}"
    rules.configure(content["rules"])


def test_every_file_is_tested_here():
    assert {path.stem for path in FILES} == {*FIRST, *HARMLESS, *OF_TRAINING, *OF_WRITING, *OF_BREAKING}


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_stays_below_the_limits(errors, name, dtype):
    assert over(errors(name, dtype), dtype) == []


@pytest.mark.parametrize("name", FIRST)
def test_a_fault_is_first_over_the_limit_where_it_sits(errors, name):
    assert over(errors(name), torch.float32)[0] == FIRST[name]


@pytest.mark.parametrize("name", SEEN_IN_HALF)
def test_large_faults_are_seen_in_float16_too(errors, name):
    assert over(errors(name, torch.float16), torch.float16)[0] == FIRST[name]


@pytest.mark.parametrize("name", ["softmax_half", "hf32_matmul"])
def test_small_faults_hide_in_the_rounding_of_float16(errors, name):
    assert over(errors(name, torch.float16), torch.float16) == []


def test_another_order_gives_other_bits(errors):
    assert max(errors("exact").values()) == 0.0
    assert 0.0 < max(errors("reorder").values()) < 2e-6


@pytest.mark.parametrize("dtype", LIMIT, ids=str)
def test_one_operator_does_not_repeat_itself(rules, encoder, tokens, dtype):
    rules.configure(rules_of("nondeterministic_op"))
    model = copy.deepcopy(encoder).to(dtype).npu()
    watch = rules.Watch(model)
    first, second = outputs(model, tokens.npu()), outputs(model, tokens.npu())
    watch.remove()
    unequal = [module for module in first if not torch.equal(first[module], second[module])]
    assert unequal[0] == "encoder.layers.3.mlp.fc2"


@pytest.mark.parametrize("name", sorted({*FIRST, *HARMLESS} - {"nondeterministic_op"}))
def test_all_others_repeat_themselves(rules, encoder, tokens, name):
    rules.configure(rules_of(name))
    model = copy.deepcopy(encoder).npu()
    watch = rules.Watch(model)
    first, second = outputs(model, tokens.npu()), outputs(model, tokens.npu())
    watch.remove()
    assert [module for module in first if not torch.equal(first[module].nan_to_num(), second[module].nan_to_num())] == []


def test_weights_that_the_device_drew_are_named(rules, encoder):
    rules.configure(rules_of("weights_from_device_rng"))
    assert rules.redraw(copy.deepcopy(encoder)) == ["encoder.layers.7.mlp.fc1.weight"]
