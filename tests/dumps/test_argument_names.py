import inspect

import pytest
from torch.nn import functional

from precflow.dumps.argument_names import PARAMETERS, name_arguments

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize("operator", PARAMETERS)
def test_names_are_those_of_torch(operator):
    found = inspect.signature(getattr(functional, operator)).parameters.values()
    assert PARAMETERS[operator] == tuple(one.name for one in found if one.kind in POSITIONAL)


def test_what_has_a_name_keeps_it_and_positions_behind_the_last_stay():
    assert name_arguments("softmax", {"dim": "1", "9": "x", "1.0": "y"}) == {"dim": "1", "9": "x", "dim.0": "y"}
