import json
import sys

import pytest
import torch
from safetensors.torch import save_file

from precflow.agent.failures import AgentError
from precflow.agent.workloads import stable_diffusion
from precflow.agent.workloads.stable_diffusion import END, POSITIONS

SMALL = {"vocab_size": 200, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL = {**SMALL, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


@pytest.fixture
def small(monkeypatch):
    """Make the configuration small: the same code in milliseconds."""
    monkeypatch.setattr(stable_diffusion, "CONFIGURATION", {**stable_diffusion.CONFIGURATION, **SMALL})
    torch.manual_seed(1234)


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_configuration_is_the_published_one():
    found = stable_diffusion.CONFIGURATION
    assert (found["vocab_size"], found["hidden_size"], found["intermediate_size"]) == (49408, 768, 3072)
    assert (found["num_hidden_layers"], found["num_attention_heads"], found["max_position_embeddings"]) == (12, 12, 77)
    assert (found["hidden_act"], found["layer_norm_eps"], found["projection_dim"]) == ("quick_gelu", 1e-5, 768)


def test_seeded_weights_are_the_same_again_and_eager(small):
    model = stable_diffusion.text_encoder()
    torch.rand(5)
    assert same(values(model), values(stable_diffusion.text_encoder()))
    assert model.config._attn_implementation == "eager"
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


def test_another_seed_gives_other_weights(small):
    first = values(stable_diffusion.text_encoder())
    torch.manual_seed(5)
    assert not same(first, values(stable_diffusion.text_encoder()))


def test_the_default_device_changes_nothing(small):
    first = values(stable_diffusion.text_encoder())
    with torch.device("meta"):
        second = stable_diffusion.text_encoder()
    assert same(first, values(second))


def test_every_parameter_is_set_and_the_model_runs(small):
    model = stable_diffusion.text_encoder().eval()
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    with torch.no_grad():
        found = model(input_ids=torch.zeros(1, 4, dtype=torch.int64)).last_hidden_state
    assert found.shape == (1, 4, 16)
    assert 0.5 < float(found.std()) < 2


def test_spreads_are_those_of_clip(small):
    named = dict(stable_diffusion.text_encoder().named_parameters())
    token = next(value for name, value in named.items() if "token_embedding" in name)
    assert float(token.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert all(not value.any() for name, value in named.items() if name.endswith("bias"))


@pytest.mark.parametrize("prefix", ["", "text_model."])
def test_a_checkpoint_with_either_prefix(small, tmp_path, prefix):
    expected = values(stable_diffusion.text_encoder())
    bare = {name.removeprefix("text_model."): value for name, value in expected.items()}
    given = {prefix + name: value for name, value in bare.items()}
    save_file({**given, prefix + "embeddings.position_ids": torch.arange(77)[None]}, tmp_path / "encoder.safetensors")
    torch.manual_seed(1)
    assert same(values(stable_diffusion.text_encoder(weights=str(tmp_path / "encoder.safetensors"))), expected)


def test_a_folder_brings_its_own_configuration(tmp_path, small):
    model = stable_diffusion.text_encoder()
    model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["hidden_size"] == 16
    again = stable_diffusion.text_encoder(weights=str(tmp_path))
    assert same(values(again), values(model))
    assert again.config._attn_implementation == "eager"


def test_a_checkpoint_of_another_width_names_key_and_shapes(small, tmp_path):
    given = values(stable_diffusion.text_encoder())
    name = next(name for name in given if name.endswith("layers.0.mlp.fc1.weight"))
    save_file({**given, name: torch.zeros(64, 16)}, tmp_path / "encoder.safetensors")
    with pytest.raises(AgentError, match=r"fc1\.weight has shape \[64, 16\], expected \[32, 16\]"):
        stable_diffusion.text_encoder(weights=str(tmp_path / "encoder.safetensors"))


def test_fewer_layers_have_the_same_weights(small):
    whole = values(stable_diffusion.text_encoder())
    first = values(stable_diffusion.text_encoder(layers=1))
    assert first.keys() < whole.keys()
    assert same(first, {name: whole[name] for name in first})


@pytest.mark.parametrize(("weights", "layers"), [("seeded", 3), ("seeded", -1), ("/some/where", 1)])
def test_layers_that_cannot_be_had_are_refused(small, weights, layers):
    with pytest.raises(AgentError, match="a number from 1 to 2, and only with weights=seeded"):
        stable_diffusion.text_encoder(weights=weights, layers=layers)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(AgentError, match="transformers is not installed") as caught:
        stable_diffusion.text_encoder()
    assert "precflow[models]" in caught.value.next_step


def test_prompts_are_padded_with_the_end_token():
    ids = stable_diffusion.prompts([[49406, 320, END], []])["input_ids"]
    assert ids.shape == (2, POSITIONS)
    assert ids.dtype is torch.int64
    assert ids[0, :3].tolist() == [49406, 320, END]
    assert (ids[0, 3:] == END).all()
    assert (ids[1] == END).all()


@pytest.mark.parametrize(
    ("rows", "texts", "expected"),
    [
        ([], (), "no prompt"),
        ([[1] * 78], (), "prompt 0 has 78 tokens; the model takes 77"),
        ([[1], [49408]], (), "prompt 1 holds 49408"),
        ([[-1]], (), "holds -1"),
        ([["a"]], (), "holds 'a'"),
        ([[1]], ("one", "two"), "2 texts and 1 token lists"),
    ],
)
def test_prompts_that_do_not_fit(rows, texts, expected):
    with pytest.raises(AgentError, match=expected):
        stable_diffusion.prompts(rows, texts)


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AgentError, match=r"workload.inputs.tokenizer=.* is not a folder with tokenizer.json"):
        stable_diffusion.prompts([[1]], ["a cat"], tokenizer=str(tmp_path))


def test_the_published_one_has_as_many_parameters():
    configuration = stable_diffusion._read_configuration("seeded")
    model = stable_diffusion._build_uninitialized(configuration)  # drawing them takes seconds
    assert sum(value.numel() for value in model.parameters()) == 123_060_480


def test_a_wrong_epsilon_shows_in_the_output(small):
    model = stable_diffusion.text_encoder().eval()
    prompt = {"input_ids": torch.arange(1, 78)[None]}
    found = []
    for epsilon in (1e-5, 1e-3):
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = epsilon
        with torch.no_grad():
            found.append(model(**prompt).last_hidden_state.double())
    assert float((found[1] - found[0]).norm() / found[0].norm()) > 0.1
