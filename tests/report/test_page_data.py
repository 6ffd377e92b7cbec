import math

import pytest
from page_columns import Columns

from precflow.metrics import METRICS
from precflow.report import page_data, wording


def read(model, **plan):
    """The data of a page, read back."""
    return Columns(page_data.encode(model, plan=page_data.Plan(**plan) if plan else None))


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "nasty", "empty"])
def test_the_data_cannot_end_its_element_and_reads_back(name, request):
    model = request.getfixturevalue(name)
    text = page_data.encode(model)
    assert not set("<>&") & set(text)
    page = Columns(text)
    assert page.head["size"] == len(model.rows)
    for column, name_of in (("name", lambda row: row.measure.name), ("status", lambda row: row.judged.status)):
        assert page.texts(page.head["texts"][column]) == [wording.printable(name_of(row)) for row in model.rows]
    assert list(page.wholes(page.head["order"])) == [row.measure.order for row in model.rows]


def test_a_metric_that_cannot_be_had_is_no_number(misaligned):
    page = read(misaligned)
    found = page.numbers(page.head["metrics"]["relative_l2"]["numbers"])
    for value, row in zip(found, misaligned.rows, strict=True):
        wanted = row.measure.metrics.get("relative_l2")
        assert value == (None if wanted is None else pytest.approx(wanted, rel=5e-4))


def test_nan_and_infinity_stay_what_they_are(nasty):
    page = read(nasty)
    first, second = page.numbers(page.head["metrics"]["relative_l2"]["numbers"])[1:3]
    assert math.isnan(first)
    assert second == math.inf


def test_arguments_that_differ_are_in_the_details_of_their_row(misaligned):
    index = next(index for index, row in enumerate(misaligned.rows) if row.role == "introduces")
    assert read(misaligned).head["details"] == {str(index): {"arguments": [["eps", "1e-05", "0.001"]]}}


def test_an_absent_side_has_no_shape(misaligned):
    assert page_data._format_shape((), "") == ""
    assert page_data._format_shape((), "float32") == "[]"


def test_an_estimate_says_between_which_values_it_lies(estimated):
    wanted = ["relative_l2 between 7.5e-8 and infinity, by its sketch of 50 % of its elements"]
    assert read(estimated).head["details"]["0"]["warnings"] == wanted


def test_with_less_room_unimportant_records_lose_metrics_and_digits_first(medium):
    page, data = page_data.fit_into_page(medium, 24_000)
    assert len(data) <= 24_000
    assert len(page.rows) == len(medium.rows)
    columns = Columns(data)
    levels = columns.wholes(columns.head["levels"])
    start = next(number for number, row in enumerate(medium.rows) if row.role == "introduces")
    assert levels[start] == page_data.FULL
    assert {page_data.SHORT, page_data.FULL} <= set(levels)
    assert len(columns.numbers(columns.head["metrics"]["relative_l2"]["numbers"])) == len(medium.rows)
    assert len(columns.numbers(columns.head["metrics"]["rmse"]["numbers"])) == sum(levels == page_data.FULL)


def test_with_even_less_room_records_are_left_out_and_counted(medium):
    page, data = page_data.fit_into_page(medium, 10_000)
    assert len(data) <= 10_000
    assert 200 < len(page.rows) < len(medium.rows)
    head = Columns(data).head
    assert head["totals"]["fail"] == medium.verdict.counts["fail"]
    assert head["totals"]["introduces"] == 1
    assert head["size"] == len(page.rows)
    assert head["tree"] == page_data.sum_up(medium.rows)["tree"]


def test_the_page_knows_the_direction_of_every_metric(misaligned):
    head = read(misaligned).head
    assert {name for name, metric in METRICS.items() if metric.at_least} == set(head["atLeast"])
    assert {"bitwise_equal", "allclose_share_float32"} < set(head["atLeast"])
