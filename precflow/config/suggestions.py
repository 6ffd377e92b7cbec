"""Did you mean: finds the known words that look most like an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What people call a thing elsewhere -> its name here. No likeness of letters leads from `gpu` to `cuda`.
_SPOKEN = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "half": "float16",
    "double": "float64",
    "float": "float32",
    "gpu": "cuda",
    "ascend": "npu",
    "md": "markdown",
    "bench": "reference",
    "cos": "cosine_similarity",
    "cosine": "cosine_similarity",
    "ulp": "ulp_distance",
    "l2": "relative_l2",
    "rel_l2": "relative_l2",
    "euclidean": "relative_l2",
    "atol": "max_abs_error",
    "rtol": "max_rel_error",
    "mse": "rmse",
}

_MUCH_LESS = 0.25  # `our_vison` is 0.95 like our_vision and 0.5 like loss_curves: nobody who wrote it meant the second


def find_near(word: str, known: Iterable[str], *, most: int = 3, alike: float = 0.6) -> list[str]:
    """Return up to ``most`` known words that look like the given one, best first; usual short forms such as ``bf16`` count.

    Args:
        word: What was written.
        known: What could have been meant.
        most: How many to return.
        alike: How much alike they must be, from 0 to 1 (``difflib``'s ratio).

    >>> find_near("flaot16", ["float16", "float32", "bfloat16"], most=1)
    ['float16']
    """
    words = list(dict.fromkeys(known))
    spoken = _SPOKEN.get(word.lower(), "")
    if spoken in words:
        return [spoken]
    folded = {other.casefold(): other for other in words}
    matches = difflib.get_close_matches(word.casefold(), list(folded), n=most, cutoff=alike)
    likeness = [difflib.SequenceMatcher(None, word.casefold(), name).ratio() for name in matches]
    return [folded[name] for name, alike in zip(matches, likeness, strict=True) if alike > likeness[0] - _MUCH_LESS]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean  x ?"`` with the nearest known word, or ``""`` if nothing is near."""
    near = find_near(word, known, most=1)
    return f" Did you mean  {near[0]} ?" if near else ""
