"""Rows of a table that are read wrongly wherever their number stands, and nothing else."""

import numpy as np
import pytest

from precflow.diagnosis.evidence.lookups import describe_wrong_rows

TABLE = np.random.default_rng(1).standard_normal((20, 8))
NUMBERS = np.array([[3, 4, 5, 6], [3, 7, 0, 0], [9, 0, 0, 0]])


def read(changes):
    made = TABLE[NUMBERS]
    for number, values in changes.items():
        made[number == NUMBERS] = values
    return made


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({0: TABLE[7]}, "row 7 in place of row 0"),
        ({0: 0.0}, "zeros in place of row 0"),
        ({0: 0.5}, "other values in place of row 0"),
        ({0: TABLE[1], 9: TABLE[0]}, "row 1 in place of row 0, row 0 in place of row 9"),
        ({}, ""),
        ({number: TABLE[number - 1] for number in np.unique(NUMBERS)}, ""),  # all rows: the numbers are wrong
    ],
)
def test_rows_are_named_by_their_numbers(changes, text):
    assert describe_wrong_rows(NUMBERS, TABLE, read(changes)) == text


def test_a_sample_that_is_wrong_is_no_row_of_the_table():
    wrong = read({})
    wrong[2, 1:] = TABLE[7]
    assert not describe_wrong_rows(NUMBERS, TABLE, wrong)  # row 0 is right in the second sample


def test_rows_that_differ_each_time_are_no_other_row():
    wrong = read({})
    wrong[NUMBERS == 0] += np.arange(5)[:, None]
    assert not describe_wrong_rows(NUMBERS, TABLE, wrong)
