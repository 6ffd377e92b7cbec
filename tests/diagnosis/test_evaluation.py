"""Which calls are paired for float64, and where their pairs are doubtful."""

import pytest

from precflow.diagnosis.calls_differ import find_different_calls
from precflow.diagnosis.evaluation import choose_level, find_doubtful_pairs, find_other_implementations, pair_calls


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


def test_torch_functions_are_evaluated_where_they_were_recorded_and_modules_only_where_nothing_else_was(hand_made):
    dump = hand_made()
    dump.operator("a", "linear", {"content": "x"})
    dump.module("a", {"content": "x"})
    assert choose_level(dump.made) == {"forward": "api"}
    alone = hand_made()
    alone.module("a", {"content": "x"})
    assert choose_level(alone.made) == {"forward": "module"}
