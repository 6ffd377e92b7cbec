"""Every line that is drawn between rounding and a fault, in one file, with where its number comes from.

The numbers were measured on two models (a text encoder with seeded weights, a sentence encoder with trained ones), in float32
and bfloat16, forward and backward, against emulated chips that are correct but round in another order. The largest value of a
correct operator and the smallest one of a fault are given beside each line; a line stands between them. Change a line only
with a run of ``benchmarks/faults`` on other models than those it was made on.
"""

from __future__ import annotations

FINE_DIGITS = 24
"""Bits of the significand from which on an error's size is looked at; with fewer the rounding residue is."""

INTRODUCED = 8.0
"""Line of rho, the introduced error in units of the reference's own. Correct operators: at most 5.5; smallest fault: 29."""

INTRODUCED_MATMUL = 64.0
"""The same for what multiplies and adds up. An accumulator that rounds towards zero reaches 34, TF32 and HF32 begin at 170."""

MATMUL_IN_16_BITS = 8.0
"""Line of a matmul's error, and of its worst row, over the reference's own, both in the same 16-bit type, where it is not known
what partial sums may be off by (a fused attention, a recurrent cell). The next three are for all others.
"""

PARTIAL_SUMS, PARTIAL_SUMS_ROW = 2.0, 3.0
"""Line of a 16-bit matmul's or sum's error, and of its worst row, over what the same operands give in up to 64 parts of at
least 16 terms, each rounded to the type and added in it, from both ends.

Drawn products in 2 to 64 such parts, added in other orders, reach 1.5 (worst row 2.1), and in up to 192 parts 2.2 (2.5).
"""

SUMS_IN_16_BITS = 5.0
"""The same over the reference's own error, which has to be passed too: many a chip does not add up in parts.

Functions that are off by two ulps reach 2.6 (worst row 3.3). A softmax whose backward was rounded to bfloat16 in float16 is 5.5
times the reference's own error, and 4.6 times that of partial sums.
"""

FEWEST_ELEMENTS = 64
"""Fewest elements of an output whose error is more than a single draw."""

REDUCED = 8.0
"""Line of rho from which on a matmul is noted as reduced: legal on a chip, worth knowing, no fault."""

TRUNCATION_COSINE = 0.5
"""Cosine between error and output that tells a truncating accumulator (0.86) from shortened operands (at most 0.04)."""

RESIDUE = 3.0
"""Line of the four residue ratios. Correct operators: at most 2.1; faults from 3.1 (2 gave three false alarms in six runs)."""

VARIANCE_ALONE = 30.0
"""Line of the variance whatever the target's other calls of the operator show.

A chip whose functions are off by an ulp of the 16-bit type everywhere reaches 9, by up to two 25; softmax computed in bfloat16
41. Below this line only a call that stands out among its like (``RESIDUE`` times their median) is a fault.
"""

UNITS_OFF = 2.5
"""Units in the last place that a single number in 16 bits may be off: two of a function, and half of one of its rounding."""

VARIANCE_USUAL, VARIANCE_SPREAD, VARIANCE_LUCK = 25.0, 22.5, 3.5
"""Mean and standard deviation of the square of such an error, in those of one rounding, and by how many standard deviations the
mean of ``n`` of them may be off by luck.

The line is ``25 + 3.5 * 22.5 / sqrt(n)``, at least ``VARIANCE_ALONE`` and at most ``12 * UNITS_OFF ** 2``. The errors are whole
numbers from -2 to 2, each as likely, and a uniform one of half a unit: the mean is 12 (2 + 1/12). So a single number is held to
2.5 units, four to 2.3 (root mean square), sixteen to 1.9, and 250 or more to 1.6. A ``cross_entropy`` kept in bfloat16 was 1.9
units off on a correct chip, one computed in bfloat16 in a float16 model 3.4.
"""

SINGLE_DRAWS = 16
"""Elements of an output below which its variance is luck.

It is not compared with that of other calls then, and the reference's own counts only as far as it is beyond one rounding.
"""

ROUNDING_SPREAD, ROUNDING_MOST = 0.9, 3.0
"""Standard deviation of the square of one rounding, in units of its mean, and the most that it can be."""

CURVE_ALONE = 4.0
"""The same of the curve, in units of the errors' own scatter.

Functions that are off by up to two ulps of the 16-bit type at fixed arguments reach 1.4, a constant added in the last bits 5.
"""

LARGEST_ALONE = 8.0
"""The same of the largest element: 48 deviations, where two ulps are 7."""

LARGEST_OF_REFERENCE = 8.0
"""Largest element of the reference from which on the largest says nothing: sums in 16 bits (weight gradients of a LayerNorm)
reach hundreds on both sides, and a clean chip 15 times the reference's.
"""

VARIANCE_FLOOR, SLOPE_FLOOR, CURVE_FLOOR, LARGEST_FLOOR = 1.0, 6.0, 8.0, 6.0
"""What the reference's own residue counts as at least, so that a lucky reference makes no fault of a usual target."""

HALF_STEPS = 32.0
"""Line of the evidence that a bfloat16 output was computed in float16, in bits: its smallest values are all whole multiples of
2^-24, which correct ones would be by chance once in 2^32.
"""

HALF_STEPS_FEWEST = 8
"""Fewest values that have to be such multiples, half of them on each side of zero."""

OTHER_FORM = 64.0
"""Line of the evidence that a 16-bit output was computed in the other form of its function: the number of places where the two
forms are rounded to different numbers, and the target has that of the other.
"""

SAME_FORM = 0.9
"""Least share of places that have the bits of a form, for an output to be computed in it."""

SMALLEST_ERROR = 0.5
"""Least own error of a reference that rho divides by, in units of the element type's rounding: one exact result is luck."""

SMALLEST_ERROR_OF_FEW = 1.0
"""The same of fewer than ``FEWEST_ELEMENTS``, whose error is a single draw: just above a power of two, a function that is right
to two units in the last place is off by five such units (the square root of one number in a sampler, on a correct chip).
"""

OPTIMIZER_STEP = 2.0
"""Line of an optimizer's error against its formula, in units of four roundings of the terms that it adds up. Correct optimizers
(torch's, foreach and not, float32 and bfloat16): at most 0.8.
"""

SETTINGS_SHARE, SETTINGS_FEWEST = 0.9, 32
"""Share of the elements in which a step has to be nearer to the result of its own settings than to that of others, and the
fewest such elements. Only elements count in which the two round to different numbers. If rounding decided, each would be
a coin: 29 heads of 32 come once in 800 000.
"""

SETTINGS_MOST = 64
"""How many of them are looked at, those that are farthest apart first: in the others rounding decides."""

CLASS_SHARE = 0.9
"""Share of the calls of an operator that have to be named before the whole class is."""

CLASS_MEMBERS = 3
"""Fewest calls that make a class."""

# Where an error starts.

ACCUMULATED = 0.5
"""Share of their limit that inputs may use before a failing output counts as accumulated rounding."""

AMPLIFIED = 4.0
"""How many times over its limit an output is from which on it is more than the accumulated rounding of its inputs.

An accumulator that truncates after every 4 products reaches 1.5 times a measured limit, which allows for every 16, though each
operator computes rightly at its own inputs.
"""

CARRIED = 4.0
"""Ratio of a difference to the call's own error above which the difference came with the call's inputs."""

# Noise floors; the factors between a floor and a limit are in conf/standard/calibrated.yaml.

FEW_ELEMENTS = 64
"""Elements below which a record is small, and has at least the floor of its inputs."""

SINGLE_NUMBER = 3.0
"""How many times the largest of its three draws the floor of a record of one element is, such as a loss.

The three disturbances draw the error of many elements many times, and that of one element three times. Of normally distributed
errors one in a thousand is beyond 9.3 times the largest of three draws if it is a single number, beyond 4.0 times for two
elements and 3.0 for three: three times the factor between floor and limit. A divergence (``kl_div``), a sum that cancels, was
3.5 times its largest draw on a correct chip.
"""

WORST_OF_NORM = 4.0
"""Least floor of the worst element, over that of the norm: of normally distributed errors one in 16 000 is beyond it."""

WORST_OF_PEAK = 2.0
"""How fast that factor grows with the largest element over the root mean square, where that is beyond those 4.

An element that is far larger than all others has an error as much larger, which is a single draw. Correct chips reach 3.1
times the norm's.
"""

WORST_ROUNDINGS = 4.0
"""Least floor of the worst element, in halves of a unit in the last place of the largest one (two to four units of it)."""

ROW_ROUNDINGS = 2.0
"""Least floor of a gradient's worst row, in roundings of its largest one: one for each side."""

SUM_ROUNDINGS = 64.0
"""Least floor of a float32 output whose inputs are in 16 bits, in halves of a unit in the last place of 1.

Such a sum in another order is off by the square root of its terms, 64 for 4 096. A bias's gradient of 384 terms under autocast
was off by 3.7. It is a thousandth of what rounding to bfloat16 does to the terms.
"""

# Choices.

OUTSTANDING = 8.0
"""Root mean squares of the difference of a tensor from which on a single difference stands out and is no noise."""

TIED_ROUNDINGS = 2.0
"""Units in the last place of the largest value: a difference of so few is rounding, however rare it is."""

FLIPPED_GRADIENT = 3.0
"""How many times what near ties of the forward make of a gradient on average (``sqrt(2 k / n)`` with ``k`` of ``n`` choices) a
gradient behind them may be off.

What was sent elsewhere may be larger than the rest: of normally distributed numbers three in a thousand are beyond three times
their root mean square.
"""

# Gradients that are zero but for rounding.

ZERO_GRADIENT = 2.0
"""Roundings of a module's largest gradient below which another one of it is zero, in low precision: one for each side."""

ZERO_GRADIENT_FINE = 32.0
"""The same in float32 and float64, where nothing but a sum that cancels comes near."""

SECOND_MOMENT = 2.5
"""Times the relative error of its gradients that a second moment may be off by: a square is off by twice as much, and the error
of a gradient is not spread evenly over its elements."""

SECOND_MOMENT_LARGEST = 8.0
"""The same of its largest element beside its root mean square: 2 times the peak of a gradient over its root mean square (about
5 for normal values), over that of their squares (about 1.7)."""
