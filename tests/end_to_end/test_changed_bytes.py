"""One byte of a header, changed, cut out or put in, is refused or changes nothing: never a verdict, never a label.

Every place with a few values each time; every place with every value where PRECFLOW_ALL_BYTES is set.
"""

import json
import os
from collections import Counter

import dump_builder as builder
import numpy as np

from precflow.dumps import header as headers
from precflow.dumps.formats import read_dump
from precflow.errors import DumpError
from precflow.stages.two_dumps import compare_dumps

ALL = bool(os.environ.get("PRECFLOW_ALL_BYTES"))
X = np.random.default_rng(3).standard_normal((2, 8)).astype(np.float32)
TOLD = {  # what a header says against a verdict, or beside it
    "repeat": {"checked": True, "records": 2, "by": ["bits"], "different": ["a/linear.0/forward.output.0"]},
    "recipe": "another",
    "device": {"name": "npu", "kind": "emulated", "description": "Ascend", "emulated": True},
    "emulate": {"name": "mask_dropped", "rules": []},
}


def changes(data):
    """Yield changed copies of some bytes."""
    for place, old in enumerate(data):
        values = range(256) if ALL else {old ^ 1, ord(' 0"{'[place % 4])}
        for new in values:
            if new != old:
                yield data[:place] + bytes([new]) + data[place + 1 :]
        yield data[:place] + data[place + 1 :]
        if ALL:
            yield data[:place] + b" " + data[place:]
    plain = json.loads(data)
    for key in plain:
        rest = {name: value for name, value in plain.items() if name != key}
        for changed in (rest, {**rest, f"{key}s": plain[key]}, {**rest, key: None}, {**plain, key.upper(): plain[key]}):
            yield json.dumps(changed).encode()


def outcome(folder):
    model = compare_dumps(read_dump(folder / "reference"), read_dump(folder / "target"), command="")
    return model.verdict.verdict, model.verdict.reasons, model.emulated, model.emulation, [one.title for one in model.sides]


def test_no_byte_of_a_header_changes_a_verdict(tmp_path):
    for side in ("reference", "target"):
        dump = builder.DumpBuilder(tmp_path / side, side=side)
        dump.call("a", "linear", [X], [X])
        dump.header_changes = TOLD if side == "target" else {}
        dump.write()
    path, before = tmp_path / "target" / "dump.json", outcome(tmp_path)
    whole = headers.read(path)
    counts = Counter()
    for changed in changes(path.read_bytes()):
        path.write_bytes(changed)
        try:
            header = headers.read(path)
        except DumpError:
            counts["refused"] += 1
            continue
        counts["harmless"] += 1
        if header != whole:
            assert outcome(tmp_path) == before
    assert counts["refused"] > 3000
    if ALL:
        (tmp_path / "changed_bytes.txt").write_text(f"{dict(counts)}\n", encoding="utf-8")
