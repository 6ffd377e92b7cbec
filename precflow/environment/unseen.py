"""What ran in compiled code, where nothing is recorded: two sides are compared at the boundary of such code only."""

from __future__ import annotations

from precflow.agent.contract import EAGER, module_text
from precflow.dumps.header import CompiledCode, Header

_SHOWN = 3
_FUNCTION = "function "


def describe_unseen(reference: Header, target: Header) -> list[str]:
    """Return what each side ran in compiled code and nobody saw, in words; empty if there is nothing of the kind.

    Args:
        reference: Header of the reference's dump.
        target: Header of the target's dump.
    """
    if reference.compiled.unseen == target.compiled.unseen:
        sides = [("both sides", reference)]
    else:
        sides = [("the reference", reference), ("the target", target)]
    return [f"compiled code on {name}: {_describe(header)}" for name, header in sides if header.compiled.unseen]


def _describe(header: Header) -> str:
    code: CompiledCode = header.compiled
    modules = [name for name in code.unseen if not name.startswith(_FUNCTION)]
    inside, functions = sum(code.unseen[name] for name in modules), len(code.unseen) - len(modules)
    counted = []
    if modules:
        counted.append(f"{_count(inside, 'module')} inside {_count(len(modules), 'compiled module')}")
    if functions:
        counted.append(f"the inside of {_count(functions, 'compiled function')}")
    names = [name.removeprefix(_FUNCTION) if name.startswith(_FUNCTION) else module_text(name) for name in code.unseen]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    # What is compiled all the same is TorchScript.
    was_eager = (header.capture.get("compiled") or header.script.get("compile")) == EAGER
    advice = "" if was_eager else "; capture.compiled=eager looks inside"
    return f"{' and '.join(counted)} could not be seen ({', '.join(names[:_SHOWN])}{more}){advice}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
