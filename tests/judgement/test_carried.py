"""A float32 record behind 16 bits is held to the limits of 16 bits, and one before them to its own."""

import dump_builder as builder
import numpy as np
import pytest

from precflow.comparison.compare import compare
from precflow.config.schema import Tolerance
from precflow.dumps.formats import read_dump
from precflow.judgement.carried import NOTHING_CARRIED, find_carried
from precflow.judgement.floors import Floor
from precflow.judgement.inputs import make_input_judge

VALUES = np.random.default_rng(7).standard_normal((8, 8)).astype(np.float32)
BEFORE, PRODUCT, BEHIND = (f"{name}.0/forward.output.0" for name in ("embed/norm", "fc/linear", "block/add"))


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a dump: float32, a product in 16 bits, float32 behind it, and a second step."""

    def write(name, *, trains=True, product=np.float16, factor=1.0):
        dump = builder.DumpBuilder(tmp_path / name)
        for step in range(2):
            dump.call("embed", "norm", [VALUES * np.float32(factor)], step=step)
            dump.call("fc", "linear", [VALUES.astype(product)], [VALUES * np.float32(factor)], step=step)
            dump.call("block", "add", [VALUES * np.float32(factor)], [VALUES * np.float32(factor)], step=step)
            if trains:
                dump.call("fc", "", {"weight": VALUES * np.float32(factor)}, step=step, phase="gradient")
        dump.write()
        return read_dump(tmp_path / name)

    return write


def test_only_what_is_behind_the_coarse_type_carries_it(written):
    carried = find_carried(written("reference", trains=False).calls()).outputs
    assert {text.partition("@")[0] for text in carried} == {BEHIND}
    assert set(carried.values()) == {"float16"}
    assert len(carried) == 2  # in both steps; a second step without training begins anew


def test_training_carries_it_into_the_next_step(written):
    carried = find_carried(written("reference").calls()).outputs
    assert sum(text.startswith(BEFORE) for text in carried) == 1  # in the second step alone
    assert sum("gradient" in text for text in carried) == 2


def test_one_type_carries_nothing(written):
    assert find_carried(written("reference", product=np.float32).calls()) is NOTHING_CARRIED


@pytest.mark.parametrize("has_floors", [False, True])
def test_fixed_limits_go_by_what_is_carried_and_measured_ones_do_not(written, run, has_floors):
    reference, target = written("reference", trains=False), written("target", trains=False, factor=1 + 1e-3)
    measures = compare(reference, target)
    floors = {one.record: Floor(one.record, {"relative_l2": 1e-7}) for one in measures} if has_floors else {}
    tolerance = Tolerance(standards=("calibrated",))
    judged, _ = run(measures, tolerance=tolerance, floors=floors, carried=find_carried(reference.calls()))
    status = {one.record.partition("@")[0]: one.status for one in judged}
    assert status == {BEFORE: "fail", PRODUCT: "pass", BEHIND: "fail" if has_floors else "pass"}


def test_inputs_are_judged_as_the_outputs_that_they_are(written):
    reference, target = written("reference", trains=False), written("target", trains=False, factor=1 + 1e-3)
    judge = make_input_judge(
        reference,
        target,
        Tolerance(standards=("default",)),
        reference_dtype="float32",
        target_dtype="float32",
        carried=find_carried(reference.calls()),
    )
    pairs = [*zip(reference.calls(step=0), target.calls(step=0), strict=True)][1:]
    assert [judge(left.inputs[0], right.inputs[0]).status for left, right in pairs] == ["fail", "pass"]
