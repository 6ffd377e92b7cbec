"""Which what-ifs are tried on which suspects, and what a run with one shows."""

from dataclasses import replace

import pytest

from precflow.diagnosis.advice.whatif import (
    ArmRun,
    Trial,
    apply_outcomes,
    choose_trials,
    conclude,
    describe,
    describe_changes,
    explain,
    find_confirming,
)
from precflow.diagnosis.advice.whatif_files import WhatIf
from precflow.diagnosis.findings import Finding, Outcome, Suspect
from precflow.diagnosis.narrowing import narrow
from precflow.task.outcome import TaskValue


def suspect(name, order=0):
    module, operator = name.split(" / ")
    return Suspect(f"{module}/{operator}.0/forward.output.0", name, module, operator, order, 3.0, "its inputs agree")


NORMS = tuple(suspect(f"layers.{number}.norm / layer_norm", number) for number in range(5))
MATMUL = suspect("head / linear", 9)
EXACT = WhatIf("exact", "the suspects written out", {"operator": "written_out"}, "why", "family == 'normalisation'", ("PF214",))
ANY = WhatIf("any", "the suspects on the CPU", {"device": "cpu"}, "why", cost=3.0)
RUN = WhatIf("flags", "TF32 and HF32 off", {"switches": "full_precision"}, "why", "family == 'matmul'", ("PF102",), 0.5)
PF214 = Finding("PF214", "eps differs", "likely", where=NORMS[0].name, site="model.py:3")
EVIDENCE = {
    "low_precision": False,
    "suspects": [{"name": NORMS[0].name, "family": "normalisation"}, {"name": MATMUL.name, "family": "matmul"}],
}


def chosen(word, findings=(PF214,), suspects=(*NORMS, MATMUL), whatifs=(ANY, EXACT, RUN)):
    return [(trial.whatif.name, len(trial.suspects)) for trial in choose_trials(word, whatifs, findings, suspects, EVIDENCE)]


def test_a_name_is_tried_on_the_suspects_that_its_condition_holds_for_and_others_of_their_operator():
    assert chosen("exact") == [("exact", 5)]


def test_a_name_is_tried_on_all_suspects_where_its_condition_holds_for_none():
    assert chosen("exact", suspects=(MATMUL,)) == [("exact", 1)]


def test_the_id_of_a_rule_is_tried_where_its_finding_is():
    assert chosen("PF214") == [("exact", 5)]


def test_the_id_of_a_rule_without_a_finding_is_nothing_to_try():
    assert chosen("PF102") == []


def test_top_tries_what_confirms_findings_first_and_then_what_holds_by_cost():
    assert chosen("top") == [("exact", 5), ("flags", 6), ("any", 6)]


def test_a_rule_may_name_its_what_if_itself():
    finding = replace(PF214, confirm="whatif=any")
    assert [whatif.name for whatif in find_confirming(finding, [ANY, EXACT])] == ["any"]
    assert [whatif.name for whatif in find_confirming(PF214, [ANY, EXACT])] == ["exact"]


def arm(error=0.0, end=0.0, *, fails=True, problem=""):
    status = "fail" if fails else "pass"
    records = {NORMS[0].record: error, "(model)/forward.output.0": end}
    return ArmRun(problem, records, dict.fromkeys(records, status))


@pytest.mark.parametrize(
    ("run", "outcome", "removed"),
    [
        (arm(1e-6, 1e-6, fails=False), "confirmed", 0.999),
        (arm(9e-4, 9e-4), "refuted", 0.1),
        (arm(5e-4, 5e-4), "partly", 0.5),
        (arm(1e-6, 1e-6), "partly", 0.999),  # nearly gone, but it still fails
        (arm(2e-3, 2e-3), "refuted", -1.0),
        (arm(problem="no such type"), "did not run", 0.0),
    ],
)
def test_an_outcome_needs_a_failure_without_and_a_pass_with(run, outcome, removed):
    result = conclude(Trial(EXACT, NORMS[:1]), arm(1e-3, 1e-3), run, ["(model)/forward.output.0"])
    assert result.outcome == outcome
    assert result.removed == pytest.approx(removed)
    assert result.title == "layer_norm written out"
    assert result.suspects == (NORMS[0].name,)


def test_what_passes_without_the_change_proves_nothing():
    result = conclude(Trial(EXACT, NORMS[:1]), arm(1e-7, 1e-7, fails=False), arm(0.0, 0.0, fails=False), [])
    assert result.outcome == "nothing to mend"


def test_the_task_metrics_of_both_runs_are_told():
    record = NORMS[0].record
    without = ArmRun(errors={record: 1e-3}, statuses={record: "fail"}, task=(TaskValue("psnr", "37 dB", "beyond"),))
    run = ArmRun(errors={record: 1e-8}, statuses={record: "pass"}, task=(TaskValue("psnr", "90 dB", "within"),))
    outcome = conclude(Trial(EXACT, NORMS[:1]), without, run, [])
    assert explain(outcome).endswith("of the error is gone, psnr 37 dB -> 90 dB")


def test_a_nan_that_is_gone_is_a_mend_although_no_error_was_measured():
    record = NORMS[0].record
    without = ArmRun(statuses={record: "nonfinite"})
    result = conclude(Trial(EXACT, NORMS[:1]), without, ArmRun(errors={record: 1e-8}, statuses={record: "pass"}), [])
    assert result.outcome == "confirmed"


@pytest.mark.parametrize("status", ["unpaired_reference", "unreadable", "undecided", None])
def test_a_suspect_without_a_record_in_the_run_with_it_is_no_mend(status):
    record = NORMS[0].record
    run = ArmRun(statuses={} if status is None else {record: status})
    result = conclude(Trial(EXACT, NORMS[:1]), ArmRun(errors={record: 1e-3}, statuses={record: "fail"}), run, [])
    assert (result.outcome, result.removed) == ("did not run", 0.0)
    assert "no record to compare" in result.problem


def test_where_other_operators_run_in_place_of_the_suspects_the_model_s_output_tells():
    end = "(model)/forward.output.0"
    run = ArmRun(errors={end: 1e-7}, statuses={end: "pass", NORMS[0].record: "unpaired_reference"})
    result = conclude(Trial(EXACT, NORMS[:1]), arm(1e-3, 1e-3), run, [end])
    assert (result.outcome, result.before) == ("confirmed", 1e-3)


def test_a_run_that_compared_nothing_does_not_pass():
    assert not ArmRun().passes
    assert not ArmRun(statuses={NORMS[0].record: "unpaired_target"}).passes
    assert ArmRun(statuses={NORMS[0].record: "pass"}).passes


def test_the_share_is_that_of_all_suspects_together():
    records = [one.record for one in NORMS[:2]]
    without = ArmRun(errors=dict(zip(records, (3e-3, 4e-3), strict=False)), statuses=dict.fromkeys(records, "fail"))
    run = ArmRun(errors=dict(zip(records, (0.0, 2.5e-3), strict=False)), statuses=dict.fromkeys(records, "fail"))
    assert conclude(Trial(EXACT, NORMS[:2]), without, run, []).removed == pytest.approx(0.5)


def test_changes_of_calls_have_their_records_and_those_of_the_run_none():
    records = [NORMS[0].record, NORMS[1].record]
    assert describe_changes(EXACT, records, {}) == [{"kind": "operator", "value": "written_out", "records": records}]
    assert describe_changes(RUN, records, {}) == [{"kind": "switches", "value": "full_precision", "records": []}]


def test_the_reference_s_arguments_are_given_only_where_they_differ():
    theirs = WhatIf("theirs", "t", {"arguments": "reference"}, "why")
    records = [NORMS[0].record, NORMS[1].record]
    differing = {records[1]: {"eps": ("1e-05", "0.001")}, records[0]: {}}
    assert describe_changes(theirs, records, differing) == [
        {"kind": "arguments", "value": {records[1]: {"eps": "1e-05"}}, "records": [records[1]]}
    ]
    assert describe_changes(theirs, records, {}) == []


def test_given_arguments_become_texts():
    ours = WhatIf("ours", "t", {"arguments": {"eps": 1e-6, "approximate": "tanh"}}, "why")
    (change,) = describe_changes(ours, [MATMUL.record], {})
    assert change["value"] == {MATMUL.record: {"eps": "1e-06", "approximate": "'tanh'"}}


@pytest.mark.parametrize("true", [{"a"}, {"h"}, {"b", "g"}, {"a", "d", "h"}, set("abcdefgh")])
def test_narrowing_finds_the_members_that_are_needed(true):
    asked = []

    def mends(parts):
        asked.extend(parts)
        return [true <= set(part) for part in parts]

    assert set(narrow("abcdefgh", mends)) == true
    assert len(asked) <= 64


def test_narrowing_stops_at_its_bound_with_what_it_has():
    calls = []
    kept = narrow(
        [str(number) for number in range(100)],
        lambda parts: [calls.append(part) for part in parts] and [False] * len(parts),
        10,
    )
    assert len(kept) == 100
    assert len(calls) <= 10


def outcome(word, **changes):
    return replace(
        Outcome("exact", "layer_norm written out", word, (NORMS[0].name,), 1e-3, 2e-6, 0.998, confirms=("PF214",)), **changes
    )


def test_a_confirmed_what_if_makes_its_finding_certain_and_first():
    other = Finding("PF299", "unknown", "likely", where=NORMS[0].name, site="model.py:3")
    first, second = apply_outcomes([other, PF214], [outcome("confirmed")])
    assert (first.rule, first.certainty) == ("PF214", "certain")
    assert first.evidence[0] == ("confirmed", "with layer_norm written out, 99.8 % of the error is gone")
    assert second == other


def test_a_refuted_what_if_lowers_its_finding_by_one_step():
    (finding,) = apply_outcomes([PF214], [outcome("refuted", removed=0.01)])
    assert finding.certainty == "possible"
    assert finding.evidence[0] == ("refuted", "with layer_norm written out, 1.0 % of the error is gone")


def test_one_that_confirms_outweighs_one_that_refutes():
    (finding,) = apply_outcomes([PF214], [outcome("refuted", removed=0.0, name="other"), outcome("confirmed")])
    assert finding.certainty == "certain"


@pytest.mark.parametrize("word", ["partly", "nothing to mend", "did not run"])
def test_other_outcomes_are_shown_and_change_no_certainty(word):
    (finding,) = apply_outcomes([PF214], [outcome(word)])
    assert finding.certainty == "likely"
    assert finding.evidence[0][0] == word


def test_an_outcome_at_another_place_says_nothing_about_a_finding():
    assert apply_outcomes([PF214], [outcome("confirmed", suspects=(MATMUL.name,))]) == [PF214]


def test_nearly_all_is_never_rounded_up_to_all():
    assert "99.999 %" in describe(outcome("confirmed", removed=0.9999999))
    assert "all of the error" in describe(outcome("confirmed", removed=1.0))
    assert "in 1.25 times the time" in describe(outcome("confirmed", price=1.25))
