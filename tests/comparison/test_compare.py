"""From two dumps to measures."""

import numpy as np
import pytest

from precflow.comparison.compare import compare
from precflow.comparison.executors.threads import Threads
from precflow.comparison.fused.summarize import PairOfTensors
from precflow.comparison.pairing import ABSENT
from precflow.dumps.formats import read_dump

RNG = np.random.default_rng(11)
HIDDEN = RNG.standard_normal((4, 16)).astype(np.float32)


def measured(first, second, **options):
    return compare(read_dump(first.write()), read_dump(second.write()), **options)


@pytest.fixture
def both(build):
    return build("reference"), build("target", side="target")


def test_a_pair_is_measured(both):
    for dump, factor in zip(both, (1, 1.001), strict=True):
        dump.call("a", "linear", [HIDDEN * np.float32(factor)], [HIDDEN])
        dump.call("a", "", {"last_hidden_state": HIDDEN})
    linear, module = measured(*both)
    assert (linear.record, linear.name, linear.level, linear.join) == (
        "a/linear.0/forward.output.0",
        "a / linear",
        "api",
        "paired",
    )
    assert linear.metrics["relative_l2"] == pytest.approx(1e-3, rel=1e-3)
    assert linear.counts["elements"] == linear.counts["ordinary"] == 64
    assert not linear.equal
    assert linear.site == linear.target_site == "model.py:3 in forward <- run.py:1"
    assert (module.record, module.equal) == ("a/forward.output.last_hidden_state", True)
    assert module.metrics["relative_l2"] == 0.0
    assert module.counts["ordinary"] == 64
    assert linear.judged
    assert module.judged


def test_results_keep_the_references_order_whatever_the_threads(both):
    reference, target = both
    for number in range(20):
        reference.call(f"layers.{number}", "linear", [HIDDEN])
        target.call(f"layers.{19 - number}", "linear", [HIDDEN * 2])
    target.call("extra", "clone", [HIDDEN])
    one, many = measured(*both, executor=Threads(1)), measured(*both, executor=Threads(4), block=7)
    assert [measure.name for measure in one] == [*(f"layers.{number} / linear" for number in range(20)), "extra / clone"]
    assert [measure.name for measure in many] == [measure.name for measure in one]
    for left, right in zip(one, many, strict=True):
        assert left.metrics == pytest.approx(right.metrics, rel=1e-12)
    assert one[-1].join == "unpaired_target"


def test_what_only_one_side_has(both):
    reference, target = both
    reference.call("a", "linear", [HIDDEN]).call("b", "view", [HIDDEN], movement=True)
    target.call("c", "linear", [HIDDEN]).call("c", "argmax", [np.int64([1])])
    joins = {measure.name: (measure.join, measure.judged) for measure in measured(*both)}
    assert joins == {
        "a / linear": ("unpaired_reference", True),
        "b / view": ("unpaired_reference", False),
        "c / linear": ("unpaired_target", True),
        "c / argmax": ("unpaired_target", False),
    }


def test_other_shapes_are_not_compared(both):
    for dump, shape in zip(both, ((4, 16), (16, 4)), strict=True):
        dump.call("a", "linear", [HIDDEN.reshape(shape)])
    (measure,) = measured(*both)
    assert (measure.join, measure.reason) == ("shape", "[4, 16] on the reference, [16, 4] on the target")
    assert measure.metrics == {}
    assert measure.judged


def test_movement_is_equal_or_not_by_content_alone(both):
    for dump, other in zip(both, (HIDDEN, HIDDEN * 2), strict=True):
        dump.call("a", "view", [HIDDEN], store=False, movement=True)
        dump.call("b", "view", [other], store=False, movement=True)
    same, different = measured(*both)
    assert (same.equal, same.judged, same.metrics, same.join) == (True, False, {}, "paired")
    assert (different.equal, different.judged) == (False, False)


def test_integers_are_measured_and_not_judged(both):
    for dump in both:
        dump.call("a", "argmax", [np.int64([3, 4])])
    (measure,) = measured(*both)
    assert not measure.judged
    assert measure.metrics == {"max_abs_error": 0.0, "mean_abs_error": 0.0, "bitwise_equal": 1.0}


def test_arguments_that_differ(both):
    for dump, arguments in zip(both, ({"eps": "1e-05", "dim": "1"}, {"eps": "1e-03", "dim": "1", "out": "None"}), strict=True):
        dump.call("a", "layer_norm", [HIDDEN], arguments=arguments)
    (measure,) = measured(*both)
    assert measure.arguments == {"eps": ("1e-05", "1e-03"), "out": (ABSENT, "None")}


def test_a_broken_shard_makes_its_records_unreadable_on_either_side(both):
    for dump in both:
        dump.call("a", "linear", [HIDDEN]).call("a", "linear", [HIDDEN[:2]], step=1)
    folders = [dump.write() for dump in both]
    shard = folders[1] / "rank0/step0/tensors-0.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    first, second = compare(*(read_dump(folder) for folder in folders))
    assert first.join == "unreadable"  # although the content ids are equal
    assert first.reason.startswith("target: rank0/step0/tensors-0.safetensors is damaged")
    assert second.join == "paired"


def test_tensors_that_were_not_kept(both):
    for dump, factor in zip(both, (1, 2), strict=True):
        dump.call("a", "linear", [HIDDEN * factor], store=False)
        dump.call("b", "linear", [HIDDEN], store=factor == 1)
    different, same = measured(*both)
    assert (different.join, different.evidence, different.metrics) == ("paired", "digest", {"bitwise_equal": 0.0})
    assert "content id only" in different.absent["relative_l2"]
    assert (same.join, same.equal, same.evidence, same.metrics["relative_l2"]) == ("paired", True, "digest", 0.0)


def test_records_without_a_content_id_are_never_equal(both):
    for dump in both:
        dump.call("a", "to_sparse", [HIDDEN], store=False)
        dump.lines[0, 0][0]["outputs"][0].update(content="", dtype="float8_e4m3fnuz")
    (measure,) = measured(*both)
    assert (measure.join, measure.equal, measure.judged) == ("sampled_out", False, True)
    assert measure.reason == "the reference and target kept no tensor of it"


def test_warnings_tell_what_the_metrics_leave_out(both):
    lowest = np.finfo(np.float32).min
    for dump, filled in zip(both, (-np.inf, lowest), strict=True):
        dump.call("a", "masked_fill", [np.float32([np.nan, 1.0, lowest, filled, 0.0 if dump.side == "reference" else 2.0])])
    (measure,) = measured(*both)
    assert len(measure.warnings) == 4
    assert measure.warnings[0].startswith("1 NaN or Inf")
    assert measure.counts["infinity_for_sentinel"] == 1
    assert measure.counts["nonfinite_mismatch"] == 0


def test_large_tensors_are_read_by_several_threads(both, monkeypatch):
    monkeypatch.setattr("precflow.comparison.reading.PART", 1 << 16)
    large = RNG.standard_normal((5, 77, 700)).astype(np.float32)
    for dump, factor in zip(both, (1, 2), strict=True):
        dump.call("a", "linear", [large * np.float32(factor)]).call("b", "linear", [np.zeros((0, 4), np.float32)])
    whole, empty = measured(*both, executor=Threads(3))
    assert whole.metrics["relative_l2"] == 1.0
    assert whole.metrics["worst_row_error"] == pytest.approx(1.0)
    assert empty.counts["elements"] == 0
    assert empty.equal


def test_results_are_the_same_to_the_last_bit_for_any_number_of_threads(both, monkeypatch):
    monkeypatch.setattr("precflow.comparison.reading.PART", 1 << 17)
    for dump, noise in zip(both, (0, 1e-4), strict=True):
        for number, dtype in enumerate((np.float32, np.float16, np.float64, np.complex64, np.int16)):
            values = 3 * np.random.default_rng(number).standard_normal((3, 100_000))
            values *= 1 + noise * np.random.default_rng(9).standard_normal(values.shape)
            dump.call(f"m{number}", "linear", [values.astype(dtype)])
    first, *others = (measured(*both, executor=Threads(count)) for count in (1, 2, 5))
    assert all(other == first for other in others)
    assert len(first) == 5
    assert all(one.join == "paired" for one in first)


@pytest.mark.parametrize("side", [0, 1])
def test_a_flipped_bit_makes_a_record_unreadable_in_the_pass_that_reads_it(both, side):
    for dump, factor in zip(both, (1, 1.5), strict=True):
        for number in range(3):
            dump.call(f"m{number}", "linear", [HIDDEN * np.float32(factor + number)])
    folders = [dump.write() for dump in both]
    (shard,) = folders[side].glob("rank0/step0/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 4
    shard.write_bytes(data)
    good, second, bad = compare(*map(read_dump, folders))
    assert (good.join, second.join, bad.join) == ("paired", "paired", "unreadable")
    assert bad.reason.startswith(f"{('reference', 'target')[side]}: rank0/step0/")
    assert "are not those that were written" in bad.reason
    assert not bad.metrics


def test_a_flipped_bit_is_seen_where_both_sides_are_said_to_be_equal(both):
    for dump in both:
        dump.call("m", "linear", [HIDDEN])
    folders = [dump.write() for dump in both]
    (shard,) = folders[1].glob("rank0/step0/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    (measure,) = compare(*map(read_dump, folders))
    assert (measure.equal, measure.join) == (True, "unreadable")


def test_finished_batches_are_not_read_again(both, monkeypatch, tmp_path):
    monkeypatch.setattr("precflow.comparison.batches.READINGS", 2)
    for dump, factor in zip(both, (1, 1.5), strict=True):
        for number in range(5):
            dump.call(f"m{number}", "linear", [HIDDEN * np.float32(factor + number)])
    sides = [read_dump(dump.write()) for dump in both]
    whole = compare(*sides)
    assert compare(*sides, kept=tmp_path / "kept") == whole
    files = sorted((tmp_path / "kept").iterdir())
    assert len(files) == 3
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    read = []
    original = Threads.run
    monkeypatch.setattr(
        Threads,
        "run",
        lambda self, batches, *rest: original(self, [batch for batch in batches if not read.append(batch)], *rest),
    )
    assert compare(*sides, kept=tmp_path / "kept") == whole
    assert len(read) == 2
    assert compare(*sides, kept=tmp_path / "kept") == whole
    assert len(read) == 2


def test_equal_pairs_of_contents_are_read_once(both, monkeypatch):
    for dump, factor in zip(both, (1, 2), strict=True):
        dump.call("a", "linear", [HIDDEN * factor]).call("a", "", [HIDDEN * factor]).call("b", "linear", [HIDDEN])
    read = []
    original = PairOfTensors.summary_and_lanes
    monkeypatch.setattr(
        PairOfTensors, "summary_and_lanes", lambda self, *a, **k: read.append(self.size) or original(self, *a, **k)
    )
    linear, module, other = measured(*both)
    assert len(read) == 2
    assert linear.metrics == module.metrics
    assert other.metrics["relative_l2"] == 0.0


def test_another_type_is_compared_in_float64(both):
    for dump, dtype in zip(both, (np.float32, np.float16), strict=True):
        dump.call("a", "linear", [HIDDEN.astype(dtype)])
    (measure,) = measured(*both)
    assert (measure.reference_dtype, measure.target_dtype, measure.equal) == ("float32", "float16", False)
    assert 0 < measure.metrics["relative_l2"] < 1e-3
    assert measure.metrics["ulp_distance"] == 0.0


def test_two_empty_dumps(both):
    assert measured(*both) == []


def keep_part(dump, part, share):
    """Keep a part of the first record's tensor in place of the tensor."""
    output = dump.lines[0, 0][0]["outputs"][0]
    output.update(share=share, part="ab12")
    dump.tensors[0, 0] = {f"{output['content']}.ab12": part}


def test_a_part_is_measured_as_a_tensor_of_its_own(both):
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    for dump, values, part in zip(both, (whole, whole + 1), (whole[0], whole[0] * 2), strict=True):
        dump.call("a", "linear", [values])
        keep_part(dump, part, 1 / 3)
    (measure,) = measured(*both, own={"largest": Largest})
    assert (measure.share, measure.evidence, measure.ranges, measure.equal) == (pytest.approx(1 / 3), "tensors", {}, False)
    assert measure.metrics["relative_l2"] == pytest.approx(1.0)
    assert measure.metrics["largest"] == 3.0
    assert measure.counts["elements"] == 4


def test_equal_parts_of_tensors_that_differ_are_not_equal_bits(both):
    for dump, last in zip(both, (1, 2), strict=True):
        values = np.array([1, 1, 1, last], np.float32)
        dump.call("a", "linear", [values])
        keep_part(dump, values[:1], 0.25)
    (measure,) = measured(*both)
    assert (measure.metrics["relative_l2"], measure.metrics["bitwise_equal"], measure.equal) == (0.0, 0.0, False)


class Largest:
    """The largest error, as a user's metric."""

    def __init__(self):
        self.most = 0.0

    def update(self, reference, target):
        self.most = max(self.most, float(np.abs(reference - target).max()))

    def merge(self, other):
        self.most = max(self.most, other.most)

    def value(self):
        return self.most
