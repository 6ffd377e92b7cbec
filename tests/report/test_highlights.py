import dataclasses
import math

from precflow.judgement.verdicts import STATUSES
from precflow.report import highlights


def with_status(model, index, status, **changes):
    row = model.rows[index]
    rows = list(model.rows)
    rows[index] = dataclasses.replace(row, judged=dataclasses.replace(row.judged, status=status, **changes))
    return dataclasses.replace(model, rows=tuple(rows))


def test_severity_orders_every_status_and_puts_a_failure_first():
    assert min(STATUSES, key=highlights.severity) == "fail"
    assert highlights.severity("never heard of") < highlights.severity("fail")


def test_a_missing_record_is_worse_than_a_passing_one():
    assert highlights.find_worst_status(["pass", "unpaired_target", "accepted"]) == "unpaired_target"


def test_the_row_that_introduces_the_error_comes_first(misaligned):
    worst = highlights.find_worst_rows(misaligned, 5)
    assert [row.role for row in worst] == ["introduces", *["inherits"] * 4]
    assert highlights.ratio_of(worst[1]) >= highlights.ratio_of(worst[2])


def test_what_is_wrong_comes_before_what_is_in_doubt_and_what_passes_closest_first(misaligned):
    for index, status in {100: "shape", 110: "undecided", 120: "blind", 130: "unpaired_target"}.items():
        misaligned = with_status(misaligned, index, status)
    rows = [row for _, row in highlights.find_first_rows(misaligned, len(misaligned.rows))]
    statuses = [row.judged.status for row in rows]
    failing = misaligned.verdict.counts["fail"] - 4
    assert rows[0].role == "introduces"
    assert statuses[1] == "shape"
    assert statuses[failing + 1 : failing + 5] == ["undecided", "unpaired_target", "blind", "pass"]
    assert statuses[-1] == "not_judged"
    passing = [row.judged.ratio for row in rows if row.judged.status == "pass"]
    assert passing == sorted(passing, reverse=True)
    numbered = highlights.find_first_rows(misaligned, 3)
    assert all(misaligned.rows[number] is row for number, row in numbered)


def test_what_has_no_number_ranks_before_every_number(misaligned):
    changed = with_status(misaligned, 200, "nonfinite")
    assert highlights.find_worst_rows(changed, 2)[1] is changed.rows[200]
    assert highlights.ratio_of(changed.rows[200]) == math.inf


def test_a_nan_ratio_is_infinitely_bad(misaligned):
    changed = with_status(misaligned, 200, "fail", ratio=math.nan)
    assert highlights.find_furthest_row(changed) is changed.rows[200]


def test_an_aligned_run_has_a_closest_row_and_no_furthest(aligned):
    assert highlights.find_furthest_row(aligned) is None
    assert highlights.find_closest_row(aligned).measure.record == aligned.verdict.closest


def test_incomplete_rows_and_unpaired_count(inconclusive):
    statuses = [row.judged.status for row in highlights.find_incomplete_rows(inconclusive, 10)]
    assert statuses == ["unpaired_reference", "unpaired_target", "unreadable"]
    assert highlights.count_unpaired(inconclusive) == 2


def test_roles_count_judged_rows_only(misaligned):
    counted = highlights.count_roles(misaligned)
    assert counted["introduces"] == 1
    assert sum(counted.values()) == misaligned.verdict.total


def test_shown_metrics_come_first_and_each_once(misaligned):
    metrics = highlights.list_metrics(misaligned)
    assert metrics[: len(misaligned.columns)] == misaligned.columns
    assert len(metrics) == len(set(metrics)) > len(misaligned.columns)


def test_a_bounded_model_keeps_what_is_wrong_what_is_close_and_a_sample_of_every_module(large):
    found = highlights.keep_most_important(large, 2000)
    assert len(found.rows) == 2000
    assert found.rows_left_out == len(large.rows) - 2000
    places = {row.measure.record: place for place, row in enumerate(large.rows)}
    assert [places[row.measure.record] for row in found.rows] == sorted(places[row.measure.record] for row in found.rows)
    assert [row for row in found.rows if row.role == "introduces"] == [row for row in large.rows if row.role == "introduces"]
    assert highlights.find_furthest_row(found) == highlights.find_furthest_row(large)
    assert highlights.find_closest_row(found) == highlights.find_closest_row(large)
    assert highlights.find_worst_rows(found, 500) == highlights.find_worst_rows(large, 500)
    modules = {row.measure.module.split(".")[2] for row in found.rows if row.measure.module.startswith("encoder.layers.")}
    assert len(modules) > 200  # of 870, though one after the fifth all fail


def test_a_bounded_model_counts_the_roles_of_all(large, misaligned):
    twice = highlights.keep_most_important(highlights.keep_most_important(large, 3000), 100)
    assert highlights.count_roles(twice) == highlights.count_roles(large)
    assert len(twice.rows) + twice.rows_left_out == len(large.rows)
    assert highlights.keep_most_important(misaligned, len(misaligned.rows)) is misaligned
