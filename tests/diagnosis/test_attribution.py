"""Suspects after float64: all that introduce an error, none that computes rightly what it was given."""

import math
from dataclasses import replace

import pytest

from precflow.diagnosis.attribution import Attribution, attribute
from precflow.diagnosis.calls_differ import find_different_calls
from precflow.diagnosis.evaluation import PairedCall, name_call
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.introduced import IntroducedError
from precflow.diagnosis.localize import localize
from precflow.judgement.verdicts import Judged, Verdict


def found(call, *, fault, share=None, note=""):
    share = share or (10.0 if fault else 0.1)
    return IntroducedError(name_call(call), "0", "other", 8 * share, share, "rho", is_fault=fault, note=note, eta_target=1e-5)


@pytest.fixture
def conclude(judge_calls):
    """Localize by first divergence, then attribute; every operator but those of ``unseen`` was evaluated."""

    def run(dump, statuses, faults, *, target=None, unseen=(), verdict="misaligned"):
        measures, judged = judge_calls(dump, statuses)
        other = target or dump
        region = localize(dump, other, measures, judged)
        calls = [call for call in dump.made if call.operator and call.name not in unseen]
        pairs = [PairedCall(name_call(call), call, call) for call in dump.made]
        theirs = {name_call(call): call for call in other.made}
        both = [PairedCall(pair.name, pair.reference, theirs[pair.name]) for pair in pairs if pair.name in theirs]
        return attribute(
            build_graph(dump.calls()),
            Attribution(region, judged, Verdict(verdict)),
            pairs=pairs,
            found=[found(call, fault=call.name in faults) for call in calls],
            different=find_different_calls(both, dump.calls(), other.calls(), same_dtype=True),
        )

    return run


def chain(dump, *names):
    stream = dump.operator(names[0], "linear", {"content": "x"})
    for name in names[1:]:
        stream = dump.operator(name, "linear", stream)
    return dump


def names(attribution):
    return [suspect.name for suspect in attribution.region.suspects]


def test_a_second_fault_behind_the_first_is_named_too(hand_made, conclude):
    dump = chain(hand_made(), "a", "b", "c", "d")
    statuses = {f"{name} / linear": "fail" for name in "abcd"}
    assert names(conclude(dump, statuses, {"a / linear", "c / linear"})) == ["a / linear", "c / linear"]


def test_the_fault_of_an_earlier_step_comes_first_though_its_step_makes_more_calls_before_it(hand_made, conclude):
    dump = hand_made()
    dump.operator("loss", "ctc_loss", {"content": "x"}, order=20)  # behind calls that prepare the first batch
    dump.operator("loss", "ctc_loss", {"content": "y"}, order=10, step=1)
    names_of = [call.name for call in dump.made]
    attribution = conclude(dump, dict.fromkeys(names_of, "fail"), set(names_of))
    assert names(attribution) == ["loss / ctc_loss", "loss / ctc_loss (step 1)"]
    assert attribution.region.start == "loss / ctc_loss"
    reason = "2 operator calls introduce an error that rounding does not explain, first loss / ctc_loss"
    assert reason in attribution.verdict.reasons


@pytest.mark.parametrize(("ratio", "first"), [(100.0, "(outside) / maximum"), (1.5, "(outside) / div")])
def test_another_tensor_from_outside_leads_a_number_that_the_script_makes_of_it(hand_made, ratio, first):
    """Boxes differ, so that the script counts other matches and divides the loss by another number."""
    dump = hand_made()
    boxes = dump.operator("(outside)", "maximum", {"content": "boxes"})
    loss = dump.operator("(outside)", "div", {"content": "loss"})
    suspect = Suspect.of(boxes, boxes.outputs[0].text, ratio, "its input 0 differs, which no recorded call made")
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(
            Region(suspect.name, (replace(suspect, given=boxes.inputs[0].text),), {}),
            [Judged(one.outputs[0].text, "fail", ratio=ratio) for one in dump.made],
            Verdict("misaligned"),
        ),
        pairs=[PairedCall(name_call(one), one, one) for one in dump.made],
        found=[found(loss, fault=True)],
        different=[],
    )
    assert names(attribution)[0] == first


@pytest.mark.parametrize("ratio", [35.0, 1.5])
def test_what_goes_far_wrong_in_an_earlier_step_leads_a_call_of_a_later_one(hand_made, ratio):
    """An optimizer of a class that is not computed again moves a weight otherwise; the next step reads it."""
    dump = hand_made()
    moved = dump.module("tags", {"content": "gradient"}, phase="optimizer", order=9)
    read = dump.operator("tags", "embedding_bag", {"content": "words"}, order=0, step=1)
    suspect = Suspect.of(moved, moved.outputs[0].text, ratio, "its inputs agree and its output does not")
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(
            Region(suspect.name, (suspect,), {}),
            [Judged(one.outputs[0].text, "fail", ratio=ratio) for one in dump.made],
            Verdict("misaligned"),
        ),
        pairs=[PairedCall(name_call(one), one, one) for one in dump.made],
        found=[found(read, fault=True)],
        different=[],
    )
    assert names(attribution)[0] == (moved.name if ratio > 16 else read.name)


def test_a_call_of_another_type_leads_what_is_wrong_behind_it(hand_made):
    """Under autocast on the target alone, float64 finds an error first where a gradient is added up otherwise."""
    dump = hand_made()
    narrow = dump.operator("conv", "conv2d", {"content": "picture"})
    behind = dump.operator("act", "relu", {"content": "gradient"})
    suspect = Suspect.of(narrow, narrow.outputs[0].text, 0.0, "its output has another dtype than the recipe implies")
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(
            Region(suspect.name, (suspect,), {}),
            [Judged(narrow.outputs[0].text, "dtype"), Judged(behind.outputs[0].text, "fail", ratio=3.0)],
            Verdict("misaligned"),
        ),
        pairs=[PairedCall(name_call(one), one, one) for one in dump.made],
        found=[found(behind, fault=True)],
        different=[],
    )
    assert names(attribution) == ["conv / conv2d", "act / relu"]


def test_an_innocent_first_divergence_is_cleared(hand_made, conclude):
    dump = chain(hand_made(), "a", "b", "c")
    attribution = conclude(dump, {"b / linear": "fail", "c / linear": "fail"}, {"a / linear"})
    assert names(attribution) == ["a / linear"]
    assert attribution.region.start == "a / linear"
    b, c = (call.outputs[0].text for call in dump.made[1:])
    assert attribution.region.roles[b] == attribution.region.roles[c] == "inherits"


def test_a_module_is_not_blamed_beside_its_part_whose_gradient_is_wrong(hand_made):
    """The gradient of a module's input is recorded before those of its parts, which the graph shows behind it."""
    dump = hand_made()
    whole = dump.module("block", {"content": "g"}, phase="backward")
    part = dump.module("block.head", {"content": "h"}, phase="backward", class_name="Linear")
    other = dump.module("blocks", {"content": "k"}, phase="backward")
    calls = [whole, part, other]
    suspects = tuple(Suspect(one.outputs[0].text, one.name, one.module, "", one.order, 2.0, "differs") for one in calls)
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(
            Region("block", suspects, {}),
            [Judged(one.outputs[0].text, "fail", ratio=2.0) for one in calls],
            Verdict("misaligned"),
        ),
        pairs=[PairedCall(name_call(one), one, one) for one in calls],
        found=[found(part, fault=True)],
        different=[],
    )
    assert names(attribution) == ["block.head (backward)", "blocks (backward)"]


def test_a_fault_under_every_limit_makes_the_run_misaligned(hand_made, conclude):
    dump = chain(hand_made(), "a", "b")
    attribution = conclude(dump, {}, {"b / linear"}, verdict="aligned")
    assert attribution.verdict.verdict == "misaligned"
    assert "1 operator call introduces an error that rounding does not explain, first b / linear" in attribution.verdict.reasons
    status = attribution.judged[1]
    assert (status.status, status.metric, status.ratio, status.limit) == ("fail", "introduced_error", 10.0, 8.0)


def test_movement_that_moves_wrongly_fails_by_its_bits_and_a_lost_mask_by_its_places(hand_made, judge_calls):
    dump = chain(hand_made(), "a", "b")
    _, judged = judge_calls(dump, {})
    pairs = [PairedCall(name_call(call), call, call) for call in dump.made]
    found = [
        IntroducedError(pair.name, "0", "other", math.inf, math.inf, measure, is_fault=True)
        for pair, measure in zip(pairs, ("movement", "misplaced"), strict=True)
    ]
    final = attribute(
        build_graph(dump.calls()), Attribution(Region(), judged, Verdict("aligned")), pairs=pairs, found=found, different=[]
    )
    assert [(one.status, one.metric) for one in final.judged] == [("fail", "bitwise_equal"), ("nonfinite", "")]


def test_a_clean_run_stays_as_it_is(hand_made, conclude):
    attribution = conclude(chain(hand_made(), "a", "b"), {}, set(), verdict="aligned")
    assert (attribution.verdict.verdict, attribution.region.suspects) == ("aligned", ())
    assert [one.status for one in attribution.judged] == ["pass", "pass"]


def test_a_suspect_that_could_not_be_evaluated_stays_unless_a_fault_leads_to_it(hand_made, conclude):
    dump = chain(hand_made(), "a", "b")
    dump.operator("other", "fused", {"content": "y", "shape": (9, 9)})  # of another shape: nobody guesses an edge
    statuses = {"b / linear": "fail", "other / fused": "fail"}
    assert names(conclude(dump, statuses, {"a / linear"}, unseen={"b / linear", "other / fused"})) == [
        "a / linear",
        "other / fused",
    ]


def test_a_fault_in_the_forward_explains_the_gradients_and_not_the_reverse(hand_made, conclude):
    dump = hand_made()
    dump.operator("a", "linear", {"content": "x"})
    dump.module("a", {"content": "g", "shape": (7, 7)}, phase="backward")
    forward, backward = (call.name for call in dump.made)
    assert names(conclude(dump, {forward: "fail", backward: "fail"}, {forward})) == [forward]
    assert names(conclude(dump, {backward: "fail"}, set())) == [backward]


def test_where_nothing_explains_the_difference_the_first_divergence_is_shown_with_what_is_known(hand_made, conclude):
    attribution = conclude(chain(hand_made(), "a", "b"), {"b / linear": "fail"}, set())
    assert names(attribution) == ["b / linear"]
    assert "at its own inputs it computes rightly" in attribution.region.suspects[0].why


def test_other_labels_are_named_though_the_loss_computes_rightly_and_explain_the_backward(hand_made, conclude):
    reference, target = hand_made(), hand_made()
    for dump, labels in ((reference, "one"), (target, "two")):
        stream = dump.operator("a", "linear", {"content": "x"})
        dump.operator("loss", "cross_entropy", stream, {"content": labels, "dtype": "int64"})
        dump.module("a", {"content": "x"})
        dump.module("a", {"content": "g", "shape": (7, 7)}, phase="backward")
    backward = reference.made[-1].name
    attribution = conclude(reference, {"loss / cross_entropy": "fail", backward: "fail"}, set(), target=target)
    assert names(attribution) == ["loss / cross_entropy"]
    assert attribution.region.suspects[0].outside == "input 1"


def test_an_accepted_operator_is_not_blamed_and_a_fault_behind_it_is(hand_made, conclude):
    dump = chain(hand_made(), "a", "b", "c")
    attribution = conclude(dump, {"a / linear": "accepted", "c / linear": "fail"}, {"a / linear", "c / linear"})
    assert names(attribution) == ["c / linear"]
    assert attribution.judged[0].status == "accepted"


def test_a_whole_class_is_told_as_one(hand_made, conclude):
    dump = chain(hand_made(), "a", "b", "c")
    attribution = conclude(dump, {}, {"a / linear", "b / linear", "c / linear"})
    assert "all 3 calls of linear" in attribution.region.suspects[0].why
    assert any("the kind is at fault" in note for note in attribution.region.notes)


def test_a_skipped_call_is_named_by_where_its_taker_gets_its_input_from(hand_made, conclude):
    def build(*, skipped):
        dump = hand_made()
        first = dump.operator("a", "linear", {"content": "x"})
        second = dump.operator("b", "linear", first)
        dump.operator("c", "linear", first if skipped else second)
        return dump

    attribution = conclude(build(skipped=False), {"c / linear": "fail"}, set(), target=build(skipped=True))
    assert names(attribution) == ["c / linear"]
    why = attribution.region.suspects[0].why
    assert "its input 0 comes from b / linear on the reference, and from a / linear on the target" in why


def test_another_argument_is_named_where_the_sides_differ_and_not_where_they_agree(hand_made, conclude):
    def build(eps):
        dump = hand_made()
        dump.operator("norm", "layer_norm", {"content": "x"}, arguments={"eps": eps})
        return dump

    one, other = build("1e-05"), build("0.001")
    assert "eps: 1e-05 / 0.001" in conclude(one, {"norm / layer_norm": "fail"}, set(), target=other).region.suspects[0].why
    assert names(conclude(one, {}, set(), target=other, verdict="aligned")) == []


@pytest.mark.parametrize("gradient", ["fail", "pass"])
def test_another_argument_is_named_in_the_first_step_that_it_spoils(hand_made, conclude, gradient):
    """Under autocast a loss of another exponent may be within its limit in the first step, and its gradients are not."""

    def build(exponent):
        dump = hand_made()
        for step in (0, 1):
            dump.operator("(outside)", "pow", {"content": "x"}, arguments={"1": exponent}, step=step)
            dump.module("head", {"content": f"g{step}"}, phase="backward", step=step)
        return dump

    statuses = {"head (backward)": gradient, "head (backward, step 1)": "fail", "(outside) / pow (step 1)": "fail"}
    attribution = conclude(build("2.0"), statuses, set(), target=build("1.5"))
    first = "(outside) / pow" if gradient == "fail" else "(outside) / pow (step 1)"
    assert attribution.region.start == first
    assert "argument 1: 2.0 / 1.5" in attribution.region.suspects[0].why


def test_a_wrong_call_with_another_argument_is_named_once(hand_made):
    """As a step of Adam with other betas: its weight is wrong by what was evaluated, its state is over a limit."""

    def build(rate):
        dump = hand_made()
        return dump, dump.operator("a", "step", {"content": "x"}, returns=2, arguments={"rate": rate})

    (dump, call), (_, other) = build("1"), build("2")
    pair = PairedCall(name_call(call), call, other)
    first, second = (record.text for record in call.outputs)
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(
            Region("a / step", (Suspect(second, "a / step", "a", "step", 0, 5.0, "its inputs agree"),), {}),
            [Judged(first, "pass"), Judged(second, "fail")],
            Verdict("misaligned"),
        ),
        pairs=[pair],
        found=[found(call, fault=True)],
        different=find_different_calls([pair], [call], [other], same_dtype=True),
    )
    assert [one.record for one in attribution.region.suspects] == [first]


def test_an_output_that_was_not_evaluated_is_not_cleared_by_another_one(hand_made):
    dump = hand_made()
    call = dump.operator("a", "topk", {"content": "x"}, returns=2)
    right, wrong = (record.text for record in call.outputs)
    for failing, left in ((wrong, "its inputs agree"), (right, "its inputs agree; but at its own inputs it computes rightly")):
        region = Region("a / topk", (Suspect(failing, "a / topk", "a", "topk", 0, 5.0, "its inputs agree"),), {})
        judged = [Judged(right, "pass"), Judged(wrong, "pass")]
        attribution = attribute(
            build_graph(dump.calls()),
            Attribution(region, judged, Verdict("misaligned")),
            pairs=[PairedCall(name_call(call), call, call)],
            found=[found(call, fault=False)],  # of output 0 alone
            different=[],
        )
        assert [one.why for one in attribution.region.suspects] == [left]


def test_another_argument_names_the_output_that_fails(hand_made):
    sides = [hand_made(), hand_made()]
    for dump, k in zip(sides, ("2", "3"), strict=True):
        dump.operator("a", "topk", {"content": "x"}, returns=2, arguments={"k": k})
    here, there = (dump.made[0] for dump in sides)
    pair = PairedCall(name_call(here), here, there)
    judged = [Judged(here.outputs[0].text, "pass"), Judged(here.outputs[1].text, "fail", ratio=3.0)]
    attribution = attribute(
        build_graph(sides[0].calls()),
        Attribution(Region(), judged, Verdict("misaligned")),
        pairs=[pair],
        found=[],
        different=find_different_calls([pair], sides[0].calls(), sides[1].calls(), same_dtype=True),
    )
    assert [(one.record, one.ratio) for one in attribution.region.suspects] == [(here.outputs[1].text, 3.0)]


def test_a_target_of_nan_alone_fails_by_its_places(hand_made, judge_calls):
    dump = chain(hand_made(), "a")
    call = dump.made[0]
    misplaced = IntroducedError(name_call(call), "0", "other", math.inf, math.inf, "misplaced", is_fault=True)
    measures, judged = judge_calls(dump, {"a / linear": "blind"})  # NaN on both sides alone would be blind
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(localize(dump, dump, measures, judged), judged, Verdict("aligned")),
        pairs=[PairedCall(name_call(call), call, call)],
        found=[misplaced],
        different=[],
    )
    assert (attribution.verdict.verdict, attribution.judged[0].status) == ("misaligned", "nonfinite")


def test_a_reference_that_is_off_from_float64_is_noted(hand_made, judge_calls):
    dump = chain(hand_made(), "a", "b")
    measures, judged = judge_calls(dump, {})
    off = [replace(found(call, fault=False), is_reference_off=True) for call in dump.made]
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(localize(dump, dump, measures, judged), judged, Verdict("aligned")),
        pairs=[PairedCall(name_call(call), call, call) for call in dump.made],
        found=off,
        different=[],
    )
    assert attribution.region.notes[0].startswith("a / linear, and 1 more calls: the reference itself is off from float64")


DRIFT = {"standard": "calibrated", "ratio": 1.2}


@pytest.fixture
def drift(hand_made):
    """Return a function that attributes a run of which one record is a little over its limit behind inputs near theirs."""

    def run(*, use=0.9, standards=("calibrated",), fault=False, evaluated=True, own=1e-5, **changes):
        dump = chain(hand_made(), "a", "b")
        calls = dump.made
        record = calls[1].outputs[0].text
        judged = [Judged(calls[0].outputs[0].text, "pass"), Judged(record, "fail", **{**DRIFT, **changes})]
        suspect = Suspect(record, "b / linear", "b", "linear", 1, 1.2, "accumulated", inputs_use=use)
        return attribute(
            build_graph(dump.calls()),
            Attribution(
                Region("b / linear", (suspect,), {record: "introduces"}),
                judged,
                Verdict("misaligned", ("1 record exceeds its limit",), standards=dict.fromkeys(standards, False)),
            ),
            pairs=[PairedCall(name_call(call), call, call) for call in calls],
            found=[
                found(calls[0], fault=False),
                *([replace(found(calls[1], fault=fault), eta_target=own)] if evaluated else []),
            ],
            different=[],
            guessed=("calibrated",),
        )

    return run


LITTLE = {"use": 0.3, "floor": 1e-6, "ratio": 3.0, "metric": "relative_l2", "value": 9e-6}


def test_what_came_with_the_inputs_over_a_measured_limit_is_undecided_though_they_use_little(drift):
    """The cosine of a large angle makes much of little, and three disturbed runs of a few elements do not show how much."""
    attribution = drift(**LITTLE, own=2e-6)
    assert (attribution.verdict.verdict, attribution.region.suspects) == ("inconclusive", ())
    for other in ({"own": 3e-6}, {"floor": None}, {"ratio": 4.5}, {"evaluated": False}, {"own": 0.0}):
        assert drift(**{**LITTLE, "own": 2e-6, **other}).verdict.verdict == "misaligned"
    # One element of n may be off by sqrt(n) times what the whole is.
    elements = {**LITTLE, "metric": "max_rms_error", "own": 2e-6}
    assert drift(**elements).verdict.verdict == "misaligned"
    assert drift(**{**elements, "value": 9e-5}).verdict.verdict == "inconclusive"


def test_accumulated_rounding_over_a_guessed_limit_is_undecided_and_blames_nobody(drift):
    attribution = drift()
    assert (attribution.verdict.verdict, attribution.region.suspects, attribution.region.start) == ("inconclusive", (), "")
    assert attribution.verdict.reasons[0].startswith("1 record exceeds a fixed limit by less than 4 times, and no operator")
    assert [one.status for one in attribution.judged] == ["pass", "undecided"]


def test_rounding_that_goes_one_way_adds_up_beyond_a_measured_floor(drift):
    attribution = drift(floor=1e-6, ratio=1.5)
    assert (attribution.verdict.verdict, attribution.region.suspects) == ("inconclusive", ())
    assert "exceeds its measured limit by less than 4 times" in attribution.verdict.reasons[0]
    assert "an accumulator that truncates" in attribution.verdict.reasons[0]


@pytest.fixture
def drift_of_gradient(hand_made):
    """Return a function that attributes a run whose gradient is over its measured limit, and its forward too or not."""

    def run(*, gradient, forward, evaluated=False):
        dump = chain(hand_made(), "a", "b")
        call, bias = dump.made[1], dump.module("b", {"content": "g"}, phase="gradient")
        both = [(call, forward, 0.9), (bias, gradient, 0.1)]
        suspects = tuple(
            Suspect(one.outputs[0].text, one.name, "b", one.operator, one.order, ratio, "", inputs_use=use)
            for one, ratio, use in both
            if ratio > 1
        )
        return attribute(
            build_graph(dump.calls()),
            Attribution(
                Region("b", suspects, {one.record: "introduces" for one in suspects}),
                [
                    Judged(one.outputs[0].text, "fail" if ratio > 1 else "pass", standard="calibrated", ratio=ratio, floor=1e-2)
                    for one, ratio, _ in both
                ],
                Verdict("misaligned", standards={"calibrated": False}),
            ),
            pairs=[PairedCall(name_call(one), one, one) for one in (call, bias)],
            found=[found(call, fault=False), *([found(bias, fault=False)] if evaluated else [])],
            different=[],
            guessed=("calibrated",),
        )

    return run


def test_a_gradient_inherits_what_goes_beyond_the_floor_of_a_forward_and_no_more(drift_of_gradient):
    assert drift_of_gradient(gradient=2.0, forward=3.0).verdict.verdict == "inconclusive"
    assert drift_of_gradient(gradient=3.1, forward=3.0).verdict.verdict == "misaligned"


def test_a_gradient_beyond_its_floor_behind_a_forward_that_agrees_is_a_failure(drift_of_gradient):
    attribution = drift_of_gradient(gradient=2.0, forward=0.2)
    assert (attribution.verdict.verdict, len(attribution.region.suspects)) == ("misaligned", 1)


def test_a_gradient_a_little_beyond_its_floor_is_undecided_if_it_is_right_in_place(drift_of_gradient):
    attribution = drift_of_gradient(gradient=2.0, forward=0.2, evaluated=True)
    assert (attribution.verdict.verdict, attribution.region.suspects) == ("inconclusive", ())
    assert drift_of_gradient(gradient=4.1, forward=0.2, evaluated=True).verdict.verdict == "misaligned"


@pytest.mark.parametrize(
    "other",
    [
        {"use": 0.3},  # its inputs are far from their limits: it starts here
        {"ratio": 5.0},
        {"floor": 1e-6, "ratio": 9.0},
        {"floor": 1e-6, "evaluated": False},
        {"standard": "default"},  # somebody has chosen it
        {"standards": ("calibrated", "default")},
        {"fault": True},
        {"evaluated": False},  # it may be wrong by as much, and nobody has looked
    ],
)
def test_what_is_more_than_that_stays_a_failure(drift, other):
    attribution = drift(**other)
    assert attribution.verdict.verdict == "misaligned"
    assert names(attribution) == ["b / linear"]
    assert attribution.judged[1].status == "fail"


@pytest.mark.parametrize("is_wrong_forward", [True, False])
def test_the_gradients_of_another_function_are_not_named_beside_it(hand_made, is_wrong_forward):
    dump = hand_made()
    dump.operator("norm", "layer_norm", {"content": "x"})
    dump.module("norm", {"content": "g"}, phase="backward", class_name="LayerNorm")
    dump.module("act", {"content": "h"}, phase="backward", class_name="GELU")
    pairs = [PairedCall(name_call(call), call, call) for call in dump.made]
    attribution = attribute(
        build_graph(dump.calls()),
        Attribution(Region(), [], Verdict("aligned")),
        pairs=pairs,
        found=[found(call, fault=is_wrong_forward or not call.operator) for call in dump.made],
        different=[],
    )
    own = ["norm / layer_norm"] if is_wrong_forward else ["norm (backward)"]
    assert names(attribution) == [*own, "act (backward)"]
