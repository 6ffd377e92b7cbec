"""What the rules of a scan know about something that was found to be missing: an operator, a function, or a package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from precflow.scan.index import Index
from precflow.scan.rules import ScanRule

# `aten::heaviside.out` is the operator that torch.heaviside and Tensor.heaviside run; some live in a module of torch.
_MODULES = ("torch", "torch.nn.functional")
_PARTS = ("linalg", "special", "fft")  # torch.linalg.eig runs aten::linalg_eig
_ENDINGS = ("_backward", "_double_backward", "_cpu", "_cuda", "_npu", "_impl")  # of the names of kernels


def find_rules(missing: str, index: Index, *, inside: str = "") -> list[tuple[str, ScanRule]]:
    """Return what was looked up, and the rule that knows it, for each rule that does; the closest first.

    Args:
        missing: As an error names it: ``aten::heaviside.out``, ``flash_attn.flash_attn_interface``.
        index: The rules.
        inside: The module that lacks it, as in ``module 'torch.cuda' has no attribute 'x'``; any other word is ignored.
    """
    found: dict[str, tuple[str, ScanRule]] = {}
    for name, whole in _spell(missing, inside):
        rules = [*index.names.find(name, inside=False), *index.calls.find(name, inside=False)]
        rules += index.packages.find(name) if "::" not in missing else []
        for _, rule in rules:
            # A guess at a name must be the very name of a rule; `torch.fft.*` would know whatever is put behind it.
            if whole or name in {*rule.names, *rule.calls, *rule.packages}:
                found.setdefault(rule.id, (name, rule))
    return list(found.values())


def find_types(missing: str, types: Mapping[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]] | None:
    """Return the function that was looked up and the types that it takes on the other device; ``None`` if no list has it.

    Args:
        missing: An operator, as an error or a record names it: ``aten::lerp.Scalar``, ``sort``.
        types: Dotted name of a function -> the types that it takes.
    """
    return next(((name, types[name]) for name, _ in _spell(missing, "") if name in types), None)


def _spell(missing: str, inside: str) -> Iterator[tuple[str, bool]]:
    """Yield the names that rules may have for something that is missing, and whether the error says this very name.

    >>> [name for name, _ in _spell("aten::_linalg_eig.out", "NPU")]
    ['linalg_eig', 'torch.linalg_eig', 'torch.nn.functional.linalg_eig', 'torch.linalg.eig']
    >>> list(_spell("Event", "torch.cuda"))[:1]
    [('torch.cuda.Event', True)]
    """
    if inside.partition(".")[0].startswith("torch"):
        yield f"{inside}.{missing}", True
    is_operator = "::" in missing
    name = missing.rpartition("::")[2].lstrip("_")
    name = name.partition(".")[0] if is_operator else name
    for _ in range(2):
        for ending in _ENDINGS:
            name = name.rstrip("_").removesuffix(ending)
    yield name, not is_operator
    if "." not in name:
        yield from ((f"{module}.{name}", False) for module in _MODULES)
        for part in _PARTS:
            if name.startswith(f"{part}_"):
                yield f"torch.{part}.{name.removeprefix(f'{part}_')}", True
