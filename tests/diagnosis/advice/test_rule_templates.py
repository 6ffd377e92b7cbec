"""Templates of rules stay in their sandbox and end soon."""

import pytest
from jinja2.exceptions import SecurityError

from precflow.diagnosis.advice.rule_templates import compile_condition, compile_text, holds
from precflow.errors import ConfigError


@pytest.mark.parametrize(
    "hostile",
    [
        "'a' * 9999999999",
        "'%9999999999d' % 1",
        "(names | join('x' * 1)) | join",
        "names | join(names | join(names | join(long)))",
    ],
)
def test_what_grows_is_stopped(hostile):
    with pytest.raises(SecurityError):
        compile_condition(hostile)(names=["a" * 1000] * 900, long="x" * 1000)


def test_evidence_that_was_not_measured_makes_a_condition_false():
    assert holds("eta > 1", {"eta": 2.0}, owner="rule OUR001")
    assert not holds("eta > 1", {}, owner="rule OUR001")
    assert not holds("not eta", {}, owner="rule OUR001")


def test_a_condition_that_cannot_be_evaluated_says_whose_it_is():
    with pytest.raises(ConfigError, match="whatif ours cannot be evaluated") as caught:
        holds("eta > 1", {"eta": "large"}, owner="whatif ours")
    assert "eta > 1: '>' not supported" in str(caught.value.problems[0])


def test_rounding_to_any_number_of_digits_ends():
    assert compile_condition("1.26 | round(1)")() == 1.3
    assert compile_condition("1.26 | round(999999999)")() == 1.26


@pytest.mark.parametrize("attack", ["''.__class__.__mro__", "names.append(1)", "cycler.__init__.__globals__"])
def test_conditions_stay_in_the_sandbox(attack):
    names = ["a"]
    with pytest.raises(SecurityError):
        bool(compile_condition(f"({attack}).x")(names=names))
    assert names == ["a"]


def test_texts_stay_in_the_sandbox():
    with pytest.raises(SecurityError):
        compile_text("{{ ''.__class__.__mro__[1] }}").render()
