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


def test_a_sound_chip_in_bfloat16_raises_no_alarm(generate):
    ended = generate("target.dtype=bfloat16", "+emulate=reorder")
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("fault", "slots"),
    [
        ("cache_heads_exchanged", "keys of layer 0: heads 0 and 1 are exchanged"),
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


def test_a_fault_in_the_prompt_is_no_matter_of_the_cache(generate):
    ended = generate("emulate.name=planted", "emulate.rules=[{operator:silu,rule:scale,factor:1.02,call:[0]}]")
    titles = {finding["rule"]: finding["title"] for finding in ended.result["findings"]}
    assert "(prefill)" in titles["PF322"]
    assert "PF321" not in titles


def test_a_fault_of_decoding_says_with_which_token(generate):
    ended = generate("emulate.name=planted", "emulate.rules=[{operator:silu,rule:scale,factor:1.02,call:[2]}]")
    titles = {finding["rule"]: finding["title"] for finding in ended.result["findings"]}
    assert "writes token 3 (decode)" in titles["PF322"]
