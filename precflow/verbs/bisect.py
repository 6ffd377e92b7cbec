"""``precflow bisect +recipe=NAME A B C ...``: which of several versions is the first that is misaligned."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.errors import ConfigError, PrecflowError, SideError
from precflow.verbs import Verb, make_parser, print_json, say

if TYPE_CHECKING:
    from precflow.config.composition import Composed
    from precflow.run.bisection import Bisection
    from precflow.run.runner import Outcome

VERB = Verb(
    107,
    "which of several versions is the first that computes something else",
    "bisect '+recipe=[sd_text_encoder,upgrade_check]' 2.8/bin/python 2.9/bin/python 2.10/bin/python",
    takes_recipe=True,
)
_FEWEST = 2
_NOT_DONE = "could not be done"
_NAMED = ("torch_npu", "torch-npu", "torch")  # a version is called by the first of these that differs


@dataclass(frozen=True)
class _Version:
    """One of the versions: the overrides that make the run, and what it is called."""

    words: tuple[str, ...]
    name: str


def main(arguments: Sequence[str]) -> int:
    """Run the versions that have to be run, and print which is the first that is misaligned.

    Returns:
        0 if the last version is aligned, 1 if the first misaligned one was found, 3 if versions in between could not be judged.

    Raises:
        ConfigError: A recipe does not compose, or there are fewer than two versions.
        PrecflowError: The last version could not be run.
    """
    options = make_parser("bisect", "+recipe=NAME PYTHON PYTHON PYTHON ... | key=value,value,...")
    help_of_words = "interpreters from old to new, the first for the reference; or one key with its values"
    options.add_argument("words", nargs="+", metavar="PYTHON|key=value,...", help=help_of_words)
    chosen = options.parse_args(arguments)
    from precflow.config.composition import compose
    from precflow.run.bisection import ALIGNED, MISALIGNED, bisect, most_runs, tell

    versions, reference = list_versions(chosen.words, chosen.config_dir)
    folders = [word for folder in chosen.config_dir for word in ("--config-dir", str(folder))]
    composed = [compose(version.words, config_dirs=chosen.config_dir) for version in versions]  # all before the first one runs
    say(f" {len(versions)} versions after {reference}: {most_runs(len(versions))} runs at most")
    outcomes: dict[int, Outcome | None] = {}

    def judge(number: int) -> str:
        """Run a version and return its verdict."""
        say(f" {versions[number].name}")
        last = number == len(versions) - 1
        outcomes[number] = _run(composed[number], [*folders, *versions[number].words], must=last)
        outcome = outcomes[number]
        return _NOT_DONE if outcome is None else outcome.verdict or "not judged"

    found = bisect(len(versions), judge)
    names = [version.name for version in versions]
    shown = found.first_wrong if found.first_wrong is not None else len(versions) - 1
    outcome = outcomes.get(shown)
    if outcome is not None:
        from precflow.run.runner import publish

        publish(outcome)  # the last run may have been another one
    text = tell(found, names, reference)
    if chosen.json:
        print_json({"text": text, "reference": reference, **_as_json(found, names, reference), **_describe_run(outcome)})
    else:
        lines = [f"   {names[number]:<{max(map(len, names))}}  {verdict}" for number, verdict in sorted(found.verdicts.items())]
        report = [f"   report   {outcome.folder}"] if outcome is not None else []
        finding = [f"   {outcome.finding_shown}"] if outcome is not None and outcome.finding_shown else []
        say("\n".join([f" {text}", *lines, *finding, *report]))
    if found.verdicts[len(versions) - 1] == ALIGNED:
        return 0
    return 1 if found.verdicts[len(versions) - 1] == MISALIGNED and found.is_certain(len(versions)) else 3


def list_versions(words: Sequence[str], config_dirs: Sequence[Path]) -> tuple[list[_Version], str]:
    """Return the versions from old to new, and what they are compared with.

    Args:
        words: Overrides and interpreters. Interpreters are words without ``=``, the first of them runs the reference; without
            any an override with several values says what the versions are.
        config_dirs: Further folders of recipes.

    Raises:
        ConfigError: There are fewer than two versions, or interpreters beside several values.
    """
    from precflow.config.overrides import expand_sweep

    overrides = [word for word in words if "=" in word]
    interpreters = [word for word in words if "=" not in word]
    jobs = expand_sweep(overrides, config_dirs=config_dirs)
    if interpreters and len(jobs) > 1:
        raise ConfigError(
            "bisect looks for one thing: interpreters, or one key with several values", next_step="give one of them"
        )
    if interpreters:
        if len(interpreters) <= _FEWEST:
            raise _too_few_error(len(interpreters) - 1)
        labels = _name_interpreters(interpreters)
        first = f"reference.interpreter={interpreters[0]}"
        versions = [
            _Version((*overrides, first, f"target.interpreter={path}"), name)
            for path, name in zip(interpreters[1:], labels[1:], strict=True)
        ]
        return versions, labels[0]
    if len(jobs) < _FEWEST:
        raise _too_few_error(len(jobs))
    common = set(jobs[0]).intersection(*jobs)
    return [_Version(tuple(job), " ".join(word for word in job if word not in common)) for job in jobs], "the reference"


def _too_few_error(count: int) -> ConfigError:
    return ConfigError(
        f"bisect needs two versions or more after the reference, and got {max(count, 0)}",
        next_step=f"for one version run the recipe itself; for more:  precflow {VERB.example}",
    )


def _name_interpreters(paths: Sequence[str]) -> list[str]:
    """Return ``torch 2.9.1`` for each interpreter, or its path where the packages do not tell them apart.

    Raises:
        ConfigError: One of them is not there.
    """
    from precflow.config.schema import Side
    from precflow.sides.interpreter import take_fingerprint

    try:
        packages = [take_fingerprint(Side(interpreter=path))["packages"] for path in paths]
    except SideError as error:  # its message has the path
        raise ConfigError(error.message, next_step=error.next_step or "name a Python with torch") from error
    for name in _NAMED:
        versions = [known.get(name, "") for known in packages]
        if all(versions) and len(set(versions)) == len(versions):
            return [f"{name} {version}" for version in versions]
    return list(paths)


def _run(composed: Composed, words: Sequence[str], *, must: bool) -> Outcome | None:
    """Run a version; ``None`` if it could not be run.

    Raises:
        PrecflowError: It could not be run, and ``must``.
    """
    from precflow.run.runner import run

    try:
        return run(composed, command=shlex.join(["precflow", *words]))
    except PrecflowError as error:
        if must:
            raise
        say(f" {error}")
        return None


def _as_json(found: Bisection, names: Sequence[str], reference: str) -> dict[str, Any]:
    return {
        "versions": [{"name": name, "verdict": found.verdicts.get(number, "not run")} for number, name in enumerate(names)],
        "first_misaligned": None if found.first_wrong is None else names[found.first_wrong],
        "last_aligned": names[found.last_right] if found.last_right >= 0 else reference,
    }


def _describe_run(outcome: Outcome | None) -> dict[str, str]:
    """Return the finding and the folder of the run that is shown."""
    if outcome is None or outcome.folder is None:
        return {"finding": "", "folder": ""}
    return {"finding": outcome.finding, "folder": str(outcome.folder)}
