"""Where a side broke, the rules of the scan say what takes the place of what is missing, and which types an operator takes."""

import pytest

from precflow.breakdown import Breakdown, GivenTensor
from precflow.stages.breakdown import advise


def broke(dtype, operator="lerp", **known):
    return Breakdown("target", "exception", operator=operator, inputs=(GivenTensor("0", dtype, "[2]"),), **known)


def test_an_operator_that_was_given_another_type_than_it_takes_is_named_with_its_types():
    (instead,) = advise(broke("bfloat16"), {}).instead
    assert (instead.rule, instead.found, instead.do) == ("support.types", "torch.lerp", "it takes float16, float32")


@pytest.mark.parametrize(
    "known", [broke("float32"), broke("bfloat16", "my_operator"), Breakdown("target", "crash", operator="lerp")]
)
def test_nothing_is_said_of_a_type_that_it_takes_or_where_nothing_is_known(known):
    assert advise(known, {}).instead == ()
