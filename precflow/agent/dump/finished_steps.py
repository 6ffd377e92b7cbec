"""The finished steps of a dump: which are there, what they hold, and which have gone again."""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set

from precflow.agent.dump.last_steps import Key, Ring, numbers_of, numbers_text
from precflow.agent.dump.resumption import DROPPED, Finished, finished_steps, lines_of, remove_steps


class KeptSteps:
    """The finished steps of one dump.

    Args:
        folder: The dump.
        keep_last: Keep only so many steps, each of them whole in itself; 0 keeps all.

    Attributes:
        counts: ``calls``, ``records``, ``tensors`` and ``bytes`` (of tensors) of the steps that are there; whoever writes one
            adds what it holds.
        line_bytes: Bytes of their lines, in the same way.
    """

    def __init__(self, folder: str, keep_last: int) -> None:
        self.counts = {"calls": 0, "records": 0, "tensors": 0, "bytes": 0}
        self.line_bytes = 0
        self._folder = folder
        self._ring: Optional[Ring] = Ring(keep_last) if keep_last else None
        self._steps: Dict[Key, Finished] = {}
        self._contents: Set[str] = set()  # of steps that never go
        self._going: List[Key] = []

    @property
    def go_round(self) -> bool:
        """Steps are dropped."""
        return self._ring is not None

    @property
    def contents(self) -> Set[str]:
        """Contents that are in the dump for good: a new step need not store them again."""
        return set(self._contents)

    @property
    def files(self) -> Dict[str, Any]:
        """The seal of every file, by name."""
        files = {name: facts for finished in self._steps.values() for name, facts in finished.seal["files"].items()}
        return dict(sorted(files.items()))

    @property
    def dropped(self) -> Dict[str, str]:
        """Numbers of the steps that have gone, by rank."""
        steps: Dict[int, List[int]] = {}
        for step, rank in self._ring.dropped if self._ring is not None else []:
            steps.setdefault(rank, []).append(step)
        return {str(rank): numbers_text(numbers) for rank, numbers in sorted(steps.items())}

    def steps(self, rank: int) -> List[int]:
        """Return the steps of a rank that are there, or were."""
        gone = self._ring.dropped if self._ring is not None else []
        return sorted(step for step, of in {*self._steps, *gone} if of == rank)

    def complete(self, key: Key) -> bool:
        """Tell whether a step is there, or was."""
        return key in self._steps or (self._ring is not None and key in self._ring.dropped)

    def lines(self, key: Key) -> Iterator[Dict[str, Any]]:
        """Yield the record lines of a step that is there; nothing for another one."""
        if key in self._steps:
            for line in lines_of(self._folder, self._steps[key]):
                yield line

    def clear(self, rank: int) -> None:
        """Remove every step of a rank.

        Raises:
            OSError: One cannot be removed.
        """
        remove_steps(self._folder, rank)

    def resume(self, rank: int, declared: str) -> List[str]:
        """Take over the steps of a rank that a writer finished before it was stopped; return the call sites that they know.

        Raises:
            OSError: What else was left cannot be removed.
        """
        found = finished_steps(self._folder, rank, declared)
        gone = [(step, rank) for step in numbers_of(found[-1].seal.get("dropped", ""))] if found else []
        if self._ring is not None:
            self._ring.dropped += gone
        for finished in found:
            key = (finished.step, rank)
            if key in gone:
                self._remove(key)
                continue
            self._steps[key] = finished
            self._count(finished.seal, 1)
            if self._ring is None or finished.seal.get("held"):
                self._contents |= finished.keys
            if self._ring is not None:
                self._ring.resume(key, held=bool(finished.seal.get("held")))
        return list(found[-1].seal["sites"]) if found else []

    def hold(self, under_way: Optional[Key]) -> None:
        """Keep for good what is there, the step under way included."""
        if self._ring is not None:
            self._ring.hold(under_way)
            self._contents.update(*(finished.keys for key, finished in self._steps.items() if key in self._ring.held))

    def closing(self, key: Key) -> Dict[str, Any]:
        """Return what the seal of a step is to say about the others: which were held, which have gone or go behind it."""
        if self._ring is None:
            return {}
        self._going = self._ring.finished(key)
        return {"held": key in self._ring.held, "dropped": self.dropped.get(str(key[1]), "")}

    def add(self, rank: int, finished: Finished) -> None:
        """Take in a step that is sealed, and drop those that go for it.

        Raises:
            OSError: One cannot be removed.
        """
        key = (finished.step, rank)
        self._steps[key] = finished
        if self._ring is None or key in self._ring.held:
            self._contents |= finished.keys
        going, self._going = self._going, []
        for gone in going:
            self._count(self._steps.pop(gone).seal, -1)
            self._remove(gone)

    def _remove(self, key: Key) -> None:
        place = os.path.join(self._folder, "rank%d" % key[1], "step%d" % key[0])
        os.rename(place, place + DROPPED)  # at once: no reader finds half a step
        shutil.rmtree(place + DROPPED)

    def _count(self, seal: Mapping[str, Any], sign: int) -> None:
        for name, count in seal["counts"].items():
            self.counts[name] += sign * count
        lines = sum(facts["bytes"] for name, facts in seal["files"].items() if name.endswith(".jsonl"))
        self.line_bytes += sign * lines
