"""Models that write: which calls of the language model read a prompt (*prefill*) and which write from the cache (*decode*).

A model that writes is called again and again, first with a whole prompt and then with one token at a time, in one recorded step
or in several. Nothing in a dump says so; the shapes of what it is given do::

    language_model         input_ids [2, 7]      prefill: chooses token 1
    language_model~1       input_ids [2, 1]      decode: reads token 1 and the cache, chooses token 2
    language_model~2       input_ids [2, 1]      decode, chooses token 3
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from precflow.agent.contract import FORWARD, MODULE
from precflow.dumps.dtypes import is_floating
from precflow.dumps.records import Call, Record

PREFILL, DECODE = "prefill", "decode"
_OF_TOKENS = 2  # axes of token numbers: prompts and positions


@dataclass(frozen=True)
class Written:
    """One call of the language model.

    Attributes:
        call: The call.
        part: ``prefill`` or ``decode``.
        token: Number of the token that it chooses, 1 for that behind the prompt.
        tokens: The token numbers that it is given.
    """

    call: Call
    part: str
    token: int
    tokens: Record


def find_written(calls: Sequence[Call]) -> list[Written]:
    """Return the calls of the language model in order; none for a model that does not write.

    Args:
        calls: Of one side.
    """
    by_module = defaultdict[tuple[str, int], list[tuple[Call, Record]]](list)
    for call in calls:
        if call.level == MODULE and call.phase == FORWARD and not call.operator:
            tokens = next((record for record in call.inputs if _is_tokens(record)), None)
            if tokens is not None:
                by_module[call.module, call.rank].append((call, tokens))
    for _, made in sorted(by_module.items()):  # the outermost module first
        made.sort(key=lambda one: (one[0].step, one[0].order))
        lengths = [record.shape[1] for _, record in made]
        if len(made) > 1 and lengths[0] > 1 and 1 in lengths:
            return _number(made)
    return []


def find_call_of(written: Sequence[Written], step: int, order: int) -> Written | None:
    """Return the call of the language model that something ran in; ``None`` if it ran in none.

    Args:
        written: All calls.
        step: Step of what ran.
        order: Its order; a call is complete after all that ran in it.
    """
    return next((one for one in written if one.call.step == step and one.call.order >= order), None)


def _is_tokens(record: Record) -> bool:
    is_whole = not is_floating(record.dtype) and record.dtype != "bool"
    return is_whole and len(record.shape) == _OF_TOKENS and not record.weight


def _number(made: Sequence[tuple[Call, Record]]) -> list[Written]:
    found, token = list[Written](), 0
    for call, record in made:
        is_prefill = record.shape[1] > 1 or not found
        token = 1 if is_prefill else token + 1
        found.append(Written(call, PREFILL if is_prefill else DECODE, token, record))
    return found
