"""Write ``digest.json``: content ids by their definition, in plain Python integers, apart from both programs.

    python tests/agent/golden/make_digest.py

Each case: ``dtype``, ``shape``, the bytes (``hex``, or ``mix32``: the little-endian words ``mix32(seed + i)``, as many bytes as
the shape takes), the ``lanes`` of its blocks as unsigned numbers, and the ``content``.
"""

import hashlib
import json
import struct
from pathlib import Path

BLOCK = 16384
WORD = 0xFFFFFFFF
SEEDS = (0x243F6A88, 0x85A308D3)
FACTOR = 0x9E3779B1
WIDTHS = {"float64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int64": 8, "bfloat16": 2, "float16": 2, "int32": 4}


def mix32(value):
    value &= WORD
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & WORD
    value = ((value ^ (value >> 15)) * 0x846CA68B) & WORD
    return value ^ (value >> 16)


def lanes(data):
    data += bytes(-len(data) % 4)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    return [[lane(words[start : start + BLOCK], k) for k in (0, 1)] for start in range(0, len(words), BLOCK)]


def lane(words, k):
    total = 0
    for place, word in enumerate(words):
        first, second = (mix32(place + seed) for seed in SEEDS)
        mixed = ((word ^ first) * FACTOR) & WORD
        total += (mixed ^ (mixed >> 16)) * (second if k else first | 1)
    return total & WORD


def case(dtype, shape, *, data=None, seed=0):
    width, count = WIDTHS.get(dtype, 1), 1
    for size in shape:
        count *= size
    source = {"hex": data.hex()} if data is not None else {"mix32": seed}
    if data is None:
        words = -(-count * width // 4)
        data = struct.pack(f"<{words}I", *(mix32(seed + place) for place in range(words)))[: count * width]
    assert len(data) == count * width, (dtype, shape)
    found = lanes(data)
    state = hashlib.blake2b(f"{dtype}[{','.join(map(str, shape))}]".encode("ascii"), digest_size=16)
    for pair in found:
        state.update(struct.pack("<2I", *pair))
    return {"dtype": dtype, "shape": list(shape), **source, "lanes": found, "content": state.hexdigest()}


def cases():
    return [
        case("float32", (1, 2), data=struct.pack("<2f", 1.0, -2.5)),
        case("float32", ()),
        case("float32", (0,)),
        case("float32", (3, 0, 5)),
        case("float32", (3, 77), seed=7),
        case("float64", (5,), seed=11),
        case("complex64", (2, 3), seed=12),
        case("complex128", (3,), seed=13),
        case("int64", (2, 2), data=struct.pack("<4q", 0, -1, 2**62, 49407)),
        case("bfloat16", (7,), seed=3),
        case("float16", (2, 4), seed=4),
        case("float8_e4m3fn", (5,), seed=5),
        case("float8_e5m2", (6,), seed=6),
        case("uint8", (1,), data=b"\xff"),
        case("int8", (3, 3), seed=8),
        case("bool", (5,), data=bytes([1, 0, 0, 1, 1])),
        case("float32", (2,), data=struct.pack("<2f", 0.0, -0.0)),
        case("int32", (BLOCK,), seed=1),
        case("int32", (BLOCK + 1,), seed=2),
        case("bfloat16", (3, 2 * BLOCK - 1), seed=9),
        case("uint8", (4 * BLOCK + 3,), seed=10),
    ]


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(each) for each in cases())
    Path(__file__).with_name("digest.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
