"""What the names of a source stand for: imported modules, classes' own methods, whole numbers."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_COUNTS = ("torch.distributed.get_rank", "torch.cuda.current_device", "torch.cuda.device_count")


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass
class Bindings:
    """Of one source. A name that a function binds for itself, as an argument too, stands for that inside of it.

    Attributes:
        modules: Name -> what it was imported as outside of functions, such as ``nn`` -> ``torch.nn``.
        plain: Names that ``import`` binds: modules for sure, where ``from`` may bring anything.
        methods: Names of methods that a class here defines.
        numbers: Names that hold whole numbers wherever they are assigned.
        arrays: Names that hold arrays of NumPy wherever they are assigned.
        sorted: Names that are sorted somewhere: ``sorted(x)``, ``x.sort()``.
        parents: Node -> the one that it is in.
        local: Function -> names that are its own, with what each was imported as, ``None`` for anything but a module.
    """

    modules: dict[str, str] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    sorted: set[str] = field(default_factory=set)
    parents: Mapping[ast.AST, ast.AST] = field(default_factory=dict)
    local: dict[ast.AST, dict[str, str | None]] = field(default_factory=dict)

    def module_of(self, name: ast.AST) -> str | None:
        """Return what a name was imported as, where it stands; ``None`` if it is no module there, or no name."""
        if not isinstance(name, ast.Name):
            return None
        for scope in _list_scopes(name, self.parents):
            if name.id in self.local.get(scope, {}):
                return self.local[scope][name.id]
        return self.modules.get(name.id)

    def is_array(self, node: ast.AST) -> bool:
        """Tell whether an expression is an array of NumPy for sure: what a function of NumPy returns, or a part of that."""
        while True:
            if isinstance(node, ast.Call) and self.resolve(node.func)[0].startswith("numpy."):
                return not self.resolve(node.func)[0].endswith(".from_dlpack")
            if isinstance(node, ast.Name):
                return node.id in self.arrays
            if isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value
            elif isinstance(node, (ast.BinOp, ast.Compare)):
                node = node.left
            else:
                return False

    def resolve(self, node: ast.AST) -> tuple[str, list[ast.AST]]:
        """Return the dotted name of an expression by what was imported, and its nodes from the root; ``""`` if it has none."""
        nodes: list[ast.AST] = []
        attributes = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            nodes.append(node)
            node = node.value
        module = self.module_of(node)
        if module is None:
            return "", []
        nodes.append(node)
        return ".".join([module, *reversed(attributes)]), nodes[::-1]


def bind(nodes: Sequence[ast.AST], parents: Mapping[ast.AST, ast.AST]) -> Bindings:
    """Return what the names of a source stand for.

    Args:
        nodes: All nodes of its syntax tree.
        parents: Node -> the one that it is in.
    """
    bindings, bound = Bindings(parents=parents), set[str]()
    shared = _find_shared(nodes, parents)
    for node in nodes:
        bound.update(_list_bound(node))
        scope = next(_list_scopes(node, parents), None)
        imported: dict[str, str] = {}
        if isinstance(node, ast.Import):
            imported = {
                name.asname or name.name.partition(".")[0]: name.name if name.asname else name.name.partition(".")[0]
                for name in node.names
            }
            bindings.plain |= imported.keys()
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported = {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        for name, module in imported.items():
            own = scope is not None and name not in shared.get(scope, ())
            names = bindings.local.setdefault(scope, {}) if scope is not None and own else bindings.modules
            names[name] = module
        if scope is not None and not isinstance(node, ast.ClassDef):
            for name in _list_bound(node):
                if name not in shared.get(scope, ()):
                    bindings.local.setdefault(scope, {}).setdefault(name, None)
        if isinstance(node, ast.ClassDef):
            functions = (item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)))
            bindings.methods |= {function.name for function in functions}
    if "torch" not in bound:  # a star import may bring it
        bindings.modules.setdefault("torch", "torch")
        bindings.plain.add("torch")
    bindings.numbers = _find_numbers(nodes, bindings)
    bindings.arrays = _find_arrays(nodes, bindings)
    bindings.sorted = {name for node in nodes for name in _list_sorted(node)}
    return bindings


def _list_scopes(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[_Scope]:
    """Yield the functions that a node stands in, from the inside out.

    Defaults, annotations and decorators of a function stand outside of it, and its arguments inside.
    """
    child, parent = node, parents.get(node)
    while parent is not None:
        if isinstance(parent, _SCOPES):
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            if child in body or isinstance(node, ast.arg):
                yield parent
        child, parent = parent, parents.get(parent)


def _find_shared(nodes: Sequence[ast.AST], parents: Mapping[ast.AST, ast.AST]) -> dict[ast.AST, set[str]]:
    """Return the names that functions declare as not their own."""
    shared: dict[ast.AST, set[str]] = {}
    for node in nodes:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            for scope in _list_scopes(node, parents):
                shared.setdefault(scope, set()).update(node.names)
                break
    return shared


def _find_numbers(nodes: Sequence[ast.AST], bindings: Bindings) -> set[str]:
    """Return the names that are bound by plain assignments of whole numbers, and in no other way."""
    bound, numbers = Counter[str](), Counter[str]()
    for node in nodes:
        bound.update(_list_bound(node))
        if isinstance(node, ast.Assign) and _is_number(node.value, bindings):
            numbers.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name, count in numbers.items() if count == bound[name]}


def _find_arrays(nodes: Sequence[ast.AST], bindings: Bindings) -> set[str]:
    """Return the names that are bound by plain assignments of arrays of NumPy, and in no other way."""
    bound = Counter[str](name for node in nodes for name in _list_bound(node))
    assigned: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
    # A name may be bound anew by a part of itself; that holds where all else that it is bound by is an array.
    bindings.arrays = {name for name, values in assigned.items() if len(values) == bound[name]}
    while True:
        kept = {
            name
            for name in bindings.arrays
            if all(bindings.is_array(value) for value in assigned[name])
            and not all(_is_part_of(value, name) for value in assigned[name])
        }
        if kept == bindings.arrays:
            return kept
        bindings.arrays = kept


def _is_part_of(value: ast.AST, name: str) -> bool:
    while isinstance(value, (ast.Subscript, ast.Attribute, ast.Call)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Name) and value.id == name


def _is_number(value: ast.expr, bindings: Bindings) -> bool:
    """Tell whether an expression is a whole number for sure, as far as devices are numbered."""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.Mod) and not (
            isinstance(value.left, ast.Constant) and isinstance(value.left.value, str)
        )
    if isinstance(value, ast.Call):
        return getattr(value.func, "id", "") == "int" or bindings.resolve(value.func)[0] in _COUNTS
    return isinstance(value, ast.Constant) and type(value.value) is int


def _list_sorted(node: ast.AST) -> Iterator[str]:
    """Yield the names that a call sorts, or that what it sorts is made of."""
    if not isinstance(node, ast.Call):
        return
    if getattr(node.func, "id", "") == "sorted":
        yield from (each.id for argument in node.args for each in ast.walk(argument) if isinstance(each, ast.Name))
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "sort" and isinstance(node.func.value, ast.Name):
        yield node.func.value.id


def _list_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node assigns, defines or takes as arguments."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
