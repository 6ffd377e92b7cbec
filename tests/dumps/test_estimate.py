"""What a dump would take, told from an earlier one."""

import numpy as np
import pytest

from precflow.agent.contract import DETAIL_FACTS, Identity
from precflow.dumps.estimate import (
    element_bytes,
    estimate_calls,
    estimate_dump,
    holds_tensor,
    rows_bytes,
    sketch_bytes,
    tensor_bytes,
)
from precflow.dumps.formats import read_dump
from precflow.dumps.records import Record

LARGE, SMALL = np.ones((64, 64), dtype=np.float32), np.full((8, 8), 2, dtype=np.float32)
WANTED = {"level": ["module", "api"], "phase": ["forward"], "scope": ["*"], "step": [0], "detail": "tensors", "rules": []}


@pytest.fixture
def made(build):
    """Return an earlier dump: two calls in digest, the large tensor going through both."""
    dump = build()
    dump.call("fc", "linear", [LARGE], [SMALL], store=False)
    dump.call("fc", "", {"0": LARGE}, {"0": SMALL}, store=False)
    return read_dump(dump.write())


def wanted(**changes):
    return {**WANTED, **changes}


def test_each_content_counts_once_and_each_record_has_a_line(made):
    assert estimate_dump(made, WANTED, "float32") == LARGE.nbytes + SMALL.nbytes + 4 * DETAIL_FACTS["tensors"].line_bytes


def test_another_type_scales_what_ran_in_the_type_of_the_run(made):
    assert estimate_dump(made, WANTED, "float16") == (LARGE.nbytes + SMALL.nbytes) // 2 + 4 * DETAIL_FACTS["tensors"].line_bytes


@pytest.mark.parametrize(
    ("detail", "size"),
    [("digest", 0), ("statistics", 64 * 4), ("sketch", 509 * 4 + 64 * 4 + SMALL.nbytes), ("tensors", 64 * 65 * 4)],
)
def test_details(made, detail, size):
    assert estimate_dump(made, wanted(detail=detail), "float32") == size + 4 * DETAIL_FACTS[detail].line_bytes


def test_a_fine_sketch_has_two_parts(made):
    plain = estimate_dump(made, wanted(detail="sketch"), "float32")
    assert estimate_dump(made, wanted(detail="sketch", fine=True), "float32") == plain + 509 * 4


def test_rules_levels_and_steps_count(made):
    rules = [{"operator": ["linear"], "detail": "none"}]
    assert estimate_dump(made, wanted(rules=rules, detail="digest"), "float32") == 2 * DETAIL_FACTS["digest"].line_bytes
    assert estimate_dump(made, wanted(level=["api"], detail="digest"), "float32") == 2 * DETAIL_FACTS["digest"].line_bytes
    assert estimate_dump(made, wanted(step=[0, 4, 5], detail="digest"), "float32") == 12 * DETAIL_FACTS["digest"].line_bytes


@pytest.mark.parametrize(("keep_last", "steps"), [(0, 3), (2, 2), (5, 3)])
def test_of_a_ring_the_steps_that_are_kept_count(made, keep_last, steps):
    asked = wanted(step=[0, 4, 5], detail="digest", keep_last=keep_last)
    assert estimate_dump(made, asked, "float32") == steps * 4 * DETAIL_FACTS["digest"].line_bytes


@pytest.mark.parametrize("changes", [{"level": ["operator"]}, {"phase": ["forward", "backward"]}])
def test_a_dump_without_such_calls_cannot_tell(made, changes):
    assert estimate_dump(made, wanted(**changes), "float32") is None


@pytest.mark.parametrize("before", [{"scope": ["fc2"]}, {"rules": [{"match": ["a"], "detail": "none"}]}])
def test_a_dump_of_less_cannot_tell(build, before):
    dump = build()
    dump.call("fc", "linear", [LARGE], [SMALL])
    dump.header_changes = {"capture": {"level": ["module", "api"], "phase": ["forward"], "scope": ["*"], **before}}
    assert estimate_dump(read_dump(dump.write()), WANTED, "float32") is None


def test_an_empty_dump_cannot_tell(build):
    assert estimate_dump(read_dump(build().write()), WANTED, "float32") is None


def test_calls_alone_tell_in_the_type_that_they_ran_in(made):
    lines = 4 * DETAIL_FACTS["tensors"].line_bytes
    whole = LARGE.nbytes + SMALL.nbytes
    assert estimate_calls(made.calls(), WANTED, "float64", ran_in="float32") == 2 * whole + lines
    assert estimate_calls(made.calls(), WANTED, "float64") == whole + lines
    assert estimate_calls([], WANTED, "float32") is None


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
    assert holds_tensor(record((2,), weight="fc.weight", content=""), movement=False)
    assert not holds_tensor(record((2,), weight="fc.weight"), movement=True)
    assert not holds_tensor(record((2,), weight="fc.weight"), movement=False, weights=False)
    assert not holds_tensor(record((2,), content=""), movement=False)
