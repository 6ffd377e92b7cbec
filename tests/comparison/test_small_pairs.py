"""Small pairs that are read together have the results of each, to the last bit; what is unusual among them is read singly."""

import ml_dtypes
import numpy as np
import pytest

from precflow.comparison import small_pairs
from precflow.comparison.batches import make_batches
from precflow.comparison.executors.threads import Threads
from precflow.comparison.reading import Reading, ReadOptions, read_pair
from precflow.comparison.small_pairs import group_small, read_together
from precflow.dumps.formats import read_dump
from precflow.dumps.tensors import SMALL
from precflow.dumps.views.derived import DerivedDump
from precflow.dumps.views.two_passes import TwoPasses

pytest.importorskip("numba")
pytestmark = pytest.mark.xdist_group("compiled")
OPTIONS = ReadOptions(compiled=True)
RNG = np.random.default_rng(7)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def values(shape, kind):
    """Return tensors of both sides with something that metrics treat in a way of its own."""
    y = RNG.standard_normal(shape) * 10.0 ** RNG.integers(-30, 30)
    x = y * (1 + RNG.standard_normal(shape) * 10.0 ** RNG.integers(-9, 0))
    if kind == "distribution":
        y, x = np.abs(y), np.abs(x)
    y, x = np.array(y), np.array(x)  # NumPy's scalars, which those of no axis are by now, cannot be changed
    for side in {"fills": (y, x), "one side": (x,), "nonfinite": (y,)}.get(kind, ()):
        side.reshape(-1)[::3] = {"fills": -1e9, "one side": np.finfo(np.float32).min, "nonfinite": np.inf}[kind]
    if kind == "zeros":
        y[...] = 0
    if kind == "near":  # a constant of masks among values of its size is an ordinary number
        y = 1e9 * RNG.uniform(-2, 2, shape)
        x = y * (1 + 1e-6)
        y.reshape(-1)[0] = x.reshape(-1)[0] = -1e9
    return y, x


KINDS = ("plain", "distribution", "fills", "one side", "nonfinite", "zeros", "near")


@pytest.fixture
def small(build):
    """Return a function that writes pairs of every kind, and returns their readings and both sides."""

    def write(*shapes, dtypes=("float32", "float32"), damaged=()):
        pairs = [values(shape, kind) for shape in shapes for kind in KINDS for _ in range(3)]
        sides = {}
        for side, name, place in (("reference", dtypes[0], 0), ("target", dtypes[1], 1)):
            dump = build(side, side=side)
            for number, pair in enumerate(pairs):
                with np.errstate(over="ignore"):
                    dump.call(f"m{number}", "linear", [pair[place].astype(DTYPES[name])], step=number % 2)
            folder = dump.write()
            if side in damaged:
                (shard,) = folder.glob("rank0/step0/*.safetensors")
                data = bytearray(shard.read_bytes())
                data[-1] ^= 1
                shard.write_bytes(data)
            sides[side] = read_dump(folder)
        records = [[call.outputs[0] for call in sides[side].calls()] for side in ("reference", "target")]
        return [Reading(*both) for both in zip(*records, strict=True)], sides

    return write


def text(results):
    return [repr((dict(one.metrics), one.counts, one.warnings, one.peak, one.row_peak, one.problem)) for one in results]


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "bfloat16")])
def test_results_are_those_of_each_pair(small, dtypes, monkeypatch):
    readings, sides = small((4, 4), (), (7,), (3, 1, 5), (513,), (40, 50), dtypes=dtypes)
    singly = text(read_pair(one, {side: read_dump(dump.path) for side, dump in sides.items()}, OPTIONS) for one in readings)
    groups = group_small(readings, OPTIONS)
    assert sorted(number for group in groups for number in group) == list(range(len(readings)))
    alone = []
    monkeypatch.setattr(small_pairs, "read_pair", lambda one, *rest: alone.append(one) or read_pair(one, *rest))
    for group in groups:
        assert text(read_together([readings[number] for number in group], sides, OPTIONS)) == [singly[n] for n in group]
    assert 0 < len(alone) < len(readings) / 2  # constants near other values show only when all of a tensor has been read
    (batch,) = make_batches(readings, OPTIONS)
    ((_, found),) = Threads(2).run([batch], *sides.values(), OPTIONS)
    assert text(found) == singly


@pytest.mark.parametrize("side", ["reference", "target"])
def test_a_damaged_tensor_is_told_and_its_neighbours_are_read(small, side):
    readings, sides = small((4, 4), damaged=[side])
    (group,) = group_small(readings, OPTIONS)
    problems = [one.problem for one in read_together([readings[number] for number in group], sides, OPTIONS) if one.problem]
    assert len(problems) == 1
    assert problems[0].startswith(f"{side}: rank0/step0/")
    assert "is damaged: the bytes of " in problems[0]


def test_large_pairs_and_those_of_other_passes_are_not_read_together(small):
    readings, _ = small((4, 4), (SMALL // 4 + 1,))
    is_small = [number for number, reading in enumerate(readings) if reading.reference.shape == (4, 4)]
    assert group_small(readings, OPTIONS) == [is_small]
    assert group_small(readings, ReadOptions(compiled=False)) == []
    assert group_small(readings, ReadOptions(compiled=True, own={"mine": object})) == []


def test_a_view_that_makes_tensors_never_gives_those_that_were_recorded():
    """A view that has tensors of its own and inherits `gather` would compare others than it shows."""

    def kinds(base):
        for kind in base.__subclasses__():
            yield kind
            yield from kinds(kind)

    made = [kind for kind in (DerivedDump, *kinds(DerivedDump)) if "view" in vars(kind)]
    assert TwoPasses in made
    assert [kind.__name__ for kind in made if "gather" not in vars(kind)] == []
