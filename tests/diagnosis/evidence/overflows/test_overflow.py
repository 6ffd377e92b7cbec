"""First producers of saturation, infinity and NaN, from statistics or from tensors."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from precflow import resources
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.config.schema import RunConfig
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evidence.collect import collect
from precflow.diagnosis.evidence.overflows import overflow
from precflow.diagnosis.localize import localize

RULES = load_rules([resources.directory("conf") / "rule"])
FINE = np.ones((2, 3), np.float16)
LARGE = np.full((2, 3), 7e4, np.float32)
FULL = np.array([[1, 65504, 2], [3, 4, 5]], np.float16)
INFINITE = np.array([[1, np.inf, 2], [3, 4, 5]], np.float16)
BROKEN = np.array([[np.nan, np.inf, 2], [3, 4, 5]], np.float16)
MASKED = np.array([[-65504, 1, 2], [-np.inf, 4, 5]], np.float16)


def chain(hand_made, values, *, kept="statistics", operators=()):
    """Return a dump of operators one behind the other; in detail statistics its tensors are gone."""
    dump, before = hand_made(), {"value": FINE}
    for number, value in enumerate(values):
        operator = operators[number] if operators else "mul"
        before = dump.operator(f"layers.{number}", operator, before, value=value)
    if kept == "statistics":
        dump.made = [
            msgspec.structs.replace(call, inputs=counted(dump, call.inputs), outputs=counted(dump, call.outputs))
            for call in dump.made
        ]
        dump.tensors = {}
    return dump


def counted(dump, records):
    return tuple(
        msgspec.structs.replace(
            record,
            stored=False,
            statistics=sum_tensor(dump.tensors[record.text], KeptTensor(record.dtype, record.shape)).statistics,
        )
        for record in records
    )


def found(hand_made, judge_calls, reference, target, kept="statistics", *, suspicious=True):
    sides = [chain(hand_made, values, kept=kept) for values in (reference, target)]
    measures, _ = judge_calls(sides[0], {})
    if suspicious:
        measures = [replace(one, counts={"elements": 6, "nonfinite": 1}) for one in measures]
    return overflow.gather(*overflow.trace_sides(*sides, measures))


@pytest.mark.parametrize("kept", ["statistics", "tensors"])
def test_saturation_before_infinity_before_nan_on_the_target(hand_made, judge_calls, kept):
    told = found(hand_made, judge_calls, [FINE] * 4, [FINE, FULL, INFINITE, BROKEN], kept)
    assert (told["overflow_kind"], told["overflow_starts"]) == ("saturated", "layers.1 / mul")
    assert told["overflow_ends"] == ["infinity", "nan"]
    assert told["overflow_reference"] == told["overflow_both"] == []
    assert told["overflow_target"] == [
        "layers.1 / mul: 1 at the largest value of their type",
        "layers.2 / mul: 1 infinite",
        "layers.3 / mul: 1 NaN",
    ]


def test_what_arrives_at_a_call_is_not_made_by_it(hand_made, judge_calls):
    told = found(hand_made, judge_calls, [FINE] * 3, [INFINITE, INFINITE, INFINITE])
    assert told["overflow_target"] == ["layers.0 / mul: 1 infinite"]
    dump = hand_made()
    dump.operator("a", "mul", {"value": INFINITE}, value=INFINITE)
    measures, _ = judge_calls(dump, {})
    marked = [replace(one, counts={"nonfinite": 1}) for one in measures]
    assert (
        overflow.OverflowTrace(dump, {marked[0].record, dump.made[0].inputs[0].text}).find_producers(
            overflow.OverflowTrace(dump, set())
        )
        == {}
    )


def test_both_sides_at_the_same_call(hand_made, judge_calls):
    told = found(hand_made, judge_calls, [FINE, INFINITE], [FINE, INFINITE])
    assert told["overflow_both"] == ["layers.1 / mul"]
    assert "overflow_kind" not in told
    assert found(hand_made, judge_calls, [INFINITE, FINE], [FINE, INFINITE])["overflow_both"] == []


def test_masks_are_no_overflow(hand_made, judge_calls):
    told = found(hand_made, judge_calls, [FINE, MASKED], [FINE, MASKED])
    assert (told["overflow_reference"], told["overflow_target"]) == ([], [])
    lowest = np.where(np.isinf(MASKED), -65504, MASKED)
    assert found(hand_made, judge_calls, [FINE, lowest], [FINE, MASKED])["overflow_target"] == []


def test_minus_infinity_on_one_side_only_is_overflow(hand_made, judge_calls):
    told = found(hand_made, judge_calls, [FINE, FINE], [FINE, -INFINITE])
    assert told["overflow_target"] == ["layers.1 / mul: 1 infinite"]


def test_what_a_logits_processor_rules_out_is_no_overflow_however_many_tokens_it_is(hand_made, judge_calls):
    """Sides that write other tokens rule out others: -inf is placed by one call, and the next ones hand it on."""
    few, many = (np.where(np.arange(6).reshape(2, 3) < count, -np.inf, FINE).astype(np.float16) for count in (1, 2))
    measures, _ = judge_calls(chain(hand_made, [few, few]), {})
    suspicious = [replace(one, counts={"elements": 6, "nonfinite": 1}) for one in measures]
    for operator, starts in (("masked_fill", []), ("mul", ["layers.0 / mul"])):
        sides = [chain(hand_made, [mask, mask], operators=[operator, "div"]) for mask in (few, many)]
        assert overflow.gather(*overflow.trace_sides(*sides, suspicious))["overflow_both"] == starts


def test_large_values_of_wide_types_do_not_saturate(hand_made, judge_calls):
    wide = np.full((2, 3), np.finfo(np.float32).max)
    assert found(hand_made, judge_calls, [FINE], [wide])["overflow_target"] == []


def test_without_statistics_only_tensors_that_look_suspicious_are_read(hand_made, judge_calls, monkeypatch):
    assert found(hand_made, judge_calls, [FINE], [INFINITE], "tensors", suspicious=False)["overflow_target"] == []
    monkeypatch.setattr(overflow, "READ", 0)
    assert found(hand_made, judge_calls, [FINE], [INFINITE], "tensors")["overflow_target"] == []


@pytest.mark.parametrize(
    ("reference", "target", "rule"),
    [
        ([FINE, FINE, FINE], [FINE, FULL, INFINITE], "PF505"),
        ([FINE, BROKEN], [FINE, BROKEN], "PF506"),
        ([FINE, FINE], [FINE, BROKEN], "PF501"),
        ([FINE, LARGE, LARGE], [FINE, INFINITE, INFINITE], "PF502"),
    ],
)
def test_the_shipped_rules_name_it_from_statistics_alone(hand_made, judge_calls, reference, target, rule):
    sides = [chain(hand_made, side) for side in (reference, target)]
    status = {} if rule == "PF506" else {f"layers.{len(reference) - 1 if rule == 'PF501' else 1} / mul": "nonfinite"}
    measures, judged = judge_calls(sides[0], status, equal={"layers.0 / mul"})
    region = localize(*sides, measures, judged)
    evidence = collect(Comparison(*sides, RunConfig(recipe="demo"), region=region, measures=measures, judged=judged))
    assert rule in [finding.rule for finding in advise(evidence, RULES)]


def test_a_clean_run_names_no_overflow(hand_made, judge_calls):
    sides = [chain(hand_made, [FINE, FINE]) for _ in range(2)]
    measures, judged = judge_calls(sides[0], {"layers.1 / mul": "fail"})
    region = localize(*sides, measures, judged)
    evidence = collect(Comparison(*sides, RunConfig(recipe="demo"), region=region, measures=measures, judged=judged))
    assert not {"PF501", "PF502", "PF505", "PF506"} & {finding.rule for finding in advise(evidence, RULES)}


@pytest.mark.parametrize(
    ("kept", "words"), [("statistics", "sketch or statistics"), ("tensors", "tensors"), ("digest", "content id")]
)
def test_what_was_kept_of_a_suspect_is_evidence(hand_made, judge_calls, kept, words):
    sides = [chain(hand_made, [FINE, FINE], kept=kept) for _ in range(2)]
    for side in sides if kept == "digest" else ():
        side.made = [msgspec.structs.replace(call, outputs=bare(call.outputs)) for call in side.made]
    measures, judged = judge_calls(sides[0], {"layers.1 / mul": "fail"})
    region = localize(*sides, measures, judged)
    found = collect(Comparison(*sides, RunConfig(recipe="demo"), region=region, measures=measures, judged=judged))
    assert found["suspects"][0]["kept"] == words


def bare(records):
    return tuple(msgspec.structs.replace(record, stored=False) for record in records)
