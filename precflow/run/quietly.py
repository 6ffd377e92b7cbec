"""Runs a recipe without a word on the screen: what it says goes into a file."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from precflow.agent import redaction
from precflow.config.composition import compose
from precflow.run.runner import Outcome, run
from precflow.run.store import explain_disk_errors


def run_quietly(words: Sequence[str], config_dirs: Sequence[Path], log: Path) -> Outcome:
    """Compose the words of a command line, run them, and return how the run ended.

    Args:
        words: Overrides.
        config_dirs: Further folders of recipes.
        log: Is written anew with what the run says.

    Raises:
        PrecflowError: The words do not compose, or the run could not be done.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_disk_errors(log.parent))
        log.parent.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(log.open("w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stderr(file))
        stack.enter_context(contextlib.redirect_stdout(file))
        composed = compose(words, config_dirs=config_dirs)
        return run(composed, command=shlex.join(["precflow", *map(redaction.redact_word, words)]))
