"""Choices that differ: near ties, faults, and what depends on them, on hand-made dumps of a router with two experts."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from precflow.diagnosis.choices import MARGIN, find_dependent, make_settler
from precflow.judgement.floors import Floor
from precflow.judgement.verdicts import Judged

SCORES = np.array([[0.3, 0.7, 0.1], [0.5, 0.49999, 0.1]], np.float32)
NEARER = np.array([[0.3, 0.7, 0.1], [0.49999, 0.5, 0.1]], np.float32)  # the second row's winner is another one


def forward(hand_made, make_header, scores, *, chosen=None, rows=None, extra=False, given=()):
    """Return a dump: scores -> argmax -> a module that returns it, an expert that gets the rows, and a norm of the scores."""
    dump = hand_made(header=replace(make_header(), determinism={"choices_given": list(given)} if given else {}))
    probabilities = dump.operator("gate", "softmax", {"value": scores}, value=scores)
    picked = scores.argmax(-1) if chosen is None else chosen
    index = dump.operator("gate", "argmax", probabilities, value=picked, arguments={"dim": "-1"})
    dump.module("gate", {"value": scores}, value=picked)
    taken = np.flatnonzero(picked == 1).astype(np.float32) if rows is None else rows
    expert = dump.operator("expert", "linear", index, value=taken)
    if extra:
        dump.operator("expert", "relu", expert, value=taken)
    dump.operator("norm", "layer_norm", probabilities, value=scores * 2)
    dump.operator("out", "add", expert, value=np.float32([taken.sum()]))
    return dump


@pytest.fixture
def settle(hand_made, make_header, judge_calls):
    """Return a function that settles the choices of two such dumps: name of each call -> its status and reason."""

    def run(statuses, *, inputs="pass", reference=None, target=None, keep=True, floors=None):
        sides = [
            forward(hand_made, make_header, scores, **(given or {}))
            for scores, given in ((SCORES, reference), (NEARER, target))
        ]
        if not keep:
            for side in sides:
                side.made = [
                    msgspec.structs.replace(
                        call, inputs=tuple(msgspec.structs.replace(one, stored=False) for one in call.inputs)
                    )
                    for call in side.made
                ]
        measures, judged = judge_calls(sides[0], statuses)
        measures = [replace(measure, exact=measure.name in {"gate / argmax", "gate"}) for measure in measures]
        settler = make_settler(*sides, lambda left, right: Judged(left.text, inputs), floors)
        return {measure.name: record for measure, record in zip(measures, settler(measures, judged), strict=True)}

    return run


FLIPPED = {"gate / argmax": "fail", "gate": "fail", "expert / linear": "shape", "out / add": "fail"}


def test_a_near_tie_is_named_and_what_depends_on_it_is_not_comparable(settle):
    settled = settle(FLIPPED)
    tie = settled["gate / argmax"]
    assert (tie.status, tie.metric) == ("near_tie", MARGIN)
    assert tie.value <= tie.limit
    assert tie.ratio == pytest.approx(tie.value / tie.limit)
    assert "1 of 2 choices differs" in tie.reason
    assert settled["gate"].status == "near_tie", "the module returns the very tensor"
    expert = settled["expert / linear"]
    assert expert.status == "not_comparable"
    assert expert.reason.startswith("depends on the near tie at gate / argmax")
    assert settled["out / add"].status == "not_comparable"
    assert (settled["gate / softmax"].status, settled["norm / layer_norm"].status) == ("pass", "pass")


def test_what_agrees_behind_a_near_tie_keeps_its_status(settle):
    assert settle({**FLIPPED, "out / add": "pass"})["out / add"].status == "pass"


def test_what_does_not_depend_on_a_near_tie_keeps_its_fault(settle):
    assert settle({**FLIPPED, "norm / layer_norm": "fail"})["norm / layer_norm"].status == "fail"


def test_another_type_behind_a_near_tie_stays_a_fault(settle):
    assert settle({**FLIPPED, "out / add": "dtype"})["out / add"].status == "dtype"


def test_a_flip_of_values_that_are_far_apart_is_a_fault_with_all_behind_it(settle):
    settled = settle(FLIPPED, target={"chosen": np.array([2, 1])})
    assert settled["gate / argmax"].status == "fail"
    assert "beyond their noise" in settled["gate / argmax"].reason
    assert (settled["expert / linear"].status, settled["out / add"].status) == ("shape", "fail")


def test_a_flip_behind_a_fault_is_a_fault(settle):
    settled = settle({**FLIPPED, "gate / softmax": "fail"}, inputs="fail")
    assert settled["gate / argmax"].status == "fail"
    assert settled["expert / linear"].status == "shape"


def test_a_flip_behind_an_accepted_difference_is_a_near_tie(settle):
    assert settle({**FLIPPED, "gate / softmax": "accepted"}, inputs="fail")["gate / argmax"].status == "near_tie"


def test_a_choice_whose_values_were_not_kept_is_undecided(settle):
    settled = settle(FLIPPED, keep=False)
    assert settled["gate / argmax"].status == "undecided"
    assert "the values chosen between were not kept" in settled["gate / argmax"].reason
    assert settled["expert / linear"].status == "not_comparable"
    assert "the undecided choice at gate / argmax" in settled["expert / linear"].reason


def test_without_a_choice_that_differs_nothing_is_touched(settle):
    settled = settle({"norm / layer_norm": "fail"})
    assert {record.status for record in settled.values()} == {"pass", "fail"}


def test_the_noise_floor_counts_where_the_values_themselves_are_equal(hand_made, make_header, judge_calls):
    chosen = np.array([1, 1])  # the second row's winner is 1e-5 behind
    sides = [forward(hand_made, make_header, SCORES), forward(hand_made, make_header, SCORES, chosen=chosen)]
    measures, judged = judge_calls(sides[0], FLIPPED)
    measures = [replace(measure, exact=measure.name in {"gate / argmax", "gate"}) for measure in measures]
    producer = next(record.record for measure, record in zip(measures, judged, strict=True) if measure.name == "gate / softmax")
    statuses = []
    for size in (0.0, 1e-3):
        floors = {producer: Floor(producer, {"max_rms_error": size})}
        settled = make_settler(*sides, lambda left, right: Judged(left.text, "pass"), floors)(measures, judged)
        statuses += [
            record.status for measure, record in zip(measures, settled, strict=True) if measure.name == "gate / argmax"
        ]
    assert statuses == ["fail", "near_tie"]


def test_what_a_modules_own_code_makes_depends_on_what_the_module_was_given(hand_made, make_header, judge_calls):
    """With ``capture.level=[module]`` nothing is known of the operators between a router and an activation of an expert."""

    def record_modules(picked):
        dump = hand_made(header=make_header())
        gate = dump.module("moe.gate", {"value": SCORES}, value=picked)
        taken = np.flatnonzero(picked == 1).astype(np.float32)
        dump.module("moe.experts.act", {"value": taken}, value=taken)
        dump.module("moe.experts", gate, value=np.float32([taken.sum()]))
        dump.module("norm", {"value": taken * 3}, value=taken * 3)
        return dump

    sides = [record_modules(SCORES.argmax(-1)), record_modules(NEARER.argmax(-1))]
    failing = {"moe.gate": "fail", "moe.experts.act": "shape", "moe.experts": "fail", "norm": "shape"}
    measures, judged = judge_calls(sides[0], failing)
    measures = [replace(measure, exact=measure.name == "moe.gate") for measure in measures]
    settled = make_settler(*sides, lambda left, right: Judged(left.text, "pass"))(measures, judged)
    statuses = {measure.name: record.status for measure, record in zip(measures, settled, strict=True)}
    assert statuses == {
        "moe.gate": "undecided",  # the operator that chooses was not recorded
        "moe.experts.act": "not_comparable",
        "moe.experts": "not_comparable",
        "norm": "shape",
    }


@pytest.mark.parametrize("is_flipped", [True, False])
def test_a_gradient_that_nothing_recorded_made_depends_on_the_choices_of_the_forward(
    hand_made, make_header, judge_calls, is_flipped
):
    def record_training(scores, gradient):
        dump = forward(hand_made, make_header, scores)
        dump.module("early", {"value": gradient}, value=gradient * 2, phase="backward")
        return dump

    gradient = np.float32([1.0, 2.0])
    sides = [record_training(SCORES, gradient), record_training(NEARER if is_flipped else SCORES, gradient + 1)]
    measures, judged = judge_calls(sides[0], {**(FLIPPED if is_flipped else {}), "early (backward)": "fail"})
    measures = [replace(measure, exact=measure.name in {"gate / argmax", "gate"}) for measure in measures]
    settled = make_settler(*sides, lambda left, right: Judged(left.text, "pass"))(measures, judged)
    assert settled[-1].status == ("not_comparable" if is_flipped else "fail")


def test_what_noise_sends_another_way_has_no_floor(hand_made, make_header, judge_calls):
    sides = [forward(hand_made, make_header, SCORES), forward(hand_made, make_header, NEARER)]
    measures, _ = judge_calls(sides[0], {})
    measures = [
        replace(measure, exact=True, metrics={"bitwise_equal": 0.0}) if "gate / argmax" in measure.name else measure
        for measure in measures
    ]
    names = {measure.record: measure.name for measure in measures}
    dependent = {names[record] for record in find_dependent(*sides, measures)}
    assert dependent == {"gate / argmax", "gate", "expert / linear", "out / add"}
    assert find_dependent(*sides, [replace(measure, exact=False) for measure in measures]) == set()


def test_a_choice_between_values_that_could_not_have_failed_is_blind_and_no_near_tie(settle):
    found = settle(FLIPPED, inputs="blind")
    assert found["gate / argmax"].status == "blind"
    assert "any other values would have passed as well" in found["gate / argmax"].reason
    assert found["expert / linear"].status == "not_comparable"
    assert "depends on the choice between blind values at gate / argmax" in found["expert / linear"].reason


ARGMAX = "gate/argmax.0/forward.output.0"


def test_nothing_depends_on_a_choice_in_whose_place_the_target_was_given_the_reference_s(settle):
    settled = settle({"gate / argmax": "fail", "expert / linear": "fail"}, target={"given": [ARGMAX]})
    assert settled["gate / argmax"].status == "near_tie"
    assert settled["expert / linear"].status == "fail", "it had the reference's choice, so it is a fault of its own"


def test_a_choice_beyond_the_noise_fails_although_the_reference_s_was_given(settle):
    wrong = {"given": [ARGMAX], "chosen": np.array([2, 0])}
    assert settle({"gate / argmax": "fail"}, target=wrong)["gate / argmax"].status == "fail"


def test_noise_has_a_floor_behind_a_choice_that_was_given(hand_made, make_header, judge_calls):
    reference = forward(hand_made, make_header, SCORES)
    measures = [
        replace(measure, exact=measure.name == "gate / argmax", metrics={"bitwise_equal": 0.0})
        for measure in judge_calls(reference, {})[0]
    ]
    rerouted = find_dependent(reference, forward(hand_made, make_header, NEARER), measures)
    assert {ARGMAX, "expert/linear.0/forward.output.0"} <= rerouted
    assert find_dependent(reference, forward(hand_made, make_header, NEARER, given=[ARGMAX]), measures) == set()


@pytest.mark.parametrize(
    ("moved", "cast", "kept", "expected"),
    [
        (1.9999999, np.trunc, True, "not_comparable"),
        (1.5, np.trunc, True, "fail"),  # stands out: no noise
        (2.0, lambda values: np.trunc(values) + 1, True, "fail"),  # cast wrongly
        (1.9999999, np.trunc, False, "undecided"),
    ],
)
def test_a_cast_between_two_calls_may_be_a_near_tie(hand_made, make_header, judge_calls, moved, cast, kept, expected):
    sides = []
    for value, chosen in ((2.0, np.trunc), (moved, cast)):
        dump = hand_made(header=make_header())
        values = np.concatenate([np.linspace(0.1, 0.9, 200), [value]]).astype(np.float32)
        scaled = dump.operator("bias", "mul", {"value": values}, value=values)
        buckets = chosen(values).astype(np.int64)
        given = {"source": (scaled.order, "0"), "value": buckets, "dtype": "int64", "content": str(buckets)}
        dump.operator("bias", "add", given, value=buckets + 16)
        dump.operator("bias", "embedding", given, value=buckets.astype(np.float32))
        if not kept:
            dump.made = [
                msgspec.structs.replace(call, inputs=tuple(msgspec.structs.replace(one, stored=False) for one in call.inputs))
                for call in dump.made
            ]
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {"bias / add": "fail", "bias / embedding": "fail"})
    measures = [replace(measure, exact=measure.name == "bias / add") for measure in measures]
    settled = make_settler(*sides, lambda left, right: Judged(left.text, "pass"))(measures, judged)
    statuses = {measure.name: record for measure, record in zip(measures, settled, strict=True)}
    assert [statuses[name].status for name in ("bias / mul", "bias / add", "bias / embedding")] == ["pass", expected, expected]
    if expected == "not_comparable":
        assert statuses["bias / add"].reason == "depends on the near tie at the cast of bias / mul to whole numbers"
