import collections
import math
import statistics
from dataclasses import replace

import pytest

from precflow.report.groups import KINDS, group_rows
from precflow.report.highlights import is_judged


def by_hand(rows, key):
    """The same in plain Python: name -> records, failed, worst, median."""
    found = collections.defaultdict(list)
    for row in rows:
        if is_judged(row):
            found[key(row)].append(row)
    return {
        name: (
            len(some),
            sum(row.judged.status == "fail" for row in some),
            max(row.judged.ratio for row in some),
            statistics.median(row.judged.ratio for row in some),
        )
        for name, some in found.items()
        if name
    }


@pytest.mark.parametrize(
    ("by", "key"), [("operator", lambda row: row.measure.operator), ("phase", lambda row: row.measure.phase)]
)
def test_groups_count_every_judged_record(misaligned, by, key):
    made = {one.name: (one.records, one.failed, one.worst, one.median) for one in group_rows(misaligned.rows) if one.by == by}
    wanted = by_hand(misaligned.rows, key)
    assert made.keys() == wanted.keys()
    assert all(made[name] == pytest.approx(wanted[name]) for name in wanted)


def test_a_module_has_two_levels_and_the_first_that_fails_comes_first(misaligned):
    groups = group_rows(misaligned.rows)
    modules = [one for one in groups if one.by == "module"]
    assert {one.name for one in modules} >= {"encoder.layers.4", "encoder.layers.0", "embeddings", "(model)"}
    assert [one.name for one in modules if one.failed][:3] == ["encoder.layers.4", "encoder.layers.5", "encoder.layers.6"]
    assert [bool(one.failed) for one in modules] == sorted((bool(one.failed) for one in modules), reverse=True)
    operators = [one.failed for one in groups if one.by == "operator"]
    assert operators == sorted(operators, reverse=True)
    assert len([one for one in group_rows(misaligned.rows, most=3) if one.by == "module"]) == 3


def test_what_has_no_number_is_worst_or_has_no_share(misaligned):
    first, second, third = [row for row in misaligned.rows if row.measure.operator == "linear"][:3]
    broken = replace(first, judged=replace(first.judged, status="nonfinite", metric="", ratio=0.0))
    lonely = replace(
        second,
        measure=replace(second.measure, target_dtype=""),
        judged=replace(second.judged, status="unpaired_reference", metric="", ratio=0.0),
    )
    other = replace(third, measure=replace(third.measure, target_dtype="float16"))
    one = next(one for one in group_rows([broken, lonely, other]) if one.by == "operator")
    assert (one.records, one.failed, one.in_doubt, one.worst, one.record) == (3, 1, 1, math.inf, first.measure.name)
    alone = {one.by: one for one in group_rows([lonely])}
    assert (alone["operator"].worst, alone["operator"].median, alone["operator"].record) == (None, None, "")
    assert alone["type"].name == "float32"
    assert next(one for one in group_rows([other]) if one.by == "type").name == "float32 -> float16"


def test_nothing_judged_has_no_groups(misaligned):
    assert group_rows([]) == group_rows([row for row in misaligned.rows if row.measure.movement]) == ()
    assert [*dict.fromkeys(one.by for one in group_rows(misaligned.rows))] == list(KINDS)
