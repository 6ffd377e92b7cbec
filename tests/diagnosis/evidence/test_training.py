"""Batch norms that average their running statistics at another rate: no record holds these statistics."""

from types import SimpleNamespace

import pytest

from precflow.diagnosis.evidence.training import find_other_averages


@pytest.mark.parametrize(
    ("training", "tensors", "found"),
    [
        ("True", 3, ["bn / batch_norm averages its running statistics with momentum 0.1 / 0.01"]),
        ("False", 3, []),
        ("True", 1, []),  # a function that is given no statistics averages none
    ],
)
def test_another_rate_is_told_where_statistics_are_averaged(hand_made, training, tensors, found):
    sides = []
    for momentum in ("0.1", "0.01"):
        dump = hand_made()
        dump.operator("bn", "batch_norm", *[{}] * tensors, arguments={"training": training, "momentum": momentum})
        sides.append(SimpleNamespace(header=dump.header, calls=dump.calls))
    assert find_other_averages(sides[0], sides[0]) == []
    assert find_other_averages(*sides) == found


NORM = {"eps": "1e-05", "momentum": "0.1", "track_running_stats": "True", "training": "True"}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"momentum": "0.01"}, ["bn averages its running statistics with momentum 0.1 / 0.01"]),
        ({"momentum": "0.01", "training": "False"}, []),
        ({"momentum": "0.01", "track_running_stats": "False"}, []),
        ({"eps": "0.001"}, []),
    ],
)
def test_modules_say_it_where_no_function_was_recorded(changed, found):
    sides = [
        SimpleNamespace(header=SimpleNamespace(facts={"modules": {"bn": settings, "fc": {}}}), calls=list)
        for settings in (NORM, {**NORM, **changed})
    ]
    assert find_other_averages(sides[0], sides[0]) == []
    assert find_other_averages(*sides) == found
    unknown = SimpleNamespace(header=SimpleNamespace(facts={}), calls=list)  # of another tool
    assert find_other_averages(sides[0], unknown) == []
