"""Separates the options of a command line from its words; Hydra's options may stand anywhere, also between overrides."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precflow.config.key_tree import explain_problem
from precflow.config.search_path import GROUPS
from precflow.config.suggestions import did_you_mean
from precflow.errors import ConfigError

_FULL = {  # Hydra's short options
    "-h": "--help",
    "-c": "--cfg",
    "-p": "--package",
    "-i": "--info",
    "-m": "--multirun",
    "-r": "--run",
    "-cd": "--config-dir",
    "-cp": "--config-path",
    "-cn": "--config-name",
    "-sc": "--shell-completion",
}
_ALONE = ("--help", "--hydra-help", "--version", "--multirun", "--run", "--resolve", "--shell-completion")
_WITH_VALUE = ("--cfg", "--package", "--config-dir")
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_REFUSED = {
    "--config-path": "precflow's own configuration is the root; your files come by --config-dir DIR",
    "--config-name": "precflow's own configuration is the root; choose with +recipe=NAME",
    "--experimental-rerun": "the same command again goes on where the last one stopped",
}
# Options of other tools -> what is typed here.
_ELSEWHERE = {
    **dict.fromkeys(
        ("--dry-run", "--dryrun", "--preview", "-n"), "what a run would do, without running it:  precflow plan +recipe=NAME ..."
    ),
    **dict.fromkeys(("--resume", "--continue", "--rerun"), _REFUSED["--experimental-rerun"]),
    **dict.fromkeys(
        ("--force", "--no-cache", "-f"),
        "stages are made again where what they depend on changed; runs=FOLDER begins anew",
    ),
    **dict.fromkeys(("--verbose", "-v", "--debug"), "PRECFLOW_DEBUG=1 before the command shows tracebacks"),
    **dict.fromkeys(("--quiet", "-q"), "output=quiet says no more than the verdict"),
    **dict.fromkeys(("--list", "-l"), "precflow ls lists recipes, precflow ls GROUP another group"),
    "-V": "precflow --version",
}
_KNOWN = (*_ALONE, *_WITH_VALUE, "--info")
SHOW_OPTIONS = ("--version", "--cfg", "--info", "--help", "--hydra-help", "--shell-completion")


@dataclass(frozen=True)
class CommandLine:
    """A command line in its parts.

    Attributes:
        words: Everything that is no option, in order: a verb and its arguments, or overrides.
        options: Hydra's options with their values, as Hydra reads them, without ``--config-dir`` and ``--multirun``.
        config_dirs: Values of ``--config-dir``.
        multirun: ``-m`` was given.
    """

    words: tuple[str, ...]
    options: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    multirun: bool

    def asks_for(self, *options: str) -> bool:
        """Tell whether one of these options was given."""
        return any(option in self.options for option in options)


def parse(arguments: Sequence[str]) -> CommandLine:
    """Separate options and words.

    Raises:
        ConfigError: An option is unknown, lacks its value or is not for precflow.
    """
    words: list[str] = []
    options: list[str] = []
    folders: list[Path] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, value = _read_option(word, waiting)
        if name == "--config-dir":
            folders.append(Path(value or ""))
        else:
            options += [name] if value is None else [name, value]
    kept = tuple(option for option in options if option not in ("--multirun", "--run"))
    return CommandLine(tuple(words), kept, tuple(folders), multirun="--multirun" in options)


def parse_words(command: str) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the overrides and the folders of recipes in the command that a run's history names.

    Raises:
        ConfigError: It is no command line of a recipe.
    """
    line = parse(shlex.split(command)[1:])
    if not any(word.lstrip("+").startswith("recipe=") for word in line.words):
        raise ConfigError(f"no recipe was run:  {command}", next_step="precflow ls runs lists what was")
    return line.words, line.config_dirs


def _read_option(word: str, waiting: list[str]) -> tuple[str, str | None]:
    """Return an option's full name and its value, which may be the next word; that word is removed from ``waiting``."""
    typed, equals, value = word.partition("=")
    name = _FULL.get(typed, typed)
    if name not in _KNOWN:
        raise unknown_option_error(name, value if equals else value_after(waiting), _KNOWN)
    if name in _ALONE:
        return name, None
    if equals:
        return name, value
    if name == "--info":
        return name, waiting.pop(0) if waiting and waiting[0] in _INFO else "all"
    if not waiting or waiting[0].startswith("-"):
        raise ConfigError(f"{name} needs a value", next_step="precflow --help")
    return name, waiting.pop(0)


def value_after(words: Sequence[str]) -> str:
    """Return the first word if it can be the value of the option before it, else ``""``."""
    return words[0] if words and "=" not in words[0] and not words[0].startswith("-") else ""


def unknown_option_error(option: str, value: str, known: Sequence[str], *, next_step: str = "precflow --help") -> ConfigError:
    """Return the error for an unknown option; it says how to write a recipe or a key, which people type with dashes too.

    Args:
        option: As typed, without its value.
        value: What was given to it.
        known: Options that there are.
        next_step: What lists them.
    """
    if option in _REFUSED:
        return ConfigError(f"{option} is not for precflow: {_REFUSED[option]}")
    if option in _ELSEWHERE and option not in known:
        return ConfigError(f"no such option: {option}", next_step=_ELSEWHERE[option])
    key, given = option.lstrip("-"), value or "VALUE"
    if key in GROUPS:
        return ConfigError(f"no such option: {option}. What is chosen by name goes without dashes:  +{key}={given}")
    wrong = explain_problem(tuple(key.split(".")))
    if not wrong:
        return ConfigError(f"no such option: {option}. Keys go without dashes:  {key}={given}")
    if "." in key:
        return ConfigError(f"no such option: {option}. Keys go without dashes, and {key} is {wrong}")
    return ConfigError(f"no such option: {option}.{did_you_mean(option, known)}", next_step=next_step)
