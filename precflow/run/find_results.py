"""Finds the result that a text names: a run, a ``result.json``, or a folder with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from precflow.agent import intake
from precflow.errors import StoreError
from precflow.report import result_json
from precflow.report.formats import FORMATS
from precflow.report.model import ReportModel, Row
from precflow.run.find_runs import find_run, refuse_unjudged
from precflow.run.manifest import MANIFEST_FILE
from precflow.stages.compare import read_measures
from precflow.stages.introduced import read_conclusion
from precflow.stages.report import PUBLIC, read_model
from precflow.stages.report_model import find_roles
from precflow.stages.second_pass.passes import latest

_FILE = FORMATS["json"][0]


def read_result(text: str) -> ReportModel:
    """Return everything that the report of a run or of a comparison says.

    A run has all of its records, with every metric; a ``result.json`` those that fit into it, and ``rows_left_out`` counts the
    others.

    Args:
        text: A run (``NAME``, ``NAME@3``, ``runs/NAME@3``), a ``result.json``, or a folder that holds one.

    Raises:
        StoreError: There is no such result, it cannot be read, or the run has no verdict.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return _read_file(path)
    if path.is_dir() and not (path / MANIFEST_FILE).is_file():
        found = [file for file in (path / _FILE, path / PUBLIC / _FILE) if file.is_file()]
        if not found:
            raise StoreError(f"{path} holds no run and no {_FILE}", next_step=f"name a run, or the folder of its {_FILE}")
        return _read_file(found[0])
    return _read_run(text)


def _read_file(path: Path) -> ReportModel:
    try:
        data = intake.read_bytes(path)
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror or error}", next_step="give yourself the right to read it"
        ) from error
    return result_json.parse(data, str(path))


def _read_run(text: str) -> ReportModel:
    """Return the report of a run with all of its records: the report itself has the most important ones only."""
    run = find_run(text)
    refuse_unjudged(run)
    folders = {name: sealed.folder for name, sealed in run.find_instances().items()}
    if "report" not in folders:
        raise StoreError(f"{run.name} made no report", next_step=f"make it, without a stages=[...]:  {run.entry.command}")
    model = read_model(folders["report"])
    judged, _, region = read_conclusion(folders)
    if not judged:  # a run that compares curves alone
        return model
    measures = read_measures(latest(folders, "compare"))
    roles = find_roles(region)
    rows = (Row(one, status, roles.get(one.record, "unknown")) for one, status in zip(measures, judged, strict=True))
    return replace(model, rows=tuple(rows), rows_left_out=0, roles_left_out={})
