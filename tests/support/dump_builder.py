"""Writes small dumps by hand, from ``docs/record-identity.md`` alone, so that the reader is not tested against itself."""

import hashlib
import json
import os
from collections import Counter

import numpy as np

from precflow.agent.contract import DUMP_SCHEMA, EMPTY_HEADER, SAFETENSORS_OF_DTYPE

WORD = np.uint64(0xFFFFFFFF)


def content_of(array):
    """Return the content id of a tensor: 128 bits of BLAKE2b over type, shape and two sums a block of 16384 words."""
    data = array.tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4").astype(np.uint64)
    sums = b""
    for start in range(0, len(words), 16384):
        block = words[start : start + 16384]
        places = np.arange(len(block), dtype=np.uint64)
        first, second = (mix32((places + np.uint64(seed)) & WORD) for seed in (0x243F6A88, 0x85A308D3))
        mixed = ((block ^ first) * np.uint64(0x9E3779B1)) & WORD
        mixed ^= mixed >> np.uint64(16)
        for weight in (first | np.uint64(1), second):
            sums += (int(((mixed * weight) & WORD).sum()) & int(WORD)).to_bytes(4, "little")
    head = f"{array.dtype.name}[{','.join(map(str, array.shape))}]".encode()
    return hashlib.blake2b(head + sums, digest_size=16).hexdigest()


def mix32(value):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        value = ((value ^ (value >> np.uint64(shift))) * np.uint64(factor)) & WORD
    return value ^ (value >> np.uint64(16))


def shard_bytes(tensors):
    """Return a safetensors file: eight bytes of length, a JSON index, the raw tensors."""
    index, data = {}, b""
    for content, array in tensors.items():
        raw = array.tobytes()
        kind = SAFETENSORS_OF_DTYPE[array.dtype.name]
        index[content] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    attached = {key: checksum(array.tobytes()) for key, array in tensors.items() if "." in key}
    text = json.dumps({"__metadata__": attached, **index} if attached else index).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def checksum(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal_of(name, data):
    """Return a seal: of a shard the checksum of its index, of other files that of everything."""
    if not name.endswith(".safetensors"):
        return {"bytes": len(data), "blake2b": checksum(data)}
    return {"bytes": len(data), "index": checksum(data[: 8 + int.from_bytes(data[:8], "little")])}


def with_checksum(plain):
    """Return plain data with the checksum over all else in it."""
    rest = {key: value for key, value in plain.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "checksum": checksum(text.encode())}


def reseal(folder, **changes):
    """Change keys of a header, and seal it as if its agent had written it so."""
    path = folder / "dump.json"
    path.write_text(json.dumps(with_checksum({**json.loads(path.read_text(encoding="utf-8")), **changes})), encoding="utf-8")


class DumpBuilder:
    """Collects calls and writes the folder when it is sealed (or left unsealed)."""

    def __init__(self, folder, *, side="reference", dtype="float32"):
        self.folder = folder
        self.side = side
        self.dtype = dtype
        self.lines = {}
        self.tensors = {}
        self.seen = Counter()
        self.header_changes = {}

    def call(self, module, operator="", outputs=(), inputs=(), *, step=0, rank=0, store=True, **changes):
        """Add one call; outputs and inputs are arrays, or a mapping from index to array."""
        place = (rank, step)
        key = (*place, module, operator)
        line = {
            "order": len(self.lines.setdefault(place, [])),
            "level": "api" if operator else "module",
            "module": module,
            "class": "Block",
            "call": 0,
            "operator": operator,
            "ordinal": self.seen[key] if operator else 0,
            "phase": "forward",
            "step": step,
            "rank": rank,
            "site": 0,
            "movement": False,
            "compiled": False,
            "arguments": {},
            "inputs": self._tensors(inputs, place, store=store),
            "outputs": self._tensors(outputs, place, store=store),
        }
        self.seen[key] += 1
        line.update(changes)
        self.lines[place].append(line)
        return self

    def _tensors(self, arrays, place, *, store):
        named = arrays if isinstance(arrays, dict) else {str(number): array for number, array in enumerate(arrays)}
        return [self._tensor(index, np.asarray(array), place, store=store) for index, array in named.items()]

    def _tensor(self, index, array, place, *, store):
        content = content_of(array)
        if store:
            self.tensors.setdefault(place, {})[content] = array
        facts = {"index": index, "dtype": array.dtype.name, "shape": list(array.shape), "content": content}
        return {**facts, "stored": store, "source": None, "weight": ""}

    def attach(self, key, array, *, step=0, rank=0):
        """Put something into a shard under a key that is no content id."""
        self.tensors.setdefault((rank, step), {})[key] = array
        return self

    def write(self, *, sealed=True, steps=False):
        """Write records, shards and (where it is sealed) the header, or the seals of the steps; return the folder."""
        files = {}
        for (rank, step), lines in self.lines.items():
            name = f"rank{rank}/step{step}"
            files[f"{name}/records-0.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
            files[f"{name}/tensors-0.safetensors"] = shard_bytes(self.tensors.get((rank, step), {}))
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for rank, step in self.lines if steps else ():
            name = f"rank{rank}/step{step}"
            seals = {file: seal_of(file, data) for file, data in files.items() if file.startswith(name)}
            seal = {"schema": DUMP_SCHEMA, "step": step, "rank": rank, "counts": {}, "files": seals, "sites": ["a.py:1 in f"]}
            (self.folder / name / "step.json").write_text(json.dumps(with_checksum(seal)), encoding="utf-8")
        if sealed:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "dump.json").write_text(json.dumps(self._header(files)), encoding="utf-8")
        return self.folder

    def _header(self, files):
        seals = {name: seal_of(name, data) for name, data in files.items()}
        lines = [line for of_step in self.lines.values() for line in of_step]
        header = {
            **EMPTY_HEADER,
            "id": os.urandom(8).hex(),
            "agent": "0.1.0",
            "side": self.side,
            "recipe": "test",
            "declared": "5be0",
            "device": {"name": "cpu", "kind": "cpu", "description": "CPU", "emulated": False},
            "dtype": self.dtype,
            "emulate": {"name": "", "rules": []},
            "facts": {"torch": "2.1.0"},
            "determinism": {"seed": 1234},
            "capture": {"level": ["module", "api"], "phase": ["forward"], "scope": ["*"], "detail": "tensors"},
            "weights": {"digest": "w", "entries": {"linear.weight": {"content": "c0", "dtype": "float32", "shape": [2, 3]}}},
            "inputs": {"digest": "i", "entries": {}},
            "repeat": {"checked": True, "records": 2, "by": ["bits"], "different": []},
            "draws": [],
            "counts": {
                "calls": len(lines),
                "records": sum(len(line["inputs"]) + len(line["outputs"]) for line in lines),
                "tensors": sum(map(len, self.tensors.values())),
                "bytes": sum(array.nbytes for tensors in self.tensors.values() for array in tensors.values()),
            },
            "sites": ["model.py:3 in forward <- run.py:1"],
            "seconds": {},
            "files": seals,
            "content": "e0",
        }
        ranks = sorted({rank for rank, _ in self.lines} - {0})
        header["sites_of_ranks"] = {str(rank): header["sites"] for rank in ranks}
        given = dict(self.header_changes)
        for key in {"repeat", "device", "emulate"} & given.keys():  # a test says what it is about
            given[key] = {**EMPTY_HEADER[key], **given[key]}
        return with_checksum({**header, **given})
