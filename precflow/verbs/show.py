"""``precflow show``: print a composed recipe with the origin of each line, a file, a rule's page, or a finding."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precflow import resources
from precflow.agent import intake, redaction
from precflow.config.documents import Document, display_path
from precflow.config.search_path import DATA_GROUPS, GROUPS, describe_not_found, find, list_folders
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError, PrecflowError, StoreError
from precflow.language import ENGLISH, speaking, spoken
from precflow.streams import printable
from precflow.verbs import Verb, make_parser, print_json, write

VERB = Verb(30, "a composed recipe, each line with the file and line it comes from", "show +recipe=minilm", takes_recipe=True)

_RULE = re.compile(r"[A-Z]{2,8}\d{3}")
_GREY, _PLAIN = "\033[90m", "\033[0m"


def main(arguments: Sequence[str]) -> int:
    """Print a composed recipe, one file such as ``standard/NAME``, a rule's page, or a finding of a run; return 0.

    Raises:
        ConfigError: The recipe does not compose, has no such section, or there is no such file, rule or finding.
    """
    from precflow.config.composition import compose
    from precflow.config.recipe_yaml import fill_defaults

    options = make_parser("show", "RECIPE|+recipe=NAME [key=value ...] [SECTION]  |  GROUP/NAME  |  PF214 [RUN]")
    options.add_argument("words", nargs="+", metavar="RECIPE|key=value|SECTION")
    options.add_argument("--markdown", action="store_true", help="with `rule`: all rules as the page docs/rules.md")
    chosen = options.parse_args(arguments)
    if chosen.markdown:
        from precflow.diagnosis.advice.rule_pages import render_all

        if list(chosen.words) != ["rule"]:
            raise ConfigError("--markdown is for all rules", next_step="precflow show rule --markdown")
        write(render_all(resources.directory("conf") / "rule").rstrip(), folded=False)
        return 0
    if _RULE.fullmatch(chosen.words[0]):
        return _show_rule(chosen.words, chosen.config_dir, as_json=chosen.json)
    document = _find_file(chosen.words, chosen.config_dir)
    if document is not None:
        file = display_path(document.path)
        if chosen.json:
            print_json({"group": document.group, "name": document.name, "file": file, "data": document.data})
        else:
            write(f"# {file}\n{document.path.read_text(encoding='utf-8', errors='replace').rstrip()}", folded=False)
        return 0
    overrides, section = as_overrides(chosen.words)
    composed = compose(overrides, config_dirs=chosen.config_dir, complete=False)
    data = redaction.redact(fill_defaults(composed.data))
    if chosen.json:
        print_json({"recipe": composed.config.recipe, "config": data, "provenance": dict(composed.provenance)})
        return 0
    rows = _select_lines(data, composed.provenance, section)
    if not rows:
        raise ConfigError(f"nothing is set in {section}.{did_you_mean(section, data)}   Sections: {', '.join(data)}")
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    # A long place is shown without its outer folders: the last two parts are enough to find it.
    short = [place if len(place) <= 48 else "..." + str(Path(*Path(place).parts[-2:])) for place, _ in rows]
    places = [printable(place) for place in short]
    width = max(len(place) for place in places)
    on, off = (_GREY, _PLAIN) if colour else ("", "")
    write(
        "\n".join(f"{on}{place:>{width}}{off}  {printable(line)}" for place, (_, line) in zip(places, rows, strict=True)),
        styled=colour,
        folded=False,
    )
    return 0


def _show_rule(words: Sequence[str], config_dirs: Sequence[Path], *, as_json: bool) -> int:
    """Print a rule's page; with a run, the finding that this rule made of it.

    Raises:
        ConfigError: There is no such rule, or the run has no finding of it.
        StoreError: There is no result in the run.
    """
    from precflow.diagnosis.advice import rule_files, rule_pages

    identifier = words[0]
    folders = [place.folder for place in list_folders(config_dirs) if place.group == "rule"]
    files = [file for folder in folders for file in sorted(folder.glob(f"{identifier}_*.yaml"))]
    if not files:
        raise ConfigError(f"there is no rule {identifier}", next_step="precflow ls rule")
    problems, rule = rule_files.check_file(files[0], of_team=not identifier.startswith("PF"))
    if rule is None:
        raise ConfigError(f"{identifier} is not usable", problems=problems, next_step="correct its file")
    summary = rule_pages.read_summary(files[0])
    findings = _read_findings(Path(words[1]), identifier) if len(words) > 1 else []
    if as_json:
        print_json({**rule_pages.describe_rule(rule, summary), "file": display_path(files[0]), "findings": findings})
    elif findings:
        with speaking(spoken(), _collect_translations(Path(words[1]))):
            write("\n\n".join(map(_format_finding, findings)))
    else:
        write(rule_pages.render_page(rule, summary).rstrip())
    return 0


def _collect_translations(run: Path) -> dict[str, str]:
    """Return what the texts of a run's findings are in the language of the screen: its model has them, its result has not."""
    if spoken() == ENGLISH:
        return {}
    from precflow.diagnosis.findings import collect_translations
    from precflow.run.find_runs import find_run
    from precflow.stages.report import read_model

    try:
        sealed = find_run(str(run)).find_instances().get("report")
        findings = () if sealed is None else read_model(sealed.folder).findings
    except PrecflowError:  # a result that was copied from elsewhere is shown as it is
        return {}
    said = collect_translations(findings, spoken())
    return said | {one.claim: one.claim.replace(one.title, said[one.title]) for one in findings if one.title in said}


def _read_findings(run: Path, identifier: str) -> list[dict[str, Any]]:
    """Return the findings of one rule in a run's ``result.json``.

    Raises:
        ConfigError: There are none.
        StoreError: There is no result, or it cannot be read.
    """
    # The store keeps the results of earlier runs too.
    results = (
        [run] if run.is_file() else [file for file in run.rglob("result.json") if "store" not in file.relative_to(run).parts]
    )
    if not results:
        raise StoreError(
            f"no result.json in {run}", next_step="give the folder of a finished run, such as runs/sd_text_encoder"
        )
    results.sort(key=lambda path: path.stat().st_mtime)
    try:
        findings = intake.read_json(results[-1])["findings"]
        made_by_rule = [finding for finding in findings if finding["rule"] == identifier and _format_finding(finding)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{results[-1]} is no result of a run: {error}", next_step="run the recipe again") from error
    if not made_by_rule:
        others = ", ".join(str(finding["rule"]) for finding in findings) or "none"
        raise ConfigError(f"{identifier} is no finding of {run}; it has {others}")
    return made_by_rule


def _format_finding(finding: Mapping[str, Any]) -> str:
    lines = [f"{finding['rule']}  {finding['claim'] or finding['title']}  ({finding['certainty']})"]
    lines += [f"   at {finding['site']}"] if finding["site"] else []
    lines += [f"   do: {finding['fix']}"]
    lines += [f"   next: {finding['try_it']}"] if finding["try_it"] else []
    lines += [f"   {one['what']}: {one['value']}" for one in finding["evidence"]]
    lines += [f"   why: {finding['why']}"]
    lines += [f"   ruled out: {one['rule']}: {one['because']}" for one in finding["against"]]
    return "\n".join(printable(line) for line in lines)


def _find_file(words: Sequence[str], config_dirs: Sequence[Path]) -> Document | None:
    """Return the file that ``standard/NAME``, ``rule/NAME``, ``emulate/NAME``... names; ``None`` if the words name a recipe.

    Raises:
        ConfigError: There is no such name in the group.
    """
    group, _, name = words[0].partition("/")
    if len(words) > 1 or not name or group not in (*GROUPS, *DATA_GROUPS) or group == "recipe":
        return None
    within = list_folders(config_dirs)
    document = find(group, name, within)
    if document is None and find("recipe", words[0], within) is None:
        raise ConfigError(f"{words[0]}: {describe_not_found(group, name, within)}")
    return document


def as_overrides(words: Sequence[str]) -> tuple[list[str], str]:
    """Split words into overrides and a section, ``""`` for none.

    Words without ``=`` are the recipe, unless ``+recipe=NAME`` is among the overrides, and after it the section::

        minilm target.dtype=float16 tolerance  ->  ["+recipe=minilm", "target.dtype=float16"], "tolerance"

    Raises:
        ConfigError: There is more than one section.
    """
    overrides = [word for word in words if "=" in word or word[:1] in "+~"]
    bare = [word for word in words if word not in overrides]
    if bare and not any(word.lstrip("+").startswith("recipe=") for word in overrides):
        overrides.insert(0, f"+recipe={bare.pop(0)}")
    if len(bare) > 1:
        raise ConfigError(f"one section at a time: {', '.join(bare)}")
    return overrides, bare[0] if bare else ""


def _select_lines(data: dict[str, object], provenance: Mapping[str, str], section: str) -> list[tuple[str, str]]:
    from precflow.config.documents import dotted
    from precflow.config.recipe_yaml import describe_place, format_lines

    inside = (section, f"{section}.", f"{section}[")
    rows = [(describe_place(path, provenance), line, dotted(path)) for path, line in format_lines(data)]
    return [(place, line) for place, line, key in rows if not section or key == section or key.startswith(inside[1:])]
