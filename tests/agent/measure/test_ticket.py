import math

from precflow.agent.measure.ticket import mark_of_statistics, mark_of_sums


def test_other_sums_have_other_marks():
    marks = {mark_of_sums(data) for data in (b"", b"\0", b"\0\0", b"\0\0\0\0", b"\0\0\0\1")}
    assert len(marks) == 5
    assert all(len(mark) == 32 for mark in marks)


def test_other_statistics_have_other_marks():
    known = [0.0, 1.0, 2.0, 3.0, 0, 0, 0, 0, None, 0, 0, 0]
    others = [[-0.0, *known[1:]], [None, *known[1:]], [*known[:-1], 7], [math.nan, *known[1:]]]
    assert len({mark_of_statistics(each) for each in (known, *others)}) == 5
    assert mark_of_statistics(list(known)) == mark_of_statistics(known)


def test_without_statistics_there_is_no_mark():
    assert mark_of_statistics(None) == ""
