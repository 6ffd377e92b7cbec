"""Batch norms that average their running statistics at another rate: no record holds these statistics."""

from types import SimpleNamespace

import pytest

from precflow.diagnosis.evidence.training import find_other_averages


@pytest.mark.parametrize(
    ("training", "weight", "found"),
    [
        ("True", "bn.running_mean", ["bn / batch_norm averages its running statistics with momentum 0.1 / 0.01"]),
        ("False", "bn.running_mean", []),
        ("True", "", []),
    ],
)
def test_another_rate_is_told_where_statistics_are_averaged(hand_made, training, weight, found):
    sides = []
    for momentum in ("0.1", "0.01"):
        dump = hand_made()
        dump.operator("bn", "batch_norm", {"weight": weight}, arguments={"training": training, "momentum": momentum})
        sides.append(SimpleNamespace(header=dump.header, calls=dump.calls))
    assert find_other_averages(sides[0], sides[0]) == []
    assert find_other_averages(*sides) == found
