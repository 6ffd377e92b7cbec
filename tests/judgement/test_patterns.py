"""Patterns over names."""

import pytest

from precflow.judgement.patterns import matches


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", True),
        ("encoder.layers.0.mlp", True),
        ("encoder.*.mlp", True),
        ("*.mlp", True),
        ("encoder.layers.0.mlp / linear", True),
        ("encoder.layers.0.mlp/linear", True),
        ("* / linear", True),
        ("* / softmax", False),
        ("encoder.layers.0", False),
        ("mlp", False),
        ("*.MLP", False),
        ("encoder.layers.[0-3].mlp", True),
        ("encoder.layers.[1-3].mlp", False),
    ],
)
def test_patterns(measure, pattern, expected):
    assert matches(measure(), pattern) is expected


def test_a_leading_star_covers_the_top_level(measure):
    assert matches(measure("final_layer_norm", "layer_norm"), "*.final_layer_norm")
    assert matches(measure("", ""), "(model)")
    assert not matches(measure("final_layer_norm2"), "*.final_layer_norm")


def test_the_phase_counts(measure):
    assert matches(measure(), "*", "forward")
    assert not matches(measure(), "*", "gradient")


def test_the_phase_in_a_name_is_no_part_of_it(measure):
    found = measure(name="encoder.layers.0.mlp / mm (backward)", operator="mm", phase="backward")
    assert matches(found, "encoder.layers.0.mlp / mm", "backward")
    assert not matches(found, "encoder.layers.0.mlp / mm", "forward")
    assert not matches(found, "* (backward)")
