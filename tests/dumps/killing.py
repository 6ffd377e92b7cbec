"""Kills writers at random moments, reads what they left, and goes on with it.

    python killing.py FOLDER MOMENTS SEED

Prints one JSON object a moment, see ``Moment``. Each writer is a process of its own that ends by SIGKILL; it is forked, so that
a hundred of them do not import torch a hundred times.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from precflow.agent.dump import shard, step_files
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.content_id import content_id
from precflow.dumps.formats import read_dump
from precflow.errors import DumpError

STEPS, CALLS = 6, 12
SETTINGS = ({}, {"queue_bytes": 200_000}, {"keep_last": 3})


@dataclass
class Moment:
    """What was found after one kill.

    Attributes:
        how: ``after N ms``, or ``in write N``: half of it was written.
        setting: Number of the settings of the writer.
        finished: Steps with a seal.
        readable: Records of finished steps whose tensor has the right values.
        left: Records of the step under way that can be read all the same.
        told: What the dump says is wrong.
        problems: What a reader would have taken for good and was not, or could not be read and should; must be empty.
        same: Going on gave, byte by byte, the dump that a writer makes which nobody stops.
    """

    how: str
    setting: int
    finished: int
    readable: int
    left: int
    told: list
    problems: list
    same: bool


def tensors(step):
    """Return what step ``step`` records: contents of 4 bytes to 400 kB, some of an earlier step, some of a few zeros."""
    made = torch.Generator().manual_seed(step)
    for number in range(CALLS):
        count = (1, 33, 1000, 100_000)[number % 4]
        tensor = torch.randn(count, generator=made).relu()
        yield torch.full((500,), float(step // 2)) if number == 5 else tensor.to([torch.float32, torch.bfloat16][number % 2])


def write(folder, settings, *, resume):
    """Write the dump, or what is missing of it."""
    writer = Writer(str(folder), shard_bytes=300_000, resume=resume, declared="x", **settings)
    for step in range(STEPS):
        if writer.complete(step, 0):
            continue
        writer.open_step(step, 0)
        for order, tensor in enumerate(tensors(step)):
            content = content_id(tensor)
            stored = writer.tensor(content, tensor)
            if f"m{order}" not in writer.sites:
                writer.sites.append(f"m{order}")
            output = {"index": "0", "dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape), "content": content}
            writer.call(line(step, order, {**output, "stored": stored}))
    writer.seal({"side": "target", "dtype": "float32"})


def line(step, order, output):
    """Return one record line."""
    who = {"order": order, "level": "module", "module": f"m{order}", "call": 0, "operator": "", "ordinal": 0}
    return {
        **who,
        "phase": "forward",
        "step": step,
        "rank": 0,
        "site": order,
        "movement": False,
        "inputs": [],
        "outputs": [output],
    }


def killed(folder, settings, *, seconds, at_write):
    """Write in a process that is killed after some seconds, or in the middle of its write number ``at_write``."""
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        if at_write:
            in_write(at_write)
        os.write(begins, b"!")
        write(folder, settings, resume=False)
        os._exit(0)
    os.read(begun, 1)
    if not at_write:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun)
    os.close(begins)


def in_write(number):
    """Make this process write half of write ``number`` and die: shards, lines and seals count alike."""
    count = [0]

    def dying(real, file, data):
        count[0] += 1
        if count[0] == number:
            os.write(file.fileno(), bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(file, data)

    shard._write_all = lambda file, data, real=shard._write_all: dying(real, file, data)
    append = step_files.StepFiles.append
    step_files.StepFiles.append = lambda self, data: dying(lambda _, data: append(self, data), self._file, data)
    replace = os.replace

    def renaming(source, target):
        count[0] += 1
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(source, target)

    os.replace = renaming


def looked_at(folder, how, setting):
    """Read what a killed writer left, as the judge does."""
    finished = sorted(int(path.parent.name[4:]) for path in folder.glob("rank0/step*/step.json"))
    if not list(folder.glob("rank0/step*")):
        return Moment(how, setting, 0, 0, 0, [], [], same=False)
    whole = (folder / "dump.json").is_file()
    dump = read_dump(folder, allow_unsealed=True)
    problems, readable, left = [], 0, 0
    for step in range(STEPS):
        wanted = list(tensors(step))
        calls = dump.calls(step=step)
        if step in finished and len(calls) != CALLS:
            problems.append(f"step {step} has {len(calls)} calls")
        for call in calls:
            good = right(dump, call.outputs[0], wanted[call.order])
            if good is False or (good is None and step in finished):
                problems.append(f"{call.outputs[0].text}: {good}")
            readable, left = readable + (step in finished), left + (step not in finished and good is not None)
    under_way = [path.name for path in folder.glob("rank0/step*") if not (path / "step.json").exists() and path.suffix == ""]
    if not whole and [name for name in under_way if not any(name in text for text in dump.damage)]:
        problems.append("an unfinished step is not told")
    torn = [text for text in dump.damage if not any(name in text for name in under_way)]
    problems += torn
    return Moment(how, setting, len(finished), readable, left, list(dump.damage), problems, same=False)


def right(dump, record, tensor):
    """Tell whether a record's tensor has the right values, ``None`` where it says that it cannot be had."""
    try:
        read = dump.tensor(record)
    except DumpError:
        return None
    return read.tobytes() == bytes(tensor.contiguous().view(torch.uint8).tolist())


def files_of(folder):
    """Return the checksum of every file of a dump."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: hashlib.blake2b(data).hexdigest() for name, data in found.items()}


def main(folder, moments, seed):
    """Print one line a moment."""
    torch.set_num_threads(1)  # a forked process has none of the threads that its parent started
    shard.HELD_BYTES = 50_000
    dice = random.Random(seed)
    wanted, seconds = [], []
    for number, settings in enumerate(SETTINGS):
        place = folder / f"whole-{number}"
        place.mkdir()
        began = time.monotonic()
        write(place, settings, resume=False)
        seconds.append(time.monotonic() - began)
        wanted.append(files_of(place))
    for number in range(moments):
        setting = number % len(SETTINGS)
        place = folder / "killed"
        place.mkdir()
        after, at_write = dice.uniform(0, 1.1) * seconds[setting], dice.randrange(1, 200) if number % 3 == 2 else 0
        killed(place, SETTINGS[setting], seconds=after, at_write=at_write)
        how = f"in write {at_write}" if at_write else f"after {1000 * after:.1f} ms"
        moment = looked_at(place, how, setting)
        write(place, SETTINGS[setting], resume=True)
        moment.same = files_of(place) == wanted[setting]
        sys.stdout.write(json.dumps(asdict(moment)) + "\n")
        sys.stdout.flush()
        shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
