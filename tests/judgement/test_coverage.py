"""Counting."""

from precflow.judgement.coverage import blind_phases, tally
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
