"""A sum that lacks some of its terms, or has some twice: of a product of matrices, or of a loss over tokens."""

from __future__ import annotations

import functools
from typing import Callable, Iterator, List

import torch

from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject

_MOST = 64  # terms at the end of a sum that are left out
_MOST_FITTED = 1024  # terms of a sum that are looked at one by one
_WHOLE = 0.1  # distance from a whole number at which a term is that many times in a sum


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the sum without the last terms, one more each time, and with the terms that fit."""
    if subject.name == "cross_entropy":
        yield from _shorten_loss(subject)
    matrices = subject.matrices()
    if matrices is None or matrices[1].dim() != 2:
        return
    left, right = matrices
    for count in range(1, min(_MOST, left.shape[-1] - 1) + 1):
        yield Candidate("last_terms_left_out", subject.give(_leave_out(subject, left, right, count)))
    yield from _change_terms(subject, left, right)


def _leave_out(subject: Subject, left: torch.Tensor, right: torch.Tensor, count: int) -> Callable[[], torch.Tensor]:
    return lambda: subject.right - (left[..., -count:] @ right[-count:]).reshape(subject.right.shape)


def _change_terms(subject: Subject, left: torch.Tensor, right: torch.Tensor) -> Iterator[Candidate]:
    """Yield a product some of whose terms are left out or added twice, wherever they are in the sum.

    The target's error is ``E = sum over k of d_k l_k r_k``, with columns ``l_k`` of the left operand and rows ``r_k`` of the
    right one. Least squares give the ``d``: -1 for a term that is left out, 0 for one that is right. So the weight gradient of
    fewer tokens is found, and that of one sample of two.
    """
    count = right.shape[0]
    error, columns = (subject.made - subject.right).reshape(-1, right.shape[1]), left.reshape(-1, count)
    if not 1 < count <= min(_MOST_FITTED, error.numel() // 4) or not (error.isfinite().all() and columns.isfinite().all()):
        return
    gram, sums = (columns.T @ columns) * (right @ right.T), ((columns.T @ error) * right).sum(1)
    fitted = torch.linalg.lstsq(gram, sums[:, None], rcond=1e-10, driver="gelsd").solution[:, 0]
    whole = fitted.round()
    changed = whole.nonzero()[:, 0]
    is_whole = bool((fitted - whole).abs().max() < _WHOLE) and abs(float(whole[changed].sum())) == len(changed)
    if 0 < len(changed) < count and is_whole:
        name = "terms_left_out" if float(whole[changed[0]]) < 0 else "terms_added_twice"
        wrong = (columns[:, changed] * whole[changed]) @ right[changed]
        text = describe_terms(changed.tolist(), count)
        yield Candidate(name, subject.give(subject.right + wrong.reshape(subject.right.shape)), text)


def describe_terms(changed: List[int], count: int) -> str:
    """Say which of some terms are meant.

    >>> describe_terms([0, 1, 2], 8), describe_terms([3, 4], 8), describe_terms([1, 5], 8)
    ('the first 3 of 8', '4 to 5 of 8', '2 of 8')
    """
    first, last = changed[0], changed[-1]
    if last - first + 1 != len(changed):
        return "%d of %d" % (len(changed), count)
    if first == 0:
        return "the first %d of %d" % (len(changed), count)
    return "the last %d of %d" % (len(changed), count) if last == count - 1 else "%d to %d of %d" % (first + 1, last + 1, count)


def _shorten_loss(subject: Subject) -> Iterator[Candidate]:
    """Yield the mean over fewer tokens: their labels are padding on one side only, or the sequence is cut."""
    paths = subject.path(0, "input"), subject.path(1, "target")
    if paths[0] is None or paths[1] is None:
        return
    scores, labels = (subject.inputs[path] for path in paths if path is not None)
    if scores.dim() != 2 or labels.dim() != 1:
        return
    for count in range(1, min(_MOST, len(labels) - 1) + 1):
        for where, kept in (("last", slice(None, -count)), ("first", slice(count, None))):
            fewer = {paths[0]: scores[kept], paths[1]: labels[kept]}
            text = "the %s %d of %d" % (where, count, len(labels))
            yield Candidate("terms_left_out", subject.give(functools.partial(subject.compute, fewer)), text)


HYPOTHESIS = Hypothesis("variant", propose)
