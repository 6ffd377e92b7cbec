"""Accepted differences: until the last day, within their limits, and never unnoticed."""

import datetime

import pytest

from precflow.config.schema import Accepted, Tolerance
from precflow.judgement.accepted import AcceptedDifferences

LAST = datetime.date(2026, 3, 31)


def entry(**changes):
    plain = {
        "match": "*.mlp",
        "relative_l2": 0.02,
        "because": "adds in another order",
        "ticket": "LLM-1",
        "until": "2026-03-31",
    }
    return Accepted(**{**plain, **changes})


def test_a_failure_is_accepted_and_counted(measure, run):
    judged, verdict = run([measure(relative_l2=0.01), measure("b")], accepted=[entry()])
    assert judged[0].status == "accepted"
    assert judged[0].reason == "accepted until 2026-03-31 (LLM-1): adds in another order"
    assert judged[0].ratio > 1
    assert verdict.verdict == "aligned"
    assert verdict.counts == {"pass": 1, "accepted": 1}
    assert verdict.standards["default"]
    assert verdict.warnings == ()


@pytest.mark.parametrize(("day", "status"), [(LAST, "accepted"), (LAST + datetime.timedelta(1), "fail")])
def test_the_last_day_still_counts(measure, run, day, status):
    judged, verdict = run([measure(relative_l2=0.01)], accepted=[entry()], today=day)
    assert judged[0].status == status
    assert ("was accepted until 2026-03-31 only (LLM-1)" in judged[0].reason) == (status == "fail")
    assert ("accepted '*.mlp' (LLM-1) was valid until 2026-03-31: it fails again" in verdict.warnings) == (status == "fail")


def test_beyond_its_own_limit_it_fails(measure, run):
    judged, verdict = run([measure(relative_l2=0.03)], accepted=[entry()])
    assert judged[0].status == "fail"
    assert "exceeds what was accepted (LLM-1): relative_l2 <= 0.02" in judged[0].reason
    assert verdict.verdict == "misaligned"


def test_another_metric_than_the_accepted_one_fails(measure, run):
    judged, _ = run([measure(relative_l2=0.01)], accepted=[entry()], tolerance=Tolerance(cosine_similarity=0.99999))
    assert judged[0].status == "fail"
    assert "cosine_similarity was not accepted" in judged[0].reason


def test_without_limits_everything_is_accepted_but_never_a_shape_or_nan(measure, run):
    free = [entry(relative_l2=None)]
    masked = measure(counts={"elements": 6, "sentinel": 1, "sentinel_mismatch": 1})
    assert run([masked], accepted=free)[0][0].status == "accepted"
    assert run([masked], accepted=[entry()])[0][0].status == "fail"
    assert run([measure(join="shape")], accepted=free)[0][0].status == "shape"
    nan = measure(counts={"elements": 6, "nonfinite": 1, "nonfinite_mismatch": 1})
    assert run([nan], accepted=free)[0][0].status == "nonfinite"


def test_a_second_entry_may_accept_what_the_first_does_not(measure, run):
    judged, _ = run([measure(relative_l2=0.03)], accepted=[entry(), entry(relative_l2=0.05, ticket="LLM-2")])
    assert judged[0].reason.startswith("accepted until 2026-03-31 (LLM-2)")


def test_entries_of_no_use_are_warned_of(measure, run):
    _, verdict = run([measure()], accepted=[entry(), entry(match="gone.*"), entry(phase="gradient")])
    assert verdict.warnings == (
        "accepted '*.mlp' is not needed any more: what it matches passes",
        "accepted 'gone.*' matches no record",
        "accepted '*.mlp' matches no record",
    )


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"metrics": {"relative_l2": 1.0}, "ranges": {"relative_l2": (0.75, 1.34)}}, "exceeds what was accepted"),
        ({"metrics": {"relative_l2": 0.1}, "ranges": {"relative_l2": (0.075, 0.134)}}, "does not show that it stays within"),
        ({"metrics": {}, "absent": {"relative_l2": "needs single elements"}}, "does not show that it stays within"),
        ({"metrics": {"relative_l2": 0.05}, "ranges": {"relative_l2": (0.0375, 0.067)}}, ""),
    ],
)
def test_what_was_not_kept_is_not_accepted(measure, known, words):
    accepted = AcceptedDifferences([entry(relative_l2=0.1)], LAST)
    taken, told = accepted.decide(measure(**known), {"relative_l2"})
    assert taken == (words == "")
    assert words in told


def test_other_settings_of_an_optimizer_are_accepted_with_the_steps_that_have_them(measure, run):
    """Their steps need not exceed a limit."""
    steps = [measure(name) for name in ("a.mlp", "b.mlp")]
    settings = {"eps: 1e-08 / 1e-06": [one.record for one in steps]}
    judged, verdict = run([*steps, measure("c")], accepted=[entry()], other_settings=settings)
    assert [one.status for one in judged] == ["accepted", "accepted", "pass"]
    assert verdict.verdict == "aligned"
    assert not any("not needed" in warning for warning in verdict.warnings)
    judged, verdict = run([*steps, measure("c")], accepted=[entry(match="a.mlp")], other_settings=settings)
    assert [one.status for one in judged] == ["accepted", "pass", "pass"]
    assert verdict.reasons == ("the optimizers have other settings: eps: 1e-08 / 1e-06",)
