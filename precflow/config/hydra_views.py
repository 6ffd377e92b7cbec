"""Hydra's own views of precflow's configuration: ``--cfg``, ``--info``, ``--help`` and tab completion.

The overrides are checked first, as for a run, so that Hydra reads only what was checked. Its exit code 1 becomes 2.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from precflow import resources
from precflow.config import overrides, recipe_source
from precflow.config.command_line import CommandLine
from precflow.config.composition import compose
from precflow.config.key_tree import list_keys
from precflow.config.search_path import list_folders
from precflow.errors import ConfigError
from precflow.streams import write


def show(line: CommandLine) -> int:
    """Let Hydra print what an option asks for; return 0, or 2 if it cannot.

    Raises:
        ConfigError: The words are not usable.
    """
    words, _ = overrides.read(line.words)
    if line.asks_for("--cfg", "--info", "--hydra-help") and line.words:
        compose(line.words, config_dirs=line.config_dirs, complete=False)
    words, extra = overrides.resolve_recipe_files(words)
    within = (*extra, *list_folders(line.config_dirs))
    recipe_source.register()
    with recipe_source.search_in(within):
        # Hydra's own help needs no recipe, and fails if one is chosen.
        return _run_hydra([*line.options, *(word.text for word in words if not line.asks_for("--hydra-help"))])


def complete_word(arguments: Sequence[str], verbs: Mapping[str, bool] | None = None) -> int:
    """Install, remove or answer tab completion.

    The shell puts the line that was typed so far into the variable ``COMP_LINE`` and reads the completions from stdout.

    Args:
        arguments: Hydra's option with its values.
        verbs: Name -> whether overrides follow it. After other verbs come files, which the shell completes by itself.
    """
    typed = os.environ.get("COMP_LINE", "")
    _, *words = typed.split(" ")
    if len(words) == 1 and (completed := [verb for verb in verbs or () if words[0] and verb.startswith(words[0])]):
        write(" ".join(completed))
        return 0
    if len(words) > 1 and words[0] == "explain":
        write(" ".join(key for key in list_keys() if key.startswith(words[-1])))
        return 0
    if len(words) > 1 and words[0] in (verbs or {}):
        if not (verbs or {})[words[0]]:
            return 0
        typed = typed.replace(f" {words[0]} ", " ", 1)  # Hydra knows no verbs
    # The groups are in the defaults, so Hydra completes them without the plus.
    os.environ["COMP_LINE"] = typed.replace(" +", " ")
    recipe_source.register()
    answer = io.StringIO()
    with recipe_source.search_in(list_folders()), contextlib.redirect_stdout(answer):
        code = _run_hydra(arguments)
    completions = answer.getvalue()
    if typed.split(" ")[-1].startswith("+"):
        # The shell compares each completion with the word that was typed, which has a plus.
        completions = " ".join(f"+{word}" for word in completions.split())
    write(completions.removesuffix("\n"), folded=False)
    return code


def _run_hydra(arguments: Sequence[str]) -> int:
    application = hydra.main(version_base="1.3", config_path=str(resources.directory("conf")), config_name="config")(_nothing)
    before, log = sys.argv, logging.getLogger()
    handlers, level = list(log.handlers), log.level
    sys.argv = ["precflow", *arguments]  # Hydra reads its options from here; its main function takes none
    try:
        application()
    except SystemExit as end:
        return 0 if end.code in (0, None) else 2
    except HydraException as error:
        raise ConfigError(f"Hydra cannot show this: {str(error).splitlines()[0]}", next_step="precflow --help") from error
    finally:
        sys.argv = before
        log.handlers[:], log.level = handlers, level  # --info puts Hydra's own in place
    return 0


def _nothing(config: DictConfig) -> None:
    """Do nothing: Hydra wants a function to run, and every option that leads here only prints something."""
