"""Stage ``compare``: measures every pair of records; applies no limit, so that a changed limit reads no dump again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precflow.comparison.compare import compare
from precflow.comparison.measures import Measure
from precflow.comparison.second_look import merged
from precflow.comparison.summary import SUMMARY_VERSION
from precflow.stages.artifacts import read_lines, write_lines
from precflow.stages.determinism import read_reproduction
from precflow.stages.dump import open_dump
from precflow.stages.job import Job, Made, Stage
from precflow.stages.passes import second

MEASURES_FILE = "measures.jsonl"


def read_measures(folder: Path) -> list[Measure]:
    """Return every measure, in order of the reference's graph."""
    return read_lines(folder / MEASURES_FILE, Measure)


def _declare(job: Job) -> Mapping[str, Any]:
    del job
    return {"summary": SUMMARY_VERSION}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    del job
    blocked = bool(read_reproduction(needs["determinism"]).blockers)
    measures = [] if blocked else compare(open_dump(needs["dump.reference"]), open_dump(needs["dump.target"]))
    write_lines(folder / MEASURES_FILE, measures)
    paired = sum(measure.join == "paired" for measure in measures)
    return Made(note="no tensor was compared" if blocked else f"{paired} of {len(measures)} records paired")


def _again(job: Job, folder: Path, needs: Mapping[str, Path]) -> Made:
    """Measure the records of the second pass, and put them in the place of the first one's estimates."""
    del job
    first = read_measures(needs["compare"])
    blocked = bool(read_reproduction(needs[second("determinism")]).blockers)
    dumps = [open_dump(needs[second(f"dump.{side}")]) for side in ("reference", "target")]
    measures = first if blocked else merged(first, compare(*dumps))
    write_lines(folder / MEASURES_FILE, measures)
    renewed = sum(one is not other for one, other in zip(measures, first, strict=True))
    return Made(note="no tensor was compared" if blocked else f"{renewed} of {len(measures)} records measured anew")


STAGE = Stage(name="compare", needs=("dump.reference", "dump.target", "determinism"), declare=_declare, make=_make)
SECOND = Stage(
    name=second(STAGE.name),
    needs=(STAGE.name, second("determinism"), second("dump.reference"), second("dump.target")),
    declare=_declare,
    make=_again,
)
