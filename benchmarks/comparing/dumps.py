"""Two dumps with the same records in our layout (``docs/record-identity.md``) and, by the peer's interpreter, in its own."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the peer's interpreter runs this file by its path

from comparing.pairs import Array, records, small_pairs

_SHARD_BYTES = 64 << 20  # as the agent writes them
_SIDES = ("reference", "target")


class OurDump:
    """Writes one side, shard by shard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "rank0" / "step0"
        self._folder.mkdir(parents=True)
        self._root = folder
        self._waiting: list[tuple[str, Array]] = []
        self._bytes = 0
        self._all_bytes = 0
        self._lines: list[str] = []
        self._files: dict[str, dict[str, Any]] = {}

    def add(self, name: str, array: Array) -> None:
        """Add the output of one module."""
        from precflow.dumps.digest import content_id  # noqa: PLC0415  the peer's interpreter has no precflow

        content = content_id(array)
        output = {"index": "0", "dtype": "float32", "shape": list(array.shape), "content": content, "stored": True}
        line = {"order": len(self._lines), "level": "module", "module": name, "class": "Linear", "call": 0, "operator": ""}
        place = {"ordinal": 0, "phase": "forward", "step": 0, "rank": 0, "site": 0, "movement": False, "compiled": False}
        tensors = {"arguments": {}, "inputs": [], "outputs": [{**output, "source": None, "weight": ""}]}
        self._lines.append(json.dumps({**line, **place, **tensors}))
        self._waiting.append((content, array))
        self._bytes += array.nbytes
        self._all_bytes += array.nbytes
        if self._bytes >= _SHARD_BYTES:
            self._flush()

    def _flush(self) -> None:
        index, offset = {}, 0
        for content, array in self._waiting:
            index[content] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
            offset += array.nbytes
        head = json.dumps(index).encode()
        head += b" " * (-len(head) % 64 + 56)
        parts = (len(head).to_bytes(8, "little"), head, *(array.tobytes() for _, array in self._waiting))
        self._write(f"tensors-{len(self._files)}.safetensors", parts)
        self._waiting, self._bytes = [], 0

    def _write(self, name: str, parts: tuple[bytes, ...]) -> None:
        digest = hashlib.blake2b(digest_size=16)
        with (self._folder / name).open("wb") as file:
            for part in parts:
                file.write(part)
        shard = name.endswith(".safetensors")
        for part in parts[: 2 if shard else None]:  # of a shard, the length and the index
            digest.update(part)
        kind = "index" if shard else "blake2b"
        self._files[f"rank0/step0/{name}"] = {"bytes": sum(map(len, parts)), kind: digest.hexdigest()}

    def seal(self) -> None:
        """Write what waits, the lines, and the header."""
        self._flush()
        self._write("records-0.jsonl", ("".join(f"{line}\n" for line in self._lines).encode(),))
        from precflow.agent.contract import CHECKSUM, EMPTY_HEADER, checksum_of  # noqa: PLC0415  nor has it this

        made = len(self._lines)
        header = {
            **EMPTY_HEADER,
            "id": self._root.name,
            "side": self._root.name,
            "recipe": "benchmark",
            "device": {"name": "cpu", "kind": "cpu", "description": "CPU", "emulated": False},
            "dtype": "float32",
            "counts": {"calls": made, "records": made, "tensors": made, "bytes": self._all_bytes},
            "sites": ["model.py:1 in forward"],
            "files": self._files,
        }
        header[CHECKSUM] = checksum_of(header)
        (self._root / "dump.json").write_text(json.dumps(header), encoding="utf-8")


def write_ours(folder: Path, gigabytes: float) -> None:
    """Write both sides in our layout, below ``folder``."""
    sides = [OurDump(folder / name) for name in _SIDES]
    for name, *tensors in records(gigabytes):
        for side, array in zip(sides, tensors, strict=True):
            side.add(name, array)
    for side in sides:
        side.seal()


def write_records(folder: Path, count: int) -> None:
    """Write both sides in our layout with so many records of 64 elements, no two of them equal."""
    sides = [OurDump(folder / name) for name in _SIDES]
    for number, (reference, target) in enumerate(small_pairs(count)):
        for side, array in zip(sides, (reference, target), strict=True):
            side.add(f"layers.{number}.linear", array)
    for side in sides:
        side.seal()


def write_peers(folder: Path, gigabytes: float) -> None:
    """Write both sides in the peer's layout; its statistics hold zeros, since its comparison of tensors does not read them."""
    import torch  # noqa: PLC0415  of the peer's interpreter

    data: dict[str, dict[str, Any]] = {side: {} for side in _SIDES}
    roots = {side: folder / side / "step0" / "rank0" for side in _SIDES}
    for root in roots.values():
        (root / "dump_tensor_data").mkdir(parents=True)
    for name, *tensors in records(gigabytes):
        entry = f"Module.{name}.Linear.forward.0"
        for side, array in zip(_SIDES, tensors, strict=True):
            torch.save(torch.from_numpy(array), roots[side] / "dump_tensor_data" / f"{entry}.output.0.pt")
            leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape), "requires_grad": False}
            numbers = {"Max": 0.0, "Min": 0.0, "Mean": 0.0, "Norm": 0.0, "data_name": f"{entry}.output.0.pt"}
            data[side][entry] = {"input_args": [], "input_kwargs": {}, "output": [{**leaf, **numbers}]}
    for side, root in roots.items():
        head = {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": str(root / "dump_tensor_data")}
        (root / "dump.json").write_text(json.dumps({**head, "data": data[side]}), encoding="utf-8")
        (root / "stack.json").write_text(json.dumps({"0": [list(data[side]), ["File model.py, line 1, in forward"]]}))
        (root / "construct.json").write_text(json.dumps(dict.fromkeys(data[side])), encoding="utf-8")


if __name__ == "__main__":
    write_peers(Path(sys.argv[1]), float(sys.argv[2]))
