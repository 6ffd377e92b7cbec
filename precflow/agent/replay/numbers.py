"""What an operator's output is off from float64 at the same inputs: size and direction of the error, and its residue.

With ``y`` the recorded output, ``e = y - f64(x)``, and ``S`` the norm of ``f64(x)``, or of the sum of absolute terms where an
operator adds up, because a sum that cancels has no size of its own::

    eta = |e| / S
    V   = mean z^2                  extra roundings inside; about 1 for a result that was rounded once
    A   = |sum z w|                 a wrong scale; w are the values over their deviation, as a unit vector
    B   = max |sum z| / sqrt(n)     a wrong curve; of 32 bins of value, with n elements each
    M   = max |z|                   a single wrong element

``z = e / deviation``. A value rounded to nearest is off by ``ulp / sqrt(12)``: the standard deviation of a uniform error of
half an ulp. The ulp is that of ``f64(x)``, and twice that where ``y`` lies beyond the next power of two. Every operator on a
16-bit type computes in float32 inside, so the deviation also has 2^-24 of the terms that were added up, or of the tensor's rms.
Without that, the tail of a GELU or a sum that cancels, 1e-20 where other elements are 1, would outweigh everything. A and B
clip z at 8, V at 32, so that one element cannot stand for all: M is there for it. Where a correct operator adds up in 16 bits,
as torch does for the weight gradient of a LayerNorm, elements near 0 have any z; without its bound V was 94 times the
reference's on a correct chip.

Errors of few distinct values do not average out: a function of bfloat16 inputs, of which there are 128 between 1 and 2, rounds
the same value in the same way a thousand times. So where most values of float64 occur more than once, A and B count each of
them once, with the mean of its z. A wrong scale is wrong at all of them in the same direction and still stands out; a function
that is off by an ulp here and there does not. The same four numbers, eta and the worst row are taken of a control: float64 at
the same inputs, rounded once.

What a function adds up inside may be rounded too (:mod:`~precflow.agent.replay.inner_terms`). Where that is known, V and M are
taken a second time with a deviation of at least the rounding of the largest inner term, and stand under ``inner``.

Values that are not finite and mask fills are left out and counted; ``misplaced`` counts places where output and control differ
in kind. Tensors are read in blocks, so the memory that this takes beyond the tensors themselves is bounded.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.contract import Band
from precflow.agent.measure import value_classes
from precflow.agent.measure.content_id import dtype_name
from precflow.agent.replay.half_steps import HalfSteps
from precflow.agent.replay.residue import BINS, Distinct, Inner, Residue, divide, finite, take_numbers

BLOCK = 1 << 16  # elements that are worked on at once: half a megabyte in float64 stays in the cache
RESIDUES = ("variance", "slope", "curve", "largest")
_SAMPLE = 4096  # elements whose values set the edges of the bins
_INNER = 2.0**-24  # half an ulp of float32, relative
_SMALL, _SCALED = 2.0**-500, 500  # float64 values beyond this are scaled by a power of 2 before they are squared
_DOUBLE = 53  # digits of float64
_FEW_ROWS = 64
_UNIFORM = math.sqrt(12)  # a uniform error of half a unit has this part of the unit as its standard deviation
_LEAST = 2.3e-308  # smallest normal float64: nothing is divided by less


REAL_TYPES = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex element type -> type of its real and imaginary part."""


class FloatFormat(NamedTuple):
    """What rounding to an element type does.

    Attributes:
        digits: Bits of the significand, including the hidden one.
        least: Exponent of the smallest normal number: ``2^least``.
        unit: Half an ulp relative to the value: ``2^-digits``.
    """

    digits: int
    least: int
    unit: float


@functools.lru_cache(maxsize=None)  # torch takes a microsecond for each of these facts, and every output asks
def format_of(dtype: torch.dtype) -> FloatFormat:
    """Return the format of a floating point type; of a complex one, that of its parts.

    >>> format_of(torch.bfloat16), format_of(torch.complex64).digits
    (Format(digits=8, least=-126, unit=0.00390625), 24)
    """
    facts = torch.finfo(dtype)
    digits = 1 - round(math.log2(facts.eps))
    least = round(math.log2(facts.smallest_normal))
    return FloatFormat(digits, least, 2.0**-digits)


def ulp_of(values: torch.Tensor, form: FloatFormat) -> torch.Tensor:
    """Return the distance of neighbours of an element type at finite float64 values; subnormal numbers share one.

    >>> ulp_of(torch.tensor([1.0, 1.99, 0.0], dtype=torch.float64), format_of(torch.float16)).tolist()
    [0.0009765625, 0.0009765625, 5.960464477539063e-08]
    """
    powers = (values.view(torch.int64) & _EXPONENT).view(torch.float64)  # without sign and significand: the power of two below
    return powers.clamp_(min=2.0**form.least).mul_(2.0 ** (1 - form.digits))


_EXPONENT = 0x7FF << 52  # bits of float64


def round_once(values: torch.Tensor, dtype: torch.dtype, ulp: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Return float64 values rounded to nearest, once, to what an element type can hold, still in float64.

    torch's own conversion to a 16-bit type goes by way of float32 and rounds twice.

    Args:
        values: Contiguous values; infinite ones and NaN stay.
        dtype: The type.
        ulp: What :func:`ulp_of` returns of them, if it was computed already.
    """
    if dtype == torch.float64:
        return values.clone()
    step = ulp_of(values, format_of(dtype)) if ulp is None else ulp
    rounded = (
        torch.div(values, step).round_().mul_(step)
    )  # exact but for the rounding, which goes to even: a step is a power of 2
    return torch.where(rounded.abs() <= torch.finfo(dtype).max, rounded, values.sign() * math.inf)  # NaN stays NaN


def measure(
    output: torch.Tensor,
    exact: torch.Tensor,
    terms: Optional[torch.Tensor] = None,
    inner: Optional[torch.Tensor] = None,
    *,
    residue: bool = True,
) -> Dict[str, Any]:
    """Return the numbers of one output.

    Args:
        output: What a side recorded.
        exact: The operator in float64 (complex128) at that side's inputs, of the same shape.
        terms: The operator on absolute values, of the same shape, where it adds up; the scale then is its norm.
        inner: The largest term inside of each element, of the same shape, where a chip may round it to the output's type.
        residue: Measure V, A, B and M too, which takes twice the time of all the rest; without it they are ``None``.

    Raises:
        ValueError: The shapes differ.
    """
    if any(other is not None and other.shape != output.shape for other in (exact, terms, inner)):
        raise ValueError("shape %s is recorded, float64 gives %s" % (tuple(output.shape), tuple(exact.shape)))
    facts: Dict[str, Any] = {"dtype": dtype_name(output.dtype), "elements": output.numel()}
    if not (output.is_floating_point() or output.is_complex()):
        return {**facts, **_compare_whole_numbers(output, exact)}
    row = (output.shape[-1] if output.dim() else 1) * (2 if output.is_complex() else 1)
    wide = exact.to(torch.complex128 if exact.is_complex() else torch.float64)
    flat = _Flat(
        real_parts(output),
        real_parts(wide),
        None if terms is None else _magnitudes(terms, output),
        inner=None if inner is None else inner.reshape(-1),
    )
    if flat.output.dtype != torch.float64:
        return {**facts, **_measure_floats(flat, output.dtype, max(row, 1), residue=residue)}
    largest = _largest(flat.exact)
    factor = 1.0
    if 0 < largest < _SMALL or 1 / _SMALL < largest < math.inf:  # squares of these would leave float64
        factor = 2.0 ** (_SCALED if largest < 1 else -_SCALED)
    scaled = _Flat(flat.output * factor, flat.exact * factor, None if flat.terms is None else flat.terms * factor)
    found = _measure_floats(scaled, output.dtype, max(row, 1), residue=residue)
    return {**facts, **found, "scale": finite(found["scale"] / factor)}


def _compare_whole_numbers(output: torch.Tensor, exact: torch.Tensor) -> Dict[str, Any]:
    different = int((output != exact.to(output.dtype)).sum())
    nothing: Dict[str, Any] = dict.fromkeys(("eta", "unit", "scale", "worst_row", "cosine", "variance", "slope", "curve"))
    return {
        **nothing,
        "largest": None,
        "control": None,
        "nonfinite": 0,
        "filled": 0,
        "misplaced": different,
        "equal": not different,
    }


class _Flat(NamedTuple):
    """Output, float64 and the sum of absolute terms, each as ``[elements]`` of real numbers.

    Attributes:
        output: What was recorded; float64 in a block.
        exact: float64.
        terms: The sum of absolute terms.
        kept: Where both values are ordinary; ``None`` means everywhere. Elsewhere all three are 0.
        inner: The largest term inside.
    """

    output: torch.Tensor
    exact: torch.Tensor
    terms: Optional[torch.Tensor]
    kept: Optional[torch.Tensor] = None
    inner: Optional[torch.Tensor] = None

    def blocks(self, row: int = 1) -> Iterator[_Flat]:
        """Yield blocks of whole rows, converted to float64."""
        size = max(BLOCK // row, 1) * row
        for start in range(0, self.output.numel(), size):
            here = slice(start, start + size)
            terms, inner = (None if each is None else each[here] for each in (self.terms, self.inner))
            yield _Flat(self.output[here].to(torch.float64), self.exact[here], terms, inner=inner)


def real_parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor; of a complex one, real and imaginary parts in turn."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    return torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat


def _magnitudes(terms: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    flat = terms.detach().reshape(-1)
    flat = (flat.abs() if flat.is_complex() else flat).to(torch.float64)
    return flat.repeat_interleave(2) if output.is_complex() else flat


_NAN, _HIGH, _HIGH_FILL, _LOW, _LOW_FILL = 1, 2, 3, 4, 5  # kinds of values that are not ordinary


class _Filter:
    """Leaves out what is not an ordinary number: NaN, infinities and mask fills, each with its place.

    Args:
        flat: The tensors; looked at here for their extremes and for the constants of masks.
        dtype: Element type of the output.

    Attributes:
        nonfinite: Places where a value is NaN or infinite.
        filled: Places where a value is a mask fill.
        misplaced: Places where the two are of different kinds, such as NaN and a number.
    """

    def __init__(self, flat: _Flat, dtype: torch.dtype) -> None:
        self.nonfinite = self.filled = self.misplaced = 0
        self._dtype = dtype
        fills = None if dtype_name(dtype).startswith("float8") else value_classes.fills_of(dtype)
        largest = max(_largest(flat.output), _largest(flat.exact))
        ends = fills.plain if fills is not None else math.inf
        self._is_plain = largest < min(ends, torch.finfo(dtype).max)
        self._bands: Tuple[List[Band], ...] = ([], [])
        if fills is not None and not self._is_plain:
            # A mask's constant with a score added lies beyond the type's largest value until it is rounded to the type.
            rounded = [round_once(piece, dtype) for piece in _in_pieces(flat.exact)]
            self._bands = tuple(value_classes.bands_in(pieces, fills) for pieces in (_in_pieces(flat.output), rounded))
        self._flat = flat

    @functools.cached_property
    def rms(self) -> float:
        """Root mean square of the ordinary values of float64."""
        square, count = 0.0, 0
        for block in self._flat.blocks():
            exact = block.exact if self._is_plain else self._mask(block)[0].exact
            square += float(exact.dot(exact))
            count += exact.numel()  # a place that is left out counts as 0: this is a rough size, no result
        return math.sqrt(square / count) if count else 0.0

    def clean(self, block: _Flat) -> _Flat:
        """Return a block with 0 in all three at places that are left out, and count these."""
        if self._is_plain:
            return block
        cleaned, (nonfinite, filled, misplaced) = self._mask(block)
        self.nonfinite += nonfinite
        self.filled += filled
        self.misplaced += misplaced
        return cleaned

    def sample(self, block: _Flat) -> torch.Tensor:
        """Return the ordinary values of float64 in a block, without counting."""
        if self._is_plain:
            return block.exact
        cleaned, _ = self._mask(block)
        return cleaned.exact[cleaned.kept]

    def _mask(self, block: _Flat) -> Tuple[_Flat, Tuple[int, int, int]]:
        here, there = _kinds(block.output, self._bands[0]), _kinds(round_once(block.exact, self._dtype), self._bands[1])
        infinite = [(kinds == kind) for kinds in (here, there) for kind in (_NAN, _HIGH, _LOW)]
        nonfinite = torch.stack(infinite).any(0)
        kept = (here == 0) & (there == 0)
        same = (here == there) | ((here >= _LOW) & (there >= _LOW))  # -Inf and a low fill mask a place in the same way
        zero = torch.zeros((), dtype=torch.float64)
        output, exact = (torch.where(kept, values, zero) for values in (block.output, block.exact))
        terms = None if block.terms is None else torch.where(kept, block.terms, zero)
        counts = (int(nonfinite.sum()), int((~kept & ~nonfinite).sum()), int((~same).sum()))
        return _Flat(output, exact, terms, kept, block.inner), counts


def _largest(flat: torch.Tensor) -> float:
    """Return the largest magnitude; infinity if there is a NaN, which ``max`` would lose."""
    if not flat.numel():
        return 0.0
    low, high = torch.aminmax(flat) if flat.element_size() > 1 else torch.aminmax(flat.to(torch.float32))
    return math.inf if math.isnan(float(low)) else max(-float(low), float(high))


def _in_pieces(flat: torch.Tensor) -> List[torch.Tensor]:
    return [flat[start : start + BLOCK].to(torch.float64) for start in range(0, flat.numel(), BLOCK)]


def _kinds(values: torch.Tensor, bands: List[Band]) -> torch.Tensor:
    """Return the kind of each value, 0 for ordinary ones."""
    kinds = torch.zeros(values.shape, dtype=torch.int8)
    for band in bands:
        kinds[(values >= band.low) & (values <= band.high)] = _HIGH_FILL if band.constant > 0 else _LOW_FILL
    kinds[values.isnan()] = _NAN
    kinds[values == math.inf] = _HIGH
    kinds[values == -math.inf] = _LOW
    return kinds


def _measure_floats(flat: _Flat, dtype: torch.dtype, row: int, *, residue: bool) -> Dict[str, Any]:
    real = REAL_TYPES.get(dtype, dtype)
    form, ordinary = format_of(real), _Filter(flat, real)
    sums, once_sums, own, control = _Sums(), _Sums(), Residue(), Residue()
    edges = _find_edges(flat, ordinary) if residue else None
    once = Distinct() if edges is not None and form.unit > _INNER and _is_repeated(flat, ordinary) else None
    steps = HalfSteps() if real == torch.bfloat16 and residue else None
    inside = (Inner(), Inner())
    norms: List[torch.Tensor] = []
    once_norms: List[torch.Tensor] = []
    for whole in flat.blocks(row):
        block = ordinary.clean(whole)
        norms.append(sums.add(block, row))
        if edges is None:
            continue
        ulp = ulp_of(block.exact, form)
        deviation, top = _deviation(block, ulp, ordinary.rms, form), ulp * 2.0**form.digits
        weight, places = block.exact / deviation, torch.bucketize(block.exact, edges)
        once_rounded = round_once(block.exact, real, ulp)
        once_norms.append(once_sums.add(block._replace(output=once_rounded), row))
        if steps is not None:
            steps.add(block.output, once_rounded)
        errors = [_in_deviations(values, block.exact, deviation, top) for values in (block.output, once_rounded)]
        if block.inner is not None:
            share = deviation / torch.maximum(deviation, ulp_of(block.inner, form).div_(_UNIFORM))
            for inner_of, z in zip(inside, errors):
                inner_of.add(z * share)
        for residue_of, z in zip((own, control), errors):
            residue_of.add(z, weight, places, block.kept)  # clips z
        if once is not None:
            once.add(torch.stack([block.exact, *errors, weight]), block.kept)
    scale = math.sqrt(sums.terms if flat.terms is not None else sums.exact)
    size = math.sqrt(sums.error)
    return {
        "eta": divide(size, scale),
        # float64 has nothing more precise here: the evaluation rounds as often as the operator, so its unit is widened.
        "unit": form.unit if form.digits < _DOUBLE else 8 * form.unit,
        "scale": scale,
        "worst_row": _worst_row(torch.cat(norms)) if norms else 0.0,
        "cosine": sums.product / (size * math.sqrt(sums.output)) if size and sums.output else 0.0,
        "nonfinite": ordinary.nonfinite,
        "filled": ordinary.filled,
        "misplaced": ordinary.misplaced,
        "equal": sums.equal and not ordinary.misplaced,
        **(
            take_numbers(own, 0, once, edges, sums.count)
            if residue
            else dict.fromkeys(("variance", "slope", "curve", "largest"))
        ),
        "control": {
            **take_numbers(control, 1, once, edges, sums.count),
            "eta": divide(math.sqrt(once_sums.error), scale),
            "worst_row": _worst_row(torch.cat(once_norms)) if once_norms else 0.0,
        }
        if residue
        else None,
        **({} if steps is None else {"half_steps": steps.numbers()}),
        **({} if flat.inner is None or not residue else _take_inner(inside, sums.count)),
    }


def _take_inner(inside: Tuple[Inner, Inner], count: int) -> Dict[str, Any]:
    """Return V and M of output and control in units of the rounding of inner terms."""
    own, control = (each.numbers(count) for each in inside)
    return {"inner": {**own, "control": control}}


class _Sums:
    """Sums of squares over the blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.error = self.exact = self.terms = self.output = self.product = 0.0
        self.equal = True

    def add(self, block: _Flat, row: int) -> torch.Tensor:
        """Add a block; return the norms of its rows as ``[rows, 2]``: of the error, and of what it is measured by."""
        error = block.output - block.exact
        scale = block.exact if block.terms is None else block.terms
        self.count += error.numel() if block.kept is None else int(block.kept.sum())
        squares = [values.view(-1, row).square().sum(1) for values in (error, scale)]
        self.error += float(squares[0].sum())
        size = float(squares[1].sum())
        self.terms += size
        self.exact += size if block.terms is None else float(block.exact.dot(block.exact))
        self.output += float(block.output.dot(block.output))
        self.product += float(error.dot(block.output))
        self.equal = self.equal and not bool(error.any())
        return torch.stack(squares, 1).sqrt_()


def _worst_row(norms: torch.Tensor) -> float:
    """Return the largest error of a row, relative to the row or to the median row that is not zero, whichever is larger."""
    if len(norms) <= _FEW_ROWS:
        return _worst_of_few(norms.tolist())
    error, scale = norms[:, 0], norms[:, 1]
    filled = scale[scale > 0]
    least = torch.clamp(scale, min=float(filled.median())) if filled.numel() else scale
    ratios = torch.where(error > 0, error / least, torch.zeros_like(error))
    return finite(float(ratios.max()))


def _worst_of_few(norms: List[List[float]]) -> float:
    """Return what :func:`_worst_row` does: for some rows, what torch takes to begin its calls is most of the time."""
    filled = sorted(scale for _, scale in norms if scale > 0)
    least = filled[(len(filled) - 1) // 2] if filled else 0.0
    # The scale comes first, so that one that is NaN stays; an error that is NaN counts as 0.
    pairs = [(error, max(scale, least)) for error, scale in norms if error > 0]
    ratios = [error / scale if scale else math.inf for error, scale in pairs]
    return finite(math.nan if any(map(math.isnan, ratios)) else max(ratios, default=0.0))


def _in_deviations(values: torch.Tensor, exact: torch.Tensor, deviation: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Return errors over their deviations; where a value lies beyond the next power of two, in those of its own last place.

    A value that is two units above the largest number below 2 is off by four units of 1, and by two of its own.

    Args:
        values: The output, or float64 rounded once.
        exact: float64.
        deviation: Of a correct result at each place.
        top: The power of two above each value of float64.
    """
    z = (values - exact).div_(deviation)
    z[values.abs() >= top] *= 0.5
    return z


def _deviation(block: _Flat, ulp: torch.Tensor, rms: float, form: FloatFormat) -> torch.Tensor:
    """Return the standard deviation of a correct result at each place: its own rounding, and that of float32 inside."""
    inner = min(_INNER, form.unit)
    square = ulp.square().div_(12)
    if block.terms is None:
        square.add_((rms * inner) ** 2)
    else:
        square.add_(block.terms.clamp(min=rms).mul_(inner).square_())
    return square.sqrt_().clamp_(min=_LEAST)


def _is_repeated(flat: _Flat, ordinary: _Filter) -> bool:
    """Tell whether most values of float64 occur more than once, by an even sample."""
    sample = _take_sample(flat, ordinary)
    return 2 * int(torch.unique(sample).numel()) < sample.numel()


def _take_sample(flat: _Flat, ordinary: _Filter) -> torch.Tensor:
    """Return an even sample of the ordinary values of float64."""
    step = -(-flat.exact.numel() // _SAMPLE) or 1
    return ordinary.sample(_Flat(flat.output[::step].to(torch.float64), flat.exact[::step].contiguous(), None))


def _find_edges(flat: _Flat, ordinary: _Filter) -> torch.Tensor:
    """Return the inner edges of bins that hold about equally many values, from an even sample of float64's."""
    sample, _ = _take_sample(flat, ordinary).sort()
    places = torch.arange(1, BINS) * sample.numel() // BINS
    edges: torch.Tensor = torch.unique(sample[places] if sample.numel() else sample)
    return edges
