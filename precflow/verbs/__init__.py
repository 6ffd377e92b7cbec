"""The verbs of the command line, one module each with ``main(arguments) -> exit code``; here is what they share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from precflow.config import command_line
from precflow.errors import ConfigError, PrecflowError
from precflow.streams import count_cells, printable, say, write
from precflow.streams import write_json as print_json

if TYPE_CHECKING:
    from precflow.config.schema import RunConfig

__all__ = [
    "DELETING",
    "OTHER_WORDS",
    "VERBS",
    "Verb",
    "compose_site",
    "error_as_json",
    "format_table",
    "make_parser",
    "print_json",
    "say",
    "write",
]

_ANY_RECIPE = "+recipe=sd_text_encoder"  # a site file is composed on top of a recipe; which one makes no difference here


class Verb(NamedTuple):
    """What a verb shows or does, in one line, and how it is typed: its arguments in an example."""

    summary: str
    example: str


VERBS: Mapping[str, Verb] = {
    "ls": Verb("recipes, or another group: ls site, ls standard; ls runs: what ran here", "ls runs"),
    "explain": Verb("what a key of a recipe takes, what it means, who may set it", "explain tolerance.standards"),
    "show": Verb("a composed recipe, each line with the file and line it comes from", "show +recipe=minilm"),
    "cp": Verb("copy a recipe to change it", "cp sd_text_encoder my_model"),
    "validate": Verb("check recipes and overrides without running anything", "validate recipes/my_model.yaml"),
    "plan": Verb("what a run would do, and why", "plan +recipe=sd_text_encoder"),
    "open": Verb("the newest report, or that of one run", "open runs/minilm@3"),
    "inspect": Verb("what a dump holds, its records by pattern, or one record in full", "inspect DUMP 'model.layers.0*'"),
    "convert": Verb("tensors of a dump as npy or txt files", "convert DUMP 'model.layers.0*' --to npy"),
    "compare": Verb("two dumps without a recipe, or one record of both in full", "compare gpu_dump npu_dump"),
    "diff": Verb("two runs of a recipe: what changed, what got better or worse", "diff runs/minilm@2 runs/minilm@3"),
    "bundle": Verb("one side of a run in one file, to carry to the other machine", "bundle runs/minilm:reference"),
    "unbundle": Verb("verify such a file, and put it where runs look", "unbundle minilm-reference.bundle.tar"),
    "pin": Verb("keep one upload in a store, whatever its age", "pin dump.reference-9f1c +site=local"),
    "prune": Verb("free space: what no kept run needs; deletes with --yes", "prune runs/minilm"),
    "doctor": Verb("this machine: what can be a side, and what is wrong", "doctor"),
    "request": Verb("what the agent of one side is asked, for a job that others start", "request minilm sides=[target]"),
    "agent": Verb("write precflow-agent.pyz, the one file that a side needs", "agent ."),
}
DELETING = frozenset({"prune"})  # nobody who typed something else is led to one of these

# The verbs of other tools -> what is typed here; "" is the line of a run itself.
OTHER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("run", "start", "execute", "exec", "launch", "go", "test"), ""),
    **dict.fromkeys(("rerun", "resume", "continue", "again", "retry"), ""),
    **dict.fromkeys(("dryrun", "dry-run", "preview"), "plan"),
    **dict.fromkeys(("check", "lint", "verify"), "validate"),
    **dict.fromkeys(("list", "dir", "recipes"), "ls"),
    **dict.fromkeys(("runs", "history", "status", "log"), "ls runs"),
    **dict.fromkeys(("report", "view", "results", "result"), "open"),
    **dict.fromkeys(("new", "init", "create", "copy"), "cp"),
    **dict.fromkeys(("info", "dump", "cat"), "inspect"),
    **dict.fromkeys(("export", "extract"), "convert"),
    **dict.fromkeys(("env", "environment", "devices"), "doctor"),
    **dict.fromkeys(("keys", "key", "describe"), "explain"),
    **dict.fromkeys(("help", "version"), "--{word}"),
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose error for an unknown option suggests the one that was probably meant."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the parsed arguments.

        Raises:
            ConfigError: The verb has no such option.
        """
        words = list(args or ())
        # argparse itself would say only "unrecognized arguments: --ouput". Words behind "--" are no options, whatever they are.
        for number, word in enumerate(words[: words.index("--")] if "--" in words else words):
            option, equals, value = word.partition("=")
            if option.startswith("--") and option not in self._option_string_actions:
                known = sorted(name for name in self._option_string_actions if name.startswith("--"))
                given = value if equals else command_line.value_after(words[number + 1 :])
                raise command_line.unknown_option_error(option, given, known, next_step=f"{self.prog} --help")
        # parse_args of argparse fills `nargs="*"` once: of `validate a --json b` it would refuse `b` as unrecognized.
        return super().parse_intermixed_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and leave with exit code 2."""
        super().error(printable(message))  # the message repeats what was typed, which may hold control characters


def make_parser(verb: str, usage: str) -> argparse.ArgumentParser:
    """Return an argument parser with the options that every verb has: ``--json`` and ``--config-dir``."""
    options = _Parser(
        prog=f"precflow {verb}",
        usage=f"precflow {verb} {usage} [--json] [--config-dir DIR]",
        description=VERBS[verb].summary,
        epilog=f"for example:  precflow {VERBS[verb].example}",
        allow_abbrev=False,
    )
    options.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    options.add_argument(
        "--config-dir", "-cd", type=Path, action="append", default=[], metavar="DIR", help="a folder with recipes/ and site/"
    )
    return options


def compose_site(words: Sequence[str], config_dirs: Sequence[Path]) -> RunConfig:
    """Return what the words ``+site=NAME`` and ``KEY=VALUE`` say, without asking for a whole recipe.

    Raises:
        ConfigError: The site file or an override is not usable.
    """
    from precflow.config.schema import RunConfig

    if not words:
        return RunConfig()
    from precflow.config.composition import compose

    named = any(word.lstrip("+").startswith("recipe=") for word in words)
    return compose([*([] if named else [_ANY_RECIPE]), *words], config_dirs=config_dirs, complete=False).config


def error_as_json(error: PrecflowError) -> dict[str, Any]:
    """Return an error as plain data for ``--json``."""
    problems = error.problems if isinstance(error, ConfigError) else ()
    rows = [{"place": problem.place, "key": problem.key.strip(), "message": problem.message} for problem in problems]
    return {"error": error.message, "problems": rows, "next_step": error.next_step}


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in aligned columns; a wide character, such as a Chinese one, takes two places."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(count_cells(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = (
        "   ".join(cell + " " * (width - count_cells(cell)) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return "\n".join(f" {line.rstrip()}" for line in lines)
