"""Families by operator and by class."""

import pytest

from precflow.agent.contract import MOVEMENT
from precflow.diagnosis.evidence import operator_families


@pytest.mark.parametrize(
    ("operator", "family"),
    [
        ("linear", "matmul"),
        ("layer_norm", "normalisation"),
        ("sigmoid", "activation"),
        ("add", "masking"),
        ("randn", "random"),
        ("x", "other"),
    ],
)
def test_family(operator, family):
    assert operator_families.find_family(operator) == family


def test_no_operator_is_in_two_families_and_none_is_movement():
    everything = [name for members in operator_families._FAMILIES.values() for name in members]
    assert len(everything) == len(set(everything))
    assert not MOVEMENT & set(everything)


def test_the_operator_of_every_known_class_has_a_family():
    assert {operator_families.find_family(operator) for operator in operator_families._OF_CLASS.values()} <= set(
        operator_families._FAMILIES
    )
    assert operator_families.operator_of_class("Qwen2RMSNorm") == "rms_norm"
