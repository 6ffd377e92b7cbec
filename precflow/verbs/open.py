"""``precflow open [FOLDER|RUN@N]``: open the newest report in the browser, or that of one run."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from precflow.errors import StoreError
from precflow.verbs import Verb, make_parser, print_json, say, write

VERB = Verb(
    70, "the newest report, or that of one run", "open runs/minilm@3", other_words=("report", "view", "results", "result")
)

_PAGE = "report.html"
_STAGES = ("report", "scan")  # the first of them that a run has made


def main(arguments: Sequence[str]) -> int:
    """Open the newest report, or print its path if asked to or if there is no browser; return 0.

    Raises:
        StoreError: There is no report, or no such run.
    """
    options = make_parser("open", "[FOLDER|RUN@N] [--print]")
    options.add_argument(
        "place",
        nargs="?",
        metavar="FOLDER|RUN@N",
        default="runs",
        help="a run folder, the folder of run folders, or one run, such as runs/minilm@3 or minilm@3",
    )
    options.add_argument("--print", action="store_true", dest="only_print", help="print its path instead")
    chosen = options.parse_args(arguments)
    report = _find_report(chosen.place)
    if chosen.json:
        print_json({"report": str(report)})
    elif chosen.only_print:
        write(str(report))
    elif not webbrowser.open(report.resolve().as_uri()):  # as_uri() refuses a relative path
        say(" no browser here; the report is a file that opens anywhere:")
        write(str(report))
    return 0


def _find_report(place: str) -> Path:
    """Return the page that a text on the command line names.

    Raises:
        StoreError: There is no report, or no such run; the message names what is there.
    """
    folder = Path(place).expanduser()
    if folder.exists():
        newest = find_newest(folder)
        if newest is not None:
            return newest
    if folder.exists() or (not place.rpartition("@")[1] and folder == Path("runs")):
        raise StoreError(
            f"no report in {place}", next_step="precflow +recipe=NAME writes one; precflow open FOLDER looks elsewhere"
        )
    from precflow.run.find_runs import find_run
    from precflow.run.publication import PUBLIC

    run = find_run(place)
    made = run.find_instances()
    sealed = next((made[stage] for stage in _STAGES if stage in made), None)
    page = sealed.folder / PUBLIC / _PAGE if sealed is not None else None
    if page is None or not page.is_file():
        raise StoreError(f"{run.name} wrote no page", next_step=f"write one:  {run.entry.command}")
    return page


def find_newest(folder: Path) -> Path | None:
    """Return the newest report below a folder, or ``None``. Copies in folders of stages and jobs do not count."""
    pages = [page for page in folder.rglob(_PAGE) if not {"store", "public", "jobs"} & set(page.relative_to(folder).parts)]
    return max(pages, key=lambda page: page.stat().st_mtime, default=None)
