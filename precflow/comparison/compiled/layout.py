"""Where the compiled pass keeps which number: what it shares with the Python around it, without importing numba."""

SUMS = 9  # |d|, d^2, |y|, y^2, x^2, x y, |d|/|y|, |d|/(|y| + 1e-7), units in the last place
LARGEST = 3  # |d|, |d|/|y|, |d|/(|y| + 1e-7)
COUNTS = 5  # small, small_mismatch, within 0.001, within 0.005, largest distance in the last place
CLASS_COUNTS = 7  # sentinel, nonfinite; mismatches of both; infinity_for_sentinel, other_fill, saturated_mismatch
RUNGS = 3

DIVERGENCE, TARGET_SUM = SUMS, SUMS + 1  # the sum of x is taken for the divergence only
TOTALS = SUMS + 2
FIRST_CLASS, FIRST_RUNG = COUNTS, COUNTS + CLASS_COUNTS
NEGATIVE, UNEQUAL = FIRST_RUNG + RUNGS, FIRST_RUNG + RUNGS + 1  # whether a compared value is negative, whether a bit differs
MEASURED = UNEQUAL + 1  # fills of one constant on both sides, which have totals of their own
TALLIES = MEASURED + 1

OFFSET = 1e-7  # to |y|
SEGMENT = 512  # elements at most that are measured at a time, and looked at again where that does not do: 4 KiB of float32
TILE = 2048  # elements that are measured before their lanes are summed up: both sides then still lie in the first cache
LONG_ROW = 256  # from here on a row is measured in segments of its own
