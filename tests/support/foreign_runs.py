"""Runs a small model and records it with msprobe and with precflow: python foreign_runs.py FOLDER.

One process, which imports msprobe once and forks for each dump: msprobe keeps its first settings for the life of a process.
msprobe reads its list of functions anew in each: with the compiled reader of YAML, and without Python's garbage collection,
all dumps take half the time. The model has a layer norm, attention written out, a dropout that does nothing, and a mask of
-1e9. It is trained for two steps, or for one where no test compares it with a dump of two. A residual network with batch norms,
whose averaging pool is flattened by no call that msprobe records, has faults around its operators.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

DUMPS: dict[str, dict[str, Any]] = {
    f"{task}_{level}{'_fault' * fault}": {
        "task": task,
        "level": level,
        "fault": fault,
        "steps": 1 if task == "xor" or (level != "mix" and task == "md5") or (level == "L1" and task == "statistics") else 2,
    }
    for task in ("tensor", "statistics", "md5", "xor")
    for level in ("L0", "L1", "mix")
    for fault in (False, True)
}
DUMPS |= {
    "statistics_mix_bfloat16": {"task": "statistics", "level": "mix", "dtype": torch.bfloat16},
    "statistics_mix_nan": {"task": "statistics", "level": "mix", "nan": True},
    "tensor_mix_weight": {"task": "tensor", "level": "mix", "weight": True},
    "tensor_mix_wrapped": {"task": "tensor", "level": "mix", "wrapped": True},
    "tensor_debug": {"task": "tensor", "level": "debug"},
    "tensor_debug_fault": {"task": "tensor", "level": "debug", "fault": True},
}
# Of pictures, each with another fault: in the data, in a module's own code, in its settings, between backward and update.
PICTURE_FAULTS = {
    "statistics": ("", "bgr", "rounded", "epsilon", "late_residual"),
    "tensor": ("", "bgr", "rounded", "momentum", "late_residual", "clipped"),
}
DUMPS |= {
    f"pictures_{task}{f'_{fault}' * bool(fault)}": {"task": task, "level": "mix", "pictures": True, "fault": fault}
    for task, faults in PICTURE_FAULTS.items()
    for fault in faults
}
DUMPS |= {
    f"functions_statistics{f'_{fault}' * bool(fault)}": {"task": "statistics", "level": "L1", "pictures": True, "fault": fault}
    for fault in ("", "late_residual")
}
OURS = {
    f"own_{detail}{'_fault' * fault}": {"detail": detail, "fault": fault}
    for detail in ("statistics", "tensors")
    for fault in (False, True)
}


class Block(torch.nn.Module):
    """Attention and a perceptron, with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.fc1 = torch.nn.Linear(width, 2 * width)
        self.fc2 = torch.nn.Linear(2 * width, width)
        self.scale = 1.0

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(hidden)).chunk(3, dim=-1)
        scores = torch.matmul(query, key.transpose(-1, -2)) * 0.125 + mask
        attended = torch.matmul(torch.softmax(scores, dim=-1), value)
        attended = torch.nn.functional.dropout(attended, p=0.0)
        inner = torch.nn.functional.gelu(self.fc1(attended * self.scale))
        return hidden + self.fc2(inner)


class Model(torch.nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))
        self.head = torch.nn.Linear(width, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        mask = torch.triu(torch.full((6, 6), -1e9, dtype=hidden.dtype), diagonal=1)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.head(hidden)


class Residual(torch.nn.Module):
    """Two convolutions with batch norms beside a residual."""

    def __init__(self, channels: int, fault: str) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(channels)
        self.is_late = fault == "late_residual"

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(pictures)))))
        return torch.relu(hidden) + pictures if self.is_late else torch.relu(hidden + pictures)


class Pictures(torch.nn.Module):
    """A small residual network, its last part with the fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = torch.nn.BatchNorm2d(8)
        self.blocks = torch.nn.Sequential(Residual(8, ""), Residual(8, fault))
        self.head = torch.nn.Linear(8, 5)
        if fault == "rounded":
            exact = self.stem.forward
            self.stem.forward = lambda given: exact(given.bfloat16().float())
        self.blocks[1].bn2.eps = 1e-3 if fault == "epsilon" else 1e-5
        self.blocks[1].bn2.momentum = 0.01 if fault == "momentum" else 0.1

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(torch.relu(self.bn(self.stem(pictures))))
        return self.head(torch.nn.functional.adaptive_avg_pool2d(hidden, 1).flatten(1))


class Wrapper(torch.nn.Module):
    """What DistributedDataParallel looks like from outside: everything is below ``module``."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)


def build(settings: dict[str, Any]) -> tuple[torch.nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    """Return the model, its optimizer and the tokens or pictures of each step."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    if settings.get("pictures"):
        network = Pictures(settings["fault"])
        batches = [torch.randn(4, 3, 12, 12) for _ in range(2)]
        batches = [batch.flip(1) for batch in batches] if settings["fault"] == "bgr" else batches
        return network, torch.optim.AdamW(network.parameters(), lr=1e-3), batches
    model = Model().to(settings.get("dtype", torch.float32))
    tokens = [torch.randint(0, 50, (2, 6)) for _ in range(settings.get("steps", 2))]
    if settings.get("fault"):
        fc1 = model.blocks[1].fc1
        whole = fc1.forward
        fc1.forward = lambda given: whole(given) * 1.01
    if settings.get("nan"):
        model.blocks[1].scale = float("inf")
    if settings.get("weight"):
        with torch.no_grad():
            model.blocks[0].fc2.weight[0, 0] += 0.5
    wrapped = Wrapper(model) if settings.get("wrapped") else model
    return wrapped, torch.optim.SGD(model.parameters(), lr=0.05), tokens


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, *, clipped: bool = False
) -> torch.Tensor:
    """Train one step and return what the model gave."""
    made = model(tokens)
    loss = (made.float() - torch.linspace(-1, 1, 5)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if clipped:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    return made


def record_with_msprobe(folder: Path, settings: dict[str, Any]) -> None:
    """Record two steps with msprobe."""
    from msprobe.pytorch import PrecisionDebugger

    task = settings["task"]
    config = {
        "task": task if task == "tensor" else "statistics",
        "dump_path": str(folder),
        "level": settings["level"],
        "rank": [],
        "step": [],
        "statistics": {"summary_mode": task if task in {"md5", "xor"} else "statistics", "data_mode": ["all"]},
        "tensor": {"data_mode": ["all"]},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
    model, optimizer, tokens = build(settings)
    for step in tokens:
        if settings["level"] == "debug":
            made = train(model, optimizer, step)
            debugger.save(made, "logits", save_backward=False)
            debugger.save({"mean": made.mean(), "both": [made.detach() + 1, made.detach() - 1]}, "more", save_backward=False)
        else:
            debugger.start(model)
            train(model, optimizer, step, clipped=settings.get("fault") == "clipped")
            debugger.stop()
        debugger.step()


def record_with_precflow(folder: Path, settings: dict[str, Any]) -> None:
    """Record the same two steps with precflow."""
    import precflow

    model, optimizer, tokens = build(settings)
    with precflow.capture(model, folder, optimizer=optimizer, step=[0, 1], detail=settings["detail"]) as recording:
        for step in tokens:
            train(model, optimizer, step)
            recording.step()


def main(folder: Path) -> None:
    """Make every dump, each in a process of its own."""
    yaml.SafeLoader = yaml.CSafeLoader
    import msprobe.pytorch  # noqa: F401  once, before the forks

    import precflow.agent.own_loop  # noqa: F401

    gc.disable()
    gc.freeze()
    for record, wanted in ((record_with_msprobe, DUMPS), (record_with_precflow, OURS)):
        for name, settings in wanted.items():
            child = os.fork()
            if not child:
                try:
                    record(folder / name, settings)
                    os._exit(0)
                except BaseException as error:  # noqa: BLE001  the parent fails
                    sys.stderr.write(f"{name}: {error!r}\n")
                    os._exit(1)
            if os.waitpid(child, 0)[1]:
                sys.exit(f"{name} was not recorded")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
