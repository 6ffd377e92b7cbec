"""A patch for a script that draws random numbers on a device: it draws them on the CPU and moves them.

    noise = torch.randn(4, 3, device=device)    ->    noise = torch.randn(4, 3).to(device)
    noise = torch.randn_like(x)                 ->    noise = torch.randn_like(x, device="cpu").to(x.device)
    weight.normal_(std=0.02)                    ->    weight.copy_(torch.empty_like(weight, device="cpu").normal_(std=0.02))

Devices give different numbers for the same seed; those of the CPU are the same on every side.
"""

from __future__ import annotations

import ast
import difflib
import os
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

_FACTORIES = frozenset(("rand", "randn", "randint", "randperm", "normal"))
_LIKE = frozenset(("rand_like", "randn_like", "randint_like"))
_OF_PROBABILITIES = frozenset(("bernoulli", "multinomial", "poisson"))
_IN_PLACE = frozenset(("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_"))
_SIMPLE = (ast.Name, ast.Attribute)  # written twice, an expression must be cheap and do nothing


class Patch(NamedTuple):
    """A patch in the form of ``git apply``, and the places that it could not change, as ``file:line operator``."""

    text: str
    left: List[str]


def make_patch(places: Mapping[Tuple[str, int], str], folder: str) -> Patch:
    """Return a patch that moves draws to the CPU.

    Args:
        places: Path and line of each draw -> its operator.
        folder: Folder that the patch is applied in; files outside of it are left as they are.
    """
    root = os.path.realpath(folder) + os.sep
    of_file: Dict[str, Dict[int, str]] = {}
    for (path, line), operator in places.items():
        of_file.setdefault(os.path.realpath(path), {})[line] = operator
    texts: List[str] = []
    left: List[str] = []
    for path, draws in sorted(of_file.items()):
        try:
            with open(path, encoding="utf-8") as file:
                source = file.read()
        except (OSError, UnicodeDecodeError):
            source = ""
        inside = path.startswith(root)
        changed, missed = rewrite(source, draws) if inside else (source, sorted(draws))
        name = path[len(root) :].replace(os.sep, "/") if inside else os.path.basename(path)
        left += ["%s:%d %s" % (name, line, draws[line]) for line in missed]
        before, after = source.splitlines(keepends=True), changed.splitlines(keepends=True)
        texts += difflib.unified_diff(before, after, "a/" + name, "b/" + name)
    return Patch("".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in texts), left)


def rewrite(source: str, draws: Mapping[int, str]) -> Tuple[str, List[int]]:
    """Return the source with its draws moved to the CPU, and the lines where that is not possible.

    Args:
        source: Python source.
        draws: Line -> operator.

    >>> rewrite("x = torch.randint(0, 9, (4,), device=d)", {1: "randint"})
    ('x = torch.randint(0, 9, (4,)).to(d)', [])
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source, sorted(draws)
    starts = [0]
    for text_line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text_line.encode()))
    data = source.encode()

    def place(node: ast.expr) -> Tuple[int, int]:
        """Return where an expression begins and ends, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    changes: List[Tuple[int, int, bytes]] = []
    missed: List[int] = []
    for line, operator in sorted(draws.items()):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_call_of(node, operator, line)]
        texts = [(call, _move(call, operator, lambda node: data[slice(*place(node))].decode())) for call in calls]
        if not texts or any(text is None for _, text in texts):
            missed.append(line)
        else:
            changes += [(*place(call), text.encode()) for call, text in texts if text is not None]
    for start, end, text in sorted(changes, reverse=True):
        data = data[:start] + text + data[end:]
    return data.decode(), missed


def _is_call_of(node: ast.Call, operator: str, line: int) -> bool:
    """Tell whether a call of an operator runs at a line; Python gives the first or the last line of a call."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == operator and node.lineno <= line <= (node.end_lineno or node.lineno)


def _move(call: ast.Call, operator: str, text_of: Callable[[ast.expr], str]) -> Optional[str]:
    """Return the text that takes the place of a call, ``None`` if it cannot be moved by this call alone."""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args) and operator not in _FACTORIES
    if starred or any(keyword.arg in (None, "generator", "out") for keyword in call.keywords):
        return None
    function = text_of(call.func)
    device = next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
    arguments = [text_of(argument) for argument in call.args]
    named = ["%s=%s" % (each.arg, text_of(each.value)) for each in call.keywords if each.arg != "device"]
    if operator in _FACTORIES and device is not None:
        return "%s(%s).to(%s)" % (function, ", ".join(arguments + named), text_of(device))
    first = call.args[0] if call.args else None
    if operator in _LIKE and isinstance(first, _SIMPLE):
        to = text_of(device) if device is not None else "%s.device" % arguments[0]
        return "%s(%s).to(%s)" % (function, ", ".join([*arguments, *named, 'device="cpu"']), to)
    if operator in _OF_PROBABILITIES and isinstance(first, _SIMPLE) and function.startswith("torch."):
        return "%s(%s).to(%s.device)" % (function, ", ".join(["%s.cpu()" % arguments[0], *arguments[1:], *named]), arguments[0])
    if operator in _IN_PLACE and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, _SIMPLE):
        owner = text_of(call.func.value)
        drawn = 'torch.empty_like(%s, device="cpu").%s(%s)' % (owner, operator, ", ".join(arguments + named))
        return "%s.copy_(%s)" % (owner, drawn)
    return None
