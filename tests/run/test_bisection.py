"""The search by halves, over every place where something may break and every version that cannot be judged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.run.bisection import ALIGNED, MISALIGNED, Bisection, bisect, most_runs, tell


@given(st.integers(1, 200), st.integers(0, 200))
def test_the_first_wrong_version_is_found_in_as_many_runs_as_promised(count, breaks):
    found = bisect(count, lambda number: MISALIGNED if number >= breaks else ALIGNED)
    assert found.is_certain(count)
    assert found.first_wrong == (breaks if breaks < count else None)
    assert len(found.verdicts) <= most_runs(count)


@given(st.lists(st.sampled_from([ALIGNED, MISALIGNED, "inconclusive", "could not be done"]), min_size=1, max_size=12))
def test_what_is_said_was_seen_whatever_the_runs_give(verdicts):
    asked = []

    def judge(number):
        asked.append(number)
        return verdicts[number]

    found = bisect(len(verdicts), judge)
    assert len(asked) == len(set(asked)) == len(found.verdicts)
    if found.first_wrong is None:
        assert asked == [len(verdicts) - 1]
        assert (verdicts[-1] == ALIGNED) == found.is_certain(len(verdicts))
    else:
        assert verdicts[found.first_wrong] == MISALIGNED
        assert found.last_right == -1 or verdicts[found.last_right] == ALIGNED
        between = verdicts[found.last_right + 1 : found.first_wrong]
        assert not {ALIGNED, MISALIGNED} & set(between)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Bisection(2, 1, {3: MISALIGNED, 1: ALIGNED, 2: MISALIGNED}), "first misaligned with c (b aligned), 3 of 4 runs"),
        (
            Bisection(0, -1, {3: MISALIGNED, 1: MISALIGNED, 0: MISALIGNED}),
            "first misaligned with a (o the reference), 3 of 4 runs",
        ),
        (Bisection(None, 3, {3: ALIGNED}), "d is aligned with o: nothing to find, 1 of 4 runs"),
        (Bisection(None, -1, {3: "inconclusive"}), "d, the last one, could not be judged (inconclusive), 1 of 4 runs"),
        (
            Bisection(3, 1, {3: MISALIGNED, 1: ALIGNED, 2: "inconclusive"}),
            "misaligned with d at the latest; c could not be judged (b aligned), 3 of 4 runs",
        ),
    ],
)
def test_it_is_told_in_words(found, text):
    assert tell(found, ["a", "b", "c", "d"], "o") == text
