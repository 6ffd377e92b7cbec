"""The finished steps of a dump: which are on disk, what they hold, and which have been dropped.

A writer that resumes an interrupted dump first checks that the finished steps are intact, continues after the last of them,
and removes everything else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from precflow.agent import intake
from precflow.agent.contract import (
    CHECKSUM,
    DIGEST_SIZE,
    DUMP_SCHEMA,
    OUTPUT,
    PADDING,
    STEP_FILE,
    Identity,
    checksum_of,
    identity_text,
    operator_of,
)
from precflow.agent.dump.last_steps import LastSteps, StepKey, format_numbers, parse_numbers
from precflow.agent.dump.step_files import remove_step

_DROPPED = ".dropped"  # appended to the name of a step's folder that is about to be removed
_PIECE = 1 << 20  # bytes read at once: checking a file takes no memory of its size
_STEP = re.compile(r"step(\d+)\Z")


class FinishedStep(NamedTuple):
    """A step that is complete and sealed.

    Attributes:
        step: Its number.
        seal: The content of its ``step.json``.
        keys: Content ids of the tensors that its shards hold.
    """

    step: int
    seal: Dict[str, Any]
    keys: Set[str]


class FinishedSteps:
    """The finished steps of one dump.

    Args:
        folder: The dump.
        keep_last: Keep only so many steps, each readable without the others; 0 keeps all.

    Attributes:
        counts: ``calls``, ``records``, ``tensors`` and ``bytes`` (of tensors) of the steps on disk. The writer of a step adds
            the numbers of that step itself.
        line_bytes: Bytes of their record lines; the writer of a step adds to it as well.
    """

    def __init__(self, folder: str, keep_last: int) -> None:
        self.counts = {"calls": 0, "records": 0, "tensors": 0, "bytes": 0}
        self.line_bytes = 0
        self._folder = folder
        self._last: Optional[LastSteps] = LastSteps(keep_last) if keep_last else None
        self._steps: Dict[StepKey, FinishedStep] = {}
        self._contents: Set[str] = set()  # of steps that are never dropped
        self._going: List[StepKey] = []  # dropped by the seal that was written last, but still on disk

    @property
    def drops_steps(self) -> bool:
        """Only the last steps are kept."""
        return self._last is not None

    @property
    def contents(self) -> Set[str]:
        """Content ids of tensors that stay in the dump for good: a new step need not store them again."""
        return set(self._contents)

    @property
    def files(self) -> Dict[str, Any]:
        """Size and checksum of every file, by name."""
        files = {name: facts for finished in self._steps.values() for name, facts in finished.seal["files"].items()}
        return dict(sorted(files.items()))

    @property
    def dropped(self) -> Dict[str, str]:
        """Numbers of the dropped steps by rank, such as ``{"0": "0-3,7"}``."""
        steps: Dict[int, List[int]] = {}
        for step, rank in self._dropped_keys():
            steps.setdefault(rank, []).append(step)
        return {str(rank): format_numbers(numbers) for rank, numbers in sorted(steps.items())}

    def numbers(self, rank: int) -> List[int]:
        """Return the numbers of a rank's steps, those on disk and those that have been dropped."""
        return sorted(step for step, of in {*self._steps, *self._dropped_keys()} if of == rank)

    def has(self, key: StepKey) -> bool:
        """Tell whether a step is on disk or has been dropped: in both cases it need not be recorded again."""
        return key in self._steps or key in self._dropped_keys()

    def read_lines(self, key: StepKey) -> Iterator[Dict[str, Any]]:
        """Yield the record lines of a step as plain data; yield nothing for a step that is not on disk."""
        files = self._steps[key].seal["files"] if key in self._steps else {}
        for name in sorted(files):
            if name.endswith(".jsonl"):
                with open(os.path.join(self._folder, name), encoding="utf-8", newline="\n") as file:
                    for line in file:
                        yield json.loads(line)

    def clear(self, rank: int) -> None:
        """Remove every step of a rank.

        Raises:
            OSError: A step cannot be removed.
        """
        for _, place in _list_steps(self._folder, rank):
            remove_step(place)

    def resume(self, rank: int, declared: str) -> List[str]:
        """Adopt the steps of a rank that an interrupted writer finished; return the call sites that their lines refer to.

        Raises:
            OSError: An unfinished step cannot be removed.
        """
        steps = check_steps(self._folder, rank, declared)
        gone = [(step, rank) for step in parse_numbers(steps[-1].seal.get("dropped", ""))] if steps else []
        if self._last is not None:
            self._last.dropped += gone
        for finished in steps:
            key = (finished.step, rank)
            if key in gone:  # the writer was stopped after sealing the step that replaces this one, but before removing it
                self._remove(key)
                continue
            self._steps[key] = finished
            self._count(finished.seal, 1)
            if self._last is None or finished.seal.get("held"):  # later steps may refer only to tensors that stay
                self._contents |= finished.keys
            if self._last is not None:
                self._last.resume(key, held=bool(finished.seal.get("held")))
        # Call sites are numbered through the whole run, and every seal lists all of them up to its step.
        return list(steps[-1].seal["sites"]) if steps else []

    def hold(self, under_way: Optional[StepKey]) -> None:
        """Keep for good the last ``keep_last`` steps, counting the one that is being written; see :meth:`LastSteps.hold`."""
        if self._last is not None:
            self._last.hold(under_way)
            self._contents.update(*(finished.keys for key, finished in self._steps.items() if key in self._last.held))

    def describe_others(self, key: StepKey) -> Dict[str, Any]:
        """Return what the seal of a step says about other steps: whether it is held, and which steps have been dropped so far.

        The seal is written before :meth:`add` removes the dropped steps. If the writer is stopped in between, the next writer
        reads from the seal which steps are still to be removed.
        """
        if self._last is None:
            return {}
        self._going = self._last.finish(key)
        return {"held": key in self._last.held, "dropped": self.dropped.get(str(key[1]), "")}

    def add(self, rank: int, finished: FinishedStep) -> None:
        """Add a sealed step, and remove the steps that are dropped to make room for it.

        Raises:
            OSError: A step cannot be removed.
        """
        key = (finished.step, rank)
        self._steps[key] = finished
        if self._last is None or key in self._last.held:
            self._contents |= finished.keys
        going, self._going = self._going, []
        for gone in going:
            self._count(self._steps.pop(gone).seal, -1)
            self._remove(gone)

    def _dropped_keys(self) -> List[StepKey]:
        return self._last.dropped if self._last is not None else []

    def _remove(self, key: StepKey) -> None:
        place = os.path.join(self._folder, "rank%d" % key[1], "step%d" % key[0])
        # Files are removed one by one, and may be interrupted. A rename is atomic: a reader finds a whole step or none, and
        # _list_steps finishes the removal of what is called ".dropped".
        os.rename(place, place + _DROPPED)
        remove_step(place + _DROPPED)

    def _count(self, seal: Mapping[str, Any], sign: int) -> None:
        for name, count in seal["counts"].items():
            self.counts[name] += sign * count
        lines = sum(facts["bytes"] for name, facts in seal["files"].items() if name.endswith(".jsonl"))
        self.line_bytes += sign * lines


def check_steps(folder: str, rank: int, declared: str) -> List[FinishedStep]:
    """Return the intact steps after which a writer can continue, in order; remove the other steps.

    A step is accepted if its seal, its record lines and the indexes of its shards are intact and it was written for the same
    request. A later step may refer to tensors of an earlier one, so all steps after the first that is rejected are rejected
    too. File times are not compared, because clocks may be wrong.

    Args:
        folder: The dump.
        rank: Number of the process.
        declared: Hash of what the dump depends on.
    """
    intact: List[FinishedStep] = []
    all_intact = True
    for number, place in sorted(_list_steps(folder, rank)):
        finished = _check_step(folder, rank, number, declared) if all_intact else None
        if finished is None:
            all_intact = False
            remove_step(place)
        else:
            intact.append(finished)
    return intact


def index_outputs(lines: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """Return the content id (or mark) of every output in record lines, by identity text."""
    contents: Dict[str, str] = {}
    for line in lines:
        who = (line["module"], line["call"], operator_of(line["level"], line["operator"]), line["ordinal"], line["phase"])
        for output in line["outputs"]:
            identity = Identity(*who, OUTPUT, output["index"], line["step"], line["rank"])
            contents[identity_text(identity)] = output["content"] or output.get("mark", "")
    return contents


def _list_steps(folder: str, rank: int) -> List[Tuple[int, str]]:
    """Return number and folder of every step of a rank; also finish removals that an earlier process began."""
    place = os.path.join(folder, "rank%d" % rank)
    names = os.listdir(place) if os.path.isdir(place) else []
    for name in names:
        if name.endswith(_DROPPED):
            remove_step(os.path.join(place, name))
    matches = [(_STEP.match(name), name) for name in names]
    return [(int(match.group(1)), os.path.join(place, name)) for match, name in matches if match]


def _check_step(folder: str, rank: int, number: int, declared: str) -> Optional[FinishedStep]:
    """Return a step if it is intact and was written for this request, else ``None``."""
    path = os.path.join(folder, "rank%d" % rank, "step%d" % number, STEP_FILE)
    try:
        seal = intake.read_json(path)
        wanted = (DUMP_SCHEMA, number, rank, declared)
        if tuple(seal[key] for key in ("schema", "step", "rank", "declared")) != wanted or seal[CHECKSUM] != checksum_of(seal):
            return None
        keys: Set[str] = set()
        for name, facts in seal["files"].items():
            keys |= _check_file(os.path.join(folder, name), facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the seal may hold anything; any error means "broken"
        return None
    return FinishedStep(number, seal, keys)


def _check_file(path: str, facts: Dict[str, Any]) -> Set[str]:
    """Check a file against its seal and return the content ids that it holds (none for a file of record lines).

    Of a shard only the index is read, because the shard may be gigabytes large.

    Raises:
        ValueError: Size or checksum differ from the seal.
        OSError: The file cannot be read.
    """
    checksum = hashlib.blake2b(digest_size=DIGEST_SIZE)
    with intake.open_regular(path) as file:
        if os.fstat(file.fileno()).st_size != facts["bytes"]:
            raise ValueError("%s has another size" % path)
        if "index" not in facts:
            for piece in iter(lambda: file.read(_PIECE), b""):
                checksum.update(piece)
            keys: Set[str] = set()
        else:
            head = file.read(8)  # a safetensors file begins with the length of its JSON index, 8 bytes, little-endian
            index = file.read(int.from_bytes(head, "little"))
            checksum.update(head + index)
            keys = {key for key in intake.parse_json(index) if not key.startswith((PADDING, "__"))}
    if checksum.hexdigest() != facts.get("index", facts.get("blake2b")):
        raise ValueError("%s has another checksum" % path)
    return keys
