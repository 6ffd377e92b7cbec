"""What the buttons of the page copy: a finding as text, and a prompt with it for an agent that writes code."""

from __future__ import annotations

from precflow.diagnosis.findings import Finding
from precflow.report.model import ReportModel
from precflow.report.wording import printable


def write_finding(finding: Finding) -> str:
    """Return a finding as text, one fact a line."""
    lines = [
        f"{finding.rule} ({finding.certainty}): {finding.title}",
        *_label("where", finding.where),
        *_label("called at", finding.site),
        *_label("do", finding.fix),
        *_label("next", finding.try_it),
        *(f"{what}: {value}" for what, value in finding.evidence),
        *_label("why", finding.why),
        *(f"ruled out: {rule}, {because}" for rule, because in finding.against),
        *_label("sources", "; ".join(finding.sources)),
    ]
    return "\n".join(map(printable, lines))


def write_prompt(model: ReportModel, finding: Finding) -> str:
    """Return what an agent that writes code has to know to mend a finding, and when it has done so."""
    sides = "; ".join(f"{side.side}: {side.title}" for side in model.sides)
    start = f" The first difference is at {model.region.start}." if model.region.start else ""
    lines = [
        f"precflow compared a model on two devices (recipe {model.recipe}, run {model.run}). {sides}.",
        f"The verdict is {model.verdict.verdict}.{start}",
        f"The run was: {model.command}",
    ]
    done = [
        "Find the cause in the code or the configuration of the target, and mend it there.",
        "Then run the command again; it is mended if the exit code is 0, which is the verdict aligned.",
        "Loosen no limit, accept no difference and leave nothing out of the comparison to get there.",
    ]
    return "\n".join([*map(printable, lines), "", write_finding(finding), "", *done])


def _label(name: str, value: str) -> list[str]:
    return [f"{name}: {value}"] if value else []
