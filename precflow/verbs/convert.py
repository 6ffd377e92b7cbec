"""``precflow convert DUMP RECORD --to npy|txt``: write tensors of a dump as files that other programs can read.

``precflow convert DUMP --to precflow`` writes the whole dump of another tool as one of ours.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from precflow.agent.contract import DETAIL_FACTS
from precflow.config.suggestions import did_you_mean
from precflow.dumps import lookup
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.export import file_names, require_room, write_npy, write_txt
from precflow.dumps.lookup import FoundRecord
from precflow.dumps.overview import describe_kept
from precflow.dumps.protocol import Dump
from precflow.errors import ConfigError, DumpError, StoreError
from precflow.numbers import plural
from precflow.verbs import Verb, make_parser, print_json, say, write

VERB = Verb(
    90,
    "tensors of a dump as npy or txt files, or another tool's dump as ours",
    "convert DUMP 'model.layers.0*' --to npy",
    other_words=("export", "extract"),
)

FORMATS = ("npy", "txt")
WHOLE = "precflow"  # our own format, for a whole dump
INDEX = "records.json"  # written beside the files of several records; says which file holds which record
_MANY = Path("tensors")
_LETTERS = 14  # characters of one number in a text file, roughly; used to check that the disk has room


@dataclass(frozen=True)
class Written:
    """One converted record.

    Attributes:
        record: Identity.
        file: The file that its tensor was written to; ``""`` if the tensor could not be read.
        dtype: Element type in the dump.
        shape: Size of each dimension.
        note: How its elements were changed for the file, or why there is no file.
    """

    record: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    note: str = ""


def main(arguments: Sequence[str]) -> int:
    """Write the tensors; return 0, or 2 if a stored tensor could not be read.

    Raises:
        ConfigError: The format is not known.
        DumpError: There is no such dump or record, or the dump stored the tensor of no matching record.
        StoreError: A file exists already, or cannot be written.
    """
    options = make_parser("convert", "DUMP [RECORD] [--to npy|txt|precflow] [--output PATH] [--raw] [--force]")
    options.add_argument("dump", metavar="DUMP", help="a dump's folder, or RUN:reference")
    options.add_argument(
        "record", nargs="?", default="", metavar="RECORD", help="an identity, the name of a call, or a pattern with * ? [abc]"
    )
    options.add_argument(
        "--to", metavar="|".join((*FORMATS, WHOLE)), help="what to write; without: what the file of --output ends in, else npy"
    )
    options.add_argument("--output", type=Path, metavar="PATH", help="a file, or a folder; of many records a folder (tensors/)")
    options.add_argument("--raw", action="store_true", help="bfloat16 and float8 as their bits, not widened to float32")
    options.add_argument("--force", action="store_true", help="write over files that exist")
    chosen = options.parse_args(arguments)
    if chosen.to == WHOLE:
        return _convert_whole(chosen)
    if not chosen.record:
        options.error("RECORD is missing: an identity, the name of a call, or '*' for all")
    ending = chosen.output.suffix.removeprefix(".") if chosen.output else ""
    chosen.to = chosen.to or (ending if ending in FORMATS else FORMATS[0])
    if chosen.to not in FORMATS:
        known = (*FORMATS, WHOLE)
        raise ConfigError(f"--to {chosen.to}: no such format.{did_you_mean(chosen.to, known)}   Formats: {', '.join(known)}")
    if chosen.raw and chosen.to != "npy":
        raise ConfigError("--raw writes bits into .npy files; a text holds numbers", next_step="leave --raw out")
    from precflow.run.find_dumps import open_named_dump

    dump = open_named_dump(chosen.dump)
    many = lookup.is_pattern(chosen.record)
    matches = lookup.find_matching(dump, chosen.record) if many else [lookup.find(dump, chosen.record)]
    stored = [match for match in matches if match.record.stored]
    if not stored:
        raise _nothing_stored_error(dump, matches, chosen.record)
    files = _choose_files(stored, chosen, many=many)
    done = [_convert(dump, record, file, chosen) for record, file in zip(stored, files, strict=True)]
    if many:
        _write_index(files[0].parent, done)
    _print_outcome(done, left_out=len(matches) - len(stored), as_json=chosen.json)
    return 0 if all(record.file for record in done) else 2


def _convert_whole(chosen: argparse.Namespace) -> int:
    """Write another tool's dump as one of ours; return 0, or 2 if a tensor of it could not be read.

    Raises:
        ConfigError: A record was named, no folder was, or the dump is ours already.
        DumpError: There is no such dump.
        StoreError: The folder exists, or cannot be written.
    """
    from precflow.dumps.rewrite import rewrite
    from precflow.run.find_dumps import open_named_dump

    if chosen.record or chosen.output is None:
        how = f"precflow convert {chosen.dump} --to {WHOLE} --output FOLDER"
        raise ConfigError(f"--to {WHOLE} writes a whole dump into a new folder", next_step=how)
    dump = open_named_dump(chosen.dump)
    if not dump.header.tool:
        raise ConfigError(f"{chosen.dump} is a dump of precflow already", next_step="copy the folder")
    problems = rewrite(dump, chosen.output.expanduser())
    counts = dump.header.counts
    if chosen.json:
        print_json({"written": str(chosen.output), "counts": dict(counts), "problems": list(problems)})
    else:
        words = f"{plural(counts['records'], 'record')}, {plural(counts['tensors'], 'tensor')} of {dump.header.tool}"
        write(f" {chosen.output}/   {words}")
        for problem in problems:
            say(f" not written: {problem}")
    return 2 if problems else 0


def _choose_files(stored: Sequence[FoundRecord], chosen: argparse.Namespace, *, many: bool) -> list[Path]:
    """Return the file for each tensor, after checking that no such file exists and that the disk has room for all of them.

    Raises:
        StoreError: A file exists, the folder cannot be made, or the disk has no room.
    """
    names = file_names([record.text for record in stored], f".{chosen.to}")
    output = chosen.output.expanduser() if chosen.output else (_MANY if many else Path())
    folder = output if many or output.is_dir() else output.parent
    if many or output.is_dir():
        files = [folder / name for name in names]
    else:
        files = [output if output.suffix == f".{chosen.to}" else output.with_name(f"{output.name}.{chosen.to}")]
    existing = [file for file in files if file.exists()]
    if existing and not chosen.force:
        raise StoreError(
            f"{existing[0]} exists" + (f", and {len(existing) - 1} more" if len(existing) > 1 else ""),
            next_step="--force writes over it, --output PATH names another place",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror}", next_step="name another place: --output PATH") from error
    require_room(folder, sum(_estimate_bytes(record, chosen) for record in stored))
    return files


def _estimate_bytes(found: FoundRecord, chosen: argparse.Namespace) -> int:
    """Return about how large a file will be, in bytes."""
    # A .npy file has at least 4 bytes an element: bfloat16 and float8, which NumPy lacks, are widened to float32. With --raw
    # they are written as their bits and keep their size.
    width = NUMPY_DTYPES[found.record.dtype].itemsize if found.record.dtype in NUMPY_DTYPES else 8
    return math.prod(found.record.shape) * (_LETTERS if chosen.to == "txt" else max(width, 1 if chosen.raw else 4))


def _convert(dump: Dump, found: FoundRecord, file: Path, chosen: argparse.Namespace) -> Written:
    from precflow.comparison.detail.description import as_scalar

    record = found.record
    try:
        array = dump.tensor(record)
    except DumpError as error:
        return Written(found.text, "", record.dtype, record.shape, f"cannot be read: {error.message}")
    note = write_txt(array, file, as_scalar) if chosen.to == "txt" else write_npy(array, file, raw=chosen.raw)
    part = f"a part, {record.share:.3g} of its elements" if record.part else ""
    return Written(found.text, str(file), record.dtype, array.shape, "; ".join(filter(None, (part, note))))


def _write_index(folder: Path, done: Sequence[Written]) -> None:
    """Write ``records.json``, which maps files to records: a file's name may be a shortened or changed record name."""
    rows = [
        {"file": Path(written.file).name, "record": written.record, "dtype": written.dtype, "shape": list(written.shape)}
        for written in done
        if written.file
    ]
    try:
        text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StoreError(f"{folder / INDEX} cannot be written: {error.strerror}") from error


def _nothing_stored_error(dump: Dump, found: Sequence[FoundRecord], text: str) -> DumpError:
    """Return the error for records without a stored tensor; it says what the dump has instead."""
    if not found:
        known = lookup.find_similar(text, [similar.text for similar in lookup.list_records(dump)])
        return DumpError(f"no record matches {text}" + "".join(f"\n      {similar}" for similar in known))
    first = found[0]
    left = describe_kept(first.record)
    instead = "its type and shape" if left == "nothing" else DETAIL_FACTS[left].kept
    why = ": it only moves values, and what it moved is stored with the call that made it" if first.call.movement else ""
    what = f"the tensor of {first.text} was not stored{why}" if len(found) == 1 else f"none of {len(found)} records was stored"
    step = f"there is {instead}:  precflow inspect {dump.path} '{first.text}'"
    return DumpError(what, next_step=step)


def _print_outcome(done: Sequence[Written], *, left_out: int, as_json: bool) -> None:
    if as_json:
        rows = [{**asdict(written), "shape": list(written.shape)} for written in done]
        print_json({"written": rows, "not_stored": left_out})
        return
    for written in done:
        if len(done) == 1 or not written.file:
            facts = f"{written.dtype} {list(written.shape)}   {written.note}"
            write(" ".join(f" {written.file or written.record}   {facts}".rstrip().split("\n")))
    if len(done) > 1:
        files = [Path(written.file) for written in done if written.file]
        notes = dict.fromkeys(written.note for written in done if written.file and written.note)
        write("   ".join([f" {plural(len(files), 'file')} in {files[0].parent if files else Path()}/", *notes]))
    if left_out:
        say(f" {plural(left_out, 'record')} that match have no tensor in the dump: only their content id or less was kept")
