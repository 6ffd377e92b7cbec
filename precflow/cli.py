"""The door: a verb, a run, or one of Hydra's views; every failure leaves with an exit code of ours.

0 aligned or done, 1 misaligned, 2 could not be done, 3 inconclusive. Hydra and Python leave with 1 for a wrong key and for
any traceback; both become 2 here. ``PRECFLOW_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precflow import __version__
from precflow.config import flags
from precflow.config.suggestions import did_you_mean
from precflow.dumps import cut_files
from precflow.dumps.collector import many_spared
from precflow.errors import ConfigError, PrecflowError, StoreError
from precflow.verbs import VERBS, json_error

if TYPE_CHECKING:
    from precflow.config.composition import Composed
    from precflow.run.runner import Outcome

_LONGEST_NAME = 255  # bytes, on nearly every file system
_NOT_DONE = "could not be done"
_OF_RECIPES = frozenset({"show", "plan", "validate"})  # verbs that overrides follow
BADNESS = (0, 3, 1, 2)  # of several jobs the worst exit code counts


def main(argv: Sequence[str] | None = None) -> int:
    """Run precflow with the arguments of a command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    cut_files.explain()
    with many_spared():
        return guarded(lambda: _dispatch(arguments), as_json="--json" in arguments)


def _open_streams() -> None:
    """Give closed streams (`2>&-`) to nobody, in order, so that no file of a dump takes the number of one of them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # stays open as long as we run


def guarded(work: Callable[[], int], *, as_json: bool = False) -> int:
    """Return what the work returns; say what stopped it and return 2 where something did."""
    try:
        code = work()
        sys.stdout.flush()
    except PrecflowError as error:
        return _refused(error, as_json=as_json)
    except KeyboardInterrupt:
        _say(" interrupted; finished stages are kept, the same command goes on from here")
    except BrokenPipeError:  # `precflow ls | head`: nobody reads on, which is no failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:  # argparse
        return 0 if end.code in (0, None) else 2
    except Exception as error:  # noqa: BLE001  # the last line of defence: a fault of precflow's own is exit code 2, not 1
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # any path that was typed may be one
            return _refused(_too_long(error), as_json=as_json)
        _traceback()
        _say(f" precflow itself failed: {type(error).__name__}: {error}")
        _say(" PRECFLOW_DEBUG=1 shows where. Nothing that finished is lost.")
    else:
        return code
    return 2


def _too_long(error: OSError) -> StoreError:
    path = str(error.filename or "")
    longest = max(path.split("/"), key=len)
    name = longest if len(os.fsencode(longest)) > _LONGEST_NAME else path
    said = f"{len(os.fsencode(name))} bytes are too long for the name of a file or folder: {name[:60]}..."
    return StoreError(said, next_step="name a shorter one")


def worst(codes: Sequence[int]) -> int:
    """Return the worst of several exit codes: 2, then 1, then 3, then 0."""
    return max(codes, key=lambda code: BADNESS.index(code) if code in BADNESS else len(BADNESS), default=0)


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        sys.stderr.write(short_help())
        return 0
    if arguments[0] in VERBS:
        return _verb(arguments[0], arguments[1:])
    if {"-sc", "--shell-completion"} & set(arguments):
        from precflow.config.introspection import complete

        return complete(arguments, verbs={name: name in _OF_RECIPES for name in VERBS})
    line = flags.parse(arguments)
    if line.words and _is_bare(line.words[0]):
        return _bare(line)
    return _look(line) if line.asks_for(*flags.LOOKING) else _run(line, arguments)


def _look(line: flags.CommandLine) -> int:
    if line.asks_for("--version"):
        sys.stdout.write(f"precflow {__version__}\n")
        return 0
    from precflow.config.introspection import look

    return look(line)


def _verb(name: str, arguments: Sequence[str]) -> int:
    module = importlib.import_module(f"precflow.verbs.{name}")
    code: int = module.main(arguments)
    return code


def _is_bare(word: str) -> bool:
    return "=" not in word and word[:1] not in "+~"


def _bare(line: flags.CommandLine) -> int:
    """Take ``--config-dir DIR VERB`` for the verb; refuse any other bare word in front."""
    word = line.words[0]
    if word in VERBS:
        folders = [text for folder in line.config_dirs for text in ("--config-dir", str(folder))]
        return _verb(word, [*line.words[1:], *folders, *(["--help"] if line.asks_for("--help") else [])])
    from precflow.config.places import names, places
    from precflow.config.suggestions import near

    recipes = names("recipe", places(line.config_dirs))
    if word in recipes:
        raise ConfigError(f"{word} is a recipe, not a verb", next_step=f"precflow +recipe={word}")
    like = near(word, recipes, most=1)
    run = f"+recipe={like[0]}" if like else "+recipe=NAME"
    raise ConfigError(
        f"no such verb: {word}.{did_you_mean(word, VERBS)}   Verbs: {', '.join(VERBS)}",
        next_step=f"To run a recipe:  precflow {run}",
    )


def _run(line: flags.CommandLine, arguments: Sequence[str]) -> int:
    from precflow.config.composition import compose, sweep

    jobs = sweep(line.words, config_dirs=line.config_dirs) if line.multirun else [line.words]
    composed = [compose(job, config_dirs=line.config_dirs) for job in jobs]  # every job is checked before the first one runs
    from precflow.run.runner import publish, run

    command = shlex.join(["precflow", *arguments])
    ends = []
    outcomes: list[Outcome] = []

    def ended(one: Composed) -> tuple[int, str]:
        """Run a job, remember how that went, and return its exit code and verdict."""
        outcomes.append(run(one, command=command))
        return _end(outcomes[-1])

    for number, (job, one) in enumerate(zip(jobs, composed, strict=True), start=1):
        if len(jobs) > 1:
            _say(f" job {number} of {len(jobs)}   {' '.join(job)}")
        ends.append(_job(lambda one=one: ended(one)))  # type: ignore[misc]  # bound early on purpose
    code = worst([code for code, _ in ends])
    if len(jobs) > 1:
        _say(_jobs(jobs, [end for _, end in ends], code))
        for shown in _to_show(outcomes):
            publish(shown)
            _say(f" {shown.folder} shows the report of the worst of them: {shown.verdict}")
    return code


def _to_show(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the worst job of each run folder, where a better one was the last to leave its report there."""
    found = []
    for folder in dict.fromkeys(outcome.folder for outcome in outcomes):
        here = [outcome for outcome in outcomes if outcome.folder == folder and outcome.report is not None]
        code = worst([outcome.exit_code for outcome in here])
        found += [outcome for outcome in here if outcome.exit_code == code != here[-1].exit_code][:1]
    return found


def _job(work: Callable[[], tuple[int, str]], *, heard: bool = True) -> tuple[int, str]:
    """Run one job and return its exit code and how it ended, in words; what stops it does not stop the others.

    A reader who leaves (`precflow +recipe=NAME 2>&1 | head`) does: then the job goes on unheard, because its exit code counts.
    """
    try:
        return work()
    except PrecflowError as error:
        return _refused(error, as_json=False), _NOT_DONE
    except BrokenPipeError:
        if not heard:
            return 2, _NOT_DONE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return _job(work, heard=False)  # finished stages are kept


def _end(outcome: Outcome) -> tuple[int, str]:
    return outcome.exit_code, outcome.verdict or "done, not judged"  # one side alone has nothing to judge


def _jobs(jobs: Sequence[Sequence[str]], ends: Sequence[str], code: int) -> str:
    """Return what became of each job, by the words in which the jobs differ."""
    every = set(jobs[0]).intersection(*jobs)
    differing = [" ".join(word for word in job if word not in every) for job in jobs]
    rows = [f"   {end:<18} {words}" for words, end in zip(differing, ends, strict=True)]
    return "\n".join([f" {len(jobs)} jobs, exit {code}", *rows])


def _refused(error: PrecflowError, *, as_json: bool) -> int:
    _traceback()
    if as_json:
        sys.stdout.write(json.dumps(json_error(error), ensure_ascii=False) + "\n")
    _say(f" {error}")
    return 2


def _traceback() -> None:
    if os.environ.get("PRECFLOW_DEBUG") == "1":
        traceback.print_exc()


def _say(text: str) -> None:
    encoding = sys.stderr.encoding or "utf-8"
    with contextlib.suppress(BrokenPipeError):  # nobody reads: the exit code still counts
        sys.stderr.write(text.rstrip("\n").encode(encoding, "replace").decode(encoding) + "\n")
        sys.stderr.flush()


def short_help() -> str:
    """Return what ``precflow`` alone says: how to run a recipe, and the verbs."""
    verbs = "\n".join(f"   precflow {name:<10} {summary}" for name, summary in VERBS.items())
    return f""" precflow {__version__}: does a model that moved to another device still compute the same numbers?

   precflow +recipe=sd_text_encoder                        run a recipe
   precflow +recipe=sd_text_encoder target.dtype=float32   with a key of it changed
   precflow -m +recipe=NAME target.dtype=float16,bfloat16  once for each value

{verbs}

 Exit codes: 0 aligned, 1 misaligned, 2 could not be done, 3 inconclusive. More: precflow --help
"""
