"""The Python interface of precflow: ``assert_aligned`` for unit tests, ``compare`` for two values or dumps, and ``read``.

All use the verdicts and wording of the report. ``precflow.capture``, for a training loop of your own, is not here but in
``precflow.agent.own_loop``, because it must run where only the agent is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from precflow.config.schema import Tolerance
from precflow.errors import ConfigError, Problem
from precflow.metrics import LIMITED
from precflow.result import Compared, Comparison
from precflow.values import Golden, compare_values

if TYPE_CHECKING:
    from precflow.run.history import History

__all__ = ["Compared", "Comparison", "assert_aligned", "compare", "history", "read"]

Standards = str | Sequence[str] | None
_STANDARD = "calibrated"  # that of every recipe; values have no noise floor, so that its fixed limits apply to them
_NO_LIMITS = ("standards", "rules", "metrics")  # keys of a recipe's `tolerance` that are not limits, so not accepted here


def assert_aligned(
    actual: Any,
    expected: Any,
    *,
    standard: Standards = _STANDARD,
    golden: Any = None,
    operator: str = "",
    **limits: Any,
) -> None:
    """Raise unless a value is aligned with the expected one; integers and booleans must be equal.

    Every entry needs its partner. ``1`` and ``"1"`` are two keys; the classes of two containers do not matter, but a dict is
    never compared with a list. ``None`` is no tensor, like an entry that is not there. Floating point types may differ, others
    must be the same, where a plain number has the type of the tensor beside it. NaN and infinities pass if the other side has
    the same at the same place and there is something else to compare; ``assert_close`` of torch wants ``equal_nan=True``.
    Texts, paths and members of enums have to be equal.

    Args:
        actual: What the target computed: a tensor (torch on any device, NumPy, numbers), or nested dicts, lists, tuples and
            dataclasses of them, such as a model's output.
        expected: What the reference computed, nested in the same way; relative errors are relative to it.
        standard: Name of a standard (``precflow ls standard``) or several, all of which must pass. ``None``: only ``limits``.
            One that was made for operators takes ``golden`` for the exact result, or ``expected`` if there is none; one of
            losses takes tensors of one axis, with one loss a step.
        golden: What ``actual`` should be, computed in higher precision (float64) at the same inputs and nested in the same way.
            A dual benchmark (``cann_dual``) needs it: it divides the error of ``actual`` by that of ``expected``.
        operator: Name of the operator that computed it, such as ``matmul``; a dual benchmark has levels of operators.
        limits: Plain limits as in a recipe, such as ``cosine_similarity=0.9999`` or ``relative_l2="1%"``. Each is one more
            condition; none loosens a standard. A standard has limits for each element type; the less precise type of a pair
            decides which apply.

    Raises:
        AssertionError: They are not aligned, or nothing could be compared; the message says which tensor, and why.
        ConfigError: A standard or a limit is not known, or a standard needs ``golden``.
        TypeError: A container holds itself.

    >>> assert_aligned([1.0, 2.0], [1.0, 2.0])
    >>> assert_aligned({"logits": [1.0, 2.0]}, {"logits": [1.0, 2.5]}, standard=None, relative_l2="1%")
    Traceback (most recent call last):
    AssertionError: not aligned: 1 of 1 tensors
       logits (fail): relative_l2 0.186 is 18.6 times its limit 0.01 (tolerance)
          worst at [1]: 2.0, expected 2.5
    """
    comparison = compare_values(expected, actual, build_tolerance(standard, limits), Golden(golden, operator))
    if not comparison:
        raise AssertionError(comparison.summary)


def compare(  # noqa: PLR0913  all but two go by name
    reference: Any,
    target: Any,
    *,
    standard: Standards = _STANDARD,
    same: Sequence[str] = ("weights", "inputs"),
    evaluate: bool = True,
    golden: Any = None,
    operator: str = "",
    **limits: Any,
) -> Comparison:
    """Compare two dumps, given by their folders, or two values as in :func:`assert_aligned`; here the reference comes first.

    Two dumps are compared and judged as by ``precflow compare`` and by the recipe ``compare_dumps``.

    Args:
        reference: A dump's folder (or ``RUN:reference``), a tensor, or nested tensors. Relative errors are relative to it.
        target: The same for the target.
        standard: As for :func:`assert_aligned`.
        same: What must be equal at the start of two dumps; ``()`` if weights or inputs differ on purpose.
        evaluate: Compute calls of two dumps again in float64 where their tensors were kept. That starts a process with torch;
            the summary says if it was left out or could not be done.
        golden: For two values, as for :func:`assert_aligned`.
        operator: As for :func:`assert_aligned`.
        limits: As for :func:`assert_aligned`.

    Raises:
        DumpError: There is no dump, or it cannot be read.
        SideError: The process that computes calls again did not finish.
        ConfigError: A standard or a limit is not known, a standard needs ``golden``, or both folders are the same.
        TypeError: One side is a folder and the other is not, a container holds itself, or two dumps have a ``golden``.
    """
    tolerance = build_tolerance(standard, limits)
    # A text is always a folder here, never a value to compare.
    folders = [isinstance(value, (str, os.PathLike)) for value in (reference, target)]
    if any(folders) and not all(folders):
        raise TypeError("expected two folders of dumps, or two tensors; got one of each")
    if not all(folders):
        return compare_values(reference, target, tolerance, Golden(golden, operator))
    if golden is not None:
        raise TypeError("`golden` belongs to two values; of two dumps every call is computed again in float64")
    # Imported here, because comparing tensors needs neither runs nor the report.
    from precflow.result import make_comparison
    from precflow.run.find_dumps import open_named_dump
    from precflow.stages.two_dumps import compare_dumps

    left, right = (open_named_dump(os.fspath(folder)) for folder in (reference, target))
    return make_comparison(
        compare_dumps(left, right, command="", tolerance=tolerance, same=same, evaluates=evaluate),
    )


def read(result: str | os.PathLike[str]) -> Comparison:
    """Return the result of an earlier run or comparison; it has the methods that the result of :func:`compare` has.

    Args:
        result: A run (``NAME``, ``NAME@3``, ``runs/NAME@3``), whose records are read from its store, all of them with every
            metric. Or a ``result.json`` or a folder with one, such as ``public/`` of a run and what ``precflow compare``
            writes: it has the records that fit into the file, the most important ones, with the metrics that the recipe
            shows and six significant digits.

    Raises:
        StoreError: There is no such result, it is not whole, it is of another version of the format, or the run has no
            verdict (it is under way, was killed, or judged nothing).
    """
    from precflow.result import make_comparison
    from precflow.run.find_results import read_result

    return make_comparison(read_result(os.fspath(result)))


def history(name: str | os.PathLike[str], last: int = 0) -> History:
    """Return the runs of a run folder, the oldest first, as ``precflow history`` shows them.

    ``.frame()`` is a table with one row for each run: its verdict, what had changed, how many records got better or worse.
    ``.records()`` has the records that were furthest off, in each run.

    Args:
        name: The run folder, such as ``sd_text_encoder`` or ``runs/sd_text_encoder``.
        last: How many runs, counted from the newest; 0 for all.

    Raises:
        StoreError: There is no such run folder, or its history is damaged.
    """
    from precflow.run.history import read_history

    return read_history(os.fspath(name), last)


def build_tolerance(standard: Standards, limits: Mapping[str, Any]) -> Tolerance:
    """Return standards and plain limits as the section ``tolerance`` of a recipe.

    Raises:
        ConfigError: A limit is unknown or its value has the wrong form, or there is neither a standard nor a limit.
    """
    from precflow.config.build import Builder
    from precflow.config.documents import Mark
    from precflow.config.vocabulary import allowed_words

    names = [standard] if isinstance(standard, str) else list(standard or ())
    builder = Builder(lambda _: Mark(""), allowed_words)
    unknown = [Problem("", name, "no such limit") for name in limits if name in _NO_LIMITS]
    tolerance = replace(builder.build({"tolerance": limits}).tolerance, standards=tuple(names))
    problems = [*unknown, *builder.problems]
    if problems:  # they speak of keys of a recipe; a caller of this function knows only the arguments
        shown = [
            Problem("", wrong.key.removeprefix("tolerance."), wrong.message.replace("tolerance.", "")) for wrong in problems
        ]
        raise ConfigError("the limits are not usable", problems=shown, next_step=f"Limits are {', '.join(LIMITED)}")
    if not names and not any(value is not None for value in limits.values()):
        raise ConfigError(
            "there is nothing to hold the values to", next_step='standard="default", or a limit: relative_l2="1%"'
        )
    return tolerance
