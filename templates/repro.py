"""Runs one operator alone and prints its error against float64. Needs torch, and the file repro.safetensors beside this one.

    python repro.py                 on the CPU
    python repro.py npu:0           on an NPU (imports torch_npu), or cuda:0

The inputs are those that the operator had on the target when it was recorded. If the error on the device is as large as the
one that was recorded, the operator is wrong by itself; if not, look at how it is called (layout, stream, what ran before).
"""

import ast
import inspect
import json
import operator
import sys
from pathlib import Path

import torch

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
PYTHON = {"getitem": operator.getitem, "rmatmul": lambda a, b: b @ a, "rsub": lambda a, b: b - a}


def read(path):
    """Return the tensors of a safetensors file by name, and the facts that are kept with them."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size].decode())
    facts = json.loads(head.pop("__metadata__")["call"])
    tensors = {}
    for name, entry in head.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        raw = torch.frombuffer(bytearray(data[begin:end]) or bytearray(8), dtype=torch.uint8)[: end - begin]
        tensors[name] = raw.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, facts


def value_of(text):
    """Return the value of an argument, such as `1e-05`, `(768,)` or `torch.float32`; nothing in it is executed."""
    return value_of_node(ast.parse(text, mode="eval").body)


def value_of_node(node):
    """Return the value of a part of an argument."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(value_of_node(part) for part in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value_of_node(node.operand)
    if isinstance(node, ast.Name) and node.id in {"inf", "nan", "Ellipsis"}:
        return Ellipsis if node.id == "Ellipsis" else float(node.id)
    if isinstance(node, ast.Attribute) and isinstance(getattr(torch, node.attr, None), (torch.dtype, torch.memory_format)):
        return getattr(torch, node.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice":
        return slice(*[value_of_node(part) for part in node.args])
    if isinstance(node, ast.Call) and "Size" in ast.dump(node.func):
        return torch.Size(value_of_node(node.args[0]))
    if isinstance(node, ast.Call) and "device" in ast.dump(node.func):
        return None
    raise SystemExit("an argument cannot be read: " + ast.dump(node))


def arguments_of(function, tensors, texts, device, double):
    """Return positional and named arguments; tensors go to the device, and to float64 if asked to."""

    def place(tensor):
        return tensor.to(device, torch.float64) if double and tensor.is_floating_point() else tensor.to(device)

    given = {name: value_of(text) for name, text in texts.items()}
    for name in ("device", "dtype"):
        if name in given and (name == "device" or double):
            del given[name]
    nested = {}
    for path, tensor in tensors.items():
        first, _, rest = path.partition(".")
        nested.setdefault(first, {})[rest] = place(tensor)
    for first, parts in nested.items():
        given[first] = parts[""] if "" in parts else [parts[key] for key in sorted(parts, key=lambda key: (len(key), key))]
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    positional, named = [], {}
    for key in sorted((key for key in given if key.isdigit()), key=int):
        if int(key) == len(positional):
            positional.append(given[key])
        elif int(key) < len(names):  # an argument before it was given by its name
            named[names[int(key)]] = given[key]
    named.update({key: value for key, value in given.items() if not key.isdigit()})
    return positional, named


def functions_of(name):
    """Yield what an operator of this name may be, the likeliest first."""
    if name in PYTHON:
        yield PYTHON[name]
    for space in (torch.nn.functional, torch, torch.Tensor, torch._C._nn, operator):  # noqa: SLF001
        if hasattr(space, name):
            yield getattr(space, name)
    if hasattr(torch.ops.aten, name):
        yield getattr(torch.ops.aten, name)


def run(name, tensors, texts, device, double=False):
    """Return the first tensor that the operator returns."""
    problem = None
    for function in functions_of(name):
        try:
            positional, named = arguments_of(function, tensors, texts, device, double)
            result = function(*positional, **named)
        except (TypeError, RuntimeError, IndexError) as error:
            problem = problem or error
            continue
        while isinstance(result, (tuple, list)):
            result = result[0]
        return result
    raise SystemExit("%s cannot be run: %s" % (name, problem))


def error_of(value, exact):
    """Return the norm of the error relative to the norm of the exact result, over finite elements, and how many are not."""
    value, exact = value.detach().cpu().double(), exact.cpu()
    finite = torch.isfinite(value) & torch.isfinite(exact)
    difference = torch.where(finite, value - exact, torch.zeros_like(exact)).norm()
    size = torch.where(finite, exact, torch.zeros_like(exact)).norm()
    return float(difference / size) if size > 0 else float(difference), int((~finite).sum())


def main(device):
    """Run the operator and print the errors."""
    if device.startswith("npu"):
        import torch_npu  # noqa: F401  it adds the device
    tensors, facts = read(Path(__file__).with_name("repro.safetensors"))
    inputs = {name[len("input.") :]: tensor for name, tensor in tensors.items() if name.startswith("input.")}
    print("%s   (%s)" % (facts["operator"], facts["name"]))
    for name, tensor in sorted(inputs.items()):
        print("   input %-8s %s %s" % (name, str(tensor.dtype).replace("torch.", ""), list(tensor.shape)))
    for name, text in facts["arguments"].items():
        print("   %-14s %s" % (name, text))
    exact = run(facts["operator"], inputs, facts["reference_arguments"], "cpu", double=True).double()
    made = run(facts["operator"], inputs, facts["arguments"], device)
    recorded = tensors["output"]
    for what, value in ((device, made), ("recorded by the target", recorded)):
        if value.shape != exact.shape:
            print("%-24s shape %s, float64 gives %s" % (what, list(value.shape), list(exact.shape)))
            continue
        error, broken = error_of(value, exact)
        print("%-24s error against float64 %.3g%s" % (what, error, ", %d not finite" % broken if broken else ""))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
