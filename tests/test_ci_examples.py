"""The files for GitHub, GitLab and citation are what these read, and the commands of continuous integration run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from check_jsonschema.cli import main as check
from click.testing import CliRunner

import precflow

ROOT = Path(__file__).parents[1]
GITHUB, GITLAB = ROOT / "docs" / "ci" / "github.yml", ROOT / "docs" / "ci" / "gitlab.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def keeps(schema, file):
    return CliRunner().invoke(check, ["--builtin-schema", f"vendor.{schema}", str(file)]).exit_code == 0


def test_citation_and_forms_of_issues_are_what_github_reads():
    assert keeps("citation-file-format", ROOT / "CITATION.cff")
    assert [file.name for file in FORMS if not keeps("github-issue-forms", file)] == []
    assert keeps("github-issue-config", ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")
    assert len(FORMS) == 3
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == precflow.__version__


def test_the_nightly_tries_every_extra():
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", declared, re.MULTILINE))
    nightly = (ROOT / ".ci" / "nightly").read_text(encoding="utf-8")
    tried = set(re.search(r"for extra in ([\w ]+);", nightly)[1].split())
    assert tried == extras - {"test", "lint", "docs"}  # these are for those who change precflow
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "nightly"]).returncode == 0
    trial = (ROOT / ".ci" / "try_extra.py").read_text(encoding="utf-8")
    assert [extra for extra in tried if f'"{extra}": [' not in trial] == []


@pytest.mark.parametrize(("file", "schema"), [(GITHUB, "github-workflows"), (GITLAB, "gitlab-ci")])
def test_the_file_is_what_its_runner_reads(file, schema, tmp_path):
    assert keeps(schema, file)
    broken = tmp_path / "broken.yml"
    broken.write_text(file.read_text(encoding="utf-8").replace("when: always", "when: somtimes").replace("runs-on", "runs_on"))
    assert not keeps(schema, broken)


@pytest.mark.slow
@pytest.mark.xdist_group("text encoder")
def test_the_commands_of_both_run_and_leave_what_the_file_names(tmp_path, warm_server, small_encoder):
    shared = tmp_path / "shared"
    path = os.pathsep.join([str(warm_server.shim()), str(Path(sys.executable).parent), os.environ["PATH"]])
    summary = tmp_path / "summary.md"
    environment = {**os.environ, "PATH": path, "STORE": str(shared), "GITHUB_STEP_SUMMARY": str(summary)}
    environment.pop("CI", None)

    small = [*small_encoder(layers=1), "target.device=emulated", "tolerance.standards=[default]"]

    def shell(written):
        line = written.replace("+recipe=sd_text_encoder", " ".join(["+recipe=sd_text_encoder", *small]))
        command = ["bash", "-eo", "pipefail", "-c", line]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    shell("precflow +recipe=sd_text_encoder sides=[reference] store=$STORE output=ci")
    steps = yaml.safe_load(GITHUB.read_text(encoding="utf-8"))["jobs"]["precision"]["steps"]
    for step in steps:
        if "run" in step:
            shell(step["run"])
    assert summary.read_text(encoding="utf-8").startswith("# ")
    upload = next(step["with"] for step in steps if "upload-sarif" in step.get("uses", ""))
    assert [path.name for path in (tmp_path / upload["sarif_file"]).glob("*.sarif")] == ["result.sarif"]
    job = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))["precision"]
    for line in job["script"]:
        shell(line)
    assert all((tmp_path / path / "report.html").is_file() for path in job["artifacts"]["paths"])
    assert ET.parse(tmp_path / job["artifacts"]["reports"]["junit"]).getroot().tag == "testsuites"
