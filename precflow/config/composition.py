"""Composition: files and command line become one :class:`RunConfig`, or one error that shows every problem.

Hydra resolves which files take part and in what order (its defaults list); what they say is laid over each other here, so
that each value keeps its file and line, and is checked against the schema here, so that a misspelt key is refused wherever
it stands. Nothing is instantiated.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode

from precflow import resources
from precflow.agent import redaction
from precflow.config import checks, overrides, recipe_source, signatures, trust
from precflow.config.build import Builder
from precflow.config.documents import Document, DottedPath, PathProblems, display_path, dotted
from precflow.config.interpolation import Interpolation
from precflow.config.layers import COMMAND_LINE, Layers
from precflow.config.overrides import Word
from precflow.config.recipe_yaml import format_yaml, keep_portable
from precflow.config.schema import RunConfig
from precflow.config.search_path import (
    DATA_GROUPS,
    GROUPS,
    OPEN_GROUPS,
    SearchFolder,
    describe_not_found,
    find,
    find_clash,
    list_folders,
    shipped_folders,
    team_folders,
)
from precflow.config.sections import standards, whatifs
from precflow.config.sections.tolerance_section import find_expired
from precflow.config.suggestions import find_near
from precflow.config.vocabulary import allowed_words
from precflow.errors import ConfigError, Problem, TrustError

_DEFAULT = ("capture", "tensors")  # chosen where nobody chooses; so is an executor, which then is precflow's own
MOST_FILES = 200  # that one run is composed of
_NO_RECIPE = "no recipe was chosen: +recipe=NAME (see `precflow ls`)"


@dataclass(frozen=True)
class Composed:
    """One composed recipe.

    Attributes:
        config: The typed configuration.
        provenance: Dotted key -> ``file:line`` or ``command line``; keys that nobody set are absent: they have defaults.
        yaml: The recipe as YAML in the fixed order of sections, without secrets and what belongs to a machine.
        overrides: The words of the command line, in the quoted form that Hydra reads.
        notes: What makes no run impossible and should be known: accepted differences that have expired.
        data: What was set, as written, with references replaced.
        files: The files that took part, in the order in which they were laid over each other.
        team: Group -> folders of standards, rules and what-ifs that are not precflow's own.
    """

    config: RunConfig
    provenance: Mapping[str, str]
    yaml: str
    overrides: tuple[str, ...]
    notes: tuple[Problem, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    team: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)


def compose(
    words: Sequence[str], *, config_dirs: Sequence[Path] = (), complete: bool = True, looks_up_code: bool = False
) -> Composed:
    """Return the configuration that the words of a command line mean.

    Args:
        words: Overrides as typed: ``+recipe=NAME``, ``key=value``.
        config_dirs: Folders of ``--config-dir``.
        complete: Also demand that each side has something to run, and that the files and functions which it names are here;
            ``False`` to look at a recipe.
        looks_up_code: Demand of one that need not be complete that the modules which are here have the functions it names.

    Raises:
        ConfigError: Something is not usable; all problems at once.
        TrustError: A file asks for code that is not trusted.
    """
    within = list_folders(config_dirs)
    read, problems = overrides.read(words, within=within)
    read, extra = overrides.resolve_recipe_files(read)
    within = (*extra, *within)
    problems += overrides.find_sweeps(read)
    files, missing = _collect_files(read, within)
    # Of `+recpie=NAME` it is said that recipe was meant, and not that there is none.
    misspelt = any(find_near(problem.key.lstrip("+~").partition("=")[0], ["recipe"]) for problem in problems)
    problems += [problem for problem in missing if not (misspelt and problem.message == _NO_RECIPE)]
    # Before Hydra reads any of the files: a file that is more than data could make it run code.
    forbidden = [problem for document in files for problem in trust.find_forbidden_text(document)]
    if forbidden:
        raise _as_trust_error([*forbidden, *problems], words)
    unusable = [problem for document in files for problem in document.problems]
    if problems and not missing and not unusable:
        problems += _find_more_problems(read, files, within)
    if problems or unusable:
        raise overrides.build_error([*problems, *unusable], words)
    team = {group: team_folders(group, within) for group in DATA_GROUPS}
    with standards.searching(team["standard"]), whatifs.searching(team["whatif"], team["rule"]):
        layers, documents = _lay_files(read, files, within)
        of_run = (checks.find_missing_workload, checks.find_missing_files) if complete else ()
        of_code = functools.partial(signatures.check_user_code, may_be_elsewhere=not complete)
        demands = (*of_run, of_code) if complete or looks_up_code else of_run
        composed = _build(layers, documents, read, words, demands)
    # A team's standard, what-if or fault that has the name of a shipped one.
    named = [("standard", name) for name in composed.config.tolerance.standards]
    named += [("whatif", word) for word in composed.config.whatif]
    named += [("emulate", document.name) for document in files if document.group == "emulate"]
    clashes = [clash for group, name in named if (clash := find_clash(group, name, within))]
    if clashes:
        raise overrides.build_error(clashes, words)
    return replace(composed, team=team)


def _find_more_problems(words: Sequence[Word], files: Sequence[Document], within: Sequence[SearchFolder]) -> list[Problem]:
    """Return what is wrong with the values on a line that has unusable words too: everything is shown at once."""
    single = [word for word in words if len(word.choices) <= 1]
    try:
        _build(*_lay_files(single, files, within), single, ())
    except ConfigError as error:
        return [replace(problem, place=problem.place or COMMAND_LINE) for problem in error.problems]
    return []


def _collect_files(words: Sequence[Word], within: Sequence[SearchFolder]) -> tuple[list[Document], list[Problem]]:
    """Return every file that the words and the files' own defaults name, read, and what does not exist."""
    waiting = [
        (group, name, COMMAND_LINE, f"+{group}={name}") for group in GROUPS for name in overrides.list_chosen(words, group)
    ]
    waiting.append((*_DEFAULT, COMMAND_LINE, "+capture=tensors"))
    problems = []
    if not any(group == "recipe" for group, *_ in waiting):
        problems.append(Problem(COMMAND_LINE, "+recipe", _NO_RECIPE))
    collected: dict[tuple[str, str], Document] = {}
    visits = 0
    while waiting:
        group, name, place, key = waiting.pop(0)
        visits += 1
        if visits > MOST_FILES:  # Hydra goes every way, and recipes that each inherit from two have many
            message = f"leads to more than {MOST_FILES} recipes: do they inherit from each other in a circle, or twice?"
            return list(collected.values()), [Problem(place, key, message)]
        document = collected.get((group, name)) or find(group, name, within)
        if document is None:
            problems.append(Problem(place, key, describe_not_found(group, name, within)))
            continue
        collected[(group, name)] = document
        place = document.marks[("defaults",)].place if ("defaults",) in document.marks else ""
        if group == "recipe":
            waiting += [("recipe", parent, place, f"defaults: {parent}") for parent in trust.list_parents(document)]
            waiting += [
                (*choice, place, "defaults: override /{}: {}".format(*choice)) for choice in trust.list_choices(document)
            ]
    return list(collected.values()), problems


def _as_trust_error(problems: Sequence[Problem], typed: Sequence[str]) -> TrustError:
    error = overrides.build_error(problems, typed)
    return TrustError(error.message, problems=error.problems, next_step=error.next_step)


def _lay_files(
    words: Sequence[Word], files: Sequence[Document], within: Sequence[SearchFolder]
) -> tuple[Layers, list[Document]]:
    """Return all files laid over each other in Hydra's order, and these files."""
    layers, documents = Layers(), list[Document]()
    chosen = {word.group for word in words}
    choices = tuple(word.text for word in words if word.group)
    with recipe_source.search_in(within, values=False):
        order = _resolve_defaults(choices, tuple((file.group, file.name, file.package, str(file.defaults)) for file in files))
    for config_path, package in order:
        group, _, name = config_path.partition("/")
        # An executor has addresses: one that nobody chose is precflow's own, whatever a folder of recipes brings along.
        folders = shipped_folders(group) if group == "executor" and group not in chosen else within
        document = find(group, name, folders) if group in GROUPS else None
        if document is not None:
            place = () if document.group in OPEN_GROUPS else tuple(filter(None, package.split(".")))
            joins = document.group == "emulate" and any(one.group == "emulate" for one in documents)
            (layers.join if joins else layers.add)(document, place)
            documents.append(document)
    return layers, documents


@functools.lru_cache(maxsize=256)  # Hydra takes 0.07 s, and a run composes its words again with each change that it proposes
def _resolve_defaults(choices: tuple[str, ...], headers: tuple[tuple[str, str, str, str], ...]) -> list[tuple[str, str]]:
    """Return Hydra's order of the files in the folders of :func:`recipe_source.search_in`, each with its package.

    Args:
        choices: The words of the command line that choose files.
        headers: Group, name, package and ``defaults`` of each file: with the choices, all that the order depends on.
    """
    del headers  # Hydra reads them from the files
    recipe_source.register(values=False)
    try:
        with initialize_config_dir(str(resources.directory("conf")), version_base="1.3", job_name="precflow"):
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list("config", list(choices), RunMode.RUN).defaults
    except RecursionError as error:
        raise ConfigError("the chosen recipes inherit from each other in a circle", next_step="see their `defaults`") from error
    except HydraException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"the files do not fit together: {lines[0] if lines else type(error).__name__}") from error
    return [(entry.config_path, entry.package or "") for entry in defaults if entry.config_path]


def _build(
    layers: Layers,
    documents: Sequence[Document],
    words: Sequence[Word],
    typed: Sequence[str],
    demands: Sequence[Callable[[RunConfig], PathProblems]] = (),
) -> Composed:
    problems = _apply_words(layers, words)
    site = next((display_path(document.path) for document in documents if document.group == "site"), "")
    interpolation = Interpolation(layers.data, site=site)
    data = interpolation.resolve(layers.data)
    redaction.learn(data)  # whatever is said from now on
    builder = Builder(layers.mark, allowed_words)
    for path, message in interpolation.problems:
        builder.say(path, message)
    config = builder.build(data)
    packages = (*trust.list_trusted_packages(), *config.site.trusted)
    untrusted = [
        *trust.find_forbidden_values(data, interpolation.read, layers.mark, packages),
        *trust.find_untrusted_targets(data, packages),
    ]
    for path, message in untrusted:
        builder.say(path, message)
    # A key that could not be built has its default now. A check of it, of a section around it or of a key inside it would speak
    # of a value that nobody wrote, so only the first problem is shown.
    wrong = {tuple(re.findall(r"[^.\[\]]+", problem.key)) for problem in builder.problems}
    wrong_inside = {key[:length] for key in wrong for length in range(len(key) + 1)}
    to_run: tuple[tuple[DottedPath, str], ...] = ()
    if not untrusted:  # nothing that an untrusted recipe names is looked for
        to_run = tuple(problem for find in demands for problem in find(config))
    for path, message in (*checks.find_problems(config, data), *to_run):
        if path not in wrong_inside and not any(path[:length] in wrong for length in range(1, len(path))):
            builder.say(path, message)
    problems += [Problem(problem.place or COMMAND_LINE, problem.key, problem.message) for problem in builder.problems]
    if untrusted:
        raise _as_trust_error(problems, typed)
    if problems:
        raise overrides.build_error(problems, typed)
    today = datetime.datetime.now(tz=datetime.timezone.utc).astimezone().date()  # where the user is
    notes = [Problem(layers.mark(path).place, dotted(path), text) for path, text in find_expired(config, today)]
    return Composed(
        config=replace(config, recipe="+".join(overrides.list_chosen(words, "recipe"))),
        provenance=layers.provenance(),
        yaml=format_yaml(redaction.redact(keep_portable(layers.data, layers.mark))),
        overrides=tuple(choice for word in words for choice in word.choices),  # a recipe file by its path, not by its name
        notes=tuple(notes),
        data=data,
        files=tuple(document.path for document in documents),
    )


def _apply_words(layers: Layers, words: Sequence[Word]) -> list[Problem]:
    """Lay the command line's keys over the files; of two words for one key the last counts, as in a shell."""
    problems = []
    for word in words:
        if word.group:
            continue
        wrong = layers.remove(word.path) if word.removes else layers.assign(word.path, word.value, overrides.mark_word(word))
        if wrong:
            problems.append(Problem(COMMAND_LINE, word.typed, wrong))
    return problems
