import pytest

from precflow.agent.contract import Identity
from precflow.dumps.estimate import element_bytes, holds_tensor, rows_bytes, sketch_bytes, tensor_bytes
from precflow.dumps.records import Record

WHO = Identity("fc", 0, "linear", 0, "forward", "output", "0", 0, 0)


def record(shape, dtype="float32", *, share=1.0, content="c", weight=""):
    return Record.of(WHO, 0, dtype, shape, content, stored=False, source=None, weight=weight, share=share)


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float8_e5m2", 1), ("complex128", 16), ("odd", 4)]
)
def test_elements_by_type(dtype, size):
    assert element_bytes(dtype) == size


@pytest.mark.parametrize(
    ("shape", "dtype", "share", "size"),
    [
        ((3, 77, 512), "float32", 1.0, 3 * 77 * 512 * 4),
        ((), "float64", 1.0, 8),
        ((0, 4), "float32", 1.0, 0),
        ((1000,), "bool", 0.25, 250),
    ],
)
def test_a_tensor_takes_its_elements_and_a_part_its_share(shape, dtype, share, size):
    assert tensor_bytes(record(shape, dtype, share=share)) == size


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1024,), 4096),  # not larger than its sketch: kept whole
        ((1025,), 509 * 4 + 4),
        ((231, 512), 509 * 4 + 231 * 4),
        ((100_000, 64), 509 * 4 + 1024 * 4),  # norms of groups of rows
    ],
)
def test_a_sketch_takes_its_buckets_and_norms_of_rows(shape, size):
    assert sketch_bytes(record(shape)) == size


@pytest.mark.parametrize(("shape", "size"), [((1024,), 0), ((1025,), 4), ((231, 512), 231 * 4), ((100_000, 64), 1024 * 4)])
def test_norms_of_rows_take_four_bytes_each(shape, size):
    assert rows_bytes(record(shape)) == size


def test_weights_that_go_in_and_movement_have_no_tensor():
    assert holds_tensor(record((2,)), movement=False)
    assert not holds_tensor(record((2,)), movement=True)
    assert not holds_tensor(record((2,), weight="fc.weight"), movement=False)
    assert not holds_tensor(record((2,), content=""), movement=False)
