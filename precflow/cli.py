"""The entry point: runs a verb, a recipe or one of Hydra's views, and returns the exit code.

0 aligned or done, 1 misaligned, 2 could not be done, 3 inconclusive. Hydra ends with 1 for a wrong key, and Python with 1 for
any traceback. Both become 2 here, because a script must be able to read 1 as "misaligned". ``PRECFLOW_DEBUG=1`` shows
tracebacks.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precflow import streams
from precflow.agent import redaction
from precflow.config import command_line
from precflow.config.suggestions import did_you_mean
from precflow.dumps import bus_errors
from precflow.dumps.garbage import freezing_allowed
from precflow.errors import ConfigError, PrecflowError, StoreError
from precflow.language import ENGLISH, language_of_screen, speaking, translate_lines
from precflow.verbs import error_as_json, is_verb, list_other_words, list_verbs
from precflow.version import __version__

if TYPE_CHECKING:
    from precflow.run.runner import Outcome
    from precflow.run.sweeps import EndedJob

_LONGEST_NAME = 255  # bytes, on nearly every file system
BADNESS = (0, 3, 1, 2)  # exit codes from best to worst; of several jobs the worst one counts


def main(argv: Sequence[str] | None = None) -> int:
    """Run precflow with the arguments of a command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    # Secrets among the variables and the arguments become known before anything is printed, so that no output shows them.
    redaction.learn(os.environ)
    for word in arguments:
        redaction.learn(word.partition("=")[2], name=word.partition("=")[0].lstrip("+~-"))
    bus_errors.explain_bus_errors()  # a mapped file that gets shorter would end the process without a message
    language = language_of_screen() if streams.is_unicode(sys.stderr) and streams.is_unicode(sys.stdout) else ENGLISH
    streams.Speech.translate = functools.partial(translate_lines, count_cells=streams.count_cells)
    with freezing_allowed(), speaking(language):
        return guarded(lambda: _dispatch(arguments), as_json="--json" in arguments)


def _open_streams() -> None:
    """Open ``/dev/null`` for each standard stream that is closed (``2>&-``).

    A process gets the lowest free number for a file that it opens. With stderr closed, a file of a dump could become number 2,
    and whatever C code prints on stderr would go into the dump. For the same reason they are opened in order.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # stays open as long as we run


def guarded(work: Callable[[], int], *, as_json: bool = False) -> int:
    """Run ``work`` and return its exit code; if an error stops it, print the error and return 2.

    A reader that leaves early (``| head``) does not change the exit code. A full disk behind stdout does: the answer is lost,
    so the exit code is 2.
    """
    with streams.delivering() as delivery:
        code = _run_safely(work, as_json=as_json)
    if not delivery.problem:
        return code
    with streams.delivering():
        streams.say(f" the answer could not be written to stdout: {delivery.problem}")
    return 2


def _run_safely(work: Callable[[], int], *, as_json: bool) -> int:
    try:
        return work()
    except PrecflowError as error:
        return _print_error(error, as_json=as_json)
    except KeyboardInterrupt:
        streams.say(" interrupted; finished stages are kept, the same command goes on from here")
    except SystemExit as end:  # argparse
        return 0 if end.code in (0, None) else 2
    except Exception as error:  # noqa: BLE001  # the last line of defence: a fault of precflow's own is exit code 2, not 1
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # from a typed path, wherever it was opened
            return _print_error(_too_long_error(error), as_json=as_json)
        _print_traceback()
        streams.say(f" precflow itself failed: {type(error).__name__}: {error}")
        streams.say(" PRECFLOW_DEBUG=1 shows where. Nothing that finished is lost.")
    return 2


def _too_long_error(error: OSError) -> StoreError:
    path = str(error.filename or "")
    longest = max(path.split("/"), key=len)
    name = longest if len(os.fsencode(longest)) > _LONGEST_NAME else path
    message = f"{len(os.fsencode(name))} bytes are too long for the name of a file or folder: {name[:60]}..."
    return StoreError(message, next_step="name a shorter one")


def worst(codes: Sequence[int]) -> int:
    """Return the worst of several exit codes: 2, then 1, then 3, then 0."""
    return max(codes, key=lambda code: BADNESS.index(code) if code in BADNESS else len(BADNESS), default=0)


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        streams.say(short_help())
        return 0
    if is_verb(arguments[0]):
        return _run_verb(arguments[0], arguments[1:])
    if {"-sc", "--shell-completion"} & set(arguments):  # before parsing: half a word is no override yet
        from precflow.config.hydra_views import complete_word

        return complete_word(arguments, verbs={name: verb.takes_recipe for name, verb in list_verbs().items()})
    line = command_line.parse(arguments)
    if line.words and "=" not in line.words[0] and line.words[0][:1] not in "+~":
        return _run_bare_word(line)
    return _show(line) if line.asks_for(*command_line.SHOW_OPTIONS) else _run(line, arguments)


def _show(line: command_line.CommandLine) -> int:
    if line.asks_for("--version"):
        streams.write(f"precflow {__version__}")
        return 0
    if line.asks_for("--help"):
        streams.write(full_help())
        return 0
    from precflow.config.hydra_views import show

    return show(line)


def _run_verb(name: str, arguments: Sequence[str]) -> int:
    module = importlib.import_module(f"precflow.verbs.{name}")
    code: int = module.main(arguments)
    return code


def _run_bare_word(line: command_line.CommandLine) -> int:
    """Run the verb of ``--config-dir DIR VERB``; refuse any other first word without ``=``.

    Raises:
        ConfigError: The word is no verb; the message says what may be meant.
    """
    word = line.words[0]
    if is_verb(word):
        folders = [text for folder in line.config_dirs for text in ("--config-dir", str(folder))]
        return _run_verb(word, [*line.words[1:], *folders, *(["--help"] if line.asks_for("--help") else [])])
    from precflow.config.search_path import list_folders, list_names
    from precflow.config.suggestions import find_near

    recipes = list_names("recipe", list_folders(line.config_dirs))
    if word in recipes:
        raise ConfigError(f"{word} is a recipe, not a verb", next_step=f"precflow +recipe={word}")
    like = find_near(word, recipes, most=1)
    named = f"+recipe={like[0]}" if like else "+recipe=NAME"
    meant = list_other_words().get(word)
    if meant is not None:
        raise ConfigError(
            f"no such verb: {word}{'' if meant else ': a recipe runs without a verb, and goes on where it was stopped'}",
            next_step=_write_line(meant, line.words[1:], recipes),
        )
    known = [
        name
        for name, verb in list_verbs().items()
        if not verb.deletes or (word[:1] == name[:1] and find_near(word, [name], alike=0.8))
    ]
    raise ConfigError(
        f"no such verb: {word}.{did_you_mean(word, known)}   Verbs: {', '.join(list_verbs())}",
        next_step=f"To run a recipe:  precflow {named}",
    )


def _write_line(meant: str, rest: Sequence[str], recipes: Collection[str]) -> str:
    """Return the line for somebody who typed another tool's verb: the verb that is meant, and what stood behind theirs.

    Args:
        meant: A verb with its arguments, or ``""`` to run a recipe.
        rest: What was typed behind the other verb.
        recipes: Names of recipes, which people type without ``+recipe=``.
    """
    if meant and (" " in meant or not rest):
        return f"precflow {meant}"
    words = [f"+recipe={word}" if word in recipes and not meant else redaction.redact_word(word) for word in rest]
    if not meant and not any(word.lstrip("+").startswith("recipe=") for word in words):
        words.insert(0, "+recipe=NAME")
    return shlex.join(["precflow", *([meant] if meant else []), *words])


def _run(line: command_line.CommandLine, arguments: Sequence[str]) -> int:
    if not {"output=quiet", "output=ci"} & set(line.words) and "CI" not in os.environ:
        streams.live_line.show("reading the recipe")  # to compose it and to import what runs it takes a second or two
    from precflow.config.composition import compose
    from precflow.config.overrides import expand_sweep

    jobs = expand_sweep(line.words, config_dirs=line.config_dirs) if line.multirun else [line.words]
    composed = [compose(job, config_dirs=line.config_dirs) for job in jobs]  # every job is checked before the first one runs
    from precflow.run.runner import publish, publish_job, run
    from precflow.run.steps import locate_run
    from precflow.run.sweeps import EndedJob, format_jobs, write_table

    folders = [word for folder in line.config_dirs for word in ("--config-dir", str(folder))]
    ended = []
    for number, (job, recipe) in enumerate(zip(jobs, composed, strict=True), start=1):
        if len(jobs) > 1:
            streams.say(f" job {number} of {len(jobs)}   {' '.join(map(redaction.redact_word, job))}")
        # A job of several is started again by its own words.
        command = shlex.join(["precflow", *(arguments if len(jobs) == 1 else (*folders, *job))])
        outcome, report = None, None
        try:
            outcome = run(recipe, command=command)
            report = publish_job(outcome) if len(jobs) > 1 else None
        except PrecflowError as error:  # what stops one job does not stop the others
            _print_error(error, as_json=False)
        ended.append(EndedJob(job, locate_run(recipe.config).folder, outcome, report))
    code = worst([job.code for job in ended])
    if len(jobs) > 1:
        streams.say(format_jobs(ended, code))
        table = write_table(ended)
        if table is not None:
            streams.say(f" {table} has them as a table")
        for shown in _choose_reports(ended):
            publish(shown)
            streams.say(f" {shown.folder} shows the report of the worst of them: {shown.verdict}")
    return code


def _choose_reports(ended: Sequence[EndedJob]) -> list[Outcome]:
    """Return the reports to publish again after several jobs: the worst one of each run folder.

    A run folder shows the report of its last job. If that is the worst one already, nothing has to be published.
    """
    reports = []
    for folder in dict.fromkeys(job.folder for job in ended):
        here = [job.outcome for job in ended if job.folder == folder]
        reported = [outcome for outcome in here if outcome is not None and outcome.report is not None]
        code = worst([outcome.exit_code for outcome in reported])
        shown = here[-1].exit_code if here[-1] is not None and here[-1].report is not None else None
        reports += [outcome for outcome in reported if outcome.exit_code == code != shown][:1]
    return reports


def _print_error(error: PrecflowError, *, as_json: bool) -> int:
    _print_traceback()
    if as_json:
        streams.write_json(error_as_json(error))
    streams.say(f" {error}")
    return 2


def _print_traceback() -> None:
    if os.environ.get("PRECFLOW_DEBUG") == "1":
        streams.say(traceback.format_exc())


_TO_RUN = """\
   precflow +recipe=sd_text_encoder                        run a recipe
   precflow +recipe=sd_text_encoder target.dtype=float32   with a key of it changed
   precflow -m +recipe=NAME target.dtype=float16,bfloat16  once for each value"""
_TITLE = f"precflow {__version__}: does a model that moved to another device still compute the same numbers?"
_EXIT_CODES = "Exit codes: 0 aligned, 1 misaligned, 2 could not be done, 3 inconclusive."


def short_help() -> str:
    """Return what ``precflow`` without arguments prints: how to run a recipe, and the verbs."""
    verbs = "\n".join(f"   precflow {name:<10} {verb.summary}" for name, verb in list_verbs().items())
    return f" {_TITLE}\n\n{_TO_RUN}\n\n{verbs}\n\n {_EXIT_CODES} More: precflow --help\n"


def full_help() -> str:
    """Return what ``precflow --help`` prints: each verb with an example, the groups, and the options."""
    from precflow.config.search_path import GROUPS

    verbs = "\n".join(f"   {verb.summary}\n      precflow {verb.example}" for verb in list_verbs().values())
    return f""" {_TITLE}

{_TO_RUN}

 Verbs, each with an example; precflow VERB --help has more:

{verbs}

 Chosen by name, as +recipe=NAME is: {", ".join(GROUPS)}; precflow ls GROUP lists the names.
 Keys go without dashes, as target.dtype=float32: precflow explain target.dtype says what it takes, and
 precflow show +recipe=NAME which keys there are.

 Options:

   --config-dir DIR, -cd DIR      a folder with recipes/ and site/ of yours; may be given several times
   --multirun, -m                 once for each of several values
   --cfg job, --info              the composed recipe and how it came about, as Hydra shows them; --hydra-help has more
   --version                      this version
   -sc install=bash|zsh|fish      completion of verbs, recipes and keys:  eval "$(precflow -sc install=bash)"

 {_EXIT_CODES} PRECFLOW_DEBUG=1 shows tracebacks."""
