"""``precflow inspect DUMP [RECORD]``: show what a dump holds, the records that match a pattern, or one record in full."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from precflow.dumps import lookup, overview
from precflow.dumps.formats import read_dump
from precflow.dumps.lookup import FoundRecord
from precflow.dumps.protocol import Dump
from precflow.errors import DumpError
from precflow.streams import is_unicode
from precflow.verbs import Verb, format_table, make_parser, print_json, write

if TYPE_CHECKING:
    from precflow.report.screens.paper import Paper
    from precflow.report.screens.record import RecordView

VERB = Verb(
    80,
    "what a dump holds, its records by pattern, or one record in full",
    "inspect DUMP 'model.layers.0*'",
    other_words=("info", "dump", "cat"),
)

_LIMIT = 40
_NOT_STORED = {
    "statistics": "statistics: what was counted and added up on the device",
    "digest": "its content id only: enough to tell equal from unequal",
    "nothing": "nothing but type and shape",
}


def main(arguments: Sequence[str]) -> int:
    """Show a dump, a list of its records, or one record; return 0, or 2 if ``--verify`` found damage.

    Raises:
        DumpError: There is no such dump or record, or the name fits several dumps.
    """
    options = make_parser("inspect", "DUMP [RECORD] [--match PATTERN] [--limit N] [--verify]")
    options.add_argument("dump", metavar="DUMP", help="a dump's folder, a run, or RUN:reference")
    options.add_argument("record", nargs="?", default="", metavar="RECORD", help="an identity, or the name of a call")
    options.add_argument(
        "--match", default="", metavar="PATTERN", help="list records: a part of their identity, or with * ? [abc]"
    )
    options.add_argument(
        "--limit", type=int, default=_LIMIT, metavar="N", help=f"records listed at most (default {_LIMIT}, 0: all)"
    )
    options.add_argument("--verify", action="store_true", help="read every byte and compare it with its seal")
    chosen = options.parse_args(arguments)
    from precflow.run.find_dumps import find_dumps

    dumps = find_dumps(chosen.dump)
    if len(dumps) > 1 and not (chosen.record or chosen.match):
        if chosen.json:
            print_json({"dumps": [{**asdict(named), "path": str(named.path)} for named in dumps]})
        else:
            write(format_table([(named.name, named.note, str(named.path)) for named in dumps]))
        return 0
    if len(dumps) > 1:
        listed = ", ".join(named.name for named in dumps)
        raise DumpError(f"{chosen.dump} has {len(dumps)} dumps: {listed}", next_step="name one of them")
    dump = read_dump(dumps[0].path, allow_unsealed=True)
    if chosen.match or (chosen.record and lookup.is_pattern(chosen.record)):
        return _list_records(dump, chosen)
    if chosen.record:
        return _show_record(dump, lookup.find(dump, chosen.record), as_json=chosen.json)
    return _show_dump(dump, chosen)


def show(paper: Paper) -> None:
    """Print a screen, in colour if stdout is a terminal with colours and ``NO_COLOR`` is not set."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    plain = not is_unicode(sys.stdout)
    write(paper.render(colour=colour, ascii_only=plain), styled=colour, translated=True)


def _show_dump(dump: Dump, chosen: argparse.Namespace) -> int:
    from precflow.report.screens.dump import show_dump

    seen = overview.summarize_dump(dump)
    problems = dump.verify() if chosen.verify else None
    if chosen.json:
        header = dump.header
        # Without --verify only the damage is known that was noticed on the way; with it, every byte was read.
        counted = asdict(seen)
        counted["damage"] = list(seen.damage if problems is None else problems)
        facts = {"side": header.side, "recipe": header.recipe, "dtype": header.dtype, "device": asdict(header.device)}
        until = {str(rank): step for rank, step in overview.find_complete_steps(seen).items()}
        sealed = {"path": str(dump.path), "sealed": dump.sealed, "content": header.content, "complete_until": until}
        print_json({**sealed, **facts, "capture": dict(header.capture), "verified": problems is not None, **counted})
    else:
        show(show_dump(dump, seen, name=chosen.dump, verified=problems))
    return 2 if problems else 0


def _list_records(dump: Dump, chosen: argparse.Namespace) -> int:
    from precflow.report.screens.dump import show_records

    pattern = chosen.match or chosen.record
    matches = lookup.find_matching(dump, pattern)
    if not matches:
        known = lookup.find_similar(pattern, [record.text for record in lookup.list_records(dump)])
        listed = "".join(f"\n      {text}" for text in known)
        raise DumpError(f"no record matches {pattern}{'; the nearest are:' if known else ''}{listed}")
    shown = matches[: chosen.limit] if chosen.limit > 0 else matches
    if chosen.json:
        print_json({"records": overview.to_plain(shown), "total": len(matches)})
    else:
        show(show_records(shown, total=len(matches), pattern=pattern))
    return 0


def _show_record(dump: Dump, found: FoundRecord, *, as_json: bool) -> int:
    from precflow.comparison.detail.description import describe
    from precflow.report.screens.record import RecordView, show_record

    problem, description = "", None
    if found.record.stored:
        try:
            (description,) = describe([dump.tensor(found.record)])
        except DumpError as error:
            problem = f"its tensor cannot be read: {error.message}"
    view = RecordView(
        found=found,
        text=found.text,
        source=lookup.find_source(dump, found),
        users=lookup.find_users(dump, found),
        kept=_describe_kept(dump, found),
        problem=problem,
        description=description,
    )
    if as_json:
        print_json(_record_as_json(view))
    else:
        show(show_record(view))
    return 0


def _describe_kept(dump: Dump, found: FoundRecord) -> str:
    """Return what the dump keeps of a record: the tensor, a part of it, or what it has instead."""
    record = found.record
    what = overview.describe_kept(record)
    if what == "tensor":
        return "the whole tensor"
    if what == "part":
        return f"a part of the tensor: {record.share:.3g} of its elements ({record.part})"
    why = "; movement is never stored, what it moved is" if found.call.movement else ""
    try:
        sketch = dump.sketch(record)
        also = "" if sketch is None else f"a sketch of {sketch.size} numbers, and "
    except DumpError:
        also = "a damaged sketch, and "
    return f"not stored{why}; there is {also}{_NOT_STORED[what]}"


def _record_as_json(view: RecordView) -> dict[str, Any]:
    from precflow.comparison.detail.as_json import plain_description

    call, record = view.found.call, view.found.record
    statistics = record.statistics
    return {
        **overview.to_plain([view.found])[0],
        "name": record.name,
        "class": call.class_name,
        "order": call.order,
        "weight": record.weight,
        "movement": call.movement,
        "compiled": call.compiled,
        "site": call.site,
        "arguments": dict(call.arguments),
        "source": view.source.text if view.source else None,
        "users": [user.text for user in view.users],
        "problem": view.problem,
        "statistics": None
        if statistics is None
        else {name: getattr(statistics, name) for name in statistics.__struct_fields__},
        "tensor": plain_description(view.description) if view.description else None,
    }
