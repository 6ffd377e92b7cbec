"""What both programs agree on: names that can be taken apart again, and lists that do not contradict each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.agent.contract import (
    DTYPE_OF_SAFETENSORS,
    MOVEMENT,
    OUTSIDE,
    PHASES,
    PLACEMENT,
    ROLES,
    SAFETENSORS_OF_DTYPE,
    Identity,
    identity_text,
    is_of_torch,
    module_text,
    operator_of,
    parse_identity,
)

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
NUMBERS = st.integers(0, 9999)


@given(
    st.builds(
        Identity,
        module=st.one_of(st.just(""), st.just(OUTSIDE), NAMES),
        call=NUMBERS,
        operator=st.one_of(st.just(""), NAMES),
        ordinal=NUMBERS,
        phase=st.sampled_from(PHASES),
        role=st.sampled_from(ROLES),
        index=NAMES,
        step=NUMBERS,
        rank=NUMBERS,
    )
)
def test_every_identity_can_be_read_back_from_its_text(identity):
    identity = identity if identity.operator else identity._replace(ordinal=0)
    text = identity_text(identity)
    assert parse_identity(text) == identity
    assert not set("\n\r\0") & set(text)


def test_the_text_of_an_identity():
    assert identity_text(Identity("a.b", 2, "add_", 1, "backward", "input", "1", 3, 4)) == "a.b~2/add_.1/backward.input.1@3.4"
    assert identity_text(Identity("", 0, "", 0, "forward", "output", "0", 0, 0)) == "(model)/forward.output.0"


@pytest.mark.parametrize("text", ["", "a", "a/b/c/d", "a/forward", "a/add/forward.output.0", "a~x/forward.output.0"])
def test_what_is_no_identity_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_identity(text)


def test_a_module_of_a_strange_name_cannot_be_taken_for_another():
    assert module_text("(model)") != module_text("")
    assert module_text("a~1") != module_text("a", 1)


def test_an_aten_operator_is_another_record_than_the_one_that_it_runs_for():
    assert operator_of("operator", "mm") == "aten.mm"
    assert operator_of("api", "mm") == "mm"


def test_what_only_moves_values_is_recorded_and_what_only_places_them_is_not():
    assert not MOVEMENT & PLACEMENT
    assert all(name.strip() == name and name for name in MOVEMENT | PLACEMENT)


def test_element_types_have_one_name_on_disk_each():
    assert {ours: theirs for theirs, ours in DTYPE_OF_SAFETENSORS.items()} == SAFETENSORS_OF_DTYPE
    assert len(SAFETENSORS_OF_DTYPE) == len(DTYPE_OF_SAFETENSORS)


@pytest.mark.parametrize(
    ("key", "target", "expected"),
    [
        ("workload.optimizer", "torch.optim.AdamW", True),
        ("workload.loss", "torch.nn.CrossEntropyLoss", True),
        ("workload.loss", "torch.nn.Module", False),
        ("workload.optimizer", "torch.optim.lr_scheduler.StepLR", False),
        ("workload.optimizer", "torch.optim.AdamW.load", False),
        ("workload.optimizer", "torch_optim.AdamW", False),
        ("workload.optimizer", "torch.optim.os", False),
        ("workload.model", "torch.optim.AdamW", False),
    ],
)
def test_what_may_be_named_without_the_user_s_trust(key, target, expected):
    assert is_of_torch(key, target) is expected
