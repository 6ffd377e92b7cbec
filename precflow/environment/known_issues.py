"""Known issues: what is publicly known to go wrong with certain versions, matched against environments and findings.

They are data with their source, a few to a file: ``conf/known_issue/``, and a folder ``known_issue/`` of a team. That a side
has the versions says that an issue may be met there, not that it was; a finding at its operators says more.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from precflow import language, resources
from precflow.agent.contract import DEVICE_KINDS
from precflow.config.data_files import Checked, check_document, load_files
from precflow.config.documents import Document, PathProblems, read
from precflow.environment.differences import package_name
from precflow.environment.versions import lies_in, parse, read_section

GROUP = "known_issue"
BREAKS, STOPS, NUMBERS = EFFECTS = ("breaks", "stops", "numbers")
"""Nothing runs with these versions; what is named does not run; it runs, and other numbers come out."""
UNKNOWN, NONE = "unknown", "none"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class IssueTexts:
    """The texts of an issue in another language.

    Attributes:
        title: One line: what goes wrong.
        symptom: How it shows.
        do: The way round; ``""`` where it says nothing but names.
    """

    title: str
    symptom: str
    do: str = ""


@dataclass(frozen=True)
class KnownIssue:
    """One issue.

    Attributes:
        title: One line: what goes wrong.
        affects: Package, or ``python``, ``cann``, ``cuda``, ``cudnn``, ``ascend-driver``, ``nvidia-driver`` -> range of
            versions such as ``>=2.1,<2.6``; ``""`` for any. All of them have to hold. Only what the source says.
        fixed: The version that fixes it, as the source says it; ``none`` if the latest that was looked at has it too,
            ``unknown`` if the source does not say.
        symptom: How it shows.
        do: The way round.
        sources: Addresses where it is published.
        effect: ``breaks``: nothing runs with these versions; ``stops``: what is named under `symptom` does not run;
            ``numbers``: it runs, and other numbers come out.
        devices: Kinds of devices on which it happens; without any on all.
        machines: Architectures on which it happens, such as ``aarch64``; without any on all.
        operators: Patterns of operators, modules or classes in whose findings it may show.
        zh: The texts in Chinese.
        id: File and name, such as ``attention.additive_bias``; no key of the file.
    """

    title: str
    affects: Mapping[str, str]
    fixed: str
    symptom: str
    do: str
    sources: tuple[str, ...]
    effect: str = NUMBERS
    devices: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    zh: IssueTexts | None = None
    id: str = ""

    @property
    def fixed_in(self) -> str:
        """In words, which version fixes it."""
        said = {UNKNOWN: "the source names no version that fixes it", NONE: "not fixed in the latest version looked at"}
        return said.get(self.fixed, f"fixed in {self.fixed}")


@dataclass(frozen=True)
class IssueFile:
    """One file.

    Attributes:
        title: What its issues are about.
        issues: Name -> issue.
    """

    title: str
    issues: Mapping[str, KnownIssue]


@dataclass(frozen=True)
class MetIssue:
    """An issue that the versions of a run have.

    Attributes:
        issue: The issue.
        sides: Sides that have it, each with the versions that match: ``{"target": "transformers 5.23.0"}``.
        findings: Findings at operators that it is about, as ``rule   where``.
    """

    issue: KnownIssue
    sides: Mapping[str, str]
    findings: tuple[str, ...] = ()


_WORDS = {"KnownIssue.effect": EFFECTS, "KnownIssue.devices": DEVICE_KINDS}


def load_issues(team: Sequence[Path] = ()) -> tuple[KnownIssue, ...]:
    """Read all issues, those of the team's folders first.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    folders = [*team, resources.directory("conf") / GROUP]
    files = load_files(folders, check_file, "files of known issues", "no issue was looked for")
    language.read_also(team)
    return tuple(replace(issue, id=f"{path.stem}.{name}") for path, file in files for name, issue in file.issues.items())


def check_file(path: Path) -> Checked[IssueFile]:
    """Return what is wrong with one file, and its issues if nothing is."""
    return check_document(read(path, GROUP, path.stem), IssueFile, _find_problems, _WORDS)


def _find_problems(document: Document, _: IssueFile | None) -> PathProblems:
    """Yield what is wrong with values that have the right form."""
    issues = document.data.get("issues")
    for name, issue in issues.items() if isinstance(issues, Mapping) else ():
        where = ("issues", str(name))
        if not _NAME.fullmatch(str(name)):
            yield where, "expected a name of small letters, digits and underscores"
        if not isinstance(issue, Mapping):
            continue
        if "id" in issue:
            yield (*where, "id"), "no such key: it comes from the names of file and issue"
        affects, sources = issue.get("affects"), issue.get("sources")
        for package, wanted in affects.items() if isinstance(affects, Mapping) else ():
            if isinstance(wanted, str) and not _is_range(wanted):
                yield (*where, "affects", str(package)), f"{wanted!r} is no range of versions such as '>=2.1,<2.6'"
        for number, source in enumerate(sources if isinstance(sources, list) else ()):
            if not str(source).startswith(("https://", "http://")):
                yield (*where, "sources", str(number)), "expected an address where it is published"
        fixed = issue.get("fixed")
        if isinstance(fixed, str) and fixed not in {UNKNOWN, NONE} and parse(fixed.rpartition(" ")[2]) is None:
            yield (*where, "fixed"), f"expected a version, {UNKNOWN}, or {NONE}"


def _is_range(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def match_versions(issue: KnownIssue, versions: Mapping[str, str], devices: Collection[str], machine: str) -> str:
    """Return the versions by which a side has an issue, in words; ``""`` if it has not.

    Args:
        issue: The issue.
        versions: See :func:`precflow.environment.versions.list_versions`.
        devices: Kinds of devices that the side runs on.
        machine: Architecture of the side, ``""`` if it is not known.

    >>> issue = KnownIssue("x", {"torch": "<2.2"}, "2.2.0", "y", "z", ("https://a",), devices=("cuda",))
    >>> match_versions(issue, {"torch": "2.1.0+cu118"}, ["cuda"], ""), match_versions(issue, {"torch": "2.1.0"}, ["cpu"], "")
    ('torch 2.1.0+cu118', '')
    """
    if issue.devices and not set(issue.devices) & set(devices):
        return ""
    if issue.machines and machine not in issue.machines:
        return ""
    wanted = {package_name(name): specifier for name, specifier in issue.affects.items()}
    if not all(name in versions and lies_in(versions[name], specifier) for name, specifier in wanted.items()):
        return ""
    return ", ".join(f"{name.replace('torch-npu', 'torch_npu')} {versions[name]}" for name in wanted)


def meet(
    issues: Sequence[KnownIssue],
    sides: Mapping[str, tuple[Mapping[str, str], Collection[str], str]],
    findings: Sequence[tuple[str, str]] = (),
) -> tuple[MetIssue, ...]:
    """Return the issues that sides have; first those at whose operators something was found, then those that stop a run.

    Args:
        issues: All known issues.
        sides: Side -> its versions, kinds of devices and architecture.
        findings: Id of the rule, and ``module / operator``, of each finding of a run.
    """
    met = []
    for issue in issues:
        having = {side: text for side, each in sides.items() if (text := match_versions(issue, *each))}
        if having:
            met.append(MetIssue(issue, having, tuple(_find_touched(issue, findings))))
    return tuple(sorted(met, key=lambda each: (not each.findings, EFFECTS.index(each.issue.effect))))


def _find_touched(issue: KnownIssue, findings: Sequence[tuple[str, str]]) -> Iterator[str]:
    for rule, where in findings:
        names = [where, *(part.strip() for part in where.split(" / "))]
        if any(fnmatchcase(name, pattern) for name in names for pattern in issue.operators):
            yield f"{rule}   {where}"


def describe_sides(sides: Mapping[str, str]) -> str:
    """Return which sides have an issue, by which versions.

    >>> describe_sides({"reference": "torch 2.1.0", "target": "torch 2.1.0"}), describe_sides({"target": "torch 2.1.0"})
    ('both sides: torch 2.1.0', 'target: torch 2.1.0')
    """
    if len(sides) > 1 and len(set(sides.values())) == 1:
        return f"both sides: {next(iter(sides.values()))}"
    return "; ".join(f"{side}: {text}" for side, text in sides.items())


def side_of(facts: Mapping[str, Any], versions: Mapping[str, str]) -> tuple[Mapping[str, str], tuple[str, ...], str]:
    """Return what :func:`meet` needs of a side whose facts are known."""
    kind = str(read_section(facts, "device").get("kind", ""))
    return versions, (kind,), str(read_section(facts, "system").get("machine", ""))
