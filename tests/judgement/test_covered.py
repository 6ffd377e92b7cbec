"""Records without a partner that a compared module around them covers."""

import pytest

from precflow.config.schema import Accepted
from precflow.judgement.covered import mark_covered
from precflow.judgement.decision import Decision
from precflow.judgement.verdicts import Judged

ATTENTION = "layers.0.self_attn"
LOST = ("unpaired_reference", "not_comparable")


@pytest.fixture
def module(measure):
    """Return a function that makes the record of a module's output; a path ``a~1`` is its second call."""

    def make(path, index="0", phase="forward", when="", **changes):
        record = f"{path or '(model)'}/{phase}.output.{index}{when}"
        return measure(path.partition("~")[0], "", record=record, level="module", phase=phase, **changes)

    return make


@pytest.fixture
def alone(measure):
    """Return a function that makes the record of an operator that one side has."""

    def make(path, operator="softmax", side="reference", phase="forward", **changes):
        record = f"{path or '(model)'}/{operator}.0/{phase}.output.0"
        changes = {"record": record, "phase": phase, "reason": f"only the {side} has it", **changes}
        return measure(path.partition("~")[0], operator, join=f"unpaired_{side}", metrics={}, **changes)

    return make


def test_another_implementation_of_a_compared_module_is_no_gap(run, module, alone):
    measures = [alone(ATTENTION), alone(ATTENTION, "sdpa", "target"), module(ATTENTION)]
    judged, verdict = run(measures)
    assert [record.status for record in judged] == ["covered", "covered", "pass"]
    assert judged[0].reason == f"only the reference has it; covered by {ATTENTION} around it, whose outputs were compared"
    assert verdict.verdict == "aligned"
    assert (verdict.compared, verdict.total, verdict.coverage, verdict.counts["covered"]) == (1, 3, 1.0, 2)


def test_without_a_record_of_its_module_it_stays_a_gap(run, measure, alone):
    judged, verdict = run([alone(ATTENTION), measure(ATTENTION, "linear")])
    assert judged[0].status == "unpaired_reference"
    assert verdict.verdict == "inconclusive"


@pytest.mark.parametrize(
    "change", [{"join": "unpaired_target"}, {"join": "unreadable"}, {"counts": {"elements": 6, "sentinel": 6}}]
)
def test_a_module_that_was_not_compared_covers_nothing(run, module, alone, change):
    judged, _ = run([alone(ATTENTION), module(ATTENTION, **change)])
    assert judged[0].status == "unpaired_reference"


def test_a_second_output_without_a_partner_leaves_it_to_the_module_around(run, module, alone):
    """Eager attention returns its weights as well, fused attention returns None in their place."""
    weights = module(ATTENTION, "1", join="unpaired_reference", metrics={})
    judged, verdict = run([alone(ATTENTION), module(ATTENTION), weights, module("layers.0")])
    assert [record.status for record in judged] == ["covered", "pass", "covered", "pass"]
    assert "covered by layers.0 around it" in judged[0].reason
    assert verdict.verdict == "aligned"


def test_a_failing_module_covers_too_and_the_run_is_misaligned(run, module, alone):
    judged, verdict = run([alone(ATTENTION), module(ATTENTION, relative_l2=1e-2)])
    assert judged[0].status == "covered"
    assert verdict.verdict == "misaligned"


def test_the_model_covers_its_own_code_and_nothing_inside_its_modules(run, module, alone):
    own, inside = alone(""), alone("layers.0.self_attn")
    judged, verdict = run([own, inside, module("")])
    assert [record.status for record in judged] == ["covered", "unpaired_reference", "pass"]
    assert "covered by the model around it" in judged[0].reason
    assert verdict.verdict == "inconclusive"


def test_the_same_call_of_a_module_must_have_been_compared(run, module, alone):
    second = alone("norm~1", record="norm~1/mul.0/forward.output.0")
    assert run([second, module("norm")])[0][0].status == "unpaired_reference"
    assert run([second, module("norm"), module("norm~1")])[0][0].status == "covered"


def test_every_call_of_an_outer_module_must_have_been_compared(run, module, alone):
    inner = alone("block.fused", "", record="block.fused/forward.output.0", level="module")
    lost = module("block~1", join="unreadable")
    assert run([inner, module("block"), lost])[0][0].status == "unpaired_reference"
    assert run([inner, module("block"), module("block~1")])[0][0].status == "covered"


def test_another_step_covers_nothing(run, module, alone):
    assert run([alone(ATTENTION), module(ATTENTION, when="@1.0")])[0][0].status == "unpaired_reference"


def test_backward_is_covered_by_backward_with_the_gradients_of_the_parameters(run, measure, module, alone):
    product = alone(f"{ATTENTION}.q_proj", "aten.mm", phase="backward", level="operator")
    lost = measure(
        f"{ATTENTION}.q_proj",
        "",
        record=f"{ATTENTION}.q_proj/gradient.output.weight",
        phase="gradient",
        join="unpaired_reference",
    )
    assert run([product, module(ATTENTION)])[0][0].status == "unpaired_reference"
    assert run([product, module(ATTENTION, phase="backward")])[0][0].status == "covered"
    judged, _ = run([product, lost, module(ATTENTION, phase="backward")])
    assert [record.status for record in judged[:2]] == ["unpaired_reference"] * 2


@pytest.fixture
def checkpointed(module):
    """Return a function that makes a backward in which one side computes the gradient of one more input of a block."""

    def make(*, weight="pass", beside="pass", **other):
        agreeing = {"pass": {}, "fail": {"relative_l2": 1e-2}, "lost": {"join": "unpaired_target", "metrics": {}}}
        return [
            module("block.1", phase="backward", **agreeing[beside]),
            module("block.1", "position_bias", phase="backward", join="unpaired_target", metrics={}),
            module("block.1", "weight", phase="gradient", **agreeing[weight]),
            module("block.0", phase="backward", **other),
        ]

    return make


def test_a_gradient_that_no_parameter_lies_behind_is_no_gap(run, checkpointed):
    judged, verdict = run(checkpointed())
    assert [record.status for record in judged] == ["pass", "covered", "pass", "pass"]
    assert "the gradients of all parameters are on both sides, and agree" in judged[1].reason
    assert verdict.verdict == "aligned"


@pytest.mark.parametrize(
    "change", [{"weight": "fail"}, {"weight": "lost"}, {"beside": "lost"}, {"join": "unpaired_target", "metrics": {}}]
)
def test_a_gradient_is_a_gap_where_parameters_or_modules_behind_it_differ(run, checkpointed, change):
    judged, _ = run(checkpointed(**change))
    assert judged[1].status == "unpaired_target"


def test_what_ran_outside_of_all_modules_is_covered_by_none(run, module, alone):
    assert run([alone("(outside)"), module("")])[0][0].status == "unpaired_reference"


def test_what_ran_inside_a_module_behind_a_near_tie_depends_on_it_too(measure, module, alone):
    measures = [alone(ATTENTION), module(ATTENTION)]
    decisions = [Decision(Judged(one.record, status, reason="r")) for one, status in zip(measures, LOST, strict=True)]
    first, second = mark_covered(measures, decisions)
    assert (first.judged.status, second.judged.status) == ("not_comparable", "not_comparable")
    assert first.judged.reason == f"r; {ATTENTION} around it depends on a near tie"


@pytest.fixture
def implemented_otherwise(measure, module, alone):
    """Return a function that makes a norm of two implementations, both of which multiply; its output has this error."""

    def make(error=1e-7, **changes):
        product = measure("norm", "mul", record="norm/mul.0/forward.output.0", relative_l2=0.5, **changes)
        return [product, alone("norm", "rsqrt"), module("norm", relative_l2=error)]

    return make


def test_operators_of_two_implementations_that_share_a_name_are_no_failure(run, implemented_otherwise):
    judged, verdict = run(implemented_otherwise())
    assert [record.status for record in judged] == ["covered", "covered", "pass"]
    assert judged[0].reason.endswith("norm runs other operators on the two sides, and its outputs agree")
    assert verdict.verdict == "aligned"
    assert verdict.standards == {"default": True}


def test_another_shape_of_such_an_operator_is_no_failure(run, implemented_otherwise):
    assert run(implemented_otherwise(join="shape", reason="[1] [2]"))[1].verdict == "aligned"


def test_they_fail_where_the_module_fails(run, implemented_otherwise):
    judged, verdict = run(implemented_otherwise(error=1e-2))
    assert judged[0].status == "fail"
    assert verdict.verdict == "misaligned"


def test_an_operator_of_one_implementation_fails_whatever_its_module_says(run, measure, module):
    judged, _ = run([measure("norm", "mul", relative_l2=0.5), module("norm")])
    assert judged[0].status == "fail"


def test_they_fail_where_nothing_shows_that_the_module_agrees(run, implemented_otherwise):
    """An accepted difference is no agreement, and neither is an output that could not have failed."""
    allowed = Accepted(match="norm", relative_l2=0.02, because="another norm", until="2027-01-01")
    judged, _ = run(implemented_otherwise(error=1e-2), accepted=[allowed])
    assert [record.status for record in judged] == ["fail", "covered", "accepted"]


def run_experts(run, module, alone, *, error=1e-7, second=True):
    """Run an activation once for each of two experts on the reference, and once for both on the target."""
    first = module("experts.act", join="shape", reason="[3, 8] [6, 8]")
    more = [alone("experts.act~1", "", record="experts.act~1/forward.output.0", level="module")] if second else []
    return run([first, *more, module("experts", relative_l2=error)])


def test_a_module_that_the_sides_call_another_number_of_times_is_covered_by_the_one_around_it(run, module, alone):
    judged, verdict = run_experts(run, module, alone)
    assert [record.status for record in judged] == ["covered", "covered", "pass"]
    assert judged[0].reason.endswith("the sides call experts.act another number of times, and experts agrees")
    assert verdict.verdict == "aligned"


def test_the_model_covers_no_failure_inside_its_modules(run, measure, module, alone):
    """Another module may well run other operators: that says nothing about one that both sides call as often."""
    elsewhere = [module("other"), alone("other")]
    failing = [measure("layers.0.fc", "linear", relative_l2=1e-2), module("layers.0.fc", relative_l2=1e-2)]
    judged, verdict = run([*elsewhere, *failing, module("")])
    assert [record.status for record in judged] == ["pass", "covered", "fail", "fail", "pass"]
    assert verdict.verdict == "misaligned"
    top = module("act", join="shape", reason="[3, 8] [6, 8]")
    second = alone("act~1", "", record="act~1/forward.output.0", level="module")
    assert run([top, second, module("")])[0][0].status == "shape"


def test_it_fails_where_the_one_around_it_fails_or_the_sides_call_it_as_often(run, module, alone):
    assert run_experts(run, module, alone, error=1e-2)[0][0].status == "shape"
    assert run_experts(run, module, alone, second=False)[0][0].status == "shape"
