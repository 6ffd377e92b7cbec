"""Batches: cut by size, named by what is in them, kept whole or not at all."""

import math

import numpy as np
import pytest

from precflow.agent.contract import Identity
from precflow.comparison import batches as module
from precflow.comparison.batches import FinishedBatches, make_batches
from precflow.comparison.reading import PairResult, Reading, ReadOptions
from precflow.dumps.records import Record


def reading(number, shape=(4, 16), dtype="float32"):
    identity = Identity(f"m{number}", 0, "linear", 0, "forward", "output", "0", 0, 0)
    facts = {"stored": True, "source": None, "weight": ""}
    records = [Record.of(identity, number, dtype, shape, f"{side}{number}", **facts) for side in "ab"]
    return Reading(*records)


def found(number):
    metrics = {"relative_l2": 0.1 + number, "max_rel_error": math.inf, "kl_divergence": 5e-324}
    return PairResult(metrics, {"elements": number}, ("a warning",), {"mine": "it raised"}, 3.5)


def test_batches_hold_everything_in_order(monkeypatch):
    monkeypatch.setattr(module, "BYTES", 3 * 2 * 4 * 64)
    everything = [reading(number) for number in range(10)]
    cut = list(make_batches(everything, ReadOptions()))
    assert [len(batch.readings) for batch in cut] == [3, 3, 3, 1]
    assert [one for batch in cut for one in batch.readings] == everything
    assert list(make_batches([], ReadOptions())) == []


def test_a_large_tensor_is_a_batch_and_many_small_ones_are_several(monkeypatch):
    monkeypatch.setattr(module, "READINGS", 4)
    cut = list(make_batches([reading(0, (1 << 15, 1 << 15)), *(reading(number, ()) for number in range(1, 9))], ReadOptions()))
    assert [len(batch.readings) for batch in cut] == [1, 4, 4]


def test_the_key_is_the_work():
    key = [batch.key for batch in make_batches([reading(1), reading(2)], ReadOptions())]
    assert key == [batch.key for batch in make_batches([reading(1), reading(2)], ReadOptions())]
    others = [[reading(2), reading(1)], [reading(1)], [reading(1), reading(2, (64,))], [reading(1), reading(2, dtype="int32")]]
    keys = [key, *([batch.key for batch in make_batches(other, ReadOptions())] for other in others)]
    keys.append([batch.key for batch in make_batches([reading(1), reading(2)], ReadOptions(own={"mine": int}))])
    assert len({str(each) for each in keys}) == len(keys)


def test_what_was_kept_is_read_back_to_the_last_bit(tmp_path):
    (batch,) = make_batches([reading(1), reading(2)], ReadOptions())
    kept = FinishedBatches(tmp_path / "not yet there")
    assert kept.read(batch) is None
    results = [found(1), found(2)]
    kept.write(batch, results)
    assert kept.read(batch) == results
    assert np.isinf(kept.read(batch)[0].metrics["max_rel_error"])
    assert FinishedBatches(None).read(batch) is None
    assert FinishedBatches(None).write(batch, results) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_file_that_is_not_what_was_written_is_passed_over(tmp_path, damage):
    (batch,) = make_batches([reading(1), reading(2)], ReadOptions())
    kept = FinishedBatches(tmp_path)
    kept.write(batch, [found(1), found(2)])
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    flipped = bytearray(data)
    flipped[20] ^= 1
    file.write_bytes({"cut": data[:-3], "flipped": bytes(flipped), "empty": b"", "other": data[16:]}[damage])
    assert kept.read(batch) is None


def test_a_file_of_fewer_results_is_not_the_batchs(tmp_path):
    (batch,) = make_batches([reading(1), reading(2)], ReadOptions())
    kept = FinishedBatches(tmp_path)
    kept.write(batch, [found(1)])
    assert kept.read(batch) is None


def test_what_could_not_be_read_is_tried_again(tmp_path):
    """The folder that holds a dump may have been away for a while."""
    (batch,) = make_batches([reading(1), reading(2)], ReadOptions())
    kept = FinishedBatches(tmp_path)
    kept.write(batch, [found(1), PairResult(problem="reference: the file is missing")])
    assert kept.read(batch) is None
