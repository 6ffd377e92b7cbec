"""A metric that does to a dump what a network folder may do: it takes a file away, or cuts it, while it is read."""

import os
from pathlib import Path


class Cutting:
    """Strikes once, at the first block that anybody reads."""

    def __init__(self, how, shard):
        self.how, self.shard, self.struck = how, Path(shard), Path(f"{shard}.struck")

    def update(self, reference, target):
        try:
            self.struck.touch(exist_ok=False)
        except FileExistsError:
            return
        if self.how == "vanish":
            self.shard.unlink()
        else:
            os.truncate(self.shard, 4096)

    def merge(self, other):
        """Nothing is kept."""

    def value(self):
        return 0.0
