"""A number in a line that is not what was sealed is no evidence, neither for a failure nor for anything else."""

import numpy as np
import pytest

from precflow.comparison.compare import compare
from precflow.comparison.measure import Measure, mark_altered_unreadable, merge_passes
from precflow.dumps.formats import read_dump

X = np.random.default_rng(4).standard_normal((8, 200)).astype(np.float32)
COUNTED = [float(X.min()), float(X.max()), float(X.sum()), float((X**2).sum()), 0, 0, 0, 0, 0, 0, 0, 0]
RECORDS = "rank0/step{}/records-0.jsonl"


@pytest.fixture
def both(build):
    """Return a function that writes two dumps: statistics alone in two steps, and a tensor that differs beside them."""

    def write(change, step=0):
        dumps = []
        for side, scale in (("reference", 1.0), ("target", 1.5)):
            made = build(side, side=side)
            for number in (0, 1):
                made.call("counted", "linear", [X], step=number, store=False)
                made.call("stored", "linear", [X * np.float32(scale)], step=number)
                made.lines[0, number][0]["outputs"][0].update(statistics=COUNTED, content="", mark="m")
            folder = made.write()
            if side == "target":
                path = folder / RECORDS.format(step)
                path.write_bytes(change(path.read_bytes()))
            dumps.append(read_dump(folder))
        return dumps

    return write


def measured(dumps):
    """Return join, evidence and reason by module and step."""
    found = mark_altered_unreadable(compare(*dumps), *dumps)
    return {one.record.partition("/forward")[0] + one.record[-4:]: (one.join, one.evidence, one.reason) for one in found}


def flipped(data):
    """Turn the largest value into another number of the same length."""
    largest = f"{COUNTED[1]!r}"
    return data.replace(largest.encode(), largest.replace(".", "9.", 1)[1:].encode(), 1)


def longer(data):
    largest = f"{COUNTED[1]!r}"
    return data.replace(largest.encode(), b"1" + largest.encode(), 1)


@pytest.mark.parametrize(("change", "word"), [(flipped, "is damaged"), (longer, "is too long")])
def test_what_rests_on_an_altered_line_is_unreadable(both, change, word):
    dumps = both(change)
    assert compare(*dumps)[0].ranges["max_abs_error"][0] > 1  # a failure by any limit
    found = measured(dumps)
    join, evidence, reason = found["counted/linear.0ut.0"]
    assert (join, evidence) == ("unreadable", "")
    assert reason.startswith(f"target: {RECORDS.format(0)} {word}")
    assert found["counted/linear.0@1.0"][:2] == ("paired", "statistics")


def test_what_was_computed_from_tensors_stays(both):
    assert measured(both(flipped))["stored/linear.0ut.0"][:2] == ("paired", "tensors")


def test_whole_lines_of_a_file_that_is_cut_short_are_evidence(both):
    dumps = both(lambda data: data[:-20])
    assert dumps[1].altered == {}
    assert measured(dumps)["counted/linear.0ut.0"][:2] == ("paired", "statistics")


def test_another_shape_in_an_altered_line_is_no_failure(both):
    dumps = both(lambda data: data.replace(b"[8, 200]", b"[9, 200]"))
    assert {one.join for one in compare(*dumps)} == {"shape", "paired"}
    assert measured(dumps)["counted/linear.0ut.0"][0] == measured(dumps)["stored/linear.0ut.0"][0] == "unreadable"


def test_equal_bits_stay_equal(build):
    one = build("one").call("same", "linear", [X], store=False).write()
    two = build("two").call("same", "linear", [X], store=False).write()
    path = two / RECORDS.format(0)
    path.write_bytes(path.read_bytes().replace(b'"Block"', b'"Clock"'))
    equal = [read_dump(one), read_dump(two)]
    assert equal[1].altered
    (found,) = mark_altered_unreadable(compare(*equal), *equal)
    assert (found.equal, found.join) == (True, "paired")


def measure(record, **given):
    about = {
        "name": record,
        "module": record,
        "operator": "",
        "level": "module",
        "phase": "forward",
        "order": 0,
        "join": "paired",
    }
    return Measure(record=record, **{**about, **given})


FIRST = [
    measure("a", order=3, site="x.py:1", arguments={"dim": ("0", "1")}, metrics={"relative_l2": 0.1}),
    measure("b", order=4, join="sampled_out"),
    measure("c", order=5, metrics={"relative_l2": 0.3}),
]


def test_what_was_measured_anew_takes_the_place_of_its_estimate():
    again = measure("a", order=0, metrics={"relative_l2": 0.125, "ulp_distance": 3.0})
    found = merge_passes(FIRST, [again, measure("b", order=1, metrics={"relative_l2": 0.2})])
    assert [one.metrics.get("relative_l2") for one in found] == [0.125, 0.2, 0.3]
    assert found[0].metrics["ulp_distance"] == 3.0


def test_the_place_in_the_graph_stays_that_of_the_first_pass():
    (found, *_) = merge_passes(FIRST, [measure("a", order=0, metrics={"relative_l2": 0.1})])
    assert (found.order, found.site, found.arguments) == (3, "x.py:1", {"dim": ("0", "1")})


def test_what_the_second_pass_could_not_measure_keeps_its_estimate():
    again = [measure("a", join="unreadable"), measure("b", join="unpaired_target"), measure("c")]
    assert merge_passes(FIRST, again) == FIRST


def test_records_that_only_the_second_pass_has_are_not_added():
    assert merge_passes(FIRST, [measure("z", metrics={"relative_l2": 0.1})]) == FIRST
