"""The region's artifact."""

from precflow.stages.localize import read_region


def test_the_first_operator_that_differs_is_the_start(pair, made):
    region = read_region(made(pair(factor=1.01), until="localize")["localize"])
    assert region.start == "fc2 / linear"


def test_nothing_parts_where_nothing_differs(pair, made):
    assert read_region(made(pair(), until="localize")["localize"]).start == ""
