"""The work that both tools capture; needs torch and transformers only, because the peer's interpreter runs it too."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

BATCH, TOKENS, THREADS = 4, 77, 2
SMALL_CALLS_A_BLOCK = 20


class Case(NamedTuple):
    """What one process measures, as JSON on its command line.

    Attributes:
        subject: ``encoder`` or ``small``.
        detail: What is kept, in the tool's own word.
        level: ``module``, ``api`` or ``module_api``.
        folder: Where the dump goes.
        rounds: Captured steps that are timed.
        calls: Operator calls of one step of ``small``.
    """

    subject: str
    detail: str
    level: str
    folder: str
    rounds: int
    calls: int = 0

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read a case back."""
        return cls(**json.loads(text))

    def build(self) -> tuple[torch.nn.Module, Callable[[], None]]:
        """Return the model and one step of it."""
        return text_encoder() if self.subject == "encoder" else small_calls(self.calls)


def text_encoder() -> tuple[torch.nn.Module, Callable[[], None]]:
    """Return the CLIP text encoder of 63 M parameters in float32, and one step of it: forward and backward."""
    from transformers import CLIPTextConfig, CLIPTextModel  # noqa: PLC0415  takes seconds

    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 12}
    model = CLIPTextModel(CLIPTextConfig(**sizes, attn_implementation="eager"))
    tokens = torch.randint(0, 40_000, (BATCH, TOKENS))

    def step() -> None:
        model.zero_grad()
        model(input_ids=tokens).last_hidden_state.square().mean().backward()

    return model, step


class Small(torch.nn.Module):
    """Many small operators: what a captured call costs when the arithmetic is nothing."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(_Block() for _ in range(calls // SMALL_CALLS_A_BLOCK))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Run every block."""
        for block in self.blocks:
            values = block(values)
        return values


class _Block(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Run the block's operators on 64 numbers."""
        for _ in range(SMALL_CALLS_A_BLOCK // 2):
            values = torch.mul(values, 1.0001)
            values = torch.sin(values)
        return values


def small_calls(calls: int) -> tuple[torch.nn.Module, Callable[[], None]]:
    """Return a model that makes this many operator calls, and one forward of it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, values = Small(calls), torch.randn(64)

    def step() -> None:
        with torch.no_grad():
            model(values)

    return model, step


def race(plain: Callable[[], None], captured: Callable[[], Any], rounds: int, *, clean: Callable[[], Any]) -> dict[str, Any]:
    """Run both in turn, ``clean`` (not timed) before each capture; return seconds, and the median ratio of neighbours."""
    plain()
    clean()
    captured()
    pairs = []
    for _ in range(rounds):
        before = _seconds(plain)
        clean()
        pairs.append((before, _seconds(captured), _seconds(plain)))
    ratios = [2 * middle / (before + after) for before, middle, after in pairs]
    best = [min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)]
    return {
        "plain": best[0],
        "captured": best[1],
        "ratio": statistics.median(ratios),
        "ratio_of_best": best[1] / best[0],
        "rounds": rounds,
    }


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
