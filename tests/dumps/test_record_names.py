"""Names of records: each is told from every other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.agent.contract import Identity, parse_identity
from precflow.dumps.record_names import find_operator, name_call, name_record

small = st.integers(0, 2)
modules = st.sampled_from(["", "a", "a.b", "layers.0", "層"])
outputs = st.sampled_from(["0", "1", "last_hidden_state"])
calls = st.builds(
    Identity, modules, small, st.sampled_from(["", "linear", "aten.addmm"]), small, st.sampled_from(["forward", "backward"]),
    st.sampled_from(["input", "output"]), outputs, small, small,
)  # fmt: skip
updates = st.builds(
    Identity, modules, small, st.just(""), st.just(0), st.sampled_from(["gradient", "optimizer"]),
    st.just("output"), st.sampled_from(["weight", "bias", "weight.exp_avg", "weight.step"]), small, small,
)  # fmt: skip
identities = st.one_of(calls, updates).filter(lambda one: one.operator or not one.ordinal)


@given(identities, identities)
def test_two_records_never_have_one_name(one, other):
    assert (name_record(one) == name_record(other)) == (one == other)


@given(identities)
def test_a_name_of_a_call_tells_its_operator(identity):
    assert find_operator(name_call(identity)) == identity.operator


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("layers.0/linear.0/forward.output.0", "layers.0 / linear"),
        ("layers.0~1/linear.2/forward.output.1@3.1", "layers.0~1 / linear.2, output 1 (step 3, rank 1)"),
        ("(model)/forward.output.last_hidden_state", "(model), output last_hidden_state"),
        ("(model)/gradient.output.pos@1.0", "pos (gradient, step 1)"),
        ("head/optimizer.output.weight.exp_avg", "head.weight exp_avg (optimizer)"),
        ("(outside)/optimizer.output.0.3.exp_avg", "(outside).0.3 exp_avg (optimizer)"),
        ("(outside)/all_reduce.0/gradient.output.0@0.1", "(outside) / all_reduce (gradient, rank 1)"),
    ],
)
def test_what_is_not_named_is_the_first(text, name):
    assert name_record(parse_identity(text)) == name
