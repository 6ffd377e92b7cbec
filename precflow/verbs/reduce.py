"""``precflow reduce RUN``: the smallest recipe that still has a run's finding, and a script that shows it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.errors import BusyError, ConfigError, StoreError
from precflow.files import write_text
from precflow.verbs import Verb, make_parser, print_json, say

if TYPE_CHECKING:
    from precflow.config.composition import Composed
    from precflow.config.schema import RunConfig
    from precflow.diagnosis.findings import Finding
    from precflow.report.model import ReportModel
    from precflow.report.screens.paper import Paper
    from precflow.run.knobs import Size
    from precflow.run.reduction import Search
    from precflow.run.smaller_runs import Smaller

VERB = Verb(
    113,
    "a run made small: fewer layers, inputs and steps with the same finding",
    "reduce runs/minilm",
    other_words=("minimize", "shrink"),
    takes_recipe=True,
)
RECIPE, FACTS, PAGE, REPRO, TENSORS = "reduced.yaml", "reduced.json", "reduced.md", "repro.py", "repro.safetensors"
_TRIED = "tried.json"
_MOST_RUNS, _MOST_TIME = 60, "1h"
_MOST_SHOWN = 12  # runs on the screen; page and --json have all
ONE_CALL, RECIPE_AGAIN = "one call in plain torch", "the recipe, with precflow"


@dataclass(frozen=True)
class Reduced:
    """What a search came to.

    Attributes:
        smaller: The recipe and its knobs.
        search: What was tried.
        setting: The smallest size of each knob.
        complete: The search came to its end.
        repro: What ``repro.py`` runs; ``""`` if nothing became smaller.
    """

    smaller: Smaller
    search: Search
    setting: dict[str, Size]
    complete: bool
    repro: str = ""

    @property
    def is_smaller(self) -> bool:
        """Whether any knob was turned."""
        return any(self.setting[knob.name] != knob.now for knob in self.smaller.knobs)


def main(arguments: Sequence[str]) -> int:
    """Search, write the smaller recipe and a script, and print what was tried; return 0.

    Raises:
        ConfigError: The words do not compose, or the run has no such finding or nothing that could be made smaller.
        StoreError: There is no such run, or the folder cannot be written.
        BusyError: Another search works in the same folder.
    """
    usage = "RUN | +recipe=NAME KEY=VALUE ... [--finding RULE] [--most-runs N] [--most-time 1h] [--to FOLDER]"
    options = make_parser("reduce", usage)
    options.add_argument("words", nargs="+", metavar="RUN|+recipe=NAME", help="a finished run, or the words that run a recipe")
    options.add_argument("--finding", default="", metavar="RULE", help="the finding that has to stay; without it the first one")
    options.add_argument("--most-runs", type=int, default=_MOST_RUNS, metavar="N", help=f"runs at most; default {_MOST_RUNS}")
    options.add_argument("--most-time", default=_MOST_TIME, metavar="TIME", help=f"no run begins later; default {_MOST_TIME}")
    options.add_argument("--to", type=Path, metavar="FOLDER", help="where everything is written; default RUN/reduced")
    chosen = options.parse_args(arguments)
    import filelock

    from precflow.config.units import parse_seconds
    from precflow.diagnosis.findings import collect_translations
    from precflow.language import said, speaking, spoken
    from precflow.run.knobs import find_knobs
    from precflow.run.reduction import Search, Sought, key_of, shrink
    from precflow.run.smaller_runs import Smaller
    from precflow.run.store import explain_disk_errors

    try:
        seconds = parse_seconds(chosen.most_time)
    except ValueError as error:
        raise ConfigError(f"--most-time {chosen.most_time}: {error}") from error
    if chosen.most_runs < 0:
        raise ConfigError(f"--most-runs {chosen.most_runs}: expected a number of runs, 0 or more")
    words, config_dirs, composed, model, place = _find_start(chosen.words, tuple(chosen.config_dir))
    _refuse_elsewhere(composed.config)
    sought = Sought.of(model, _choose_finding(model, chosen.finding))
    knobs = find_knobs(composed.config)
    if not knobs:
        raise ConfigError(
            "nothing in the recipe is known to be something that can be smaller",
            next_step="declare it: reduce.layers.at=workload.model.layers reduce.layers.value=12  (docs/reduce.md)",
        )
    folder = (chosen.to.expanduser() if chosen.to else place / "reduced").absolute()
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    smaller = Smaller(words, config_dirs, composed, knobs, sought, folder, say)
    search = Search(folder / _TRIED, key_of(composed.yaml, knobs, sought), _telling(smaller), chosen.most_runs, seconds)
    try:
        with filelock.FileLock(folder / ".lock", timeout=0), speaking(spoken(), collect_translations(model.findings, spoken())):
            search.load()
            say(f" {sought.rule} {said(sought.title)}")
            say(f" stays if a run is {sought.verdict} with {sought.rule} at {sought.place or 'any place'}")
            kept = f"; known already: {len(search.known)}" if search.known else ""
            say(f" {len(knobs)} things can be smaller; {chosen.most_runs} runs at most{kept}")
            setting, complete = shrink(knobs, search)
            reduced = _write(Reduced(smaller, search, setting, complete))
    except filelock.Timeout as error:
        raise BusyError(f"another search works in {folder}", next_step="wait for it, or name another folder: --to") from error
    if chosen.json:
        print_json(as_plain(reduced))
    else:
        from precflow.verbs.inspect import show

        show(show_reduced(reduced))
    return 0


def _find_start(
    words: Sequence[str], config_dirs: tuple[Path, ...]
) -> tuple[tuple[str, ...], tuple[Path, ...], Composed, ReportModel, Path]:
    """Return overrides, folders of recipes, what they mean, the report of the run, and its run folder.

    Raises:
        ConfigError, StoreError: As :func:`main`.
    """
    from precflow.config.command_line import parse_words
    from precflow.config.composition import compose
    from precflow.run.find_runs import find_run
    from precflow.run.runner import run
    from precflow.stages.report import read_model

    if any("=" in word for word in words):
        composed = compose(words, config_dirs=config_dirs)
        typed = [text for folder in config_dirs for text in ("--config-dir", str(folder))]
        outcome = run(composed, command=shlex.join(["precflow", *typed, *words]))
        if outcome.report is None or outcome.folder is None:
            raise ConfigError("the run has made no report, so there is no finding to keep", next_step="leave stages=[...] out")
        return tuple(words), config_dirs, composed, read_model(outcome.report), outcome.folder
    if len(words) > 1:
        raise ConfigError(f"reduce takes one run, got {' '.join(words)}")
    found = find_run(words[0], judged=True)
    report = found.find_instances().get("report")
    if report is None:
        raise StoreError(f"{found.name} has no report, so no finding", next_step=f"run it whole:  {found.entry.command}")
    own, folders = parse_words(found.entry.command)
    return own, folders, compose(own, config_dirs=folders), read_model(report.folder), found.folder


def _refuse_elsewhere(config: RunConfig) -> None:
    """Refuse a run whose sides do not both run here.

    Raises:
        ConfigError: One of them does not.
    """
    for side in ("reference", "target"):
        settings = getattr(config, side)
        given = "dump" if settings.dump else "log" if settings.log else ""
        if given:
            raise ConfigError(
                f"{side}.{given} exists already, and what was recorded cannot be made smaller",
                next_step=f"run the {side} here: leave {side}.{given} out",
            )
        if side not in config.sides:
            raise ConfigError(f"the {side} does not run here (sides), and every smaller run needs both")


def _choose_finding(model: ReportModel, rule: str) -> Finding:
    """Return the finding that has to stay.

    Raises:
        ConfigError: The run has none, or none of this rule.
    """
    if not model.findings or (model.verdict.verdict == "aligned" and not rule):
        raise ConfigError(f"the run is {model.verdict.verdict} and has no finding to keep: there is nothing to reduce")
    finding = next((one for one in model.findings if rule.upper() in {"", one.rule}), None)
    if finding is None:
        raise ConfigError(f"the run has no finding {rule}; it has {', '.join(one.rule for one in model.findings)}")
    return finding


def _telling(smaller: Smaller) -> Any:
    """Return a function that runs a setting and says a line about it."""

    def run(setting: dict[str, Size]) -> str:
        """Run a setting; return the outcome."""
        outcome = smaller.run(setting)
        say(f"   {_describe_setting(smaller, setting)}   {outcome}")
        return outcome

    return run


def _describe_setting(smaller: Smaller, setting: Any) -> str:
    """Return the sizes that are other than in the recipe."""
    turned = [f"{knob.name} {knob.describe(setting[knob.name])}" for knob in smaller.knobs if setting[knob.name] != knob.now]
    return ", ".join(turned)


def _write(reduced: Reduced) -> Reduced:
    """Write the recipe, run it as it is written, and write script, facts and page.

    Raises:
        PrecflowError: The written recipe does not show the finding, or a file cannot be written.
    """
    from precflow import resources
    from precflow.config.composition import compose
    from precflow.language import spoken
    from precflow.report.translated import translate
    from precflow.run.smaller_runs import RUN
    from precflow.run.store import explain_disk_errors

    smaller, folder = reduced.smaller, reduced.smaller.folder
    recipe = ""
    if reduced.is_smaller:
        recipe = f"{_head(reduced)}\n{compose(smaller.words_for(reduced.setting), config_dirs=smaller.config_dirs).yaml}"
    with explain_disk_errors(folder):
        written = folder / RECIPE
        if not written.is_file() or written.read_text(encoding="utf-8") != recipe:  # the run of another one is of no use
            shutil.rmtree(folder / RUN, ignore_errors=True)
        for name in (RECIPE, FACTS, PAGE, REPRO, TENSORS):  # of an earlier search
            (folder / name).unlink(missing_ok=True)
        smaller.remove_configurations(recipe)
        if recipe:
            write_text(written, recipe)
            say(f" runs {folder / RECIPE} as it is written")
            made = smaller.run_written(folder / RECIPE) / "repro"
            if _is_of_finding(made, smaller):
                for name in (REPRO, TENSORS):
                    shutil.copyfile(made / name, folder / name)
                reduced = replace(reduced, repro=ONE_CALL)
            else:
                shutil.copyfile(resources.directory("templates") / "reduced_repro.py", folder / REPRO)
                reduced = replace(reduced, repro=RECIPE_AGAIN)
        write_text(folder / FACTS, json.dumps(as_plain(reduced), ensure_ascii=False, indent=1) + "\n")
        write_text(folder / PAGE, translate(PAGE, render_page(reduced), spoken()))
    return reduced


def _is_of_finding(made: Path, smaller: Smaller) -> bool:
    """Tell whether the call that a run has written as a script is that of the finding."""
    from precflow.diagnosis.advice.repro import read_facts
    from precflow.run.reduction import kind_of_place

    facts = read_facts(made / TENSORS)
    return facts is not None and kind_of_place(str(facts.get("name"))) == smaller.sought.place


def _command(reduced: Reduced) -> str:
    from precflow.agent import redaction
    from precflow.stages.commands import environment_assignments

    smaller = reduced.smaller
    words = [f"+recipe={smaller.folder / RECIPE}", *map(redaction.redact_word, smaller.machine_words())]
    folders = [text for folder in smaller.config_dirs for text in ("--config-dir", str(folder))]
    return " ".join([*environment_assignments(), "precflow", *map(shlex.quote, (*folders, *words))])


def _head(reduced: Reduced) -> str:
    """Return the first lines of the recipe that is written."""
    sought = reduced.smaller.sought
    lines = ["@package _global_", f"{sought.rule} {sought.title}: the smallest recipe that was found to show it.", ""]
    lines += [f"  {_command(reduced)}", ""]
    lines += [f"{name}: {before} -> {after}" for name, before, after in list_sizes(reduced) if before != after]
    return "".join(f"# {line}".rstrip() + "\n" for text in lines for line in text.splitlines() or [""])


def list_sizes(reduced: Reduced) -> list[tuple[str, str, str]]:
    """Return name, size in the recipe, and smallest size of each knob."""
    return [(knob.name, knob.describe(knob.now), knob.describe(reduced.setting[knob.name])) for knob in reduced.smaller.knobs]


def tell(reduced: Reduced) -> str:
    """Return what was found in words: ``layers 32 -> 2, tokens 4096 -> 16: the same finding, 9 runs``."""
    from precflow import numbers

    runs = numbers.plural(len(reduced.search.known), "run")
    if not reduced.complete:
        runs += ", stopped at its bound: the same command goes on"
    turned = ", ".join(f"{name} {before} -> {after}" for name, before, after in list_sizes(reduced) if before != after)
    if not turned:
        stays = "" if reduced.complete else " so far"
        return f"nothing became smaller{stays}: the finding is lost with each of {len(reduced.smaller.knobs)} things, {runs}"
    return f"{turned}: the same finding, {runs}"


def as_plain(reduced: Reduced) -> dict[str, Any]:
    """Return everything as plain data."""
    smaller, is_smaller = reduced.smaller, reduced.is_smaller
    return {
        "text": tell(reduced),
        "finding": asdict(smaller.sought),
        "complete": reduced.complete,
        "knobs": [
            {"name": knob.name, "keys": list(knob.keys), "before": knob.describe(knob.now), "after": after}
            for knob, (_, _, after) in zip(smaller.knobs, list_sizes(reduced), strict=True)
        ],
        "runs": [
            {"turned": _describe_setting(smaller, one.setting), "outcome": one.outcome, "seconds": one.seconds}
            for one in reduced.search.known
        ],
        "folder": str(smaller.folder),
        "recipe": str(smaller.folder / RECIPE) if is_smaller else "",
        "words": smaller.machine_words() if is_smaller else [],
        "command": _command(reduced) if is_smaller else "",
        "repro": str(smaller.folder / REPRO) if is_smaller else "",
        "repro_runs": reduced.repro,
    }


def render_page(reduced: Reduced) -> str:
    """Return everything as Markdown."""
    from precflow.report.templating import load_templates

    plain = as_plain(reduced)
    text: str = (
        load_templates()
        .get_template("reduced.md.j2")
        .render(reduced=plain, sought=reduced.smaller.sought, repro=_repro_command(plain))
    )
    return text


def _repro_command(plain: dict[str, Any]) -> str:
    return f"python {shlex.quote(plain['repro'])}" if plain["repro"] else ""


def show_reduced(reduced: Reduced) -> Paper:
    """Return the screen."""
    from precflow import numbers
    from precflow.report.screens.paper import Paper

    plain, paper = as_plain(reduced), Paper()
    paper.title(plain["text"])
    paper.table([["what", "before", "after"], *map(list, list_sizes(reduced))])
    left = len(plain["runs"]) - _MOST_SHOWN
    paper.line()
    paper.table([[one["turned"], one["outcome"], f"{one['seconds']:g} s"] for one in plain["runs"][-_MOST_SHOWN:]], head=False)
    paper.line(f"  and {numbers.plural(left, 'run')} before them: {reduced.smaller.folder / PAGE}" if left > 0 else "")
    paper.fact("recipe", plain["command"])
    paper.fact("script", f"{_repro_command(plain)}   runs {reduced.repro}" if plain["repro"] else "")
    paper.fact("page", str(reduced.smaller.folder / PAGE))
    return paper
