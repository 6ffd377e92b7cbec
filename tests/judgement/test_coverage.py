"""Counting."""

from precflow.judgement.coverage import blind_phases, empty_ends, tally
from precflow.judgement.verdicts import STATUSES, Judged


def test_every_status_is_counted_once():
    found = tally([Judged("r", status) for status in STATUSES])
    assert found.counts == dict.fromkeys(STATUSES, 1)
    assert found.total == len(STATUSES) - 1
    assert found.compared == 6
    assert found.could_fail == 5
    assert found.coverage == 6 / 11


def test_nothing_is_no_coverage():
    assert tally([]).coverage == 0.0
    assert tally([Judged("r", "not_judged")]).coverage == 0.0


def test_half_blind_is_not_mostly_blind(measure):
    measures = [measure(), measure()]
    assert blind_phases(measures, [Judged("r", "blind"), Judged("r", "pass")]) == []
    assert blind_phases(measures, [Judged("r", "blind")] * 2) == [
        "forward is mostly blind: 2 of 2 records could not have failed"
    ]
    assert blind_phases(measures, [Judged("r", "not_judged")] * 2) == []


def test_only_the_end_must_hold_numbers(measure):
    empty = {"elements": 4, "nonfinite": 1, "sentinel": 3}
    early, end = measure("a", counts=empty), measure("b", order=1)
    blind = [Judged("r", "blind"), Judged("r", "pass")]
    assert empty_ends([early, end], blind) == []
    assert len(empty_ends([end, early], blind[::-1])) == 0
    assert "b / linear" in empty_ends([early, measure("b", order=1, counts=empty)], [Judged("r", "blind")] * 2)[0]
    assert empty_ends([], []) == []
    assert empty_ends([early], [Judged("r", "not_judged")]) == []
