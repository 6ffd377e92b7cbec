"""Recipe ``llm_generate``: a model that writes, clean and with faults in its cache."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("generation")]
SMALL = (
    "workload.model.tokens=4",
    "workload.model.layers=1",
    "reference.device=cpu",
    "target.device=emulated",
    "determinism.repeat=false",
)


@pytest.fixture(scope="module")
def generate(precflow, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("generation")

    def run(*words):
        return precflow(
            "+recipe=llm_generate", *SMALL, *words, cwd=cwd, recipe="llm_generate", timeout=600, OMP_NUM_THREADS="1"
        )

    return run


@pytest.fixture(scope="module")
def other_model(tmp_path_factory):
    """Return a folder with a GPT-2 of one layer: learned positions, LayerNorm, one product for queries, keys and values."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(3)
    GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=1, n_head=4)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_sound_chip_in_bfloat16_raises_no_alarm(generate, other_model, model):
    words = () if model == "llama" else (f"workload.model.weights={other_model}", "workload.model.layers=0")
    ended = generate("target.dtype=bfloat16", "+emulate=reorder", *words)
    assert ended.code == 0, ended.err
    agreement = next(one for one in ended.result["task_metrics"] if one["name"] == "token_agreement")
    assert agreement["state"] in {"within", "not told"}
    assert agreement["samples"] == 8  # two texts of four tokens, each at the reference's text


@pytest.mark.parametrize(
    ("fault", "slots"),
    [
        ("cache_heads_exchanged", "keys of layer 0: heads 0 and 1 are exchanged"),
        ("cache_slot_lost", "keys of layer 0: position 2 of all heads is zero"),
        ("cache_stale", "keys of layer 0: position 7 of all heads holds what belongs to position 6"),
    ],
)
def test_a_fault_in_the_cache_is_named(generate, fault, slots):
    ended = generate(f"+emulate={fault}")
    assert ended.code == 1, ended.err
    first = ended.result["findings"][0]
    assert (first["rule"], first["certainty"]) == ("PF321", "certain")
    assert slots in first["title"]
    assert ended.result["region"]["start"] == "language_model.model.layers.0.self_attn~1 / cat.2"
    verdict = ended.result["verdict"]
    assert verdict["compared"] <= verdict["total"]


def test_both_sides_are_held_to_a_golden_run(generate):
    words = ("golden.dtype=float64", "tolerance.standards=[calibrated,cann_dual]", "workload.model.tokens=2")
    sound = generate(*words)
    assert sound.code == 0, sound.err
    assert sound.result["verdict"]["standards"]["cann_dual"] is True
    assert len(sound.result["golden"]) > 50
    assert all(row["ratio"] < 2 for row in sound.result["golden"])
    planted = "emulate.rules=[{operator:silu,rule:scale,factor:1.0001}]"
    wrong = generate(*words, "emulate.name=planted", planted)
    rows = {row["name"]: row for row in wrong.result["golden"]}
    assert rows["language_model.model.layers.0.mlp.act_fn / silu"]["ratio"] > 10
    assert rows["language_model.model.layers.0.self_attn / softmax"]["ratio"] < 2
    assert "the golden run" not in wrong.err
    assert wrong.result["verdict"]["standards"]["cann_dual"] is False


def test_a_fault_in_the_prompt_is_no_matter_of_the_cache(generate):
    ended = generate("emulate.name=planted", "emulate.rules=[{operator:silu,rule:scale,factor:1.02,call:[0]}]")
    titles = {finding["rule"]: finding["title"] for finding in ended.result["findings"]}
    assert "(prefill)" in titles["PF322"]
    assert "PF321" not in titles


def test_a_fault_of_decoding_says_with_which_token(generate):
    ended = generate("emulate.name=planted", "emulate.rules=[{operator:silu,rule:scale,factor:1.02,call:[2]}]")
    titles = {finding["rule"]: finding["title"] for finding in ended.result["findings"]}
    assert "writes token 3 (decode)" in titles["PF322"]
