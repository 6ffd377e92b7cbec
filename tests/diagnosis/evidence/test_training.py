"""What settings, statistics and gradients say about training: running averages, and the counts that a factor is."""

from types import SimpleNamespace

import pytest

from precflow.diagnosis.evidence.training import find_other_averages, name_factor


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


@pytest.mark.parametrize(
    ("factor", "ranks", "batches", "told"),
    [
        (2.0, 2, 1, "the number of ranks"),
        (0.25, 4, 2, "one divided by the number of ranks"),
        (2.0, 2, 2, "the number of ranks, and also that of micro batches"),
        (3.0, 1, 3, "the number of micro batches"),
        (6.0, 2, 3, "the number of ranks times that of micro batches"),
        (0.5, 4, 1, ""),
        (0.5, 1, 1, ""),
    ],
)
def test_a_factor_of_all_gradients_is_named_by_every_count_that_it_is(hand_made, factor, ranks, batches, told):
    dump = hand_made()
    for rank in range(ranks):
        for batch in range(batches):
            dump.module("fc", rank=rank, call=batch, phase="gradient")
    assert name_factor(factor, dump).get("gradient_factor_is", "") == told
