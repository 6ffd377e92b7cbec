"""``precflow open [FOLDER]``: open the newest report in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from precflow.errors import StoreError
from precflow.verbs import make_parser, print_json, say, write

_PAGE = "report.html"


def main(arguments: Sequence[str]) -> int:
    """Open the newest report, or print its path if asked to or if there is no browser; return 0.

    Raises:
        StoreError: There is no report.
    """
    options = make_parser("open", "[FOLDER] [--print]")
    options.add_argument(
        "folder", nargs="?", type=Path, default=Path("runs"), help="a run folder, or the folder of run folders"
    )
    options.add_argument("--print", action="store_true", dest="only_print", help="print its path instead")
    chosen = options.parse_args(arguments)
    report = find_newest(chosen.folder)
    if report is None:
        raise StoreError(
            f"no report in {chosen.folder}", next_step="precflow +recipe=NAME writes one; precflow open FOLDER looks elsewhere"
        )
    if chosen.json:
        print_json({"report": str(report)})
    elif chosen.only_print:
        write(str(report))
    elif not webbrowser.open(report.resolve().as_uri()):  # as_uri() refuses a relative path
        say(" no browser here; the report is a file that opens anywhere:")
        write(str(report))
    return 0


def find_newest(folder: Path) -> Path | None:
    """Return the newest report below a folder, or ``None``. Copies in ``store/`` and ``public/`` folders do not count."""
    pages = [page for page in folder.rglob(_PAGE) if not {"store", "public"} & set(page.relative_to(folder).parts)]
    return max(pages, key=lambda page: page.stat().st_mtime, default=None)
