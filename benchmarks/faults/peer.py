"""The same cases under msprobe (``mindstudio-probe`` 26.2): its own dumps of both sides, its own ``compare``, its first rows.

    python -m benchmarks.faults --peer --seeds 0 --hosts text_encoder,decoder

msprobe replaces functions of torch in the whole process, so it runs in a process of its own, after the cases, and leaves its
lines in ``peer.jsonl``; the table takes both files. Its names of operators count through the whole model; ``construct.json``
says which module ran each of them, and that makes them names of this benchmark.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import hosts, running
from .calls import Calls, canonical_name
from .cases import Case
from .chips import Chip
from .faults import KINDS

METHODS = ("msprobe_compare", "msprobe_first_diff")
_CONFIG = {"task": "statistics", "rank": [], "step": [], "level": "mix", "enable_dataloader": False}
_STATISTICS = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
_OUTPUT = re.compile(r"(.*\.(?:forward|backward)(?:\.\d+)?)\.output")  # modules may be called "output" too
_FLAGGED = frozenset({"warning", "error"})
_OF_THE_LOSS = frozenset({"cross_entropy", "mse_loss"})


class _Quiet(Chip):
    """A chip whose own work msprobe does not see."""

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Switch msprobe's hooks off."""
        from msprobe.core.dump.hook_manager import BaseHookManager

        thread = threading.get_ident()
        before, BaseHookManager.inner_switch[thread] = BaseHookManager.inner_switch[thread], True
        try:
            yield
        finally:
            BaseHookManager.inner_switch[thread] = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        with self.unseen():
            return super().__torch_dispatch__(func, types, args, kwargs)


class Peer:
    """Runs cases under msprobe.

    Args:
        folder: For its dumps and tables.
    """

    def __init__(self, folder: Path) -> None:
        from msprobe.pytorch import PrecisionDebugger

        self._folder = folder
        config = folder / "config.json"
        config.write_text(json.dumps({**_CONFIG, "dump_path": str(folder / "dump"), "statistics": _STATISTICS}))
        self._debugger = PrecisionDebugger(config_path=str(config))

    def run(self, case: Case) -> dict[str, list[list[Any]]]:
        """Return the calls that each of its methods names first: one, or none where nothing is flagged."""
        from msprobe.pytorch.compare.pt_compare import pt_compare

        shutil.rmtree(self._folder / "dump", ignore_errors=True)
        sides = {side: self._record(case, side) for side in ("reference", "target")}
        paths = {"npu_path": str(sides["target"] / "dump.json"), "bench_path": str(sides["reference"] / "dump.json")}
        found = {}
        for method, options in zip(METHODS, ({}, {"first_diff_analyze": True}), strict=True):
            output = self._folder / method
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
            pt_compare({**paths, "is_print_compare_log": False}, str(output), **options)
            rows = next(output.iterdir())
            first = _first_flagged(rows) if rows.suffix == ".csv" else _first_different(rows)
            found[method] = [_name(first, sides["reference"])] if first else []
        return found

    def _record(self, case: Case, side: str) -> Path:
        """Run one side and return the folder of its dump."""
        model, inputs = running._prepare(case, case.target if side == "target" else case.reference)  # noqa: SLF001
        chip = _Quiet(case.chip if side == "target" else (), case.seed)
        replace: dict[Any, Any] = {}
        for fault in case.faults if side == "target" else ():
            if KINDS[fault.kind].of != "optimizer":
                replace.update(running._install(fault, model, inputs, chip, {}))  # noqa: SLF001
        before = set((self._folder / "dump").glob("step*"))
        with chip, Calls(model, replace):
            self._debugger.start(model)
            try:
                hosts.HOSTS[case.host].run(model, inputs, backward=case.backward)
            finally:
                self._debugger.stop()
                self._debugger.step()
        (made,) = set((self._folder / "dump").glob("step*")) - before  # its number counts all runs of the process
        return next(made.iterdir())


def _first_flagged(table: Path) -> str:
    """Return the first output in a table of results that is not passed, in order of execution."""
    with table.open() as lines:
        outputs = (_OUTPUT.match(row["NPU Name"]) for row in csv.DictReader(lines) if row["Result"] in _FLAGGED)
        return next((output[1] for output in outputs if output), "")


def _first_different(table: Path) -> str:
    """Return the first operator that the search for a first difference does not call the same."""
    return next((name for name, result in json.loads(table.read_text()).items() if not result["is_same"]), "")


def _name(full: str, dump: Path) -> list[Any]:
    """Return msprobe's name of an operator or module as module, call, operator, ordinal and phase."""
    phase = "backward" if ".backward" in full else "forward"
    if full.startswith("Module."):
        path, _, call = full.removeprefix("Module.").rpartition(f".{phase}")
        return [path.rpartition(".")[0], int(call.strip(".") or 0), "", 0, phase]
    parents = json.loads((dump / "construct.json").read_text())
    whole = full.replace(".backward", ".forward")
    counts: Counter[tuple[str, str]] = Counter()
    for name in json.loads((dump / "dump.json").read_text())["data"]:
        if name.startswith("Module.") or not name.endswith(".forward"):
            continue
        operator, parent = canonical_name(name.split(".")[1]), parents.get(name) or ""
        if name == whole:
            module = _name(parent, dump)[:2] if parent else ["(outside)" if operator in _OF_THE_LOSS else "", 0]
            return [*module, operator, counts[operator, parent], phase]
        counts[operator, parent] += 1
    return [full, 0, "", 0, phase]


def run_all(planned: Sequence[Case], done: frozenset[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a line for each case that is not done yet: what each method names, or how msprobe failed."""
    peer = Peer(folder)
    for case in planned:
        if case.name in done:
            continue
        try:
            yield {"name": case.name, "named": peer.run(case)}
        except Exception as error:  # noqa: BLE001  a case on which the peer fails has no line in its columns
            yield {"name": case.name, "crash": f"{type(error).__name__}: {error}"}
