import math

import numpy as np
import pytest
import safetensors.torch
import torch

from precflow.agent.contract import DETAILS, STATISTICS
from precflow.agent.dump.writer import Writer
from precflow.agent.measure import batching
from precflow.agent.measure.batching import SMALL_BYTES, WAITING_TICKETS, BatchMeasurer
from precflow.agent.measure.content_id import content_id
from precflow.agent.measure.parts import choose_part, copy_part
from precflow.agent.measure.sketch import BUCKETS, STORED_WHOLE, row_length, row_norms
from precflow.agent.measure.ticket import Ticket
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor

SIZES = [(), (1,), (0,), (3, 0), (5,), (7, 11), (STORED_WHOLE,), (STORED_WHOLE + 1,), (33, 77), (3, 77, 100), (70001,)]
TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"]


def tensor(name, shape, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    if name == "complex64":
        return torch.complex(values, values + 1).to(torch.complex64)
    return values.abs().to(getattr(torch, name)) if name == "uint8" else values.to(getattr(torch, name))


def writer_in(folder):
    folder.mkdir(exist_ok=True)
    writer = Writer(str(folder))
    writer.open_step(0, 0)
    return writer


def stored(folder, writer):
    writer.seal({})
    found = {}
    for shard in sorted(folder.glob("rank0/step0/*.safetensors")):
        found.update(safetensors.torch.load_file(str(shard)))
    return found


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("detail", ["digest", "statistics", "sketch", "tensors"])
def test_every_type_and_size_in_one_flush(tmp_path, name, detail):
    writer = writer_in(tmp_path)
    measuring = BatchMeasurer(writer)
    tensors = [tensor(name, shape, seed) for shape in SIZES for seed in (0, 1)]
    tickets = [measuring.measure(each, detail) for each in tensors]
    measuring.flush()
    found = stored(tmp_path, writer)
    for each, ticket in zip(tensors, tickets, strict=True):
        assert ticket.content == ("" if detail == "statistics" else content_id(each))
        assert bool(ticket.mark) == (detail == "statistics" and ticket.statistics is not None)
        assert (ticket.statistics is not None) == (detail in ("statistics", "sketch"))
        whole = detail == "tensors" or (detail == "sketch" and each.numel() <= STORED_WHOLE)
        assert ticket.stored == whole
        if whole:
            assert torch.equal(found[ticket.content], each)
        sketched = detail == "sketch" and not whole and (each.is_floating_point() or each.is_complex())
        assert (ticket.content + ".sketch" in found) == (ticket.content + ".rows" in found) == sketched


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "complex64"])
@pytest.mark.parametrize("shape", [(33, 77), (3, 77, 100), (2000, 3), (70001,)])
def test_what_is_kept_is_what_the_judge_would_make_of_the_tensor(tmp_path, name, shape):
    writer = writer_in(tmp_path)
    measuring, each = BatchMeasurer(writer), tensor(name, shape)
    ticket = measuring.measure(each, "sketch")
    measuring.flush()
    found = stored(tmp_path, writer)
    judges = sum_tensor(as_array(each, name), KeptTensor(name, shape))
    mine = dict(zip(STATISTICS, ticket.statistics, strict=False))  # what is said of fills is left off where there are none
    assert (mine["minimum"], mine["maximum"]) == (judges.statistics.minimum, judges.statistics.maximum)
    assert mine["square"] == pytest.approx(judges.statistics.square, rel=1e-6)
    sketch, rows = found[ticket.content + ".sketch"], found[ticket.content + ".rows"]
    assert (sketch.dtype, sketch.shape, rows.dtype) == (torch.float32, (1, BUCKETS), torch.float32)
    assert sketch[0].double().numpy() == pytest.approx(judges.sketch, rel=1e-5, abs=1e-4)
    assert rows.double().numpy() == pytest.approx(judges.rows, rel=1e-5)


def as_array(each, name):
    import ml_dtypes

    return each.float().numpy().astype(ml_dtypes.bfloat16) if name == "bfloat16" else np.asarray(each)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
@pytest.mark.parametrize("detail", ["digest", "statistics", "sketch", "tensors"])
def test_every_other_complex_number_is_measured_where_it_is(name, detail):
    each = torch.randn(300, 400, dtype=getattr(torch, name))[:, ::2]  # one row in memory, with gaps
    measuring = BatchMeasurer(None)
    tickets = [measuring.measure(one, detail) for one in (each, each.contiguous())]
    measuring.flush()
    assert tickets[0].known == tickets[1].known != ""
    assert tickets[0].statistics == tickets[1].statistics


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint4", "bits8"])
@pytest.mark.parametrize("detail", ["digest", "statistics", "sketch", "tensors"])
def test_types_that_torch_cannot_join_are_measured_together(name, detail):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    bits = torch.arange(35, dtype=torch.uint8)
    several = [each.view(dtype) for each in (bits, bits + 1, bits[::2], bits.view(5, 7).t())]
    measuring = BatchMeasurer(None)
    tickets = [measuring.measure(each, detail) for each in several]
    measuring.flush()
    if detail != "statistics":
        assert [ticket.content for ticket in tickets] == [content_id(each) for each in several]
        assert len({ticket.content for ticket in tickets}) == 4
    elif name in ("float8_e4m3fn", "float8_e5m2"):
        assert tickets[0].statistics[1] == float(several[0].float().max())


def test_only_ordinary_values_enter_where_others_are(tmp_path):
    writer = writer_in(tmp_path)
    clean = tensor("float32", (30, 2000))
    clean[:, ::7] = 0
    dirty = clean.clone()
    dirty[:, ::7] = -math.inf
    dirty[0, 0] = math.nan
    measuring = BatchMeasurer(writer)
    first, second = (measuring.measure(each, "sketch") for each in (clean, dirty))
    measuring.flush()
    found = stored(tmp_path, writer)
    assert torch.equal(found[f"{first.content}.sketch"], found[f"{second.content}.sketch"])
    assert torch.allclose(found[f"{first.content}.rows"], found[f"{second.content}.rows"], rtol=1e-6)
    assert first.statistics[:4] == pytest.approx(second.statistics[:4], rel=1e-6)
    assert sum(second.statistics[4:7]) == int(dirty.isfinite().logical_not().sum())
    assert second.statistics[4] == 1


@pytest.mark.parametrize("size", [4, SMALL_BYTES])
def test_a_tensor_may_be_written_to_at_once(size):
    measuring, each = BatchMeasurer(None), torch.ones(size)
    content = content_id(each)
    tickets = [measuring.measure(each, detail) for detail in ("statistics", "sketch")]
    each.zero_()
    measuring.flush()
    assert tickets[1].content == content
    assert tickets[0].statistics[:3] == tickets[1].statistics[:3] == [1.0, 1.0, float(size)]


@pytest.mark.parametrize("size", [4, 100, SMALL_BYTES])
def test_marks_tell_equal_bits_within_a_dump(size):
    measuring, each = BatchMeasurer(None), torch.randn(size)
    other, reversed_ = each.clone(), each.flip(0)
    other[size // 2] *= 1.001
    tickets = [measuring.measure(one, "statistics") for one in (each, each.clone(), other, each + math.inf, each * math.nan)]
    tickets.append(measuring.measure(reversed_, "statistics"))
    measuring.flush()
    marks = [ticket.mark for ticket in tickets]
    assert marks[0] == marks[1] == tickets[0].known
    assert len(set(marks[1:5])) == 4
    if size > 512:  # the order of rows counts, that within a row does not
        assert marks[5] not in marks[:5]


def test_large_tensors_are_not_copied_on_the_processor():
    measuring = BatchMeasurer(None)
    ticket = measuring.measure(torch.ones(SMALL_BYTES), "digest")
    assert ticket.content
    assert measuring.waiting == 0
    assert not measuring.measure(torch.ones(2), "digest").content
    assert measuring.waiting == 1


def test_what_waits_is_bounded_by_number_and_bytes(monkeypatch):
    measuring = BatchMeasurer(None)
    for _ in range(WAITING_TICKETS):
        assert not measuring.full
        measuring.measure(torch.ones(1), "digest")
    assert measuring.full
    measuring.flush()
    assert not measuring.full
    monkeypatch.setattr(batching, "WAITING_BYTES", 100)
    measuring.measure(torch.ones(26), "digest")
    assert measuring.full


def test_views_conjugates_and_pending_negations():
    values = torch.randn(5, 7, dtype=torch.complex64)
    views = [values.t(), values.conj(), values.conj().imag, values[::2, 1:], values.conj().t()[1]]
    measuring = BatchMeasurer(None)
    tickets = [measuring.measure(view, "sketch") for view in views]
    measuring.flush()
    for view, ticket in zip(views, tickets, strict=True):
        plain = view.resolve_conj().resolve_neg().contiguous()
        assert ticket.content == content_id(plain)
        parts = torch.view_as_real(plain) if plain.is_complex() else plain
        assert ticket.statistics[:2] == [parts.min().item(), parts.max().item()]


@pytest.mark.parametrize("detail", ["statistics", "sketch", "tensors"])
def test_a_part_is_measured_and_the_content_is_of_the_whole(tmp_path, detail):
    writer = writer_in(tmp_path)
    measuring, each = BatchMeasurer(writer), tensor("float32", (300, 1000))
    kept = choose_part((300, 1000), "[:7]", 1.0)
    ticket = measuring.measure(each, detail, kept)
    measuring.flush()
    found = stored(tmp_path, writer)
    part = copy_part(each, kept)
    assert ticket.content == ("" if detail == "statistics" else content_id(each))
    key = f"{ticket.content}.{kept.name}"
    if detail == "tensors":
        assert torch.equal(found[key], part)
    else:
        assert ticket.statistics[:2] == [part.min().item(), part.max().item()]
    assert (key + ".sketch" in found) == (detail == "sketch")


def test_tickets_cover_what_costs_less():
    kept = choose_part((300, 1000), "[:7]", 1.0)
    order = {"digest": ["digest"], "statistics": ["statistics"], "sketch": ["digest", "statistics", "sketch"]}
    order["tensors"] = ["digest", "tensors"]
    for detail, covered in order.items():
        assert [each for each in DETAILS if Ticket(detail, None).covers(each, None)] == covered
        assert [each for each in DETAILS if Ticket(detail, kept).covers(each, None)] == (
            [] if detail == "statistics" else ["digest"]
        )


def test_an_equal_content_is_sketched_once(tmp_path):
    writer = writer_in(tmp_path)
    measuring = BatchMeasurer(writer)
    for _ in range(3):
        measuring.measure(torch.arange(2000.0), "sketch")
    measuring.flush()
    measuring.measure(torch.arange(2000.0), "sketch")
    measuring.flush()
    assert writer.counts["tensors"] == 2


def test_in_inference_mode_and_out_of_it():
    measuring = BatchMeasurer(None)
    with torch.inference_mode():
        inside = [measuring.measure(torch.ones(size), "sketch") for size in (3, 3, 5000)]
    outside = measuring.measure(torch.ones(3), "sketch")
    measuring.flush()
    assert [ticket.content for ticket in (*inside, outside)] == [content_id(torch.ones(size)) for size in (3, 3, 5000, 3)]


@pytest.mark.parametrize("shape", [(90, 100), (10, 1500), (4, 2048), (3, 5003), (2500, 4), (9001,)])
def test_norms_of_rows_are_those_of_any_way_to_take_them(tmp_path, shape):
    writer = writer_in(tmp_path)
    each = tensor("float32", shape)
    measuring, flat = BatchMeasurer(writer), each.view(-1)
    ticket = measuring.measure(each, "sketch")
    measuring.flush()
    found = stored(tmp_path, writer)[ticket.content + ".rows"]
    assert torch.allclose(found, row_norms(flat, row_length(shape, flat.numel())), rtol=1e-6)


def rows_of(ticket, found):
    key, start, count = ticket.row_norms
    return found[key + ".rows"][start : start + count]


def test_statistics_come_with_norms_of_rows_in_one_entry_a_flush(tmp_path):
    writer = writer_in(tmp_path)
    measuring = BatchMeasurer(writer)
    shapes = [(300, 100), (40, 50), (10, 300), (2, 3), (4, 2048), (40, 50), (1024,), (1025,)]
    tensors = [tensor("bfloat16" if number == 2 else "float32", shape, number) for number, shape in enumerate(shapes)]
    tickets = [measuring.measure(each, "statistics") for each in tensors]
    measuring.flush()
    found = stored(tmp_path, writer)
    assert len(found) == 1
    for each, ticket in zip(tensors, tickets, strict=True):
        assert (ticket.row_norms is None) == (each.numel() <= 1024)
        if ticket.row_norms is not None:
            expected = row_norms(each.reshape(-1), row_length(each.shape, each.numel()))
            assert torch.allclose(rows_of(ticket, found), expected.float(), rtol=1e-6)


def test_without_a_writer_nothing_is_gathered():
    measuring = BatchMeasurer(None)
    ticket = measuring.measure(tensor("float32", (300, 100)), "statistics")
    measuring.flush()
    assert (ticket.row_norms, ticket.statistics[8]) == (None, None)
    assert measuring._row_norms._gathered == []


@pytest.mark.parametrize("scale", [1.0, 1e25])
@pytest.mark.parametrize("size", [5000, 200_000])
def test_a_fine_sketch_tells_differences_that_a_plain_one_hides(tmp_path, size, scale):
    one = tensor("float32", (size,)).abs() * scale
    other = one * (1 + 1e-7)
    errors = {}
    for fine in (False, True):
        writer = writer_in(tmp_path / str(fine))
        measuring = BatchMeasurer(writer, fine=fine)
        tickets = [measuring.measure(each, "sketch") for each in (one, other)]
        measuring.flush()
        found = stored(tmp_path / str(fine), writer)
        parts = [found[ticket.content + ".sketch"].double() for ticket in tickets]
        assert [part.shape[0] for part in parts] == [1 + fine] * 2
        errors[fine] = float((parts[0] - parts[1]).sum(0).norm() / (one.double() - other.double()).norm())
    assert errors[True] == pytest.approx(1, rel=0.15)
    assert abs(errors[False] - 1) > abs(errors[True] - 1)


def test_values_that_are_not_ordinary_leave_no_norms(tmp_path):
    writer = writer_in(tmp_path)
    measuring = BatchMeasurer(writer)
    tickets = []
    for size in (2000, 20000):
        each = torch.randn(10, size // 10)
        each[3, 3] = math.nan
        tickets.append(measuring.measure(each, "statistics"))
    measuring.flush()
    assert [ticket.row_norms for ticket in tickets] == [None, None]
    assert [ticket.statistics[4] for ticket in tickets] == [1, 1]
    assert stored(tmp_path, writer) == {}
