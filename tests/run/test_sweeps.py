import math
from types import SimpleNamespace

import pandas as pd

from precflow.run.sweeps import EndedJob, format_jobs, write_table


def jobs_in(folder):
    """Three jobs of one command line: aligned, misaligned with a finding, and one that could not be done."""
    aligned = SimpleNamespace(verdict="aligned", exit_code=0, furthest="", worst=math.nan, finding="", finding_shown="")
    finding = "PF214 eps of layer_norm differs (certain)"
    found = {"finding": finding, "finding_shown": finding}
    wrong = SimpleNamespace(verdict="misaligned", exit_code=1, furthest="12 times its limit", worst=12.0, **found)
    page = folder / "jobs" / "2" / "report.html"
    words = ["+recipe=x", "target.dtype="]
    return [
        EndedJob([words[0], words[1] + kind], folder, outcome, page if outcome is wrong else None)
        for kind, outcome in (("float32", aligned), ("float16", wrong), ("float8", None))
    ]


def test_the_jobs_of_a_command_line_are_one_table(tmp_path):
    path = write_table(jobs_in(tmp_path))
    assert path == tmp_path / "sweep.csv"
    table = pd.read_csv(path)
    assert table["job"].tolist() == [1, 2, 3]
    assert table["overrides"].tolist() == ["target.dtype=float32", "target.dtype=float16", "target.dtype=float8"]
    assert table["verdict"].tolist() == ["aligned", "misaligned", "could not be done"]
    assert table["exit_code"].tolist() == [0, 1, 2]
    assert table["worst"].isna().tolist() == [True, False, True]
    assert table["finding"][1] == "PF214 eps of layer_norm differs (certain)"
    screen = format_jobs(jobs_in(tmp_path), 2).splitlines()
    assert screen[0] == " 3 jobs, exit 2"
    assert "12 times its limit  target.dtype=float16" in screen[2]
    assert screen[3].strip() == table["finding"][1]
    assert screen[4].strip() == table["report"][1] == str(tmp_path / "jobs" / "2" / "report.html")


def test_where_no_job_has_a_folder_nothing_is_written(tmp_path):
    assert write_table(jobs_in(tmp_path / "none")) is None
    assert not list(tmp_path.iterdir())
