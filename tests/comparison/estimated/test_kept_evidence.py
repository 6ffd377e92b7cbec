"""What is known of one tensor, against plain NumPy over the whole of it."""

import ml_dtypes
import numpy as np
import pytest
from sketches import make_sketch

from precflow.agent.contract import FILLS, Identity
from precflow.comparison.estimated.kept_evidence import KeptTensor, checksum_places, group_length, load_kept, sum_tensor
from precflow.comparison.estimated.sketch import BLOCK, BUCKETS, estimate_norm, mix32
from precflow.comparison.fused.value_classes import FIRST_FILL, MINUS_INFINITY, NOT_A_NUMBER, ORDINARY, fills_of
from precflow.dumps.dtypes import NUMPY_DTYPES, float_facts
from precflow.dumps.records import Record, Statistics
from precflow.errors import DumpError

RNG = np.random.default_rng(5)
OF_FLOAT32 = fills_of(float_facts("float32"))
LOW = FIRST_FILL + FILLS.index(-1e9)
COUNTED = Statistics(-1.0, 2.0, 0.5, 6.0, 0, 0, 0, 0, 0, 0)


def known(array):
    return sum_tensor(array, KeptTensor(array.dtype.name, array.shape))


def record(array, **facts):
    who = Identity("a", 0, "linear", 0, "forward", "output", "0", 0, 0)
    return Record.of(who, 0, array.dtype.name, array.shape, "c0", facts.pop("stored", False), None, "", **facts)


class Dump:
    """A dump of one record."""

    fills = FILLS

    def __init__(self, tensor=None, sketched=None, rows=None):
        self._found = (tensor, sketched, rows)

    def tensor(self, record):
        if self._found[0] is None:
            raise DumpError(f"no shard holds {record.text}")
        return self._found[0]

    def sketch(self, record):
        del record
        return self._found[1]

    def rows(self, record):
        del record
        return self._found[2]


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_statistics_of_every_floating_point_type(name):
    array = RNG.standard_normal((40, 50)).astype(NUMPY_DTYPES[name])
    wide = array.astype(np.float64)
    found = known(array)
    assert found.statistics.minimum == wide.min()
    assert found.statistics.maximum == wide.max()
    assert found.statistics.sum == pytest.approx(wide.sum(), rel=1e-12)
    assert found.statistics.square == pytest.approx((wide**2).sum(), rel=1e-12)
    assert found.rows == pytest.approx(np.linalg.norm(wide, axis=1), rel=1e-12)
    assert found.sketch == pytest.approx(make_sketch(wide.reshape(-1)))
    assert (found.evidence, found.exact, found.resolution) == ("tensors", True, 0.0)


def test_what_is_not_ordinary_is_counted_and_enters_no_sum():
    array = RNG.standard_normal((300, 700)).astype(np.float32)
    array[0, 0], array[1, 1], array[2, 2] = np.nan, np.inf, -np.inf
    array[3, :5], array[4, 6], array[5, 0] = np.finfo(np.float32).min, np.finfo(np.float32).max, 0.0
    found = known(array).statistics
    plain = np.where(np.isfinite(array) & (np.abs(array) < 1e8), array, 0).astype(np.float64)
    assert (found.nan, found.positive_infinity, found.negative_infinity) == (1, 1, 1)
    assert (found.sentinel, found.high, found.saturated, found.zero) == (6, 1, 6, 1)
    assert found.nonfinite == 3
    assert found.square == pytest.approx((plain**2).sum(), rel=1e-12)
    assert known(array).sketch == pytest.approx(make_sketch(plain.reshape(-1)))


def test_a_complex_tensor_is_one_of_pairs():
    array = (RNG.standard_normal((7, 9)) + 1j * RNG.standard_normal((7, 9))).astype(np.complex64)
    found = known(array)
    assert found.statistics.square == pytest.approx(np.linalg.norm(array.astype(np.complex128)) ** 2, rel=1e-12)
    assert found.rows == pytest.approx(np.linalg.norm(array, axis=1), rel=1e-6)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (), (1,)])
def test_small_and_empty_tensors(shape):
    array = np.full(shape, 2.0, np.float32)
    found = known(array)
    assert found.statistics.maximum == (2.0 if array.size else None)
    assert estimate_norm(found.sketch) == (2.0 if array.size else 0.0)


def test_integers_have_no_sums():
    assert known(np.arange(5)).statistics is None


def test_neighbouring_rows_share_a_norm_where_there_are_many():
    array = RNG.standard_normal((3000, 11)).astype(np.float32)
    assert group_length(array.shape, array.size) == 33
    assert known(array).rows == pytest.approx(np.linalg.norm(array.astype(np.float64).reshape(-1, 33), axis=1), rel=1e-12)


def test_rows_across_blocks():
    array = RNG.standard_normal((3, BLOCK // 2 + 5)).astype(np.float32)
    assert known(array).rows == pytest.approx(np.linalg.norm(array.astype(np.float64), axis=1), rel=1e-12)


def test_a_shape_in_step_with_the_buckets_has_no_sketch():
    assert known(RNG.standard_normal((20, 3 * BUCKETS))).sketch is None
    assert known(RNG.standard_normal((1, 3 * BUCKETS))).sketch is not None
    assert (
        load_kept(record(np.zeros((4, BUCKETS), np.float32), statistics=COUNTED), Dump(sketched=np.zeros((1, 509)))).sketch
        is None
    )


def test_places_are_a_checksum_that_does_not_hang_on_blocks():
    kinds = np.zeros(200_000, np.uint8)
    kinds[[5, 70_000, 199_999]] = NOT_A_NUMBER, LOW, LOW
    assert checksum_places(kinds, 0, OF_FLOAT32) == (
        checksum_places(kinds[:100], 0, OF_FLOAT32) + checksum_places(kinds[100:], 100, OF_FLOAT32)
    ) % (1 << 32)
    assert checksum_places(kinds * 0 + ORDINARY, 0, OF_FLOAT32) == 0
    moved = kinds.copy()
    moved[[5, 6]] = moved[[6, 5]]
    assert checksum_places(moved, 0, OF_FLOAT32) != checksum_places(kinds, 0, OF_FLOAT32)
    alike = kinds.copy()
    alike[70_000] = MINUS_INFINITY
    assert checksum_places(alike, 0, OF_FLOAT32) == checksum_places(kinds, 0, OF_FLOAT32)


def test_places_by_the_words_of_the_contract():
    kinds = np.zeros(16_388, np.uint8)
    kinds[16_386] = NOT_A_NUMBER
    table = int(mix32(np.array([2 + 0x243F6A88], np.uint32))[0])
    block = int(mix32(np.array([1], np.uint32))[0])
    assert checksum_places(kinds, 0, OF_FLOAT32) == (table ^ block) | 1


def test_a_record_says_what_was_kept():
    array = RNG.standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    assert load_kept(record(array), Dump()).evidence == "digest"
    assert load_kept(record(array, statistics=COUNTED), Dump()).evidence == "statistics"
    sketched = load_kept(record(array, statistics=COUNTED), Dump(sketched=np.ones((2, 509), np.float32), rows=np.ones(4)))
    assert (sketched.evidence, sketched.sketch[0], sketched.rows.tolist()) == ("sketch", 2.0, [1.0] * 4)
    assert load_kept(record(array, stored=True), Dump(tensor=array)).evidence == "tensors"


def test_the_low_part_of_a_sketch_makes_it_finer():
    array = RNG.standard_normal((4, 6)).astype(np.float32)
    coarse = load_kept(record(array, statistics=COUNTED), Dump(sketched=np.ones((1, 509))))
    fine = load_kept(record(array, statistics=COUNTED), Dump(sketched=np.ones((2, 509))))
    assert fine.resolution < coarse.resolution < 1e-6


@pytest.mark.parametrize(("sums", "held"), [(1e-44, False), (1e-35, False), (1e-30, True), (0.0, True), (np.inf, False)])
def test_sums_that_float32_cannot_hold_are_not_used(sums, held):
    array = RNG.standard_normal((4, 6))
    numbers = np.zeros(509, np.float32)
    numbers[3] = sums
    found = load_kept(record(array, statistics=COUNTED), Dump(sketched=numbers, rows=numbers))
    assert (found.sketch is not None, found.rows is not None) == (held, held)
    assert found.evidence == ("sketch" if held else "statistics")


def test_a_tensor_that_should_be_there_and_is_not_is_an_error():
    with pytest.raises(DumpError):
        load_kept(record(RNG.standard_normal(4), stored=True), Dump())
