"""Two dumps whose pairs an executor reads, and a metric of the user's own."""

import sys

import numpy as np
import pytest

from precflow.comparison import batches as batching
from precflow.comparison.reading import Reading
from precflow.comparison.user_metrics import DeclaredMetrics
from precflow.dumps.formats import read_dump

METRICS = """
import time
import numpy as np

class Flips:
    def __init__(self, wait=0.0):
        self.flips, self.wait = 0, wait

    def update(self, reference, target):
        time.sleep(self.wait)
        self.flips += int(np.count_nonzero(reference * target < 0))

    def merge(self, other):
        self.flips += other.flips

    def value(self):
        return self.flips
"""


@pytest.fixture
def sides(build, monkeypatch):
    """Return two dumps of twelve calls in six batches, with NaN, zeros, integers and a damaged record in them."""
    monkeypatch.setattr(batching, "READINGS", 2)
    reference, target = build("reference"), build("target", side="target")
    for number in range(12):
        random = np.random.default_rng(number)
        values = random.standard_normal((5, 7000)).astype(np.float32)
        noise = 1 + 1e-4 * random.standard_normal(values.shape).astype(np.float32)
        if number % 3 == 0:
            values[0, ::77] = np.nan
            values[1] = 0
        kind = {5: np.int32, 7: np.float16}.get(number, np.float32)
        for dump, side in ((reference, values), (target, values * noise)):
            dump.call(f"m{number}", "linear", [(np.nan_to_num(side) if kind is np.int32 else side).astype(kind)])
    folders = [dump.write() for dump in (reference, target)]
    (shard,) = folders[1].glob("rank0/step0/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    return [read_dump(folder) for folder in folders]


@pytest.fixture
def declared(tmp_path):
    (tmp_path / "cluster_metrics.py").write_text(METRICS)
    yield lambda **arguments: DeclaredMetrics(
        {"flips": {"_target_": "cluster_metrics.Flips", **arguments}}, ("cluster_metrics",), (str(tmp_path),)
    )
    sys.modules.pop("cluster_metrics", None)
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


@pytest.fixture
def readings(sides):
    """Return every pair of the two dumps."""
    records = [[record for call in side.calls() for record in call.outputs] for side in sides]
    return [Reading(*both) for both in zip(*records, strict=True)]
