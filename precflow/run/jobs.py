"""Makes the job of a composed recipe: adds whom the user trusts, where their modules are, and whether this runs in CI."""

from __future__ import annotations

import datetime
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from precflow import resources
from precflow.agent import redaction
from precflow.config.schema import RunConfig
from precflow.config.sections import standards as team_standards
from precflow.config.trust import list_trusted_packages
from precflow.diagnosis.advice import rule_files, whatif_files
from precflow.judgement import standards
from precflow.stages.job import Job

if TYPE_CHECKING:
    from precflow.config.composition import Composed


def make_job(composed: Composed, *, command: str) -> Job:
    """Return the job of a composed recipe. Secrets in its command line and overrides are replaced.

    Raises:
        ConfigError: A chosen standard of the team, or one of the team's rules or what-ifs, is not usable.
    """
    team_standards.search(composed.team.get("standard", ()))
    # The stages that use standards and rules come last. Loading them here finds a mistake before the first side runs.
    for name in composed.config.tolerance.standards if composed.team.get("standard") else ():
        standards.load(name, composed.team["standard"])
    if composed.team.get("whatif"):
        whatif_files.load_whatifs([resources.directory("conf") / "whatif", *composed.team["whatif"]])
    if composed.team.get("rule"):
        rule_files.load_rules([resources.directory("conf") / "rule"], composed.team["rule"])
    return Job(
        config=composed.config,
        command=shlex.join(map(redaction.redact_word, shlex.split(command))),
        yaml=composed.yaml,
        ci=in_ci(composed.config),
        trusted=(*composed.config.site.trusted, *list_trusted_packages()),
        import_paths=(str(Path.cwd()), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)),
        cache=Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "precflow",
        overrides=tuple(map(redaction.redact_word, composed.overrides)),
        team=composed.team,
        started=datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="minutes"),
    )


def in_ci(config: RunConfig) -> bool:
    """Return whether this is continuous integration: ``output=ci``, or the variable ``CI`` set to 1, true or yes."""
    return config.output == "ci" or os.environ.get("CI", "").lower() in {"1", "true", "yes"}
