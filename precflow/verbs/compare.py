"""``precflow compare A B [--record NAME]``: compare two dumps without a recipe, or show one record of both in full."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precflow.agent import redaction
from precflow.config.schema import SAME_AT_START
from precflow.config.search_path import list_folders, team_folders
from precflow.errors import DumpError, PrecflowError, StoreError
from precflow.files import write_text
from precflow.judgement.verdicts import EXIT_CODES
from precflow.streams import is_unicode
from precflow.verbs import Verb, make_parser, print_json, write

if TYPE_CHECKING:
    from precflow.dumps.lookup import FoundRecord
    from precflow.dumps.protocol import Dump
    from precflow.report.model import ReportModel, Row

VERB = Verb(100, "two dumps without a recipe, or one record of both in full", "compare gpu_dump npu_dump")

_NOTHING = "nothing"
_SAME_WORDS = f"{','.join(SAME_AT_START)} (default), one of these, or {_NOTHING}"
_FOLDER = Path("comparison")
_RESULT = "result.json"


def main(arguments: Sequence[str]) -> int:
    """Compare two dumps, or one record of them (``--record``); return 0 if aligned, 1 if misaligned, 3 if inconclusive.

    Raises:
        ConfigError: They are one dump.
        DumpError: There is no such dump or record.
        SideError: The agent that computes calls again did not finish.
        MissingExtraError: The library of a table is not installed.
        StoreError: The result cannot be written.
    """
    options = make_parser("compare", "REFERENCE TARGET [--record NAME] [--same WHAT] [--output FOLDER]")
    options.add_argument("reference", metavar="REFERENCE", help="a dump's folder, or RUN:reference")
    options.add_argument("target", metavar="TARGET", help="a dump's folder, or RUN:target")
    options.add_argument("--record", default="", metavar="NAME", help="one record in full: an identity, or the name of a call")
    options.add_argument(
        "--same",
        default=",".join(SAME_AT_START),
        metavar="WHAT",
        help=f"what has to be the same at the start: {_SAME_WORDS}",
    )
    options.add_argument(
        "--output", type=Path, default=_FOLDER, metavar="FOLDER", help=f"where {_RESULT} and tables go (default {_FOLDER}/)"
    )
    options.add_argument(
        "--tables",
        default="csv",
        metavar="LIST",
        help="tables of all records: csv (default), xlsx, parquet, several with commas",
    )
    options.add_argument(
        "--no-evaluation",
        action="store_true",
        help="compute no call again in float64, which starts an agent if the dumps have tensors; the verdict says so",
    )
    chosen = options.parse_args(arguments)
    same = [] if chosen.same == _NOTHING else chosen.same.split(",")
    if not {*same} <= {*SAME_AT_START}:
        options.error(f"--same {chosen.same}: expected {_SAME_WORDS}")
    formats = _read_formats(options, chosen.tables)
    from precflow.run.find_dumps import open_named_dump

    reference, target = open_named_dump(chosen.reference), open_named_dump(chosen.target)
    if chosen.record:
        return _compare_record(reference, target, chosen, same)
    from precflow.stages.two_dumps import compare_dumps

    team = team_folders("rule", list_folders(chosen.config_dir))
    model = compare_dumps(
        reference,
        target,
        command=shlex.join(["precflow", "compare", *map(redaction.redact_word, arguments)]),
        same=same,
        team=team,
        evaluates=not chosen.no_evaluation,
    )
    written = _write_files(model, chosen.output, formats)
    code = EXIT_CODES[model.verdict.verdict]
    _print_outcome(model, written, code, as_json=chosen.json)
    return code


def _read_formats(options: argparse.ArgumentParser, text: str) -> list[str]:
    """Return the tables that ``--tables`` asks for; ends the program with a message if one is unknown.

    Raises:
        MissingExtraError: The library of one is not installed.
    """
    from precflow.report import tables

    formats = [name.strip() for name in text.split(",")]
    if not {*formats} <= {*tables.TABLES}:
        options.error(f"--tables {text}: expected one or several of {', '.join(tables.TABLES)}")
    tables.refuse_missing(formats)
    return formats


def _write_files(model: ReportModel, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the result files into a folder and return their paths. No file is ever left half written."""
    from precflow.report import result_json, tables

    folder = folder.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / _RESULT, result_json.render(model))
        return [folder / _RESULT, *tables.write(model, folder, formats)]
    except (OSError, StoreError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error.message
        raise StoreError(f"{folder} cannot be written: {why}", next_step="name another: --output FOLDER") from error


def _print_outcome(model: ReportModel, written: Sequence[Path], code: int, *, as_json: bool) -> None:
    from precflow.report import result_json
    from precflow.report.screens.groups import render_groups
    from precflow.report.terminal import as_ascii, count_columns, fit, render_summary

    if as_json:
        outcome = {"verdict": model.verdict.verdict, "exit_code": code, "start": model.region.start, "result": str(written[0])}
        print_json({**outcome, "counts": dict(model.verdict.counts), "reasons": result_json.make_strict(model.verdict.reasons)})
        return
    plain = not is_unicode(sys.stdout)
    columns = count_columns(sys.stdout)
    summary = render_summary(model, report_path="", exit_code=code, columns=columns, ascii_only=plain).split("\n")
    tables = [fit(line, columns) for line in render_groups(model.groups, columns)]
    # The summary ends with the line "exit N", and the files are named above it, where a run names its report.
    files = "   ".join([str(written[0]), *(table.name for table in written[1:])])
    lines = [*summary[:-1], *(as_ascii(tables) if plain else tables), f"   {'result':<12}{files}", summary[-1]]
    write("\n".join(lines))


def _compare_record(reference: Dump, target: Dump, chosen: argparse.Namespace, same: Sequence[str]) -> int:
    from precflow.comparison.detail.as_json import plain, plain_record
    from precflow.comparison.detail.record import examine_record
    from precflow.dumps.views.paired import see_through_rules
    from precflow.report.screens.two_records import show_pair
    from precflow.stages.determinism import reproduce
    from precflow.stages.two_dumps import compare_record

    left, right = _find_on_both_sides(reference, target, chosen.record)
    row = _judge_as_run(compare_record(reference, target, left, right), chosen.reference, chosen.target)
    detail = examine_record(reference, target, left, right)
    found = reproduce(*see_through_rules(reference, target, (), same), same)
    doubts = (*found.blockers, *found.parted)
    if chosen.json:
        print_json({**plain_record(detail), "measure": plain(row.measure), "judged": plain(row.judged), "doubts": list(doubts)})
    else:
        from precflow.verbs.inspect import show

        show(show_pair(row, detail, doubts))
    from precflow.judgement.verdicts import MISALIGNED_STATUSES

    status = row.judged.status
    if status in MISALIGNED_STATUSES:
        return EXIT_CODES["misaligned"]
    # Moved values have no limit, so they are not judged; if they are equal, no limit could fail them.
    agrees = status in {"pass", "accepted", "near_tie"} or (status == "not_judged" and row.measure.equal)
    return EXIT_CODES["aligned" if agrees else "inconclusive"]


def _judge_as_run(row: Row, reference: str, target: str) -> Row:
    """Return a record as the run has judged it whose two sides are compared; as it is, where they are not of one run.

    A run measures its limits, and two dumps alone have fixed ones: one record would be shown with two shares of two limits.
    """
    run, _, side = reference.rpartition(":")
    other, _, other_side = target.rpartition(":")
    if not run or run != other or (side, other_side) != ("reference", "target"):
        return row
    from precflow.run.find_results import read_result

    try:
        rows = read_result(run).rows
    except PrecflowError:  # a run that has no verdict yet
        return row
    known = next((one for one in rows if one.measure.record == row.measure.record), None)
    # Another target may have been recorded since: the same metrics are those of the same tensors.
    same = known is not None and all(
        math.isclose(value, row.measure.metrics.get(name, math.nan), rel_tol=1e-9)
        for name, value in known.measure.metrics.items()
    )
    return known if known is not None and same and known.judged.metric else row


def _find_on_both_sides(reference: Dump, target: Dump, text: str) -> tuple[FoundRecord, FoundRecord]:
    """Return the record that a text names, on both sides.

    Raises:
        DumpError: The text fits no record or several, or only one side has the record.
    """
    from precflow.dumps import lookup

    try:
        left = lookup.find(reference, text)
    except DumpError:
        # The error says that the reference has no such record. If the target has it, that is the better message.
        if any(record.text == text for record in lookup.list_records(target)):
            raise DumpError(f"only the target has {text}", next_step=f"precflow inspect {target.path} '{text}'") from None
        raise
    right = lookup.find_same(target, left, among=reference)
    if right is None:
        step = f"precflow inspect {reference.path} '{left.text}'   shows the reference's"
        raise DumpError(f"only the reference has {left.text}", next_step=step)
    return left, right
