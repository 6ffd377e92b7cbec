"""The pairing in order is the best of all that there are."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from precflow.dumps.views.alignment import align


def best_sum(fits):
    """Return the largest sum of all pairings in order, found by trying each."""
    rows, columns = range(len(fits)), range(len(fits[0]))
    sums = [0.0]
    for count in range(1, min(len(rows), len(columns)) + 1):
        for ones in combinations(rows, count):
            for twos in combinations(columns, count):
                values = [fits[one][two] for one, two in zip(ones, twos, strict=True)]
                sums += [sum(values)] if all(values) else []
    return max(sums)


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=4))
)
def test_no_other_pairing_in_order_fits_better(fits):
    pairs = align(fits)
    assert all(fits[one][two] for one, two in pairs)
    assert pairs == sorted(pairs)
    assert all(len({pair[side] for pair in pairs}) == len(pairs) for side in (0, 1))
    assert sum(fits[one][two] for one, two in pairs) == best_sum(fits)
