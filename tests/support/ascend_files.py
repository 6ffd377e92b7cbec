"""Writes files of operators as Ascend's runtime does, with tensors in the layouts of the device."""

import struct

import numpy as np

from precflow.dumps.formats import ascend


def number(value):
    made = bytearray()
    while True:
        made.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(made)


def message(*fields):
    made = b""
    for place, value in fields:
        if isinstance(value, int):
            made += number(place << 3) + number(value) if value else b""
        elif value:
            made += number(place << 3 | 2) + number(len(value)) + value
    return made


def sizes(shape):
    return message((1, b"".join(map(number, shape))))


CODES = {np.dtype(kind): code for code, name in ascend._DTYPES.items() for kind in [ascend.NUMPY_DTYPES[name]]}


def to_nz(array):
    *lead, height, width = array.shape
    rows, columns = -(-height // 16), -(-width // 16)
    padded = np.zeros((*lead, rows * 16, columns * 16), array.dtype)
    padded[..., :height, :width] = array
    parts = padded.reshape(-1, rows, 16, columns, 16).transpose(0, 3, 1, 2, 4)
    return parts.reshape(*lead, columns, rows, 16, 16)


def to_nc1hwc0(array):
    n, channels, height, width = array.shape
    c1 = -(-channels // 16)
    padded = np.zeros((n, c1 * 16, height, width), array.dtype)
    padded[:, :channels] = array
    return padded.reshape(n, c1, 16, height, width).transpose(0, 1, 3, 4, 2)


def to_ndc1hwc0(array):
    return to_nc1hwc0(array.transpose(0, 2, 1, 3, 4).reshape(-1, array.shape[1], *array.shape[3:])).reshape(
        array.shape[0], array.shape[2], -(-array.shape[1] // 16), *array.shape[3:], 16
    )


def to_fractal_z(array):
    n, channels, height, width = array.shape
    c1, n1 = -(-channels // 16), -(-n // 16)
    padded = np.zeros((n1 * 16, c1 * 16, height, width), array.dtype)
    padded[:n, :channels] = array
    return padded.reshape(n1, 16, c1, 16, height, width).transpose(2, 4, 5, 0, 1, 3).reshape(-1, n1, 16, 16)


LAYOUTS = {
    2: (lambda array: array, (3, 5)),
    ascend.FRACTAL_NZ: (to_nz, (3, 77, 50)),
    ascend.NC1HWC0: (to_nc1hwc0, (2, 19, 5, 7)),
    ascend.NDC1HWC0: (to_ndc1hwc0, (2, 19, 3, 5, 7)),
    ascend.FRACTAL_Z: (to_fractal_z, (20, 19, 3, 3)),
}


def write_operator(folder, name, inputs, outputs, *, time=1670205071724946, layout=2, kind="MatMul", original=""):
    """Write the file of one operator; tensors are given as the graph has them."""
    go, _ = LAYOUTS[layout]
    slots, data = b"", b""
    for tensors, place in ((inputs, 4), (outputs, 3)):
        for array in tensors:
            there = np.ascontiguousarray(go(array))
            after = 1 if place == 3 else 0
            origin = message((1, original.encode()), (2, 0)) if original and place == 3 else b""
            slots += message(
                (
                    place,
                    message(
                        (1, CODES[array.dtype]),
                        (2, layout),
                        (3, sizes(there.shape)),
                        *(((4, origin),) if place == 3 else ()),
                        (5 + after, there.nbytes),
                        (6 + after, sizes(array.shape)),
                    ),
                )
            )
            data += there.tobytes()
    header = message((1, b"2.0"), (2, time)) + slots + message((6, name.encode()))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}.{name.replace('/', '_').replace('.', '_')}.3.{time}"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path
