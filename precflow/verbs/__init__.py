"""The verbs of the command line, one module each with ``main(arguments) -> exit code``; here is what they share."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from precflow.config import command_line
from precflow.errors import ConfigError, PrecflowError
from precflow.language import ENGLISH, said, spoken
from precflow.streams import count_cells, printable, say, write
from precflow.streams import write_json as print_json

if TYPE_CHECKING:
    from precflow.config.schema import RunConfig

__all__ = [
    "Verb",
    "compose_site",
    "error_as_json",
    "format_table",
    "is_verb",
    "list_other_words",
    "list_verbs",
    "make_parser",
    "print_json",
    "say",
    "write",
    "write_table",
]

_ANY_RECIPE = "+recipe=sd_text_encoder"  # a site file is composed on top of a recipe; which one makes no difference here
_RUN_WORDS = ("run", "start", "execute", "exec", "launch", "go", "test", "rerun", "resume", "continue", "again", "retry")


class Verb(NamedTuple):
    """What ``precflow`` knows of a verb before it imports its module: the constant ``VERB`` there.

    Attributes:
        place: Verbs are listed in this order.
        summary: What it shows or does, in one line.
        example: How it is typed, with arguments.
        other_words: What other tools call it; somebody who types one of these is led here.
        phrases: The same, where the words that are meant are more than the verb.
        takes_recipe: Overrides follow it: ``+recipe=NAME`` and ``KEY=VALUE``.
        deletes: It deletes what cannot be made again at once; nobody who typed something else is led to it.
    """

    place: int
    summary: str
    example: str
    other_words: Sequence[str] = ()
    phrases: Mapping[str, str] = MappingProxyType({})
    takes_recipe: bool = False
    deletes: bool = False


@lru_cache
def list_verbs(folder: Path = Path(__file__).parent) -> Mapping[str, Verb]:
    """Return name -> verb for the modules of a folder, in the order in which they are listed.

    The constants are read from the text of the modules: to import them all takes longer than ``--help`` may.
    """
    verbs = {path.stem: _read_constant(path) for path in folder.glob("[a-z]*.py")}
    return dict(sorted(verbs.items(), key=lambda each: each[1].place))


def is_verb(word: str) -> bool:
    """Tell whether a word is a verb, without reading any."""
    return word.isidentifier() and not word.startswith("_") and (Path(__file__).parent / f"{word}.py").is_file()


def _read_constant(path: Path) -> Verb:
    """Return the ``VERB`` of a module.

    Raises:
        TypeError: It has none, or one that is no plain ``Verb(...)``: a fault of ours.
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERB" and isinstance(node.value, ast.Call):
            named = {str(each.arg): ast.literal_eval(each.value) for each in node.value.keywords}
            return Verb(*map(ast.literal_eval, node.value.args), **named)
    raise TypeError(f"{path} has no VERB = Verb(...)")


def list_other_words() -> Mapping[str, str]:
    """Return what other tools call a verb -> what is typed here; ``""`` is the line of a run itself, which has no verb."""
    words = dict.fromkeys(_RUN_WORDS, "") | {word: f"--{word}" for word in ("help", "version")}
    for name, verb in list_verbs().items():
        words |= {**dict.fromkeys(verb.other_words, name), **verb.phrases}
    return words


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

    def format_help(self) -> str:
        """Return the help as it is spoken: its parts are translated before they are folded."""
        if spoken() != ENGLISH:
            self.description = said(self.description or "")
            self.epilog = said(self.epilog or "")
            for group in self._action_groups:
                group.title = said(group.title or "")
            for action in self._actions:
                action.help = said(action.help) if action.help else action.help
        return super().format_help().replace("usage:", said("usage:"), 1)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and leave with exit code 2."""
        super().error(printable(said(message)))  # the message repeats what was typed, which may hold control characters


def make_parser(verb: str, usage: str) -> argparse.ArgumentParser:
    """Return an argument parser with the options that every verb has: ``--json`` and ``--config-dir``."""
    options = _Parser(
        prog=f"precflow {verb}",
        usage=f"precflow {verb} {usage} [--json] [--config-dir DIR]",
        description=list_verbs()[verb].summary,
        epilog=f"for example:  precflow {list_verbs()[verb].example}",
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


def write_table(rows: Sequence[Sequence[str]], *, typed: Collection[int]) -> None:
    """Print rows in columns as they are spoken, but for the columns of names that people type."""
    shown = [[cell if number in typed else said(cell) for number, cell in enumerate(row)] for row in rows]
    write(format_table(shown), translated=True)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in aligned columns; a wide character, such as a Chinese one, takes two places."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(count_cells(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = (
        "   ".join(cell + " " * (width - count_cells(cell)) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return "\n".join(f" {line.rstrip()}" for line in lines)
