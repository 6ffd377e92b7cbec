"""Element types against torch's own facts."""

import numpy as np
import pytest
import torch

from precflow.agent.contract import DTYPE_OF_SAFETENSORS
from precflow.dumps import dtypes


@pytest.mark.parametrize("name", dtypes.FLOATS)
def test_facts_are_torchs(name):
    theirs, ours = torch.finfo(getattr(torch, name)), dtypes.float_facts(name)
    assert ours.largest == theirs.max
    assert ours.smallest_normal == theirs.smallest_normal
    assert 2.0 ** (1 - ours.digits) == theirs.eps
    assert ours.smallest == theirs.smallest_normal * theirs.eps


def test_every_dtype_of_a_dump_can_be_read():
    assert set(DTYPE_OF_SAFETENSORS.values()) == set(dtypes.NUMPY_DTYPES)
    assert all(dtypes.name_of(dtype) == name for name, dtype in dtypes.NUMPY_DTYPES.items())


def test_facts_of_an_integer_are_refused():
    with pytest.raises(KeyError, match="int8"):
        dtypes.float_facts("int8")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["float64", "float32"], "float32"),
        (["float16", "bfloat16"], "bfloat16"),
        (["float8_e5m2", "float8_e4m3fn"], "float8_e5m2"),
        (["complex64", "float64"], "float32"),
        (["int64", "", "bool"], ""),
    ],
)
def test_coarsest(names, expected):
    assert dtypes.coarsest(names) == expected


def test_judgeable_types():
    assert dtypes.is_floating("complex128")
    assert not dtypes.is_floating("uint8")
    assert not dtypes.is_floating("")
    assert dtypes.name_of(np.dtype(object)) == ""
