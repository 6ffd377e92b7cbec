"""Applies the rules to scripts, settings, requirements and C++ sources, line by line, without their comments."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from precflow.scan.edits import Edit
from precflow.scan.findings import Finding
from precflow.scan.index import Index
from precflow.scan.rules import ScanRule

_SCRIPTS = ("*.sh", "*.bash", "*.slurm", "*.sbatch", "Dockerfile*", "*.dockerfile", "Makefile", "*.mk", "*.env", ".env")
_SETTINGS = ("*.yaml", "*.yml", "*.json", "*.toml", "*.cfg", "*.ini")
_REQUIREMENTS = (
    "*requirements*.txt",
    "requirements/*.txt",
    "pyproject.toml",
    "setup.cfg",
    "Pipfile",
    "environment*.y*ml",
    "conda*.y*ml",
)
_C_SOURCES = ("*.c", "*.cc", "*.cpp", "*.cxx", "*.h", "*.hpp", "*.hh", "*.cu", "*.cuh")
_INSTALLS = re.compile(r"\b(?:pip3?|conda|mamba|poetry|uv)\b.*\b(?:install|add)\b")
_HASH_COMMENT = re.compile(r"(?:^|(?<=\s))#(?!SBATCH\b|PBS\b|BSUB\b).*")  # those are read by schedulers
_C_COMMENT = re.compile(r"//.*|/\*.*?\*/|^\s*\*.*")
_CONTINUED = re.compile(r"\\\s*$")


def is_text(name: str, index: Index) -> bool:
    """Tell whether the lines of a file are looked at, by its name."""
    return fits(name, (*_SCRIPTS, *_SETTINGS, *_REQUIREMENTS)) or any(
        rule.text and fits(name, rule.files) for rule in index.all
    )


def fits(name: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a path fits one of some patterns, by its last part or as a whole from any folder on."""
    last = name.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(last, pattern)
        or ("/" in pattern and (fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*/{pattern}")))
        for pattern in patterns
    )


def scan_file_name(name: str, index: Index) -> Iterator[Finding]:
    """Yield what the name of a file alone says, such as that it is a CUDA source."""
    for rule in index.all:
        if rule.files and not rule.text and fits(name, rule.files):
            yield _make(rule, 1, name.rpartition("/")[2], patched=False)


def scan_lines(text: str, name: str, index: Index, *, as_script: bool = False) -> tuple[list[Finding], list[Edit]]:
    """Apply the rules to the lines of a file.

    Args:
        text: Its text, with its own line ends.
        name: Its path below the tree; it says what kind of file it is.
        index: The rules.
        as_script: Read it as a shell script, whatever its name is.
    """
    script = as_script or fits(name, _SCRIPTS) or text.startswith("#!")
    requires, c_source = fits(name, _REQUIREMENTS), fits(name, _C_SOURCES)
    comment = _C_COMMENT if c_source else None if name.endswith(".json") else _HASH_COMMENT
    expressions = [
        (re.compile(rule.text), rule)
        for rule in index.all
        if rule.text and (fits(name, rule.files) or (script and fits("x.sh", rule.files)))
    ]
    variables = [
        (re.compile(rf"(?<![\w-])(?:{pattern.replace('*', '[A-Z0-9_]+')})(?!\w)"), rule)
        for rule in index.all
        for pattern in rule.variables
        if script or fits(name, _SETTINGS)
    ]
    findings: list[Finding] = []
    edits: list[Edit] = []
    start, installing = 0, False
    for number, raw in enumerate(text.encode("utf-8", "surrogatepass").splitlines(keepends=True), 1):
        line = raw.decode("utf-8", "surrogatepass")
        # A comment becomes spaces of as many bytes, so that places stay.
        said = comment.sub(lambda found: " " * len(found[0].encode("utf-8", "surrogatepass")), line) if comment else line
        installing = bool(_INSTALLS.search(said)) or (installing and script)
        taken: list[tuple[int, int]] = []
        named: set[str] = set()  # rules that have a finding in this line
        places = [(found, rule) for pattern, rule in (*expressions, *variables) for found in pattern.finditer(said)]
        for found, rule in sorted(places, key=lambda each: each[1].order):
            if any(begin < found.end() and found.start() < end for begin, end in taken):
                continue
            taken.append(found.span())
            made = _replace_words(rule, found, said, start)
            if not made and rule.id in named:
                continue
            named.add(rule.id)
            edits += made
            findings.append(_make(rule, number, found[0].strip(), patched=bool(made)))
        if requires or (installing and script):
            for package, rule in index.find_requirements(said):
                findings.append(_make(rule, number, package, patched=False))
        installing = installing and bool(_CONTINUED.search(said))
        start += len(raw)
    return findings, edits


def _replace_words(rule: ScanRule, found: re.Match[str], line: str, start: int) -> list[Edit]:
    """Return the edits of the rule's words in what was found, each of which must stand there once; none otherwise."""
    edits = []
    for old, new in rule.replace.items():
        places = [each.start() for each in re.finditer(rf"(?<![A-Za-z0-9_]){re.escape(old)}(?![A-Za-z0-9_])", found[0])]
        if len(places) != 1:
            return []
        at = start + len(line[: found.start() + places[0]].encode("utf-8", "surrogatepass"))
        edits.append(Edit(at, at + len(old.encode()), new.encode()))
    return edits


def _make(rule: ScanRule, line: int, found: str, *, patched: bool) -> Finding:
    return Finding(
        rule=rule.id,
        weight=rule.weight,
        file="",
        line=line,
        end_line=line,
        found=found,
        why=rule.why.replace("{found}", found),
        do=rule.do.replace("{found}", found),
        patched=patched,
    )
