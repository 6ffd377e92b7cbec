"""``precflow scan TREE``: what ties a source tree to CUDA, what decides its numbers, and a patch. Reads only."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precflow.errors import ConfigError, StoreError
from precflow.files import write_bytes, write_text
from precflow.language import spoken
from precflow.verbs import Verb, make_parser, print_json, write

if TYPE_CHECKING:
    from precflow.scan.findings import ScanResult

VERB = Verb(
    105,
    "what ties a source tree to CUDA, and a patch for it",
    "scan training --patch scan.patch",
    other_words=("migrate", "migration", "port", "analyse", "analyze", "transplant", "migration_scan"),
)

_LIMIT = 20


def main(arguments: Sequence[str]) -> int:
    """Scan a folder; return 0 if nothing has to be changed but by the patch that was written, else 1.

    What somebody only has to look at, and what decides the numbers, does not change the exit code.

    Raises:
        ConfigError: A file of rules is not usable, or there is no such element type.
        StoreError: There is no such folder, or a file cannot be written.
    """
    options = make_parser("scan", "TREE [--patch FILE] [--output FOLDER] [--dtype TYPE] [--limit N]")
    options.add_argument(
        "tree", type=Path, metavar="TREE", help="the folder of a source tree, or one file; nothing in it is changed"
    )
    options.add_argument("--patch", type=Path, metavar="FILE", help="write the patch, for `git apply` in TREE")
    options.add_argument("--output", type=Path, metavar="FOLDER", help="write page, Markdown, JSON, JUnit and SARIF there")
    options.add_argument(
        "--dtype", default="", metavar="TYPE", help="what it is going to compute in, such as bfloat16: functions that lack it"
    )
    options.add_argument(
        "--limit", type=int, default=_LIMIT, metavar="N", help=f"places listed at most (default {_LIMIT}, 0: all)"
    )
    chosen = options.parse_args(arguments)
    from precflow.config.search_path import list_folders, team_folders
    from precflow.scan.rules import GROUP, TYPES, load_rules
    from precflow.scan.tree import scan_tree

    if chosen.dtype and chosen.dtype not in TYPES:
        raise ConfigError(f"--dtype {chosen.dtype}: expected one of {', '.join(TYPES)}")
    rules = load_rules(team_folders(GROUP, list_folders(chosen.config_dir)), chosen.dtype)
    scan = scan_tree(chosen.tree.expanduser(), rules)
    code = 1 if (scan.by_hand if chosen.patch else scan.of_weight("stops")) else 0
    written = _write_files(scan, code, chosen.patch, chosen.output)
    if chosen.json:
        from precflow.report.scan import as_plain

        print_json({**as_plain(scan, code), "written": list(map(str, written))})
        return code
    from precflow.report.screens.scan import show_scan
    from precflow.verbs.inspect import show

    paper = show_scan(scan, limit=max(chosen.limit, 0))
    paper.line()
    paper.facts("written", list(map(str, written)))
    show(paper)
    if scan.patch:
        words = ["precflow", "scan", str(chosen.tree), "--patch", "scan.patch"]
        mending = (
            f"git -C {shlex.quote(str(_folder(chosen.tree)))} apply {shlex.quote(str((chosen.patch or Path()).absolute()))}"
        )
        write(f"   {mending if chosen.patch else shlex.join(words)}")
    write(f" exit {code}")
    return code


def _folder(tree: Path) -> Path:
    return tree if tree.is_dir() else tree.parent


def _write_files(scan: ScanResult, code: int, patch: Path | None, output: Path | None) -> list[Path]:
    """Write what was asked for; return the paths.

    Raises:
        StoreError: A file cannot be written.
    """
    written = []
    path = patch or output or Path()
    try:
        if patch:
            path = patch.expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, scan.patch)
            written.append(path)
        if output:
            from precflow.report.scan import FORMATS
            from precflow.report.translated import translate

            folder = output.expanduser()
            folder.mkdir(parents=True, exist_ok=True)
            for name, render in FORMATS.values():
                path = folder / name
                write_text(path, translate(name, render(scan, code), spoken()))
                written.append(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}", next_step="name another place") from error
    return written
