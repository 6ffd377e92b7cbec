"""What watching a script costs in the steps that are not recorded: global hooks of torch against the plain loop.

    python benchmarks/script.py            a few seconds
    python benchmarks/script.py --json     one object on stdout

The work is a small model of 121 modules, forward, backward and AdamW in one thread: the less a module computes, the more its
hooks weigh. Plain and watched loops alternate in one process. A ratio compares CPU time, which other work on the machine
disturbs less, of the lower quartile of steps. At most 1.10 is wanted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from precflow.agent.script.watcher import Settings, Watcher

MOST = 1.10
_NEVER = 10**9  # a step that no loop reaches: nothing is recorded


class Block(torch.nn.Module):
    """A feed-forward block: five modules with itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.act = torch.nn.GELU()
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the block computes: ``(batch, width)`` to ``(batch, width)``."""
        return x + self.narrow(self.act(self.wide(self.norm(x))))


def time_steps(steps: int) -> float:
    """Return the CPU seconds of a training step, at the lower quartile."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block(64) for _ in range(24)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch, seconds = torch.randn(64, 64), []
    for _ in range(steps):
        started = time.process_time()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        seconds.append(time.process_time() - started)
    return statistics.quantiles(seconds, n=4)[0]


def measure(rounds: int, steps: int) -> dict[str, float]:
    """Return the ratio of watched to plain steps, at the median of the rounds, and the plain step in milliseconds."""
    torch.set_num_threads(1)
    settings = Settings(frozenset([_NEVER]), stop=False, evaluation=False, compiles=False, dropout=True)
    time_steps(5)
    ratios, plain = [], []
    for _ in range(rounds):
        plain.append(time_steps(steps))
        with Watcher(settings):
            watched = time_steps(steps)
        ratios.append(watched / plain[-1])
    return {"ratio": round(statistics.median(ratios), 3), "plain_milliseconds": round(1e3 * min(plain), 2)}


def main() -> int:
    """Measure and print; return 1 if the ratio is above what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    measured = measure(options.rounds, options.steps)
    if options.json:
        print(json.dumps(measured))
    else:
        print(f"a step that is not recorded takes {measured['ratio']:.3f} of a plain one ({measured['plain_milliseconds']} ms)")
    return int(measured["ratio"] > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
