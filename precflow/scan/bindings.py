"""What the names of a source stand for: imported modules, classes' own methods, whole numbers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_COUNTS = ("torch.distributed.get_rank", "torch.cuda.current_device", "torch.cuda.device_count")


@dataclass
class Bindings:
    """Of one source, without scopes: a name that is bound in one function counts everywhere.

    Attributes:
        modules: Name -> what it was imported as, such as ``nn`` -> ``torch.nn``.
        plain: Names that ``import`` binds: modules for sure, where ``from`` may bring anything.
        methods: Names of methods that a class here defines.
        numbers: Names that hold whole numbers wherever they are assigned.
    """

    modules: dict[str, str] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)

    def resolve(self, node: ast.AST) -> tuple[str, list[ast.AST]]:
        """Return the dotted name of an expression by what was imported, and its nodes from the root; ``""`` if it has none."""
        nodes: list[ast.AST] = []
        attributes = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            nodes.append(node)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.modules:
            return "", []
        nodes.append(node)
        return ".".join([self.modules[node.id], *reversed(attributes)]), nodes[::-1]


def bind(nodes: Sequence[ast.AST]) -> Bindings:
    """Return what the names of a source stand for, by all nodes of its syntax tree."""
    bindings, bound = Bindings(), set[str]()
    for node in nodes:
        bound.update(_list_bound(node))
        if isinstance(node, ast.Import):
            for name in node.names:
                known = name.asname or name.name.partition(".")[0]
                bindings.modules[known] = name.name if name.asname else known
                bindings.plain.add(known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            bindings.modules |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.ClassDef):
            functions = (item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)))
            bindings.methods |= {function.name for function in functions}
    if "torch" not in bound:  # a star import may bring it
        bindings.modules.setdefault("torch", "torch")
        bindings.plain.add("torch")
    bindings.numbers = _find_numbers(nodes, bindings)
    return bindings


def _find_numbers(nodes: Sequence[ast.AST], bindings: Bindings) -> set[str]:
    """Return the names that are bound by plain assignments of whole numbers, and in no other way."""
    bound, numbers = Counter[str](), Counter[str]()
    for node in nodes:
        bound.update(_list_bound(node))
        if isinstance(node, ast.Assign) and _is_number(node.value, bindings):
            numbers.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name, count in numbers.items() if count == bound[name]}


def _is_number(value: ast.expr, bindings: Bindings) -> bool:
    """Tell whether an expression is a whole number for sure, as far as devices are numbered."""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.Mod) and not (
            isinstance(value.left, ast.Constant) and isinstance(value.left.value, str)
        )
    if isinstance(value, ast.Call):
        return getattr(value.func, "id", "") == "int" or bindings.resolve(value.func)[0] in _COUNTS
    return isinstance(value, ast.Constant) and type(value.value) is int


def _list_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node assigns, defines or takes as arguments."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
