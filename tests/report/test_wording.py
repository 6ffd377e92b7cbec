import dataclasses
import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow import numbers
from precflow.diagnosis.findings import ROLES
from precflow.judgement.verdicts import STATUSES, VERDICTS
from precflow.report import chart, ci, highlights, junit, page_data, result_json, templating, terminal, tree, wording


@pytest.mark.parametrize("module", [wording, chart, ci, junit, page_data, result_json, highlights, templating, terminal, tree])
def test_examples_in_docstrings_run(module):
    assert doctest.testmod(module).failed == 0


def test_every_status_verdict_and_role_has_its_words():
    assert set(wording.STATUS_SYMBOLS) == set(wording.STATUS_MEANINGS) == set(STATUSES)
    assert set(wording.VERDICT_SYMBOLS) == set(VERDICTS)
    assert set(wording.ROLE_MEANINGS) == set(ROLES)


def test_symbols_tell_statuses_apart_without_colour():
    assert len(set(wording.STATUS_SYMBOLS.values())) == len(STATUSES)


@given(st.floats(min_value=-1e300, max_value=1e300, exclude_min=True, exclude_max=True))  # which stand for infinity
def test_a_number_is_read_back_within_half_a_percent(value):
    text = numbers.number(value).replace(" ", "")
    assert float(text) == pytest.approx(value, rel=5.1e-3, abs=5e-323)


@given(st.floats(min_value=0.99, max_value=1, exclude_max=True))
def test_nothing_below_one_is_shown_as_one(value):
    assert numbers.number(value) != "1"


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_never_rounded_to_all_or_nothing(value):
    assert (numbers.share(value) == "100 %") == (value == 1)
    assert (numbers.share(value) == "0 %") == (value == 0)


@given(st.floats(min_value=0, max_value=1e9))
def test_a_duration_has_a_unit(seconds):
    assert wording.duration(seconds).split()[-1] in {"s", "min", "h"}


@given(st.text())
def test_printable_text_cannot_move_the_cursor(text):
    assert wording.printable(text).isprintable()


def test_text_that_turns_the_reading_direction_becomes_visible():
    assert wording.printable("a\u202eb") == "a\\u202eb"


@given(st.text(), st.integers(min_value=4, max_value=60))
def test_shortened_text_keeps_its_end_and_its_width(text, width):
    short = wording.shorten(text, width)
    assert len(short) <= width
    assert short == text or (len(text) > width and short.endswith(text[-1]))


def test_a_ratio_that_cannot_be_had_is_said_so():
    assert numbers.factor(math.nan) == "NaN"
    assert wording.used(math.inf) == "infinity of its limit"


def test_a_sample_is_told_by_its_share(estimated):
    row = estimated.rows[0]
    assert wording.describe_estimate(row) == ["relative_l2 between 7.5e-8 and infinity, by its sketch of 50 % of its elements"]
    whole = dataclasses.replace(row, measure=dataclasses.replace(row.measure, share=1.0))
    assert wording.describe_estimate(whole) == ["relative_l2 between 7.5e-8 and infinity, by its sketch"]
    assert wording.describe_estimate(estimated.rows[1]) == []


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("", []),
        ("name", []),
        ("pairing.rules[1]", ["paired by pairing.rules[1] of the recipe"]),
        ("sequence", ["paired in order: a side has several records of this name"]),
    ],
)
def test_a_pair_that_was_not_made_by_name_says_how(misaligned, how, texts):
    row = misaligned.rows[0]
    assert wording.describe_pairing(dataclasses.replace(row, measure=dataclasses.replace(row.measure, pairing=how))) == texts
