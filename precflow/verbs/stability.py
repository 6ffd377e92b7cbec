"""``precflow stability RUN``: which operators of one side enlarge rounding most, and which are not repeatable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.errors import ConfigError, StoreError
from precflow.files import write_text
from precflow.verbs import Verb, make_parser, print_json

if TYPE_CHECKING:
    from precflow.diagnosis.stability import Growth, Stability
    from precflow.report.screens.paper import Paper
    from precflow.run.find_runs import NamedRun

VERB = Verb(117, "one side alone: what enlarges rounding, and what is not repeatable", "stability runs/minilm")

_MOST = 10  # calls on the screen; --json has all
_MOST_ALSO = 5  # calls on the screen of each further run
_MOST_ROWS = 60  # of the page
_WIDTH, _HEIGHT, _LEFT, _TOP = 960, 240, 64, 12  # of the picture, and its margins


def main(arguments: Sequence[str]) -> int:
    """Print the ranking, and write it as a page with a picture if asked to; return 0.

    Raises:
        StoreError: There is no such run, it has measured no noise floor, or the page cannot be written.
    """
    options = make_parser("stability", "RUN [--also threads,batch,float64] [--page FILE]")
    options.add_argument("run", metavar="RUN", help="a run, also of sides=[reference] alone: FOLDER@NUMBER or FOLDER")
    options.add_argument("--page", type=Path, metavar="FILE", help="write an HTML page too, with the floor along the network")
    options.add_argument(
        "--also",
        default="",
        metavar="WAY,WAY",
        help="run the reference again: `threads` with another number, `batch` cut in two, `float64` in it",
    )
    chosen = options.parse_args(arguments)
    from precflow.report.translated import as_spoken
    from precflow.run.find_runs import find_run

    run = find_run(chosen.run)
    also = measure_also(run, [way for way in chosen.also.split(",") if way])
    found = read_stability({name: sealed.folder for name, sealed in run.find_instances().items()}, run.name, run.entry.command)
    page = chosen.page.expanduser() if chosen.page else None
    if page:
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_text(page, as_spoken(render_page(found, run.name, also)))
        except OSError as error:
            message = f"{page} cannot be written: {error.strerror or error}"
            raise StoreError(message, next_step="name another: --page FILE") from error
    if chosen.json:
        changed = {"also": {way: as_plain(each) for way, each in also.items()}} if also else {}
        print_json({"run": run.name, **as_plain(found), **changed, **({"page": str(page)} if page else {})})
    else:
        from precflow.verbs.inspect import show

        paper = show_stability(found, run.name)
        for way, each in also.items():
            show_also(paper, way, each)
        paper.fact("page", str(page) if page else "")
        show(paper)
    return 0


def read_stability(folders: dict[str, Path], name: str, command: str) -> Stability:
    """Return the stability of a run's reference.

    Args:
        folders: Name of a stage -> its folder.
        name: The run.
        command: What made it.

    Raises:
        StoreError: It has no dump of the reference here, or no noise floor; the message says why.
    """
    from precflow.diagnosis.stability import measure_stability
    from precflow.stages import noise
    from precflow.stages.dump import open_dump

    dumps = "dump.reference"
    if noise.NAME not in folders:
        message = f"{name} has measured no noise floor of its reference"
        raise StoreError(message, next_step="tolerance.standards=[calibrated] measures it, if the reference is run")
    if dumps not in folders:
        raise StoreError(f"the reference's dump of {name} is not here", next_step=f"make it again:  {command}")
    floors = noise.read_floors(folders)
    if not floors:
        why = noise.explain_missing(folders[noise.NAME]) or "it has no floors"
        raise StoreError(f"{name} has measured no noise floor: {why}")
    return measure_stability(open_dump(folders[dumps]), floors)


def measure_also(run: NamedRun, ways: Sequence[str]) -> dict[str, Stability]:
    """Return for each way of running the reference again what every call makes of it.

    Raises:
        ConfigError: There is no such way.
        PrecflowError: The reference cannot be run so.
    """
    from precflow.diagnosis.stability import measure_stability
    from precflow.run.reference_again import WAYS, run_again
    from precflow.stages.dump import open_dump

    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise ConfigError(f"--also {unknown[0]}: expected {' or '.join(WAYS)}, or several with commas")
    dump = run.find_instances().get("dump.reference") if ways else None
    if ways and dump is None:
        raise StoreError(f"the reference's dump of {run.name} is not here", next_step=f"make it again:  {run.entry.command}")
    return {way: measure_stability(open_dump(dump.folder), run_again(run, way)) for way in ways if dump is not None}


def show_also(paper: Paper, way: str, found: Stability) -> None:
    """Write what one way of running the reference again changes, the largest growth first."""
    moved = list_moved(found)
    paper.line()
    paper.title(describe_also(way, found))
    if moved:
        rows = [[factor(each.growth), _size(each.arrives), _size(each.leaves), each.name] for each in moved[:_MOST_ALSO]]
        paper.table([["growth", "arrives", "leaves", "call"], *rows], names={3})


def list_moved(found: Stability) -> list[Growth]:
    """Return the calls whose output is not the same, the largest growth first."""
    return [each for each in found.rank() if each.leaves > 0]


def describe_also(way: str, found: Stability) -> str:
    """Return in words what one way of running the reference again has changed."""
    title = {"threads": "with another number of threads", "batch": "with half of the batch at a time"}.get(
        way, "against float64"
    )
    moved = len(list_moved(found))
    return f"{title}   {moved} of {len(found.growths)} calls differ" if moved else f"{title}   bit for bit"


def as_plain(found: Stability) -> dict[str, Any]:
    """Return everything as plain data for ``--json``: calls and operators, the largest growth first."""
    return {
        "calls": [{**asdict(each), "growth": each.growth} for each in found.rank()],
        "operators": [asdict(each) for each in found.by_operator()],
        "repeat_checked": found.repeat_checked,
        "unrepeatable": list(found.unrepeatable),
    }


def show_stability(found: Stability, name: str) -> Paper:
    """Return the screen."""
    from precflow import numbers
    from precflow.report.screens.paper import Paper

    paper = Paper()
    paper.title(f"{name}   the reference by itself")
    paper.fact("repeats", describe_repeat(found), "red" if found.unrepeatable else "")
    paper.facts("", [f"not the same twice: {text}" for text in found.unrepeatable[:_MOST]])
    paper.line()
    rows = [["growth", "arrives", "leaves", "call", "most changed by"]]
    rows += [
        [factor(each.growth), _size(each.arrives), _size(each.leaves), each.name, each.disturbance]
        for each in found.rank()[:_MOST]
    ]
    paper.table(rows, names={3})
    paper.line()
    operators = [["operator", "calls", "median", "largest"]]
    operators += [
        [each.operator, numbers.count(each.calls), factor(each.middle), factor(each.largest)]
        for each in found.by_operator()[:_MOST]
    ]
    paper.table(operators, names={0})
    return paper


def describe_repeat(found: Stability) -> str:
    """Return in words whether a second run gave the same."""
    if not found.repeat_checked:
        return "not checked (determinism.repeat=true)"
    return f"no: {len(found.unrepeatable)} records differ in a second run" if found.unrepeatable else "bit for bit"


def factor(value: float) -> str:
    """Return a factor with three digits."""
    return f"{value:.3g} \N{MULTIPLICATION SIGN}"


def _size(value: float) -> str:
    from precflow import numbers

    return numbers.number(value) if value else "exact"


def draw(found: Stability) -> dict[str, Any]:
    """Return the picture of the floor along the run: points in units of the picture, and the labels of its axes.

    The scale is logarithmic; a floor of 0 stands at the bottom.
    """
    sizes = [each.leaves for each in found.growths if each.leaves > 0]
    low = math.floor(math.log10(min(sizes))) if sizes else -8
    high = max(math.ceil(math.log10(max(sizes))), low + 1) if sizes else 0
    step = (_WIDTH - _LEFT) / max(len(found.growths) - 1, 1)

    def height(value: float) -> float:
        """Return how far from the top a floor stands."""
        share = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
        return _TOP + _HEIGHT * (1 - share)

    worst = {each.record for each in found.rank()[:_MOST]}
    places = [(_LEFT + number * step, height(each.leaves), each) for number, each in enumerate(found.growths)]
    return {
        "width": _WIDTH + 8,
        "height": _HEIGHT + _TOP + 30,
        "left": _LEFT,
        "bottom": _TOP + _HEIGHT,
        "line": " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places),
        "worst": [(x, y, each) for x, y, each in places if each.record in worst],
        "unsteady": [(x, y, each) for x, y, each in places if each.repeatable is False],
        "decades": [(height(10.0**power), power) for power in range(low, high + 1)],
    }


def render_page(found: Stability, name: str, also: Mapping[str, Stability] | None = None) -> str:
    """Return everything as a page that opens offline.

    Args:
        found: What the noise floor says.
        name: The run.
        also: Way of running the reference again -> what it changed.
    """
    from precflow.report import html
    from precflow.report.templating import load_templates
    from precflow.version import __version__

    templates = load_templates()
    style = html.inline_sources(templates, "css", ("base.css", "sections.css", "curves.css", "stability.css", "print.css"))
    return templates.get_template("stability.html.j2").render(
        name=name,
        repeat=describe_repeat(found),
        factor=factor,
        found=found,
        ranked=found.rank()[:_MOST_ROWS],
        left_out=max(len(found.growths) - _MOST_ROWS, 0),
        operators=found.by_operator(),
        also=[(describe_also(way, each), list_moved(each)[:_MOST_ROWS]) for way, each in (also or {}).items()],
        picture=draw(found),
        policy=html.build_policy(style, ""),
        style=style,
        version=__version__,
    )
