"""The verdict of a run: nothing defaults to pass."""

from dataclasses import fields, replace

import pytest

from precflow.config.schema import Coverage, Limits, Side, Tolerance, ToleranceRule, Workload
from precflow.judgement.verdicts import VERDICTS
from precflow.metrics import METRICS


def test_a_clean_run_is_aligned(measure, run):
    judged, verdict = run([measure(), measure("a", relative_l2=1e-6)])
    assert [record.status for record in judged] == ["pass", "pass"]
    assert verdict.verdict == "aligned"
    assert verdict.reasons == ()
    assert (verdict.compared, verdict.total, verdict.could_fail, verdict.coverage) == (2, 2, 2, 1.0)
    assert verdict.standards == {"default": True}
    assert verdict.closest == measure("a").record
    assert judged[1].ratio == pytest.approx(1e-6 * 2**16)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"relative_l2": 1e-3}, "fail"),
        ({"join": "shape", "reason": "[1] [2]"}, "shape"),
        ({"target_dtype": "float16"}, "dtype"),
        ({"counts": {"elements": 6, "nonfinite": 1, "nonfinite_mismatch": 1}}, "nonfinite"),
        ({"counts": {"elements": 6, "sentinel": 6, "sentinel_mismatch": 1}}, "fail"),
    ],
)
def test_one_bad_record_makes_a_run_misaligned(measure, run, change, status):
    judged, verdict = run([measure("a"), measure("b", **change), measure("c")], blockers=["weights differ"])
    assert judged[1].status == status
    assert judged[1].reason
    assert verdict.verdict == "misaligned"
    assert "first b / linear" in verdict.reasons[0]
    assert "weights differ" in verdict.reasons


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"join": "unpaired_reference"}, "the target lacks 1 record that the reference has"),
        ({"join": "unpaired_target"}, "the target has 1 record that the reference lacks"),
        ({"join": "unreadable", "reason": "cut short"}, "1 record cannot be read, first b / linear: cut short"),
        ({"join": "sampled_out", "reason": "not stored"}, "1 of 2 records were compared"),
        ({"join": "sampled_out", "reason": "not stored"}, "first b / linear: not stored; capture.detail=tensors keeps it"),
    ],
)
def test_what_was_not_compared_makes_a_run_inconclusive(measure, run, change, reason):
    judged, verdict = run([measure("a"), measure("b", **change)])
    assert judged[1].status == change["join"]
    assert verdict.verdict == "inconclusive"
    assert any(reason in text for text in verdict.reasons)
    assert verdict.coverage == 0.5


def test_a_recipe_that_records_nothing_is_told_so(measure, run):
    assert "neither side holds a record" in run([])[1].reasons[0]
    assert "there is no output to judge" in run([measure(judged=False)])[1].reasons[0]


def test_a_rule_of_the_tolerance_that_matches_nothing_is_told(measure, run):
    rules = (
        ToleranceRule(match="*.mlp", relative_l2=1e-3),
        ToleranceRule(match="*.mpl", relative_l2=1e-9),
        ToleranceRule(match="*", phase="backward"),
    )
    warnings = run([measure()], tolerance=Tolerance(standards=("default",), rules=rules))[1].warnings
    assert warnings == ("tolerance.rules '*.mpl' matches no record", "tolerance.rules '*' (backward) matches no record")


def test_nothing_at_all_is_never_aligned(measure, run):
    for measures in ([], [measure(judged=False, movement=True)], [measure(join="unreadable")]):
        _, verdict = run(measures)
        assert verdict.verdict == "inconclusive"
        assert any("nothing was compared" in text for text in verdict.reasons)
        assert verdict.standards == {"default": False}
        assert verdict.closest == ""


def test_blocked_is_not_the_same_as_without_outputs(run):
    _, verdict = run([], blockers=["the seeds differ"])
    assert verdict.reasons == ("the seeds differ", "no tensor was compared")


def test_blockers_and_drift_come_first(measure, run):
    _, verdict = run([measure()], blockers=["the weights differ"], unrepeatable=["target: a/bmm.0/forward.output.0"])
    assert verdict.verdict == "inconclusive"
    assert verdict.reasons[0] == "the weights differ"
    assert verdict.reasons[1].startswith("the target does not repeat itself: 1 record differs between")


def test_a_parameter_that_one_side_does_not_update_is_misaligned_though_every_record_agrees(measure, run):
    for records in ([], ["head/optimizer.output.weight@2.0"]):  # of a step that was not recorded
        _, verdict = run([measure()], still={"head.weight moves on the reference only": records})
        assert verdict.verdict == "misaligned"
        assert verdict.reasons == ("head.weight moves on the reference only",)
        assert verdict.standards["the same parameters are updated"] is False


def test_gradients_that_one_side_does_not_clear_are_misaligned_though_every_record_agrees(measure, run):
    _, verdict = run([measure()], uncleared="the target does not clear its gradients")
    assert (verdict.verdict, verdict.reasons) == ("misaligned", ("the target does not clear its gradients",))
    assert verdict.standards["gradients are cleared before each step"] is False


def test_optimizers_with_other_settings_are_no_aligned_run(measure, run):
    _, verdict = run([measure()], other_settings={"lr: 0.1 / 0.2": []})
    assert (verdict.verdict, verdict.reasons) == ("inconclusive", ("the optimizers have other settings: lr: 0.1 / 0.2",))
    assert run([measure(relative_l2=1.0)], other_settings={"lr: 0.1 / 0.2": []})[1].verdict == "misaligned"


def test_a_record_that_drifts_proves_nothing_by_failing(measure, run):
    drifting, steady = measure("a", relative_l2=1.0), measure("b", relative_l2=1.0)
    entry = f"target: {drifting.record}"
    judged, verdict = run([drifting], unrepeatable=[entry])
    assert judged[0].status == "fail"
    assert verdict.verdict == "inconclusive"
    assert run([drifting, steady], unrepeatable=[entry])[1].verdict == "misaligned"
    assert run([replace(drifting, join="shape")], unrepeatable=[entry])[1].verdict == "misaligned"


def test_coverage_below_the_minimum_is_tolerated_only_where_the_recipe_says_so(measure, run):
    measures = [measure("a"), measure("b", join="sampled_out")]
    assert run(measures, coverage=Coverage(0.5))[1].verdict == "aligned"
    assert run(measures, coverage=Coverage(0.51))[1].verdict == "inconclusive"
    assert run([measure("a"), measure("b", join="unreadable")], coverage=Coverage(0.5))[1].verdict == "inconclusive"


def test_only_blind_records_are_no_evidence(measure, run):
    blind = Tolerance(standards=(), relative_l2=0.1)
    judged, verdict = run([measure()], tolerance=blind)
    assert judged[0].status == "blind"
    assert verdict.verdict == "inconclusive"
    assert verdict.could_fail == 0
    assert "forward is mostly blind: 1 of 1" in verdict.reasons[0]


def test_a_mostly_blind_phase_is_named(measure, run):
    empty = {"elements": 2, "nonfinite": 2}
    measures = [
        measure("a"),
        *(measure(name, phase="backward", counts=empty) for name in "bcd"),
        measure("e", phase="backward", order=1),
    ]
    _, verdict = run(measures)
    assert verdict.verdict == "aligned"
    assert any("backward is mostly blind: 3 of 4" in text for text in verdict.warnings)
    assert any("3 records hold NaN or Inf equal on both sides, first b" in text for text in verdict.warnings)


@pytest.mark.parametrize("counts", [{"elements": 2, "nonfinite": 2}, {"elements": 0}], ids=["NaN", "no element"])
def test_a_model_that_ends_in_nothing_is_never_aligned(measure, run, counts):
    _, verdict = run([measure("a"), measure("b"), measure("c"), measure("(model)", "", order=1, counts=counts)])
    assert verdict.verdict == "inconclusive"
    assert "nothing is known about the end, (model)" in verdict.reasons[0]
    assert "only NaN" in verdict.reasons[0]


def test_infinity_against_a_mask_fill_is_not_called_equal(measure, run):
    masked = {"elements": 6, "nonfinite": 2, "infinity_for_sentinel": 2}
    _, verdict = run([measure("a", counts=masked)])
    assert verdict.verdict == "aligned"
    assert verdict.warnings == ("1 record holds -inf on one side where the other has a mask's fill value, first a / linear",)


def test_standards_and_plain_limits_are_shown_as_met_or_not(measure, run):
    tolerance = Tolerance(standards=("default", "allclose"), cosine_similarity=0.9999, max_abs_error=1.0)
    _, verdict = run([measure(), measure("b", relative_l2=0.1)], tolerance=tolerance)
    assert verdict.standards == {
        "default": False,
        "allclose": True,
        "cosine_similarity >= 0.9999": False,
        "max_abs_error <= 1": True,
    }


def test_the_verdict_is_one_of_three(measure, run):
    assert run([measure()])[1].verdict in VERDICTS


def test_every_limit_of_a_recipe_is_a_metric():
    assert {part.name for part in fields(Limits)} - {"metrics"} <= set(METRICS)


def test_a_limit_that_no_record_can_be_held_to_is_not_met(measure, run):
    _, verdict = run([measure()], tolerance=Tolerance(standards=("default",), kl_divergence=0.001))
    assert verdict.verdict == "inconclusive"
    assert verdict.standards == {"default": True, "kl_divergence <= 0.001": False}
    assert "no record could be held to kl_divergence <= 0.001 (tolerance)" in verdict.reasons[0]


def test_a_model_that_never_ran_in_its_type_is_not_aligned(measure, run):
    _, verdict = run([measure()], dtypes=("float32", "float16"))
    assert verdict.verdict == "inconclusive"
    assert "was to run in float16" in verdict.reasons[0]


def open_record(measure, name="b", **changes):
    plain = {"metrics": {"relative_l2": 2**-16}, "ranges": {"relative_l2": (2**-17, 2**-15)}, "evidence": "sketch"}
    return measure(name, **{**plain, **changes})


def test_one_undecided_record_makes_a_run_inconclusive_whatever_coverage_asks_for(measure, run):
    judged, verdict = run([measure(), open_record(measure)], coverage=Coverage(minimum=0.1))
    assert [one.status for one in judged] == ["pass", "undecided"]
    assert verdict.verdict == "inconclusive"
    helps = "their tensors would: capture=escalating"
    assert verdict.reasons[0].startswith(f"1 record cannot be decided by what was kept; {helps}; first b / linear: relative_l2")
    assert "capture=escalating" in verdict.reasons[0]
    assert (verdict.compared, verdict.total, verdict.standards) == (1, 2, {"default": False})


def test_a_limit_that_was_not_decided_has_a_meaning(measure, run):
    _, verdict = run([measure(metrics={}, absent={"relative_l2": "needs single elements"})])
    assert not any("no record could be held" in reason for reason in verdict.reasons)


def test_records_that_pass_by_sketches_are_counted_and_aligned(measure, run):
    passing = open_record(measure, metrics={"relative_l2": 1e-7}, ranges={"relative_l2": (0.75e-7, 1.34e-7)})
    _, verdict = run([measure(), passing])
    assert (verdict.verdict, verdict.estimated, verdict.sampled) == ("aligned", 1, 1.0)


def test_the_sampled_share_is_told(measure, run):
    part = measure("b", share=0.01, evidence="tensors")
    _, verdict = run([measure(), part, measure("c", share=0.01, equal=True)])
    assert verdict.verdict == "aligned"
    assert verdict.sampled == pytest.approx(2.01 / 3)
    assert verdict.warnings == ("1 record was judged by a part of the elements, least b / linear: 0.01 of them",)


def test_a_part_is_held_to_every_limit_like_a_tensor(measure, run):
    for largest, expected in ((2.0, "fail"), (0.5, "pass")):
        part = measure(share=0.1, metrics={"max_abs_error": largest}, evidence="tensors")
        judged, verdict = run([part], tolerance=Tolerance(standards=(), max_abs_error=1.0))
        assert judged[0].status == expected
        assert (verdict.coverage, verdict.sampled) == (1.0, pytest.approx(0.1))


def test_a_part_without_an_error_of_a_tensor_that_differs_is_compared_and_told(measure, run):
    metrics = {"relative_l2": 0.0, "max_abs_error": 0.0, "bitwise_equal": 0.0}
    parts = [measure(share=0.1, evidence="tensors"), measure("b", share=0.2, metrics=metrics, evidence="tensors")]
    judged, verdict = run(parts)
    assert [one.status for one in judged] == ["pass", "pass"]
    assert verdict.warnings[0].endswith("0.1 of them; 1 of them differs in other elements only, first b / linear")


def test_a_recipe_can_ask_for_all_elements(measure, run):
    records = [measure(share=0.1, evidence="tensors"), measure("b")]
    assert run(records)[1].verdict == "aligned"
    verdict = run(records, coverage=Coverage(elements=1.0))[1]
    assert verdict.verdict == "inconclusive"
    assert verdict.reasons == ("0.55 of the elements of what was compared were looked at; coverage.elements asks for 1",)
    assert run(records, coverage=Coverage(elements=0.5))[1].verdict == "aligned"
    assert run([measure("c", share=0.1, equal=True)], coverage=Coverage(elements=1.0))[1].verdict == "aligned"


def settled_as(**statuses):
    """Return a function that gives the records with these operators another status, as following the graphs would."""

    def settle(measures, judged):
        return [
            replace(one, status=statuses[measure.operator], reason="because") if measure.operator in statuses else one
            for measure, one in zip(measures, judged, strict=True)
        ]

    return settle


def integers(measure, **changes):
    facts = {"judged": False, "exact": True, "reference_dtype": "int64", "target_dtype": "int64"}
    return measure(operator="topk", metrics={"bitwise_equal": 0.0}, **facts, **changes)


def test_a_near_tie_is_compared_and_no_fault(measure, run):
    measures = [measure(), integers(measure)]
    assert run(measures)[1].verdict == "misaligned"
    judged, verdict = run(measures, settle_choices=settled_as(topk="near_tie"))
    assert [record.status for record in judged] == ["pass", "near_tie"]
    assert (verdict.verdict, verdict.compared, verdict.total, verdict.coverage) == ("aligned", 2, 2, 1.0)
    assert any(text.startswith("1 near tie, first encoder.layers.0.mlp / topk: because") for text in verdict.warnings)
    assert verdict.standards == {"default": True}
    _, given = run(measures, settle_choices=settled_as(topk="near_tie"), changes={"whatif": ("reference_choice",)})
    assert given.warnings[0].startswith("1 near tie, and the target went on with the choices of the reference, first encoder")


def test_what_depends_on_a_near_tie_lowers_the_coverage_and_never_fails(measure, run):
    measures = [*[measure() for _ in range(7)], integers(measure), measure(operator="add", relative_l2=1.0)]
    settle = settled_as(topk="near_tie", add="not_comparable")
    _, verdict = run(measures, settle_choices=settle)
    assert (verdict.verdict, verdict.compared, verdict.total) == ("inconclusive", 8, 9)
    assert verdict.reasons[0].startswith(
        "1 record depends on 1 near tie and is not comparable; whatif=[reference_choice] compares it, at the reference's"
        " choices. First encoder.layers.0.mlp / topk"
    )
    assert verdict.standards == {"default": True}
    _, allowed = run(measures, settle_choices=settle, coverage=Coverage(minimum=0.8))
    assert (allowed.verdict, allowed.reasons) == ("aligned", ())
    assert any("1 record after it not comparable" in text for text in allowed.warnings)


def test_what_depends_on_an_undecided_choice_can_be_compared_at_the_reference_s_too(measure, run):
    measures = [measure(), integers(measure), measure(operator="add", relative_l2=1.0)]
    _, verdict = run(measures, settle_choices=settled_as(topk="undecided", add="not_comparable"))
    expected = (
        "1 record depends on a choice that is undecided or blind and is not comparable; whatif=[reference_choice] compares it"
    )
    assert any(text.startswith(expected) for text in verdict.reasons)


@pytest.mark.parametrize(
    "changes",
    [
        {"target": Side(dump="b/")},
        {"target": Side(ranks=2)},
        {"workload": Workload(script="train.py")},
        {"whatif": ("reference_choice",)},
    ],
    ids=["a given dump", "several ranks", "a script", "done already"],
)
def test_choices_are_offered_only_to_a_target_that_can_take_them(measure, run, changes):
    measures = [integers(measure), measure(operator="add", relative_l2=1.0)]
    _, verdict = run(measures, settle_choices=settled_as(topk="near_tie", add="not_comparable"), changes=changes)
    assert verdict.reasons[0].startswith("1 record depends on 1 near tie and is not comparable. First")


def test_a_fault_beside_near_ties_is_still_a_fault(measure, run):
    measures = [integers(measure), measure(operator="add", relative_l2=1.0), measure(operator="mul", relative_l2=1.0)]
    _, verdict = run(measures, settle_choices=settled_as(topk="near_tie", add="not_comparable"))
    assert verdict.verdict == "misaligned"
    assert verdict.reasons[0] == "1 record exceeds its limit, first encoder.layers.0.mlp / mul"


@pytest.mark.parametrize(
    "broken",
    [
        {"counts": {"elements": 6, "ordinary": 5, "nonfinite_mismatch": 1}},
        {"join": "shape", "reason": "[2, 3] [3, 2]"},
        {"target_dtype": "float64"},
        {"exact": True, "judged": False, "metrics": {"bitwise_equal": 0.0}},
    ],
)
def test_no_standard_is_met_where_a_record_failed_before_any_limit_was_asked(run, measure, broken):
    _, verdict = run([measure(), measure("broken", **broken)])
    assert (verdict.verdict, verdict.standards) == ("misaligned", {"default": False})


def test_no_standard_is_met_by_blind_records_alone(run, measure):
    _, verdict = run([measure()], tolerance=Tolerance(standards=(), relative_l2=0.5))
    assert (verdict.could_fail, verdict.standards) == (0, {"relative_l2 <= 0.5": False})
