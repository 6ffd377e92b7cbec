import pytest
import torch

from precflow.agent.emulated.schemas import read_schema

aten = torch.ops.aten


def test_a_plain_operator():
    addmm = read_schema(aten.addmm.default)
    assert (addmm.name, addmm.overload) == ("addmm", "addmm")
    assert addmm.arguments == ("self", "mat1", "mat2", "beta", "alpha")
    assert addmm.positional == 3
    assert addmm.written == frozenset()
    assert addmm.sources == (None,)
    assert not any((addmm.relabels, addmm.draws, addmm.draws_silently, addmm.mixed))


@pytest.mark.parametrize(
    ("overload", "written", "sources"),
    [
        (aten.add.out, {"out"}, ("out",)),
        (aten.add_.Tensor, {"self"}, ("self",)),
        (aten.sort.values, {"values", "indices"}, ("values", "indices")),
        (aten._foreach_add_.Scalar, {"self"}, ()),
    ],
)
def test_written_arguments_and_the_results_that_they_are(overload, written, sources):
    assert read_schema(overload).written == written
    assert read_schema(overload).sources == sources


@pytest.mark.parametrize(
    ("overload", "relabels"),
    [
        (aten.view.default, True),
        (aten.t.default, True),
        (aten.split.Tensor, True),
        (aten.set_.source_Tensor, True),
        (aten.add.Tensor, False),
        (aten.transpose_.default, False),
        (aten.clone.default, False),
    ],
)
def test_views_are_told_from_copies(overload, relabels):
    assert read_schema(overload).relabels is relabels


def test_two_ways_of_drawing_random_numbers():
    assert read_schema(aten.normal_.default).draws
    assert read_schema(aten.native_dropout.default).draws_silently
    assert not read_schema(aten.mul.Tensor).draws_silently


def test_indexing_may_mix_devices_and_arithmetic_may_not():
    assert read_schema(aten.index.Tensor).mixed
    assert not read_schema(aten.mul.Tensor).mixed


def test_a_schema_is_read_once():
    assert read_schema(aten.add.Tensor) is read_schema(aten.add.Tensor)
