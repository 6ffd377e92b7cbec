"""A model that decodes without a cache is compared with one that decodes with it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import precflow
from precflow.dumps.formats import read_dump
from precflow.dumps.views.last_tokens import see_last_tokens
from precflow.stages.two_dumps import compare_dumps

IDS = torch.randint(2, 60, (2, 5), generator=torch.Generator().manual_seed(1))
SIZES = {"vocab_size": 60, "num_hidden_layers": 1, "num_attention_heads": 2}


def make_llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **sizes)).eval()


def make_t5():
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, dropout_rate=0.0)
    return T5ForConditionalGeneration(config).eval()


@pytest.fixture
def generate(tmp_path):
    """Return a function that records how a model writes four tokens."""

    def run(side, model, **options):
        with precflow.capture(model, tmp_path / side, detail="tensors") as recording, torch.no_grad():
            many = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
            model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), **many, **options)
            recording.step()
        return read_dump(tmp_path / side)

    return run


@pytest.mark.parametrize(("make", "cached"), [(make_llama, "reference"), (make_t5, "target")])
def test_decoding_with_and_without_a_cache_agrees(generate, make, cached):
    sides = [generate(side, make(), use_cache=side == cached) for side in ("reference", "target")]
    model = compare_dumps(*sides, command="")
    assert model.verdict.verdict == "aligned", model.verdict.reasons
    assert model.findings == ()
    assert model.verdict.compared > 200
    assert any("without a cache and computes all tokens again" in text for text in model.verdict.warnings)
    assert {row.judged.status for row in model.rows} <= {"pass", "not_judged", "covered", "blind"}


def test_a_fault_of_the_cache_starts_where_it_is(generate):
    faulty = make_llama()
    turn = faulty.model.rotary_emb.forward
    faulty.model.rotary_emb.forward = lambda x, position_ids: turn(x, position_ids + (position_ids.shape[1] == 1))
    model = compare_dumps(generate("reference", make_llama(), use_cache=False), generate("target", faulty), command="")
    assert model.verdict.verdict == "misaligned"
    assert model.region.start == "model.rotary_emb~1"
    assert not {"PF203", "PF205", "PF402"} & {finding.rule for finding in model.findings}


def test_other_lengths_on_both_sides_stay_as_they_are(generate):
    sides = generate("reference", make_llama()), generate("target", make_llama())
    assert see_last_tokens(*sides) == sides


class TwoInputs(torch.nn.Module):
    """Gives scores of the next token; a bias is an input of one side alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(60, 8), torch.nn.Linear(8, 60)

    def forward(self, ids, bias=None):
        return self.head(self.embed(ids)) + (0 if bias is None else bias)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("other tokens", "the inputs differ in 3 of 3: step0.ids, step0.call1.ids, step0.call2.ids"),
        ("a further input", "3 inputs are on one side only (step0.bias, step0.call1.bias, step0.call2.bias)"),
    ],
)
def test_other_data_are_not_taken_for_the_same(tmp_path, fault, reason):
    dumps = []
    for side in ("reference", "target"):
        given = torch.zeros(60) if fault == "a further input" and side == "reference" else None
        model = TwoInputs()
        with precflow.capture(model, tmp_path / side, detail="tensors") as recording, torch.no_grad():
            for number in range(3, 6):
                tokens = IDS[:, :number] + (fault == "other tokens" and side == "target")
                model(tokens if side == "target" or number == 3 else tokens[:, -1:], given)
            recording.step()
        dumps.append(read_dump(tmp_path / side))
    model = compare_dumps(*dumps, command="")
    assert model.verdict.verdict == "inconclusive"
    assert model.verdict.reasons[0] == reason
