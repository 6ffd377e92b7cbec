"""The user's own metrics: blocks of every type, parts that are merged, and errors that are told."""

import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest

from precflow.comparison import user_metrics
from precflow.comparison.compare import compare
from precflow.comparison.executors.threads import Threads
from precflow.comparison.user_metrics import DeclaredMetrics, MetricTally
from precflow.dumps.formats import read_dump
from precflow.errors import ConfigError, TrustError

RNG = np.random.default_rng(5)


class Flips:
    """Share of elements whose sign differs."""

    def __init__(self, least=0.0):
        self.least = least
        self.flips = self.size = 0

    def update(self, reference, target):
        far = np.abs(reference) >= self.least
        self.flips += int(np.count_nonzero((reference * target < 0) & far))
        self.size += reference.size

    def merge(self, other):
        self.flips += other.flips
        self.size += other.size

    def value(self):
        return self.flips / max(self.size, 1)


class Raises(Flips):
    def update(self, reference, target):
        raise ValueError("no such thing")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the folder of a module of the user's, which only a recipe's import paths lead to."""
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "our_metrics.py").write_text(
        textwrap.dedent(
            """
            class Largest:
                def __init__(self, scale=1.0):
                    self.scale, self.most = scale, 0.0

                def update(self, reference, target):
                    self.most = max(self.most, float(abs(target - reference).max()))

                def merge(self, other):
                    self.most = max(self.most, other.most)

                def value(self):
                    return self.most * self.scale

            class Half:
                def update(self, reference, target):
                    pass

            class Picky:
                def __init__(self, scale):
                    raise RuntimeError("bad scale")
            """
        )
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield str(folder)
    sys.modules.pop("our_metrics", None)


def loaded(package, **metrics):
    return DeclaredMetrics(metrics, ("our_metrics",), (package,)).load()


def test_a_class_is_found_by_its_name_and_takes_its_arguments(package):
    makers = loaded(package, largest={"_target_": "our_metrics.Largest", "scale": 2.0})
    tally = MetricTally(makers)
    tally.read(np.zeros(5, np.float32), np.arange(5, dtype=np.float32))
    assert tally.values() == ({"largest": 8.0}, {})
    assert makers["largest"]() is not makers["largest"]()


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"_target_": "our_metrics.Missing"}, "there is no our_metrics.Missing"),
        ({"_target_": "our_metrics.nothing.Largest"}, "there is no our_metrics.nothing.Largest"),
        ({"_target_": "our_metrics.Largest", "scales": 2}, "unexpected keyword argument 'scales'"),
        ({"_target_": "our_metrics.Picky", "scale": 2}, "RuntimeError: bad scale"),
        ({"_target_": "our_metrics.Half"}, "lacks merge, value"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_read(package, declared, told):
    with pytest.raises(ConfigError, match=r"metrics\.mine") as raised:
        loaded(package, mine=declared)
    assert told in str(raised.value)


def test_a_package_that_is_not_trusted_is_not_even_imported(package):
    with pytest.raises(TrustError, match="not trusted"):
        DeclaredMetrics({"mine": {"_target_": "our_metrics.Largest"}}, (), (package,)).load()
    assert "our_metrics" not in sys.modules


@pytest.mark.parametrize(
    ("dtype", "seen"),
    [
        (np.float32, np.float64),
        (np.float16, np.float64),
        (ml_dtypes.bfloat16, np.float64),
        (np.float64, np.float64),
        (np.int32, np.int32),
        (np.bool_, np.bool_),
    ],
)
def test_blocks_are_read_only_and_wide(dtype, seen):
    kinds = []

    class Looks(Flips):
        def update(self, reference, target):
            kinds.append((reference.dtype, target.dtype, reference.flags.writeable, reference.ndim))

    MetricTally({"looks": Looks}).read(np.ones(3).astype(dtype), np.zeros(3).astype(dtype))
    assert kinds == [(np.dtype(seen), np.dtype(seen), False, 1)]


def test_parts_are_merged_in_order(monkeypatch):
    monkeypatch.setattr(user_metrics, "BLOCK", 10)
    reference, target = RNG.standard_normal((2, 95))
    tallies = [MetricTally({"flips": Flips}) for _ in range(3)]
    for tally, place in zip(tallies, (slice(0, 40), slice(40, 41), slice(41, 95)), strict=True):
        tally.read(reference[place], target[place])
    for tally in tallies[1:]:
        tallies[0].merge(tally)
    numbers, failed = tallies[0].values()
    assert numbers == {"flips": np.mean(reference * target < 0)}
    assert not failed


def test_a_class_that_raises_is_told_and_others_go_on():
    tally, later = MetricTally({"bad": Raises, "good": Flips}), MetricTally({"bad": Raises, "good": Flips})
    for part in (tally, later):
        part.read(np.ones(3), -np.ones(3))
    tally.merge(later)
    assert tally.values() == ({"good": 1.0}, {"bad": "it raised ValueError: no such thing"})


@pytest.mark.parametrize("method", ["merge", "value"])
def test_an_error_in_any_method_is_told(method):
    def broken(self, *_):
        raise RuntimeError(method)

    kind = type("Broken", (Flips,), {method: broken})
    parts = [MetricTally({"one": kind}) for _ in range(2)]
    for part in parts:
        part.read(np.ones(3), np.ones(3))
    parts[0].merge(parts[1])
    assert parts[0].values() == ({}, {"one": f"it raised RuntimeError: {method}"})


def test_a_value_that_is_no_number_is_told():
    kind = type("Words", (Flips,), {"value": lambda self: "many"})
    tally = MetricTally({"words": kind})
    tally.read(np.ones(3), np.ones(3))
    assert "could not convert" in tally.values()[1]["words"]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_comparison_has_them_beside_ours(build, monkeypatch, threads):
    monkeypatch.setattr("precflow.comparison.reading.PART", 1 << 16)
    reference, target = build("reference"), build("target", side="target")
    first = RNG.standard_normal((3, 50_000)).astype(np.float32)
    second = first * RNG.choice([1, 1, 1, -1], first.shape).astype(np.float32)
    for dump, values in ((reference, first), (target, second)):
        dump.call("a", "linear", [values]).call("b", "linear", [values], store=False).call("c", "view", [values], movement=True)
    sides = [read_dump(dump.write()) for dump in (reference, target)]
    large, digest, movement = compare(*sides, executor=Threads(threads), own={"flips": Flips, "bad": Raises})
    assert large.metrics["flips"] == np.mean(first * second < 0)
    assert large.metrics["relative_l2"] > 0.5
    assert large.absent == {"bad": "it raised ValueError: no such thing"}
    assert "flips" not in {**digest.metrics, **movement.metrics}


def test_equal_bits_have_no_error_by_any_metric(build):
    reference, target = build("reference"), build("target", side="target")
    values = RNG.standard_normal((4, 16)).astype(np.float32)
    for dump in (reference, target):
        dump.call("a", "linear", [values], store=False)
    (measure,) = compare(*(read_dump(dump.write()) for dump in (reference, target)), own={"flips": Flips})
    assert measure.equal
    assert (measure.metrics["relative_l2"], measure.metrics["flips"]) == (0, 0)


def test_what_was_not_kept_as_a_tensor_has_none_and_says_why(build):
    reference, target = build("reference"), build("target", side="target")
    values = RNG.standard_normal((4, 16)).astype(np.float32)
    reference.call("a", "linear", [values], store=False, statistics=True)
    target.call("a", "linear", [values * 2], store=False, statistics=True)
    (measure,) = compare(*(read_dump(dump.write()) for dump in (reference, target)), own={"flips": Flips})
    assert not measure.equal
    assert measure.join in {"paired", "sampled_out"}
    assert measure.join != "paired" or measure.absent["flips"] == "needs the tensors of both sides"
