import csv
import dataclasses
import io
import math

from precflow.report import result_csv


def rows_of(model):
    return list(csv.DictReader(io.StringIO(result_csv.render(model))))


def test_every_record_and_every_metric(misaligned):
    rows = rows_of(misaligned)
    assert len(rows) == len(misaligned.rows)
    for row, made in zip(rows, misaligned.rows, strict=True):
        assert (row["record"], row["status"], row["role"]) == (made.measure.record, made.judged.status, made.role)
        for metric, value in made.measure.metrics.items():
            assert float(row[metric]) == value
        assert row["reference_shape"] == "3x77x768"


def test_a_metric_that_cannot_be_had_is_an_empty_cell(misaligned):
    moving = next(row for row in rows_of(misaligned) if row["name"].endswith("/ view"))
    assert moving["relative_l2"] == moving["limit"] == ""


def test_nasty_names_stay_cells_and_no_formula(nasty):
    rows = rows_of(nasty)
    assert len(rows) == len(nasty.rows)
    assert all("\x1b" not in row["record"] for row in rows)
    assert not any(row["record"].startswith(("=", "+", "-", "@")) for row in rows)
    assert {str(math.inf), str(math.nan)} & {row["relative_l2"] for row in rows}


def test_a_formula_is_defused(misaligned):
    import dataclasses

    first = misaligned.rows[0]
    evil = dataclasses.replace(first, measure=dataclasses.replace(first.measure, record="=cmd()", name="-3", reason="@x"))
    row = rows_of(dataclasses.replace(misaligned, rows=(evil,)))[0]
    assert (row["record"], row["name"]) == ("'=cmd()", "-3")


def test_nothing_compared_is_a_head_alone(empty):
    assert rows_of(empty) == []
    assert result_csv.render(empty).startswith("record,name,level")


def test_the_table_says_how_each_pair_was_made(misaligned):
    first = misaligned.rows[0]
    ruled = dataclasses.replace(first, measure=dataclasses.replace(first.measure, pairing="pairing.rules[0]"))
    rows = rows_of(dataclasses.replace(misaligned, rows=[ruled]))
    assert [row["pairing"] for row in rows] == ["pairing.rules[0]"]
