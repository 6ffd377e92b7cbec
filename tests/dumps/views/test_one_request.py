"""One request of a batch is compared with the same one of a batch that is laid out otherwise."""

import numpy as np
import pytest
from dump_builder import DumpBuilder, content_of
from hypothesis import given
from hypothesis import strategies as st

import precflow
from precflow.config.composition import compose
from precflow.config.schema import PairingRule
from precflow.dumps.formats import read_dump
from precflow.dumps.views.one_request import find_index, see_request
from precflow.dumps.views.paired import see_through_rules
from precflow.errors import ConfigError

RNG = np.random.default_rng(3)
HEADS, SIZE, TOKENS = 2, 6, 4
OWN = RNG.standard_normal((TOKENS, SIZE)).astype(np.float32)  # what the request has, in both batches
WEIGHT = RNG.standard_normal((SIZE, SIZE)).astype(np.float32)
RULE = PairingRule(pair_by="request", reference_batch=(3, 5), reference_slices="[1, :4]", batch=(11,), slices="[5:9]")
WORDS = "[{pair_by: request, reference_batch: [3, 5], reference_slices: '[1, :4]', batch: [11], slices: '[5:9]'}]"


def write(path, states, *, factor=1.0):
    """Write a dump of states that go through a linear layer, a gelu and the scores of their products."""
    dump = DumpBuilder(path)
    made = states @ WEIGHT * np.float32(factor)
    active = np.maximum(made, 0)
    scores = np.einsum("...td,...sd->...ts", active, active)
    scores = np.stack([scores] * HEADS, axis=-3)
    dump.call("fc", "linear", [made], [states, WEIGHT])
    dump.call("act", "relu", [active], [made])
    dump.call("attn", "matmul", [scores], [active, active])
    ids = {
        "digest": "x",
        "entries": {"step0.x": {"content": content_of(states), "dtype": "float32", "shape": list(states.shape)}},
    }
    dump.header_changes["inputs"] = ids
    return dump.write()


def padded(path, **options):
    batch = RNG.standard_normal((3, 5, SIZE)).astype(np.float32)
    batch[1, :TOKENS] = OWN
    return write(path, batch, **options)


def packed(path, **options):
    batch = RNG.standard_normal((11, SIZE)).astype(np.float32)
    batch[5:9] = OWN
    return write(path, batch, **options)


@pytest.fixture
def sides(tmp_path):
    return padded(tmp_path / "padded"), packed(tmp_path / "packed")


def test_both_sides_have_the_tokens_of_the_request(sides):
    reference, target = see_request(*map(read_dump, sides), RULE)
    for dump in (reference, target):
        shapes = {call.operator: call.outputs[0].shape for call in dump.calls()}
        assert shapes == {"linear": (TOKENS, SIZE), "relu": (TOKENS, SIZE), "matmul": (HEADS, TOKENS, TOKENS)}
        np.testing.assert_array_equal(dump.tensor(dump.calls()[0].inputs[0]), OWN)
        assert dump.calls()[0].inputs[1].shape == (SIZE, SIZE)  # the weight is no part of the batch
    assert reference.header.inputs.digest == target.header.inputs.digest
    assert reference.header.inputs.entries["step0.x"].content == content_of(OWN)


def test_what_one_call_returns_and_another_reads_stays_the_same(sides):
    reference, _ = see_request(*map(read_dump, sides), RULE)
    linear, relu, matmul = reference.calls()
    assert linear.outputs[0].known == relu.inputs[0].known
    assert relu.outputs[0].known == matmul.inputs[0].known != linear.outputs[0].known


@pytest.mark.parametrize(("factor", "verdict", "start"), [(1.0, "aligned", ""), (1.01, "misaligned", "fc / linear")])
def test_the_request_is_judged(tmp_path, factor, verdict, start, capsys, monkeypatch):
    from precflow import cli

    reference, target = padded(tmp_path / "padded"), packed(tmp_path / "packed", factor=factor)
    monkeypatch.chdir(tmp_path)
    words = ["+recipe=compare_dumps", f"reference.dump={reference}", f"target.dump={target}", f"pairing.rules={WORDS}"]
    code = cli.main([*words, "tolerance.standards=[default]", "report.formats=[json]", "output=ci"])
    assert code == (0 if verdict == "aligned" else 1), capsys.readouterr().err
    result = precflow.read("compare_dumps")
    assert (result.verdict, result.start) == (verdict, start)
    assert len(result.records) == 3


def test_without_the_rule_nothing_fits(sides):
    assert precflow.compare(*sides, evaluate=False).verdict != "aligned"


def test_a_batch_that_no_tensor_has_is_refused(sides):
    rule = PairingRule(pair_by="request", reference_batch=(3, 5), reference_slices="[1, :4]", batch=(12,), slices="[5:9]")
    with pytest.raises(ConfigError, match=r"no tensor of .*packed has the sizes of batch, \[12\]"):
        see_through_rules(*map(read_dump, sides), [rule], ["weights", "inputs"])


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{pair_by: request, reference_batch: [3, 5], reference_slices: '[1, :4]', batch: [11], slices: '[5:8]'}", "4 tokens"),
        ("{pair_by: request, reference_batch: [3, 5], reference_slices: '[3, :4]', batch: [11], slices: '[5:9]'}", "beyond"),
        ("{pair_by: request, reference_batch: [3, 5], reference_slices: '[:4]', batch: [11], slices: '[5:9]'}", "no index"),
        ("{pair_by: request, reference_batch: [], reference_slices: '[1, :4]', batch: [11], slices: '[5:9]'}", "packed tokens"),
        (
            "{pair_by: request, reference: [a], reference_batch: [4], reference_slices: '[:]', batch: [4], slices: '[:]'}",
            "no names",
        ),
        ("{reference: [a], target: [b], batch: [4]}", "with `pair_by: request` only"),
    ],
)
def test_rules_that_fit_nothing_are_refused(rule, said):
    with pytest.raises(ConfigError) as caught:
        compose(["+recipe=compare_dumps", "reference.dump=/tmp", "target.dump=/tmp", f"pairing.rules=[{rule}]"])
    assert said in " ".join(str(problem) for problem in caught.value.problems)


@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.integers(1, 7), max_size=3))
def test_an_index_takes_what_belongs_to_the_prompt(prompts, tokens, rest):
    array = np.arange(prompts * tokens * int(np.prod(rest, dtype=int))).reshape(prompts, tokens, *rest)
    for batch in (array, array.reshape(prompts * tokens, *rest)):
        index = find_index(batch.shape, (prompts, tokens), (prompts - 1, slice(0, tokens)))
        if batch.shape[:1] == (prompts,) and batch is not array:
            continue  # one token a prompt: the sizes tell nothing
        np.testing.assert_array_equal(batch[index].reshape(array[-1].shape), array[-1])
