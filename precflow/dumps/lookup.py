"""Finds records of a dump by what a user types: an identity, the name of a call, or a shell pattern."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate

from precflow.agent.contract import GRADIENT, OPTIMIZER, ROOT_MODULE, module_text, parse_identity
from precflow.config.suggestions import find_near
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

_SHOWN = 6  # records that an error lists
_LOOKED_AT = 400  # records that difflib compares letter by letter if nothing matches: it is too slow for all of them
_ALIKE = 0.4  # difflib's similarity, 0 to 1, from which a record is suggested
_DIGITS = 10  # longest number N of `IDENTITY#N`, in digits: longer ones cannot be places in a list
_PARTS = re.compile(r"[./~@ ]+")


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """One record and the call that it belongs to."""

    call: Call
    record: Record

    @property
    def text(self) -> str:
        """The identity as one line of text."""
        return self.record.text

    @property
    def name(self) -> str:
        """The identity without phase, role and index: ``encoder.mlp/linear.0``."""
        # `encoder.mlp/linear.0/forward.output.0@1.2` has step and rank at its end, unless both are 0: these are kept.
        head, _, tail = self.text.rpartition("/")
        when = tail.rpartition("@")[2] if "@" in tail else ""
        return f"{head}@{when}" if when else head


def list_records(dump: Dump) -> Iterator[FoundRecord]:
    """Yield every record in order: for each call its inputs, then its outputs."""
    return (FoundRecord(call, record) for call in dump.calls() for record in (*call.inputs, *call.outputs))


def find_matching(dump: Dump, pattern: str) -> list[FoundRecord]:
    """Return the records that match a shell pattern, in order.

    Args:
        dump: Where to look.
        pattern: A pattern with ``* ? [abc]``, case-sensitive. It must match the whole identity or the whole
            ``module / operator``. A text without these characters may be any part of the two.
    """
    covers = re.compile(translate(pattern if is_pattern(pattern) else f"*{pattern}*")).match
    return [found for found in list_records(dump) if any(map(covers, (found.text, found.call.place, found.record.name)))]


def is_pattern(text: str) -> bool:
    """Tell whether a text is a shell pattern.

    >>> is_pattern("encoder.*"), is_pattern("encoder.0/linear.0/forward.output.0")
    (True, False)
    """
    return any(letter in text for letter in "*?[")


def find(dump: Dump, text: str) -> FoundRecord:
    """Return the one record that a text refers to.

    The text is an identity or a short form of one: ``encoder.mlp/linear.0`` or ``encoder.mlp / linear`` for the only output of
    that call, ``encoder.mlp`` for the only output of the module, or of an operator in it. The name that screens show of a
    record means that one: ``encoder.mlp / linear`` is the first of several. If several records share an identity,
    ``IDENTITY#2`` is the second of them. A pattern may be used if it matches a single record.

    Raises:
        DumpError: The text refers to no record or to several; the message lists similar ones, or these.
    """
    records = list(list_records(dump))
    # From the most exact meaning to the loosest; the first that finds anything decides.
    for meant in (_find_exact, _find_numbered, _find_named, _find_by_short_name, _find_inside, _find_covered):
        found = meant(records, text)
        if len(found) == 1:
            return found[0]
        if found:
            listed = "".join(f"\n      {record.text}" for record in found[:_SHOWN])
            more = f"\n      and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise DumpError(f"{text} means {len(found)} records:{listed}{more}", next_step="name one of them")
    raise _make_unknown_error(dump, records, text)


def find_users(dump: Dump, of: FoundRecord) -> list[FoundRecord]:
    """Return the inputs of later calls that received an output; empty if the record is an input itself."""
    if of.record.whose.role != "output":
        return []
    # A module often returns a tensor that an operator in it made. Both the module's output and the later inputs then name
    # that operator as their source, so the source is looked for too.
    sources = {(of.call.order, of.record.index), of.record.source} - {None}
    calls = dump.calls(step=of.call.step, rank=of.call.rank)
    return [
        FoundRecord(call, record)
        for call in calls
        if call.order > of.call.order
        for record in call.inputs
        if record.source in sources
    ]


def find_source(dump: Dump, of: FoundRecord) -> FoundRecord | None:
    """Return the output that a record came from, or ``None`` if no recorded call made it, as for a model's input."""
    if of.record.source is None:
        return None
    order, index = of.record.source
    calls = dump.calls(step=of.call.step, rank=of.call.rank)
    outputs = (FoundRecord(call, record) for call in calls if call.order == order for record in call.outputs)
    return next((output for output in outputs if output.record.index == index), None)


def find_same(dump: Dump, of: FoundRecord, *, among: Dump) -> FoundRecord | None:
    """Return the record with the same identity in another dump, or ``None``.

    If several records share the identity, and ``of`` is the second of them in its dump, the second of them is returned.

    Args:
        dump: Where to look.
        of: The record to look for.
        among: The dump that ``of`` belongs to.
    """
    identity = of.record.identity
    before = [found.record for found in list_records(among) if found.record.identity == identity]
    place = next(number for number, record in enumerate(before) if record is of.record)
    return next(
        itertools.islice((found for found in list_records(dump) if found.record.identity == identity), place, None), None
    )


def number_records(records: Sequence[FoundRecord]) -> list[str]:
    """Return a text for each record by which :func:`find` finds it: the identity, with ``#2`` for the second record with it."""
    seen: Counter[str] = Counter()
    texts = []
    for found in records:
        seen[found.text] += 1
        texts.append(found.text if seen[found.text] == 1 else f"{found.text}#{seen[found.text]}")
    return texts


def _find_exact(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    """Return the first record with this identity; the second is ``IDENTITY#2``."""
    return _find_identical(records, text)[:1]


def _find_numbered(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    name, _, number = text.rpartition("#")
    place = int(number) if number.isdecimal() and len(number) < _DIGITS else 0
    return _find_identical(records, name)[place - 1 : place] if place else []


def _find_identical(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    """Return the records with the identity that a text spells.

    The text is parsed once and compared with the identities: spelling a million identities would take far longer.
    """
    try:
        identity = parse_identity(text)
    except ValueError:
        return []
    return [found for found in records if found.record.identity == identity and found.text == text]


def _find_named(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    """Return the records that screens show by this name."""
    # Parameters of the model itself are shown without a module.
    own = [found for found in records if found.call.module == ROOT_MODULE and found.call.phase in {GRADIENT, OPTIMIZER}]
    return [found for found in (*_find_in_module(records, text), *own) if found.record.name == text]


def _find_by_short_name(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    """Return the outputs of the calls that a text names, those of the forward phase if there are any, else the inputs."""
    called = []
    for found in _find_in_module(records, text):
        call = found.call
        if text in {found.name, call.name, call.place, call.place.replace(" / ", "/")}:
            called.append(found)
    outputs = [found for found in called if found.record.whose.role == "output"]
    forward = [found for found in outputs if found.call.phase == "forward"]
    return forward or outputs or called


def _find_inside(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    """Return the outputs of all operators that ran directly in the module that a text names."""
    outputs = (found for found in _find_in_module(records, text) if found.record.whose.role == "output")
    return [found for found in outputs if module_text(found.call.module, found.call.call) == text]


def _find_in_module(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    """Return the records of modules whose name is the beginning of a text.

    They are few, so that only their full names need to be spelled and compared by the caller.
    """
    begins: dict[tuple[str, int], bool] = {}
    for found in records:
        place = (found.call.module, found.call.call)
        if place not in begins:
            begins[place] = text.startswith(module_text(*place))
    return [found for found in records if begins[found.call.module, found.call.call]]


def _find_covered(records: Sequence[FoundRecord], text: str) -> list[FoundRecord]:
    if not is_pattern(text):
        return []
    covers = re.compile(translate(text)).match
    return [found for found in records if covers(found.text)]


def _make_unknown_error(dump: Dump, records: Sequence[FoundRecord], text: str) -> DumpError:
    if not records:
        return DumpError(f"{dump.path} holds no record", next_step=f"precflow inspect {dump.path}   says what it holds")
    similar = find_similar(text, [found.text for found in records])
    listed = "".join(f"\n      {one}" for one in similar)
    first = f"; it has {len(records)}, the first is\n      {records[0].text}"
    hint = f"; the nearest are:{listed}" if similar else first
    return DumpError(f"no record {text}{hint}", next_step=f"precflow inspect {dump.path} --match '*PART*'   lists them")


def find_similar(text: str, known: Sequence[str], most: int = 3) -> list[str]:
    """Return the known texts most similar to a text, best first; fast for a million of them.

    Only the texts that share the most parts between dots and slashes are compared letter by letter.
    """
    wanted = set(_PARTS.split(text.casefold()))
    shared = {other: len(wanted.intersection(_PARTS.split(other.casefold()))) for other in dict.fromkeys(known)}
    likely = sorted(shared, key=lambda other: (-shared[other], abs(len(other) - len(text))))[:_LOOKED_AT]
    return find_near(text, likely, most=most, alike=_ALIKE)
