"""Action ``dump`` for a script: run it, record the chosen steps, and seal the dump."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

import torch

from precflow.agent import intake, redaction
from precflow.agent.contract import (
    BATCHES_FOLDER,
    DRAWS_PATCH,
    EMPTY_HEADER,
    FILES_FOLDER,
    FILES_OF_RANK,
    PLAIN_FILE,
    RECORDED,
    script_module,
)
from precflow.agent.dump.finished_steps import index_outputs
from precflow.agent.dump.write_errors import write_error
from precflow.agent.failures import AgentError
from precflow.agent.measure import value_classes
from precflow.agent.measure.content_id import add_digest
from precflow.agent.ranks import rank_of
from precflow.agent.recording import OpenDump, check_capture, describe_run
from precflow.agent.request import runs_eagerly
from precflow.agent.script.batches import Batches
from precflow.agent.script.files import FileKeeper
from precflow.agent.script.launch import (
    command_words,
    describe_modules,
    digest_modules,
    find_script,
    moves_draws,
    name_script,
    run_to_end,
    surroundings,
)
from precflow.agent.script.models import Model
from precflow.agent.script.noise import ScriptNoise
from precflow.agent.script.outcome import check_outcome
from precflow.agent.script.patch import make_patch
from precflow.agent.script.plain import Trace, compare_with_plain
from precflow.agent.script.samples import Samples
from precflow.agent.script.seeds import find_seeds
from precflow.agent.script.watcher import Settings, Watcher
from precflow.agent.selection import check_scope_of
from precflow.agent.session import faults, rank_group
from precflow.agent.session.changes import Changed, Seeds, count_compiled
from precflow.agent.session.dump import make_random_numbers, open_writer
from precflow.agent.session.failed_call import describe_failure
from precflow.agent.session.noise import OF_WORKLOAD, write_outcome
from precflow.agent.session.program import find_loaders, find_settings, find_sources, name_loaders, write_sources

if TYPE_CHECKING:
    from precflow.agent.devices.protocol import Device
    from precflow.agent.dump.writer import Writer
    from precflow.agent.events import Events
    from precflow.agent.request import Request

_OF_PYTHON = frozenset(("Python", "NumPy"))  # generators of which nobody can tell who seeded them last


def dump_script(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the script of a request on a started device and write its dump into ``request.output``.

    Besides the dump there are ``output.log``, what the script printed, and the folder ``files``, files that it wrote.

    Raises:
        AgentError: Of every kind. If the script raised an exception, that is its cause, and the records made until then stay
            readable, without a seal.
    """
    rank_group.check_device(request, device)
    value_classes.add_constants(request.capture.fills)
    with open_writer(request, where, request.output) as writer:
        check_capture(request)
        ScriptDump(request, device, writer, events).run()


def disturb_script(request: Request, device: Device, where: torch.device, events: Events) -> None:
    """Run the script of a request with the disturbance that it names, and write its dump into ``request.output``.

    If the script does not run in this way, ``problem`` in ``noise.json`` says why: the run can still be judged by fixed limits.

    Raises:
        AgentError: Of every kind but those of ``OF_WORKLOAD``.
    """
    problem = "the inside of compiled modules cannot be disturbed"
    if runs_eagerly(request):
        try:
            dump_script(request, device, where, events)
            problem = ""
        except AgentError as error:
            if error.kind not in OF_WORKLOAD:
                raise
            problem = error.message
            rank_group.give_up(request, "%s (rank %d)" % (problem, rank_of(request)))
    write_outcome(request, problem, events)


class ScriptDump:
    """One recorded run of a script; it listens to its own watcher.

    Args:
        request: Names the script and what is recorded of it.
        device: The started device. The script chooses its own; this one is seeded, and describes the side.
        writer: Where records and tensors go.
        events: Progress.
    """

    def __init__(self, request: Request, device: Device, writer: Writer, events: Events) -> None:
        capture, workload = request.capture, request.workload
        self._request, self._device, self._writer, self._events = request, device, writer, events
        self._path = str(workload["script"])
        self._samples = Samples()
        self._words = command_words(workload.get("arguments", {}))
        self._compiles = not runs_eagerly(request)
        self._dump = OpenDump(request, device, writer, events=events)
        self._recorder = self._dump.recorder
        self._numbers = make_random_numbers(request)
        settings = Settings(
            steps=frozenset(capture.step),
            stop=bool(workload.get("stop_early", False)),
            evaluation=bool(workload.get("evaluation", False)),
            compiles=self._compiles,
            dropout=request.determinism.dropout == "kept",
            rank=rank_of(request),
        )
        # Draws are moved wherever they happen, so the mode is on for the whole run. Where it only lists them, the start of the
        # script and the recorded steps are enough: it costs every torch function some time.
        self._always_numbers = moves_draws(request, device)
        self._batches = _open_batches(request)
        self._watcher = Watcher(settings, self._recorder, writer, self, self._batches)
        self._noise = ScriptNoise(request.noise, self._recorder.without_recording())
        self._files = FileKeeper([str(each) for each in workload.get("files", ())])
        self._faults = ExitStack()  # what tells the rules of an emulated fault which module is running
        self._folder = os.getcwd()  # the script may change it
        self._seeded = Seeds(request.determinism, device)
        self._compiled = 0  # what torch.compile has wrapped when the first recorded step began
        self._trace = Trace(device)  # of one step, if there is a plain run that it is compared with
        self._compared: Optional[int] = None  # that step
        self._seeds: Dict[str, Any] = {"torch": None, "sites": []}
        self._program: Dict[str, Any] = {}  # its settings, and how it reads its data
        self._is_sealed = False
        self._problem: Optional[AgentError] = None  # why it could not be sealed when the script was to be stopped

    def run(self) -> None:
        """Run the script, and seal the dump unless that was done when it was stopped."""
        faults.refuse_redraws(self._request)
        part = self._events.time_part("script", "running %s" % name_script(self._path))
        with part, surroundings(self._request, self._device, self._numbers):
            if self._always_numbers or self._device.name != "cpu":
                self._numbers.start()
            self._trace.begin()
            self._seeded.begin()
            with self._noise, self._faults, self._samples, self._watcher:
                run_to_end(self._request, lambda: self._watcher.steps.finished, self._describe_failure)
        if self._writer.failure is not None:  # the script has caught the exception itself
            raise self._writer.failure
        if self._problem is not None:
            raise self._problem
        if not self._is_sealed:
            self._seal()

    def _describe_failure(self, error: BaseException) -> Dict[str, Any]:
        """Return where the script raised an exception."""
        tops = [(model.name, model.top) for model in self._watcher.models]
        where = describe_failure(error, self._recorder.trail, tops)
        return {**where, "step": self._watcher.steps.number if self._watcher.models.known else None}

    # What the watcher reports

    def meet(self, model: Model) -> None:
        """Disturb the model, and tell the rules of an emulated fault which of its modules is running, until the script ends."""
        self._noise.meet(model.top)
        if any(True for _ in model.top.parameters()):  # a loss module is no new forward, at which the rules count calls anew
            self._faults.enter_context(faults.follow_modules(self._request, model.top))

    def begin_step(self, number: int) -> None:
        """Note the seed of the script, and say which step is recorded; after the first step, refuse a fault without a place."""
        if number == 0:
            self._seeds["torch"] = torch.initial_seed()
            # Before the script ends: what only its functions hold is gone then.
            self._program = {"hyperparameters": find_settings(self._words), "loaders": name_loaders(find_loaders())}
        if number == 1:  # the first step has called every model
            faults.refuse_misplaced(self._request, [model.top for model in self._watcher.models])
        if number in self._request.capture.step:
            if number == min(self._request.capture.step) and not self._compiles:
                self._compiled = count_compiled()
            self._events.report_progress("script", "recording step %d" % number)
        elif number and not self._always_numbers:
            self._numbers.stop()

    def after_optimizer(self, step: int, call: int, optimizer: torch.optim.Optimizer) -> None:
        """Note what an optimizer of the first recorded step has left, if there is a plain run to compare it with."""
        if self._request.plain_run and self._compared in (None, step):
            self._compared = step
            self._trace.note(call, optimizer)

    @contextmanager
    def around_recording(self) -> Iterator[None]:
        """List the draws of a recorded step."""
        if self._device.name != "cpu":
            self._numbers.start()
        try:
            yield
        finally:
            if not self._always_numbers:
                self._numbers.stop()

    # The header

    def seal(self) -> None:
        """Seal before the script is stopped: what it does when it is stopped cannot be known."""
        try:
            self._seal(whole=False)
        except AgentError as problem:
            self._problem = problem

    def _seal(self, *, whole: bool = True) -> None:
        """Check that everything was recorded, keep the script's files, and seal the dump.

        Args:
            whole: The script ran to its end, and was not stopped after its last recorded step.

        Raises:
            AgentError: A step is missing, or nothing was recorded.
        """
        watcher, request = self._watcher, self._request
        if self._batches is not None:
            self._batches.check_end()
        check_outcome(watcher, request, name_script(self._path), self._recorder.records, self._device.name)
        check_scope_of([(model.name, model.top) for model in watcher.models], request.capture.scope, request.capture.rules)
        faults.check_acted(request)
        self._events.report_progress("seal", "writing the header")
        self._seeds["sites"] = find_seeds(self._find_modules().items())
        header = self._dump.describe(
            weights=add_digest(watcher.weights),
            inputs=add_digest(watcher.inputs),
            changed=Changed(
                dropouts=watcher.dropouts,
                functional_dropouts=self._numbers.removed,
                seeded=self._find_seeded(),
                more=self._count_changes(),
            ),
            draws=self._numbers.draws,
        )
        rank_group.seal(
            request,
            self._writer,
            {
                **header,
                "facts": {**header["facts"], **self._describe_program()},
                "dtype": self._dtype(),
                "losses": [sum(watcher.losses[step]) for step in sorted(watcher.losses)],
                "loss_steps": sorted(watcher.losses),
                "ran": [
                    describe_run(
                        steps=watcher.steps.finished,
                        micro_batches=sum(watcher.steps.micro_batches.values()),
                        calls=watcher.calls,
                        whole=whole,
                    )
                ],
                "repeat": self._compare_with_first_run(),
                "observer": self._compare_with_plain_run(),
                "seconds": dict(self._events.seconds),
                "script": self._describe_run("ran to its end" if whole else "stopped after its last recorded step"),
            },
        )
        self._is_sealed = True

    def _describe_program(self) -> Dict[str, Any]:
        """Return what the facts of this side say about its program, and write its sources beside the dump."""
        if rank_of(self._request):
            return {}
        sources = {**find_sources([model.top for model in self._watcher.models]), **self._find_modules()}
        sources = {name: path for name, path in sources.items() if os.path.isfile(path)}
        digests = write_sources(self._request.output, sources)
        script = {"script": name_script(self._path)}
        return {
            **self._program,
            "batches": self._watcher.order,
            "samples": self._samples.order,
            "sources": digests,
            "program": script,
        }

    def _find_seeded(self) -> List[str]:
        """Return the generators that drew from the seed of the recipe: the script has not seeded them itself."""
        ours = self._seeds["torch"] == self._request.determinism.seed
        used = self._seeded.find_used()
        return used if ours and not self._seeds["sites"] else [name for name in used if ours and name not in _OF_PYTHON]

    def _count_changes(self) -> Dict[str, int]:
        """Return what else was changed in the script, by its name in ``contract.CHANGES``."""
        given = {} if self._batches is None else self._batches.describe()
        return {
            "batches": given["different"] if given.get("kind") == "fed" else 0,
            "compiled": 0 if self._compiles else self._compiled or count_compiled(),
        }

    def _compare_with_first_run(self) -> Dict[str, Any]:
        """Return what differs from the first run of the script, of which only digests were kept."""
        request, rank = self._request, self._watcher.settings.rank
        if not request.first_run:
            return {"checked": False, "records": 0, "by": [], "different": []}
        first: Dict[str, str] = {}
        second: Dict[str, str] = {}
        for step in request.capture.step:
            first.update(index_outputs(_read_lines(request.first_run, rank, step)))
            second.update(index_outputs(self._writer.lines(step, rank)))
        identities = {**first, **second}
        different = [identity for identity in identities if first.get(identity) != second.get(identity)]
        by = sorted({"statistics" if detail == "statistics" else "bits" for detail in self._dump.selection.details})
        return {"checked": True, "records": len(identities), "by": by, "different": different}

    def _compare_with_plain_run(self) -> Dict[str, Any]:
        """Return what differs from the run without hooks, at the first recorded step in which an optimizer has stepped."""
        step = self._compared
        if step is None:
            return dict(EMPTY_HEADER["observer"])
        plain = intake.read_json(os.path.join(self._request.plain_run, PLAIN_FILE % self._watcher.settings.rank))
        different = compare_with_plain(plain, self._trace, self._watcher.losses.get(step, []))
        return {"checked": True, "step": step, "different": different}

    def _dtype(self) -> str:
        """Return the floating point type of most weights of the first model that is trained, or of the first one."""
        counts: Dict[str, int] = {}
        for model in self._watcher.models:
            for weight in model.top.parameters():
                if weight.is_floating_point():
                    dtype = str(weight.dtype).rpartition(".")[2]
                    counts[dtype] = counts.get(dtype, 0) + weight.numel()
        return max(counts, key=lambda dtype: counts[dtype]) if counts else "float32"

    def _find_modules(self) -> Dict[str, str]:
        """Return name -> path of the script and of the user's modules that it has imported."""
        file = find_script(self._path, self._folder)
        # Of a module, everything in the folder that it was started in is the user's.
        folder = self._folder if script_module(self._path) else os.path.dirname(file)
        return {name_script(self._path): file, **describe_modules(folder)}

    def _describe_run(self, end: str) -> Dict[str, Any]:
        """Return what the header says about the script and its run."""
        watcher = self._watcher
        to = FILES_FOLDER if not watcher.settings.rank else FILES_OF_RANK % watcher.settings.rank
        files = self._files.keep(os.path.join(self._request.output, to))
        patch = make_patch(self._numbers.places, self._folder)
        if patch.text:
            write_text(os.path.join(self._request.output, DRAWS_PATCH), patch.text)
        return {
            "file": name_script(self._path),
            "arguments": redaction.redact([str(word) for word in self._words]),
            "end": end,
            "steps": watcher.steps.finished,
            "micro_batches": list_runs(watcher.steps.micro_batches),
            "in_evaluation": list_runs({step: watcher.in_evaluation.get(step, 0) for step in watcher.steps.micro_batches}),
            "skipped": watcher.steps.skipped,
            "merged": watcher.steps.merged,
            "evaluations": watcher.evaluations,
            "models": [model.title for model in watcher.models],
            "batches": None if self._batches is None else self._batches.describe(),
            "compile": "kept" if self._compiles else "eager",
            "migration": str(self._request.workload.get("migration", "")),
            "modules": digest_modules(self._find_modules()),
            "seeds": self._seeds,
            "files": files.kept,
            "missing_files": files.missing,
            "patch": DRAWS_PATCH if patch.text else "",
            "unpatched": patch.left,
        }


def _open_batches(request: Request) -> Optional[Batches]:
    """Return what keeps the batches of the reference, or gives them to the target; ``None`` without ``data: recorded``."""
    if request.determinism.data != RECORDED:
        return None
    feeds = request.side != "reference"
    if feeds and not os.path.isdir(os.path.join(request.batches, BATCHES_FOLDER)):
        message = "determinism.data=recorded, and there are no batches of the reference in %r" % request.batches
        raise AgentError("bad_request", message, "record the reference with determinism.data=recorded first")
    return Batches(request.batches if feeds else request.output, feeds=feeds, rank=rank_of(request))


def _read_lines(folder: str, rank: int, step: int) -> Iterator[Dict[str, Any]]:
    """Yield the record lines of a step of another dump."""
    place = os.path.join(folder, "rank%d" % rank, "step%d" % step)
    for name in sorted(os.listdir(place)):
        if name.startswith("records-"):
            with open(os.path.join(place, name), encoding="utf-8") as file:
                for line in file:
                    yield json.loads(line)


def write_text(path: str, text: str) -> None:
    """Write a file beside the dump.

    Raises:
        WriteError: It cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise write_error(error, path, len(text)) from error


def list_runs(counts: Dict[int, int]) -> List[List[int]]:
    """Return the counts of steps as ``[first step, count]`` for each run of steps that have the same.

    >>> list_runs({0: 4, 1: 4, 2: 3})
    [[0, 4], [2, 3]]
    """
    runs: List[List[int]] = []
    last: Optional[int] = None
    for step, count in sorted(counts.items()):
        if count != last:
            runs.append([step, count])
        last = count
    return runs
