"""Which pass reads a pair, in which blocks, and what flat elements are made of; what comes out is in ``test_summary.py``."""

import numpy as np
import pytest

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused import summarize as module
from precflow.comparison.fused.summarize import PairOfTensors, summarize, worth_compiling
from precflow.dumps.digest import lanes

X = np.random.default_rng(1).standard_normal((9, 40)).astype(np.float32)


@pytest.fixture
def compiled(monkeypatch):
    """Stand in for the compiled pass: note what it is asked for."""
    asked = []

    def range_of(*names):
        def read(reference, target, start, length, found=None, floors=(0.0, 0.0)):
            asked.append((names[:2], reference.size, start, length, found is not None))
            return module.Summary(inexact=True, elements=reference.size)

        return read

    monkeypatch.setattr(module, "find_compiled_pass", range_of)
    return asked


def test_flat_elements_are_in_c_order_and_not_copied_where_they_lie_so():
    pair = PairOfTensors(X, X.T.copy().T)
    assert np.shares_memory(pair.reference, X)
    assert np.array_equal(pair.reference, pair.target)
    assert (pair.size, pair.length) == (360, 40)


@pytest.mark.parametrize(("shape", "length"), [((), 1), ((7,), 7), ((2, 3), 3), ((2, 0), 1)])
def test_rows_are_the_last_axis(shape, length):
    assert PairOfTensors(np.zeros(shape), np.zeros(shape)).length == length


def test_a_complex_number_is_two_elements_also_against_a_real_one():
    numbers = X.astype(np.complex64)
    pair = PairOfTensors(numbers, X)
    assert (pair.size, pair.length) == (720, 80)
    assert measure_all(pair.summary())["relative_l2"] == 0.0


def test_integers_against_floating_point_are_read_as_the_latter():
    whole = np.arange(6, dtype=np.int64).reshape(2, 3)
    pair = PairOfTensors(whole, whole.astype(np.float32))
    assert pair.inexact
    assert measure_all(pair.summary())["max_abs_error"] == 0.0
    assert not PairOfTensors(whole, whole).inexact


@pytest.mark.parametrize(
    ("one", "other"), [("int64", "float64"), ("complex128", "float64"), ("float32", "bool"), ("float64", "float32")]
)
@pytest.mark.parametrize("count", [0, 3])
def test_equal_values_of_two_types_are_not_the_same_bits(one, other, count):
    """Types without a compiled form; for the others ``compiled/test_engine.py`` compares this too."""
    pair = [np.ones(count, name) for name in (one, other)]
    assert measure_all(PairOfTensors(*pair).summary())["bitwise_equal"] == 0.0
    assert measure_all(PairOfTensors(*pair).summary(compiled=True))["bitwise_equal"] == 0.0
    assert measure_all(summarize(pair[0], pair[0]))["bitwise_equal"] == 1.0


def test_the_compiled_pass_reads_where_it_is_asked_for(compiled):
    pair = PairOfTensors(X, X)
    assert pair.summary(40, 120, compiled=True).elements == 80
    assert pair.summary(40, 120).elements == 80
    assert compiled == [(("float32", "float32"), 80, 40, 40, False)]


def test_lanes_come_with_the_compiled_pass_or_from_the_bytes(compiled):
    pair = PairOfTensors(X, X)
    data = X.reshape(-1).view(np.uint8), X.reshape(-1).view(np.uint8)
    pair.summary_and_lanes(0, 360, data, compiled=True)
    assert compiled[-1][-1]
    _, found = pair.summary_and_lanes(0, 360, data)
    assert np.array_equal(found[0], lanes(data[0]))
    assert pair.summary_and_lanes(0, 360, None, compiled=True)[1] is None
    assert not compiled[-1][-1], "nobody asked for lanes"


def test_a_large_pair_is_worth_compiling_and_a_small_one_is_not(compiled):
    assert summarize(X, X * 2).elements == 360
    assert compiled == []
    assert worth_compiling([1 << 27])
    assert not worth_compiling([])
