"""Tensors of nested values: names without doubles, and arrays with the bits of their tensors."""

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.comparison.nested_values import as_array, pair_values
from precflow.dumps.dtypes import NUMPY_DTYPES


class Key:
    """Two of these are two keys with the same text."""

    def __str__(self):
        return "key"


def test_no_two_tensors_have_the_same_name():
    one, other = Key(), Key()
    value = {
        "a": {"b": 1, "0": 2, 0: 3},
        "a.b": 4,
        "": 5,
        "'a.b'": 6,
        one: 7,
        other: 8,
        None: 9,
        "(None)": 10,
        1.5: 11,
        1: [12, {}],
    }
    pairs = pair_values(value, value)
    assert [int(pair.reference) for pair in pairs] == list(range(1, 13))
    assert len({pair.name for pair in pairs}) == len(pairs)
    assert [pair.name for pair in pairs][:4] == ["a.b", "a.'0'", "a.0", "'a.b'"]


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_torch_tensors_keep_their_bits(name):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name)).T
    array = as_array(tensor)
    assert array.dtype == NUMPY_DTYPES[name]
    assert array.shape == (3, 2)
    assert array.astype(np.complex128).tolist() == tensor.to(torch.complex128).tolist()


def test_other_arrays():
    assert as_array(ml_dtypes.bfloat16(2)).dtype.name == "bfloat16"
    assert as_array(torch.zeros(0, 3)).shape == (0, 3)
    assert as_array(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
