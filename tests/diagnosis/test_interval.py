"""Errors that start where one side's operators have no partner on the other, and inputs that are compared themselves."""

import msgspec
import pytest

from precflow.diagnosis.localize import localize
from precflow.judgement.verdicts import Judged


def locate(reference, target, judge_calls, statuses, *, ratio=7.0, **options):
    """Return the region; an input fails if its content is another one on the target."""

    def judge_input(left, right):
        same = left.content == right.content
        return Judged(left.text, "pass" if same or left.content == "close" else "fail", ratio=0.1 if same else ratio)

    return localize(reference, target, *judge_calls(reference, statuses, **options), judge_input)


@pytest.fixture
def attention(hand_made):
    """Return a function that makes one side of ``norm -> attn (eager or fused) -> attn.out``."""

    def make(*, fused=False, cast=False):
        dump = hand_made()
        norm = dump.operator("norm", "layer_norm", {"content": "ids"}, content="normed")
        if fused:
            mixed = dump.operator("attn", "sdpa", norm, content="other")
        else:
            scores = dump.operator("attn", "matmul", norm)
            mixed = dump.operator("attn", "bmm", dump.operator("attn", "softmax", scores), content="mixed")
        if cast:
            mixed = dump.operator("attn", "cat", mixed, content="other")
        moved = dump.operator("attn", "transpose", mixed, movement=True, content=mixed.outputs[0].content)
        out = dump.operator("attn.out", "linear", moved)
        dump.module("attn.out", moved, content=out.outputs[0].content)
        dump.module("attn", norm, content=out.outputs[0].content)
        dump.module("", {"content": "ids"}, content=out.outputs[0].content)
        return dump

    return make


COVERED = {f"attn / {operator}": "covered" for operator in ("matmul", "softmax", "bmm")}
FAILING = dict.fromkeys(["attn.out / linear", "attn.out", "attn", "(model)"], "fail")


def test_an_innocent_follower_of_what_has_no_partner_is_not_the_suspect(attention, judge_calls):
    region = locate(attention(), attention(fused=True), judge_calls, COVERED | FAILING)
    assert region.start == "attn"
    (suspect,) = region.suspects
    assert suspect.after == ("norm / layer_norm",)
    assert suspect.between_reference == ("attn / matmul", "attn / softmax", "attn / bmm")
    assert "attn / sdpa" in suspect.between_target
    assert suspect.why.startswith("the error starts between norm / layer_norm, which agrees, and input 0 of attn.out / linear")
    assert "on the reference attn / matmul, attn / softmax, attn / bmm, on the target" in suspect.why
    assert region.roles["attn.out/linear.0/forward.output.0"] == "inherits"
    assert region.roles["attn/forward.output.0"] == "introduces"


def test_what_ran_without_a_partner_inside_a_module_that_begins_to_fail_is_named(hand_made, judge_calls):
    def make(*operators, content):
        dump = hand_made()
        norm = dump.operator("norm", "layer_norm", {"content": "ids"}, content="normed")
        inner = dump.operator("attn", "linear", norm, content="projected")
        for operator in operators:
            inner = dump.operator("attn", operator, inner, content=f"{operator} {content}")
        dump.module("attn", norm, content=content)
        return dump

    sides = make("softmax", content="one"), make("fused", content="two")
    measures, judged = judge_calls(sides[0], {"attn / softmax": "covered", "attn": "fail"})
    judged.append(Judged("attn/fused.0/forward.output.0", "covered"))
    (suspect,) = localize(*sides, measures, judged).suspects
    assert (suspect.name, suspect.after) == ("attn", ("attn / linear",))
    assert (suspect.between_reference, suspect.between_target) == (("attn / softmax",), ("attn / fused",))
    assert suspect.why.endswith(
        "the error starts between attn / linear, which agrees, and output 0 of attn, which does not; "
        "in between: on the reference attn / softmax, on the target attn / fused"
    )


def test_what_ran_inside_a_module_that_is_named_already_is_not_named_again_by_what_takes_it(hand_made, judge_calls):
    def make(*, skipped=False):
        dump = hand_made()
        norm = dump.operator("norm", "layer_norm", {"content": "ids"}, content="normed")
        query = norm if skipped else dump.operator("attn.q", "linear", norm, content="projected")
        dump.module("attn.q", norm, content=query.outputs[0].content)
        view = dump.operator("attn", "view", query, movement=True, content=query.outputs[0].content)
        scores = dump.operator("attn", "matmul", view, content="other" if skipped else "scores")
        dump.module("attn", norm, content=scores.outputs[0].content)
        return dump

    failing = dict.fromkeys(["attn.q", "attn / matmul", "attn"], "fail")
    region = locate(make(), make(skipped=True), judge_calls, {"attn.q / linear": "covered"} | failing)
    assert [suspect.name for suspect in region.suspects] == ["attn.q"]
    assert region.roles["attn/matmul.0/forward.output.0"] == "inherits"


def test_a_call_of_the_target_alone_lies_in_between_too(attention, judge_calls):
    statuses = FAILING | {"attn.out": "pass", "attn": "pass", "(model)": "pass"}
    region = locate(attention(), attention(cast=True), judge_calls, statuses, equal={"attn / bmm"})
    (suspect,) = region.suspects
    assert suspect.name == "attn / transpose" or "attn / cat" in suspect.between_target
    assert region.roles["attn.out/linear.0/forward.output.0"] == "inherits"


def test_inputs_that_agree_leave_the_call_under_suspicion(attention, judge_calls):
    region = locate(attention(), attention(), judge_calls, COVERED | FAILING, equal={"attn / transpose"})
    assert region.start == "attn.out / linear"
    assert region.suspects[0].why.startswith("its inputs are equal bit for bit")


def test_agreement_is_said_only_of_inputs_that_were_compared(hand_made, judge_calls):
    def make(content):
        dump = hand_made()
        dump.operator("b", "linear", dump.operator("a", "relu", content=content))
        return dump

    reference, target = make("close"), make("closer")
    statuses = {"a / relu": "not_judged", "b / linear": "fail"}
    compared = locate(reference, target, judge_calls, statuses)
    assert compared.suspects[0].why.startswith("its inputs agree")
    unknown = localize(reference, target, *judge_calls(reference, statuses))
    assert unknown.suspects[0].why.startswith("its inputs may agree")


def test_movement_is_blamed_where_its_inputs_agree_without_being_equal(hand_made, judge_calls):
    def make(first, moved):
        dump = hand_made()
        start = dump.operator("a", "linear", content=first)
        dump.operator("b", "matmul", dump.operator("a", "transpose", start, movement=True, content=moved))
        return dump

    region = locate(make("close", "one"), make("closer", "two"), judge_calls, {"b / matmul": "fail"})
    assert region.start == "a / transpose"
    assert "input 0 of b / matmul does not: it puts the values elsewhere" in region.suspects[0].why
    assert region.roles["b/matmul.0/forward.output.0"] == "inherits"


def test_accumulated_rounding_behind_movement_stays_accumulated(hand_made, judge_calls):
    def make(first, moved):
        dump = hand_made()
        start = dump.operator("a", "linear", content=first)
        dump.operator("b", "matmul", dump.operator("a", "transpose", start, movement=True, content=moved))
        return dump

    sides = make("close", "one"), make("closer", "two")
    region = locate(*sides, judge_calls, {"b / matmul": "fail"}, shares={"a / linear": 0.9, "b / matmul": 1.2}, ratio=1.1)
    assert region.start == "b / matmul"
    assert "accumulated" in region.suspects[0].why


@pytest.fixture
def first_layer(hand_made):
    """Return a function that makes one side of a first layer: a tensor that no recorded call made arrives at its backward."""

    def make(arriving, *, around=True):
        dump = hand_made()
        dump.module("fc", {"content": "ids"}, shape=(2, 5))
        backward = dump.module("fc", {"content": arriving, "shape": (2, 9)}, phase="backward")
        dump.made[-1] = msgspec.structs.replace(backward, outputs=())  # no gradient leaves a first layer
        for name in ("weight", "bias"):
            gradient = dump.module("fc", phase="gradient", content=f"{name} {arriving}")
            output = gradient.outputs[0]
            dump.made[-1] = msgspec.structs.replace(gradient, outputs=(msgspec.structs.replace(output, index=name),))
        if around:
            dump.module("", {"content": "loss"}, phase="backward")
        return dump

    return make


def judge_first_layer(dump, *, around):
    judged = []
    for call in dump.made:
        is_bad = call.phase == "gradient" or (around and call.phase == "backward" and not call.module)
        judged += [Judged(one.text, "fail" if is_bad else "pass", ratio=5.0 if is_bad else 0.1) for one in call.outputs]
    return judged


@pytest.mark.parametrize(("around", "start"), [(True, "(model) (backward)"), (False, "fc.weight (gradient)")])
def test_the_gradients_of_a_first_layer_inherit_what_arrived_at_its_backward(first_layer, around, start):
    reference, target = first_layer("one", around=around), first_layer("two", around=around)

    def judge_input(left, right):
        return Judged(left.text, "pass" if left.content == right.content else "fail", ratio=7.0)

    region = localize(reference, target, [], judge_first_layer(reference, around=around), judge_input)
    assert [suspect.name for suspect in region.suspects] == [start]
    assert "input 0 of fc" in region.suspects[0].why
    assert "does not agree" in region.suspects[0].why
    assert region.roles["fc/gradient.output.bias"] == "inherits"


def test_a_write_that_the_target_alone_makes_is_named_and_not_the_movement_behind_it(hand_made, judge_calls):
    """A row of a cache is set to zero between ``cat`` and attention; data movement is not judged, so only pairing shows it."""

    def make(*, writes):
        dump = hand_made()
        keys = dump.operator("attn", "cat", {"content": "ids"}, content="keys", movement=True)
        if writes:
            keys = dump.operator("attn", "setitem", keys, content="written", movement=True)
            dump.made[-1] = msgspec.structs.replace(dump.made[-1], site="cache.py:9 in forward")
        moved = dump.operator("attn", "transpose", keys, content=keys.outputs[0].content, movement=True)
        dump.operator("attn", "matmul", moved, content=f"mixed {writes}")
        dump.module("attn", {"content": "ids"}, content=f"mixed {writes}")
        return dump

    failing = {"attn / matmul": "fail", "attn": "fail"}
    region = locate(make(writes=False), make(writes=True), judge_calls, failing, equal=["attn / cat"])
    (suspect,) = region.suspects
    assert (suspect.name, suspect.between_reference, suspect.between_target) == ("attn", (), ("attn / setitem",))
    assert suspect.site == "cache.py:9 in forward"
    assert suspect.why.endswith("in between: on the target attn / setitem")
    assert "transpose" not in suspect.why


def test_who_reads_a_mask_that_the_target_alone_changes_is_innocent(hand_made, judge_calls):
    """A router that drops tokens: truth values have no limit, and ``where`` was said to be given other labels, certain."""

    def make(*, drops):
        dump = hand_made()
        mask = dump.operator("router", "eq", {"content": "ids"}, content="chosen", dtype="bool")
        if drops:
            mask = dump.operator("router", "bitwise_and", mask, content="fewer", dtype="bool")
        dump.operator("router", "where", mask, content=f"rows {drops}", dtype="int64")
        dump.module("router", {"content": "ids"}, content=f"out {drops}")
        return dump

    region = locate(make(drops=False), make(drops=True), judge_calls, {"router / where": "shape", "router": "fail"})
    (suspect,) = region.suspects
    assert (suspect.name, suspect.between_target, suspect.outside) == ("router", ("router / bitwise_and",), "")
