"""``precflow validate [RECIPE|FILE|key=value ...]``: list every problem of every recipe. Runs nothing, imports no torch."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from precflow.config import trust
from precflow.config.documents import display_path, dotted, read
from precflow.config.layers import COMMAND_LINE
from precflow.config.search_path import SHIPPED, SearchFolder, find_clash, list_folders, list_names
from precflow.errors import ConfigError, Problem, TrustError
from precflow.verbs import Verb, make_parser, print_json, say

if TYPE_CHECKING:
    from precflow.config.composition import Composed

VERB = Verb(
    50,
    "check recipes and overrides without running anything",
    "validate recipes/my_model.yaml",
    other_words=("check", "lint", "verify"),
    takes_recipe=True,
)

_UNUSABLE = 2
_OF_TEAMS = ("standard", "rule", "whatif", "scan", "known_issue", "compatibility", "emulate")


@dataclass(frozen=True)
class Checked:
    """One recipe or other file that was checked.

    Attributes:
        title: Its file or its name.
        problems: What makes it unusable. Without such, its expired accepted differences: a run would judge those records again.
        untrusted: It is unusable here only because it names code that is not trusted.
        warnings: What would not stop a run but is probably a mistake.
        kind: ``recipe``, or ``file`` for any other.
    """

    title: str
    problems: tuple[Problem, ...]
    untrusted: bool = False
    warnings: tuple[str, ...] = ()
    kind: str = "recipe"


def main(arguments: Sequence[str]) -> int:
    """Check recipes; return 0 if all are usable, else 2.

    Raises:
        ConfigError: A folder of recipes is missing.
    """
    started = time.monotonic()
    options = make_parser(
        "validate", f"[RECIPE|FILE|{'|'.join(f'{group}/NAME' for group in _OF_TEAMS)}|+recipe=NAME key=value ...]"
    )
    options.add_argument("words", nargs="*", metavar="RECIPE|FILE|key=value")
    chosen = options.parse_args(arguments)
    within = list_folders(chosen.config_dir)
    files, words = _select_files(chosen.words, within)
    jobs = _list_jobs(words, chosen.config_dir) if words or not files or not chosen.words else []
    checked = [_check_recipe(title, job, chosen.config_dir, complete=whole) for title, job, whole in jobs]
    checked += [_check_file(place, name, within) for place, name in files]
    # Without words every recipe is checked. One whose code this user does not trust is not counted as a mistake then.
    unusable = [recipe for recipe in checked if recipe.problems and (chosen.words or not recipe.untrusted)]
    seconds = time.monotonic() - started
    if chosen.json:
        print_json(
            {"recipes": [_as_json(recipe) for recipe in checked], "unusable": len(unusable), "seconds": round(seconds, 2)}
        )
    else:
        say(_format_screen(checked, len(unusable), seconds))
    return _UNUSABLE if unusable else 0


def _list_jobs(words: Sequence[str], config_dirs: Sequence[Path]) -> list[tuple[str, list[str], bool]]:
    """Return what to check: a title, the overrides, and whether they have to be complete, that is, ready to run.

    Only a typed command line (``+recipe=NAME ...``) has to be complete. A recipe by itself may leave something to the command
    line, such as the dumps to compare. Overrides are applied to every recipe that is named.
    """
    overrides = [word for word in words if "=" in word or word[:1] in "+~"]
    named = [word for word in words if word not in overrides]
    if any(word.lstrip("+").startswith("recipe=") for word in overrides):
        return [(" ".join(overrides), overrides, True), *((name, [f"+recipe={name}"], False) for name in named)]
    if not named:
        named = list(list_names("recipe", list_folders(config_dirs)))
    return [(name, [f"+recipe={name}", *overrides], False) for name in named]


def _select_files(words: Sequence[str], within: Sequence[SearchFolder]) -> tuple[list[tuple[SearchFolder, str]], list[str]]:
    """Return the files of groups (standards, rules...) to check, and the other words; without words, all of a team's files."""
    known = {group: list_names(group, within) for group in _OF_TEAMS}
    if not words:
        return [(place, name) for group in _OF_TEAMS for name, place in known[group].items() if place.origin != SHIPPED], []
    files, others = [], []
    for word in words:
        group, _, name = word.partition("/")
        if group in _OF_TEAMS and name in known[group]:
            files.append((known[group][name], name))
        else:
            others.append(word)
    return files, others


def _check_file(place: SearchFolder, name: str, within: Sequence[SearchFolder]) -> Checked:
    """Check one file of a team that is no recipe."""
    from precflow.config import signatures
    from precflow.diagnosis.advice import rule_files, whatif_files
    from precflow.environment import compatibility, known_issues
    from precflow.judgement import standards
    from precflow.scan import rules as scan_rules

    file = place.folder / f"{name}.yaml"
    same = find_clash(place.group, name, within)
    problems = [same] if same else []
    try:
        if place.group == "standard":
            standards.load(name, [place.folder])
        elif place.group == "rule":
            problems += rule_files.check_file(file, of_team=place.origin != SHIPPED)[0]
            if not problems:
                problems += rule_files.find_same_id(file, [one.folder for one in within if one.group == "rule"])
        elif place.group == "whatif":
            problems += whatif_files.check_file(file)[0]
        elif place.group == "scan":
            problems += scan_rules.check_file(file)[0]
        elif place.group == "known_issue":
            problems += known_issues.check_file(file)[0]
        elif place.group == "compatibility":
            problems += compatibility.check_file(file)[0]
        else:
            document = read(file, place.group, name)
            problems += [*document.problems, *trust.find_forbidden_text(document)]
            rules = document.data.get("rules")
            for path, message in signatures.check_fault_rules(rules) if isinstance(rules, list) else ():
                # The problem may be about a key that is missing, so it has no line: take that of the nearest key around it.
                near = next((path[1:length] for length in range(len(path), 1, -1) if path[1:length] in document.marks), ())
                problems.append(Problem(document.marks[near].place if near else display_path(file), dotted(path[1:]), message))
    except ConfigError as error:
        problems += error.problems or (Problem("", "", error.message),)
    return Checked(f"{place.group}/{name}", tuple(problems), kind="file")


def _check_recipe(title: str, words: Sequence[str], config_dirs: Sequence[Path], *, complete: bool) -> Checked:
    from precflow.config.composition import compose
    from precflow.environment.variables import describe_misspelt

    try:
        composed = compose(words, config_dirs=config_dirs, complete=complete, looks_up_code=True)
    except ConfigError as error:
        problems = error.problems or (Problem("", "", error.message),)
        only_trust = isinstance(error, TrustError) and all(problem.key.endswith("_target_") for problem in problems)
        return Checked(title, problems, untrusted=only_trust)
    warnings = (*describe_misspelt(composed.config, {}), *_find_absolute_paths(composed))
    return Checked(title, composed.notes, warnings=warnings)


def _find_absolute_paths(composed: Composed) -> Iterator[str]:
    """Yield a warning for each path of one machine that a recipe has: on another one the file lies elsewhere."""
    for path, value in trust.walk_values(composed.data.get("workload", {})):
        if isinstance(value, str) and re.match(r"/[^/]|[A-Za-z]:[\\/]|~/", value):
            place = composed.provenance.get(dotted(("workload", *path)), "")
            if place != COMMAND_LINE and "/site/" not in place:
                name = dotted(("workload", *path))
                yield f"{name}: {value} is a path of one machine: ${{site.paths.NAME}}/... has it from a site file   ({place})"


def _as_json(recipe: Checked) -> dict[str, object]:
    rows = [{"place": problem.place, "key": problem.key.strip(), "message": problem.message} for problem in recipe.problems]
    return {"recipe": recipe.title, "usable": not recipe.problems, "problems": rows, "warnings": list(recipe.warnings)}


def _format_screen(checked: Sequence[Checked], unusable: int, seconds: float) -> str:
    width = max((len(recipe.title) for recipe in checked), default=0)
    lines = []
    for recipe in checked:
        lines.append(f" {recipe.title:<{width}}   ok" if not recipe.problems else f" {recipe.title}")
        lines += _format_problems(recipe)
        lines += [f"   warning: {text}" for text in recipe.warnings]
    return "\n".join([*lines, f"{_summarize(checked, unusable):<80} {seconds:.1f} s"]) + "\n"


def _summarize(checked: Sequence[Checked], unusable: int) -> str:
    """Return the last line. It counts apart the recipes that would be usable if the user trusted the code they name."""
    if unusable:
        # Standards, rules, what-ifs and emulated faults of a team are no recipes.
        kind = "recipe" if all(one.kind == "recipe" for one in checked) else "file"
        if len(checked) == 1:
            return f" the {kind} is not usable"
        return f" {unusable} of {len(checked)} {kind}s {'is' if unusable == 1 else 'are'} not usable"
    waiting = sum(recipe.untrusted for recipe in checked)
    return f" {len(checked) - waiting} usable" + (f", {waiting} for those who trust it" if waiting else "")


def _format_problems(recipe: Checked) -> list[str]:
    places_shown = [_shorten_place(problem.place, recipe.title) for problem in recipe.problems]
    wide = max((len(place) for place in places_shown), default=0)
    width = max((len(problem.key) for problem in recipe.problems), default=0)
    return [
        f"   {place:>{wide}}  {problem.key:<{width}}   {problem.message}"
        for place, problem in zip(places_shown, recipe.problems, strict=True)
    ]


def _shorten_place(place: str, title: str) -> str:
    """Return a place without its file if the title names that file already: ``12`` for ``a.yaml:12``."""
    file, _, line = place.rpartition(":")
    same = file and (file == title or (Path(title).suffix and file == display_path(Path(title))))
    return line if same else place
