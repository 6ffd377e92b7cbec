"""Dumps that nobody meant to write: compared whole, they are explained and never aligned by mistake."""

import copy
import json
import shutil
import time
from pathlib import Path

import dump_builder as builder
import ml_dtypes
import numpy as np
import pytest
from amounts import ALL

from precflow.comparison.compare import compare
from precflow.comparison.fused.summarize import PairOfTensors
from precflow.comparison.reading import PART
from precflow.dumps.formats import read_dump
from precflow.errors import DumpError
from precflow.stages.two_dumps import compare_dumps

VALUES = np.random.default_rng(8).standard_normal((4, 16)).astype(np.float32)
NEAR = VALUES * np.float32(1 + 2**-20)


@pytest.fixture
def build(tmp_path):
    """Return a function that begins a dump of one side."""
    return lambda side, **options: builder.DumpBuilder(tmp_path / side, side=side, **options)


def judged(reference, target):
    return compare_dumps(read_dump(reference), read_dump(target), command="precflow compare")


def both(build, *fill):
    """Return the folders of both sides, each filled by its function."""
    made = [build("reference"), build("target")]
    for dump, one in zip(made, fill, strict=True):
        one(dump)
    return [dump.write() for dump in made]


def steps(*factors):
    """Return a function that fills a dump with one call a step."""

    def fill(dump):
        for step, factor in enumerate(factors):
            dump.call("a", "linear", [VALUES * np.float32(factor)], step=step)

    return fill


def test_steps_that_ran_in_another_order_are_misaligned(build):
    model = judged(*both(build, steps(1, 2), steps(2, 1)))
    assert model.verdict.verdict == "misaligned"
    assert model.verdict.counts == {"fail": 2}


def test_folders_of_steps_that_were_swapped_are_damage_and_not_compared(build):
    folders = both(build, steps(1, 2), steps(1, 2))
    place = folders[1] / "rank0"
    for old, new in (("step0", "between"), ("step1", "step0"), ("between", "step1")):
        (place / old).rename(place / new)
    model = judged(*folders)
    assert model.verdict.verdict == "inconclusive"
    assert model.verdict.compared == 0
    assert "rank0/step0/records-0.jsonl" in " ".join(model.verdict.reasons)


def test_dumps_of_other_steps_have_nothing_in_common(build):
    def late(dump):
        dump.call("a", "linear", [VALUES], step=7)

    model = judged(*both(build, steps(1), late))
    assert model.verdict.verdict == "inconclusive"
    assert model.verdict.counts == {"unpaired_reference": 1, "unpaired_target": 1}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.complex64])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (1,), (1, 1, 1)])
def test_no_element_and_one_element(build, shape, dtype):
    def fill(factor):
        def call(dump):
            dump.call("b", "linear", [np.full(shape, factor, dtype)]).call("a", "linear", [VALUES])

        return call

    empty = 0 in shape
    same = judged(*both(build, fill(1), fill(1)))
    assert same.verdict.verdict == "aligned"
    assert same.verdict.counts == ({"pass": 1, "blind": 1} if empty else {"pass": 2})
    for folder in ("reference", "target"):
        shutil.rmtree(Path(build(folder).folder))
    other = judged(*both(build, fill(1), fill(2)))
    assert other.verdict.verdict == ("aligned" if empty else "misaligned")


def test_lines_of_a_newer_version_are_read_as_far_as_they_are_known(build):
    def newer(dump):
        steps(1)(dump)
        dump.lines[0, 0][0]["stream"] = 3
        dump.lines[0, 0][0]["outputs"][0]["layout"] = {"tensor": 2}

    assert judged(*both(build, steps(1), newer)).verdict.verdict == "aligned"


@pytest.mark.parametrize("change", [{"phase": "compile"}, {"level": "kernel"}, {"order": "first"}])
def test_lines_that_this_version_does_not_know_are_damage(build, change):
    def newer(dump):
        steps(1)(dump)
        dump.call("b", "linear", [VALUES], **change)

    model = judged(*both(build, steps(1), newer))
    assert model.verdict.verdict == "inconclusive"
    assert "rank0/step0/records-0.jsonl:2" in " ".join(model.verdict.reasons)


def test_a_newer_dump_is_refused_by_name_and_version(build):
    folder = both(build, steps(1), steps(1))[0]
    builder.reseal(folder, schema=99, agent="9.1")
    with pytest.raises(DumpError, match=r"precflow 9.1 with precflow-dump schema 99; this precflow reads schema 2"):
        read_dump(folder)


def near(dump):
    dump.call("a", "linear", [NEAR])


@pytest.mark.parametrize("side", [0, 1])
def test_a_shard_that_goes_missing_midway_is_unreadable(build, side):
    dumps = [read_dump(folder) for folder in both(build, steps(1), near)]
    assert all(len(dump.calls()) == 1 for dump in dumps)  # the records are read, and the shard was there
    (dumps[side].path / "rank0/step0/tensors-0.safetensors").unlink()
    (measure,) = compare(*dumps)
    assert measure.join == "unreadable"
    assert "rank0/step0/tensors-0.safetensors" in measure.reason
    model = compare_dumps(*dumps, command="")
    assert model.verdict.verdict == "inconclusive"
    assert "1 record cannot be read" in " ".join(model.verdict.reasons)


def test_names_longer_than_a_file_name_are_names(build, tmp_path):
    name = ".".join(["层" * 40] * 20)

    def fill(values):
        return lambda dump: dump.call(name, "linear", [values])

    model = judged(*both(build, fill(VALUES), fill(VALUES * 2)))
    assert model.verdict.verdict == "misaligned"
    assert model.region.start == f"{name} / linear"
    assert all(len(part.encode()) <= 255 for path in tmp_path.rglob("*") for part in path.parts)


@pytest.mark.slow
def test_ten_times_the_records_take_about_ten_times_as_long(build):
    def many(values, count):
        def fill(dump):
            dump.call("layers.0", "linear", [VALUES])
            dump.call("layers.1", "linear", [values])
            lines = dump.lines[0, 0]
            for number in range(2, count):
                line = copy.copy(lines[number % 2])
                line["module"], line["order"] = f"layers.{number}", number
                lines.append(line)

        return fill

    seconds = []
    for count in (600, 6000):
        folders = both(build, many(VALUES, count), many(NEAR, count))
        started = time.process_time()
        model = judged(*folders)
        seconds.append(time.process_time() - started)
        assert model.verdict.counts == {"pass": count}
        assert model.verdict.verdict == "aligned"
        for folder in folders:
            shutil.rmtree(folder)
    assert seconds[1] < 20 * seconds[0]  # work that grows as the square of records does takes a hundred times as long


LAST = {  # last element, and the content id of the whole: computing that takes half as long as comparing
    "reference": (1.0, "393bcf7c3b60633b014930582a45119e"),
    "target": (1.5, "e30fe91c92f369e34b422b6953510f6e"),
}


@pytest.mark.slow
@pytest.mark.xdist_group("compiled")
def test_tensors_of_four_gigabytes_that_differ_in_their_last_element(build, monkeypatch):
    """Files with holes: more than 2^31 elements of bfloat16, of which the last one is not 0."""
    size, folders = 2**31 + 1000, []
    if not ALL:  # all of it takes a minute of two cores
        monkeypatch.setattr(PairOfTensors, "summary_and_lanes", read_zeros_once(2**31 - 2 * PART))
    for side, (last, content) in LAST.items():
        dump = build(side).call("a", "linear", [VALUES])
        folder = dump.write()
        shard = folder / "rank0/step0/tensors-0.safetensors"
        write_with_a_hole(shard, content, size, last)
        line = json.loads((folder / "rank0/step0/records-0.jsonl").read_text())
        line["outputs"][0].update(dtype="bfloat16", shape=[size], content=content)
        (folder / "rank0/step0/records-0.jsonl").write_text(json.dumps(line) + "\n")
        (folder / "dump.json").unlink()
        folders.append(folder)
    (measure,) = compare(*(read_dump(folder, allow_unsealed=True) for folder in folders))
    assert (measure.join, measure.equal, measure.reason) == ("paired", False, "")
    assert measure.counts["elements"] == size
    assert measure.metrics["max_abs_error"] == 0.5
    assert measure.metrics["relative_l2"] == 0.5


def read_zeros_once(last):
    """Return `summary_and_lanes`, which reads the first ranges and those from ``last`` on.

    The ranges between have the same zeros as the second one, so they give the same.
    """
    read, zeros = PairOfTensors.summary_and_lanes, []

    def read_or_repeat(self, start, stop, data, **options):
        if start == 0 or start >= last:
            return read(self, start, stop, data, **options)
        if not zeros:
            zeros.append(read(self, start, stop, data, **options))
        return zeros[0]

    return read_or_repeat


def write_with_a_hole(path, content, size, last):
    """Write a shard of zeros and one other element; its zeros take no room on the disk."""
    index = json.dumps({content: {"dtype": "BF16", "shape": [size], "data_offsets": [0, 2 * size]}}).encode()
    index += b" " * (-len(index) % 8)
    with path.open("wb") as file:
        file.write(len(index).to_bytes(8, "little") + index)
        file.truncate(8 + len(index) + 2 * size)
        file.seek(-2, 2)
        file.write(ml_dtypes.bfloat16(last).tobytes())
