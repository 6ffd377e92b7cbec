import base64
import json
import math
import zlib

import pytest

from precflow.metrics import METRICS
from precflow.report import page_data


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "nasty", "empty"])
def test_the_data_cannot_end_its_element_and_reads_back(name, request):
    model = request.getfixturevalue(name)
    text = page_data.encode(model)
    assert not set("<>&") & set(text)
    read = json.loads(text)
    assert {len(column) for column in read["columns"].values()} == {len(model.rows)}
    assert {len(column) for column in read["metrics"].values()} <= {len(model.rows)}


def test_long_data_is_packed_and_reads_back(large):
    text = page_data.encode(large)
    assert not set("<>&{") & set(text)
    assert json.loads(zlib.decompress(base64.b64decode(text))) == page_data.build_page_data(large)


def test_texts_are_kept_once_and_found_again(misaligned):
    read = page_data.build_page_data(misaligned)
    assert len(read["texts"]) == len(set(read["texts"]))
    names = [read["texts"][index] for index in read["columns"]["name"]]
    assert names == [row.measure.name for row in misaligned.rows]


def test_a_metric_that_cannot_be_had_is_null(misaligned):
    index = next(index for index, row in enumerate(misaligned.rows) if not row.measure.metrics)
    assert page_data.build_page_data(misaligned)["metrics"]["relative_l2"][index] is None


def test_nan_and_infinity_are_words(nasty):
    assert page_data.build_page_data(nasty)["metrics"]["relative_l2"][1:3] == ["NaN", "Infinity"]


def test_numbers_keep_what_the_page_can_show():
    assert page_data.round_number(-0.00123456) == -0.001235
    assert page_data.round_number(1 - 1e-10) < 1
    assert isinstance(page_data.round_number(12.0), int)
    assert page_data.round_number(-math.inf) == "-Infinity"


def test_arguments_that_differ_are_in_the_details_of_their_row(misaligned):
    index = next(index for index, row in enumerate(misaligned.rows) if row.role == "introduces")
    details = page_data.build_page_data(misaligned)["details"]
    assert details == {str(index): {"arguments": [["eps", "1e-05", "0.001"]]}}


def test_an_absent_side_has_no_shape(misaligned):
    assert page_data._format_shape((), "") == ""
    assert page_data._format_shape((), "float32") == "[]"


def test_control_characters_are_visible_in_every_text(nasty):
    assert all(text.isprintable() for text in page_data.build_page_data(nasty)["texts"])


def test_an_estimate_says_between_which_values_it_lies(estimated):
    details = page_data.build_page_data(estimated)["details"]
    assert details["0"]["warnings"] == ["relative_l2 between 7.5e-8 and infinity, by its sketch of 50 % of its elements"]


def test_a_page_has_so_many_records_as_fit_and_the_tree_and_totals_of_all(large, monkeypatch):
    monkeypatch.setattr(page_data, "MOST_ROWS", 3000)
    monkeypatch.setattr(page_data, "MOST_BYTES", 100_000)
    page, data = page_data.fit_into_page(large)
    assert len(data) <= 100_000
    assert 200 < len(page.rows) < 3000
    read = page_data.build_page_data(page, large.rows)
    assert read["totals"]["fail"] == large.verdict.counts["fail"]
    assert read["totals"]["introduces"] == 1
    assert len(read["columns"]["record"]) == len(page.rows)
    assert read["tree"] == page_data.build_page_data(large)["tree"]


def test_the_page_knows_the_direction_of_every_metric(misaligned):
    read = page_data.build_page_data(misaligned)
    assert {name for name, metric in METRICS.items() if metric.at_least} == set(read["atLeast"])
    assert {"bitwise_equal", "allclose_share_float32"} < set(read["atLeast"])
