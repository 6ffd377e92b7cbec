"""A pair is read once, in ranges, and checked while it is read."""

import msgspec
import numpy as np
import pytest

from precflow.comparison import reading as module
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.fused.summary import Summary
from precflow.comparison.reading import OpenPair, PairResult, Reading, ReadOptions, count_classes, list_warnings, read_pair
from precflow.dumps.formats import read_dump
from precflow.errors import DumpError

X = np.random.default_rng(3).standard_normal((300, 500)).astype(np.float32)


class Largest:
    """A metric of the user's own."""

    def __init__(self):
        self.largest = 0.0

    def update(self, reference, target):
        self.largest = max(self.largest, float(np.abs(reference - target).max()))

    def merge(self, other):
        self.largest = max(self.largest, other.largest)

    def value(self):
        return self.largest


@pytest.fixture
def opened(build):
    """Return a function that writes two dumps with one record each; the reading, and the dumps by side."""

    def write(reference, target, *, damaged=False):
        sides = {}
        for side, array in (("reference", reference), ("target", target)):
            folder = build(side, side=side).call("a", "linear", [array]).write()
            if damaged and side == "target":
                (shard,) = folder.glob("rank0/step0/*.safetensors")
                data = bytearray(shard.read_bytes())
                data[-1] ^= 1
                shard.write_bytes(data)
            sides[side] = read_dump(folder)
        return Reading(*(dump.calls()[0].outputs[0] for dump in sides.values())), sides

    return write


def test_a_pair_in_one_piece(opened):
    found = read_pair(*opened(X, X * np.float32(1.5)), ReadOptions())
    assert found.metrics["relative_l2"] == pytest.approx(0.5, rel=1e-6)
    assert found.counts["elements"] == X.size
    assert (found.problem, found.absent) == ("", {})


def test_several_ranges_give_what_one_gives(opened, monkeypatch):
    reading, sides = opened(X, X * np.float32(1.5))
    whole = read_pair(reading, sides, ReadOptions(own={"largest": Largest}))
    monkeypatch.setattr(module, "PART", 1 << 16)
    pair = OpenPair(reading, **sides, options=ReadOptions(own={"largest": Largest}))
    assert pair.ranges() == [(0, 65536), (65536, 131072), (131072, 150000)]
    parts = [pair.read(start, stop) for start, stop in pair.ranges()]
    found = pair.finish(parts)
    assert found.metrics == pytest.approx(whole.metrics, rel=1e-12)
    assert found.metrics["largest"] == float(np.abs(X * np.float32(1.5) - X).max())
    assert found.counts == whole.counts


def test_a_pair_without_elements_has_a_range_and_a_summary_too(opened):
    reading, sides = opened(X[:0], X[:0])
    assert OpenPair(reading, **sides, options=ReadOptions()).ranges() == [(0, 0)]
    assert read_pair(reading, sides, ReadOptions()).metrics == {"bitwise_equal": 1.0}


def test_what_was_not_recorded_so_is_a_problem_of_its_side_and_no_number(opened):
    found = read_pair(*opened(X, X * np.float32(1.5), damaged=True), ReadOptions())
    assert found.problem.startswith("target: ")
    assert found == PairResult(problem=found.problem)


def test_a_tensor_that_is_not_there_is_a_problem_of_its_side(opened):
    reading, sides = opened(X, X)
    absent = Reading(msgspec.structs.replace(reading.reference, content="0" * 32, stored=False), reading.target)
    with pytest.raises(DumpError, match="reference: "):
        OpenPair(absent, **sides, options=ReadOptions())
    assert read_pair(absent, sides, ReadOptions()).problem.startswith("reference: ")


def test_complex_numbers_are_pairs_of_reals(opened):
    numbers = (X[:2] + 1j * X[1:3]).astype(np.complex64)
    reading, sides = opened(numbers, numbers * np.complex64(2))
    assert OpenPair(reading, **sides, options=ReadOptions()).size == 2 * numbers.size
    assert read_pair(reading, sides, ReadOptions()).metrics["relative_l2"] == pytest.approx(1.0, rel=1e-6)


def test_equal_contents_are_one_thing_to_read(opened):
    reading, _ = opened(X, X * 2)
    again = msgspec.structs.replace(reading.reference, whose=reading.reference.whose._replace(module="b"))
    assert Reading(again, reading.target).contents == reading.contents
    part = msgspec.structs.replace(reading.reference, part="5a")
    assert Reading(part, reading.target).contents != reading.contents


NAN, FILL = np.nan, np.finfo(np.float32).min


def remarks(reference, target):
    summary = summarize(np.array(reference, np.float32), np.array(target, np.float32))
    return count_classes(summary), list_warnings(summary)


def test_every_element_is_counted_in_one_class():
    found, _ = remarks([1, 0, NAN, FILL, 2], [1, 0, NAN, FILL, 3])
    assert found["elements"] == 5
    assert [found[name] for name in ("ordinary", "small", "sentinel", "nonfinite")] == [2, 1, 1, 1]
    assert all(isinstance(number, int) for number in found.values())


def test_there_is_nothing_to_say_of_ordinary_values():
    assert remarks([1, 2, 3], [1, 2, 4])[1] == ()


@pytest.mark.parametrize(
    ("reference", "target", "said"),
    [
        ([NAN, np.inf, 1], [NAN, np.inf, 1], "2 NaN or Inf, equal in kind and place on both sides"),
        ([FILL, FILL, 1], [FILL, FILL, 1], "2 elements hold a mask's fill value on both sides and are measured by themselves"),
        ([FILL, 1, 1], [-np.inf, 1, 1], "1 places hold -inf on one side and a mask's fill value on the other"),
        (
            [0, 1, 1],
            [0.5, 1, 1],
            "1 elements are 0 or subnormal in the reference only: errors relative to single elements leave them out",
        ),
    ],
)
def test_what_the_metrics_leave_out_is_told_once(reference, target, said):
    assert remarks(reference, target)[1] == (said,)


def test_what_found_no_partner_is_counted_and_not_called_equal():
    found, said = remarks([NAN, 1, FILL], [1, NAN, 1])
    assert (found["nonfinite_mismatch"], found["sentinel_mismatch"]) == (2, 1)
    assert said == ()


def test_warnings_come_in_one_order():
    _, said = remarks([NAN, FILL, 0], [NAN, FILL, 1])
    assert [text.split(" ", 1)[1][:12] for text in said] == ["NaN or Inf, ", "elements hol", "elements are"]


def test_of_nothing_there_is_nothing_to_say():
    assert set(count_classes(Summary()).values()) == {0}
    assert list_warnings(Summary()) == ()
