"""Measures are written in order; where the sides did not start equal no tensor is read."""

from precflow.stages.compare import read_measures


def test_every_record_is_measured(pair, made):
    measures = read_measures(made(pair(factor=1.01), until="compare")["compare"])
    assert [measure.name for measure in measures] == ["fc1 / linear", "fc2 / linear"]
    assert measures[0].equal
    assert measures[1].metrics["relative_l2"] > 1e-3


def test_nothing_is_compared_after_a_blocker(pair, made):
    other = {"digest": "other", "entries": {}}
    assert read_measures(made(pair(inputs=other), until="compare")["compare"]) == []
