"""Runs a recipe with some of its knobs turned, in a folder of its own, and tells whether a finding is still there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precflow.config.composition import Composed
from precflow.config.sections.whatifs import REFERENCE_CHOICE
from precflow.config.trust import may_set
from precflow.errors import ConfigError, SideError
from precflow.report.model import ReportModel
from precflow.run.knobs import Knob, Setting, write_words
from precflow.run.quietly import run_quietly
from precflow.run.reduction import SAME, Sought
from precflow.run.runner import Outcome
from precflow.stages.commands import key_of
from precflow.stages.report import read_model

RUN = "run"  # folder of the run of the recipe that was written
_STORE, _LAST, _LOG = "store", "last", "last_run.log"  # of the smaller runs: their store, the folder of each, what it has said
_CONFIGURATIONS = "configurations"  # smaller copies of a model's own, which the smaller recipe names
_ENVIRONMENT = "environment."  # facts of the machine: no knob changes them
_OWN = frozenset({"runs", "name", "store", "sides", "output", "whatif", "executor"})  # what a search sets or does without


@dataclass(frozen=True)
class Smaller:
    """A recipe whose smaller runs are made below a folder.

    Attributes:
        words: The overrides of the run that is to be made smaller.
        config_dirs: Further folders of recipes.
        composed: What these words mean.
        knobs: What can be turned.
        sought: The finding that has to stay.
        folder: Where everything is put.
        tell: Called with a line for the screen after each run.
    """

    words: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    composed: Composed
    knobs: Sequence[Knob]
    sought: Sought
    folder: Path
    tell: Callable[[str], None]

    def words_for(self, setting: Setting) -> list[str]:
        """Return the overrides of a run with a setting, without those that say where it runs and what it shows.

        Raises:
            StoreError: A smaller configuration of a model cannot be written.
        """
        own = write_words(self.composed.config, self.knobs, setting, self.folder / _CONFIGURATIONS)
        changed = {key_of(word) for word in own} | _OWN
        return [*(word for word in self.words if key_of(word) not in changed), *own]

    def remove_configurations(self, recipe: str) -> None:
        """Remove the smaller configurations of a model that the recipe that was written does not name."""
        folder = self.folder / _CONFIGURATIONS
        for made in folder.iterdir() if folder.is_dir() else ():  # all of it is ours: the search holds the folder's lock
            if str(made) not in recipe:
                shutil.rmtree(made) if made.is_dir() else made.unlink()

    def machine_words(self) -> list[str]:
        """Return the overrides that no recipe may have: they are typed behind the smaller recipe, too."""
        return [word for word in self.words if not self._is_of_recipe(key_of(word)) and key_of(word) not in _OWN]

    def _is_of_recipe(self, key: str) -> bool:
        return key == "recipe" or may_set(tuple(key.split(".")))

    def run(self, setting: Setting) -> str:
        """Run a setting and return whether the finding was there, in words; what the run has made is deleted.

        Raises:
            PrecflowError: It could not be done for a reason that has nothing to do with the setting.
        """
        store = self.folder / _STORE
        try:
            _, model = self._run(self.words_for(setting), _LAST, store, "report.formats=[json]")
            outcome = self._describe(model)
        except (ConfigError, SideError) as error:  # a smaller model may be none, and its inputs may not fit
            problems = error.problems if isinstance(error, ConfigError) else ()
            why = f"{problems[0].key.strip()} {problems[0].message}" if problems else error.message
            outcome = f"could not be done: {why.splitlines()[0]}"
        shutil.rmtree(self.folder / _LAST, ignore_errors=True)
        own = store / self.composed.config.recipe
        for made in own.iterdir() if own.is_dir() else ():  # all of it is ours: the search holds the folder's lock
            if made.is_dir() and not made.name.startswith(_ENVIRONMENT):
                shutil.rmtree(made, ignore_errors=True)
        return outcome

    def run_written(self, recipe: Path) -> Path:
        """Run the recipe that was written, as its user would, and return its run folder.

        Raises:
            PrecflowError: It cannot be run, or has another finding.
        """
        outcome, model = self._run([f"+recipe={recipe}", *self.machine_words()], RUN, self.folder / RUN / "store")
        said = self._describe(model)
        if said != SAME or outcome.folder is None:
            raise ConfigError(
                f"{recipe} has another finding than the run that it was made from: {said}",
                next_step=f"see {self.folder / _LOG}; what was tried is kept",
            )
        return outcome.folder

    def _run(self, words: Sequence[str], name: str, store: Path, *further: str) -> tuple[Outcome, ReportModel | None]:
        """Run without a word on the screen."""
        # What-ifs explain a finding and cost runs; this one decides what the target computes.
        kept = REFERENCE_CHOICE if REFERENCE_CHOICE in self.composed.config.whatif else ""
        own = [f"runs={self.folder}", f"name={name}", f"store={store}", f"whatif=[{kept}]"]
        outcome = run_quietly([*words, *own, *further], self.config_dirs, self.folder / _LOG)
        return outcome, None if outcome.report is None else read_model(outcome.report)

    def _describe(self, model: ReportModel | None) -> str:
        if model is None:
            return "judged nothing"
        if self.sought.is_in(model):
            return SAME
        first = model.findings[0] if model.findings else None
        found = f"{first.rule} at {first.where}" if first and first.where else first.rule if first else "no finding"
        return f"{model.verdict.verdict}, {found}"
