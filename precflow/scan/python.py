"""Applies the rules to one Python source: its findings, and the bytes that a patch replaces.

The standard library's ``ast`` says where each name, call and string stands, in bytes of the line, and a patch replaces only
these bytes. So comments, spaces and line ends stay as they are without a tree that has to keep them: LibCST was looked at and
would be one more dependency, slower by far, for an advantage that a patch of single words does not need. Each edit is checked
against the bytes that it expects there; f-strings before Python 3.12 have no exact places inside.
"""

from __future__ import annotations

import ast
import bisect
import fnmatch
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from precflow.scan.bindings import bind
from precflow.scan.edits import Edit, apply_edits
from precflow.scan.expressions import fits
from precflow.scan.findings import Finding
from precflow.scan.index import Index, choose
from precflow.scan.rules import LOOK, NUMBERS, STOPS, ScanRule

_OPENING = re.compile(rb"[A-Za-z]{0,2}(?:\"\"\"|'''|\"|')")  # of a string
_AVAILABLE = re.compile(r"_?is_\w+_available|find_spec")  # not torch.cuda.is_available
_LOOK_UP = frozenset(("get", "pop", "setdefault"))  # methods of a dict whose first argument is a key
_KERNEL = "kernel"  # the kind of rules about kernels of CUDA
_NAMES_KERNEL = re.compile(
    r"(?:.*_)?(?:cuda|triton)_.*|.*_(?:cuda|triton)"
)  # imported from beside: triton_ops, median_filter_cuda
_LONGEST = 80  # letters of what was found that are kept
_GUARDS = frozenset(("ImportError", "ModuleNotFoundError", "Exception", ""))
# Modules whose own `cuda` is no method that moves a tensor: torch.cuda() is not called, numba.cuda is a module.
_HAVE_MODULE = ("torch.cuda", "numba.cuda", "cupy.cuda", "jax.cuda")


@dataclass(frozen=True)
class PythonScan:
    """What was found in one source.

    Attributes:
        findings: Without a file; in order of lines.
        edits: What a patch replaces, in order, none over another.
        calls: Something that only torch_npu brings is used after it, such as ``.npu()``.
    """

    findings: tuple[Finding, ...]
    edits: tuple[Edit, ...]
    calls: bool = False


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a source.

    Raises:
        SyntaxError: It is no Python 3, or nested too deep; the line is in the error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in their strings
            return ast.parse(text)
    except (ValueError, MemoryError, RecursionError) as error:  # a NUL; nested too deep
        raise SyntaxError(str(error) or "nested too deep") from error


def scan_source(text: str, index: Index, *, setup: bool = False) -> PythonScan:
    """Apply all rules to one source.

    Args:
        text: The source, decoded, with its own line ends and without a byte order mark.
        index: The rules.
        setup: It is a ``setup.py``: its strings may name packages.

    Raises:
        SyntaxError: It cannot be parsed.
    """
    scanner = _Scanner(parse(text), text.encode("utf-8", "surrogatepass"), index, setup=setup)
    try:
        scanner.visit_all()
    except RecursionError as error:
        raise SyntaxError("nested too deep") from error
    return scanner.finish()


@dataclass(frozen=True)
class _Match:
    """A rule that fits a place; of several for one place one is kept."""

    rule: ScanRule
    span: tuple[int, int]
    lines: tuple[int, int]
    found: str
    edits: tuple[Edit, ...]
    general: bool
    guarded: bool = False


def _list_nodes(tree: ast.Module) -> tuple[list[ast.AST], dict[ast.AST, ast.AST]]:
    """Return all nodes, and of each but the tree itself the one that it is in."""
    nodes, parents = list[ast.AST]([tree]), dict[ast.AST, ast.AST]()
    for node in nodes:  # grows on the way
        for child in ast.iter_child_nodes(node):
            parents[child] = node
            nodes.append(child)
    return nodes, parents


class _Scanner:
    """Walks one syntax tree."""

    def __init__(self, tree: ast.Module, source: bytes, index: Index, *, setup: bool) -> None:
        self._source, self._index, self._setup = source, index, setup
        # Python counts lines by these three, and not by form feeds as str.splitlines() does.
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._matches: list[_Match] = []
        self._nodes, self._parents = _list_nodes(tree)
        self._bindings = bind(self._nodes, self._parents)
        self._mended: set[str] = set()  # names whose import is edited
        # What decides about a branch: sides of comparisons, and tensors that are asked whether they are on CUDA.
        self._deciding = {
            self._span(each)
            for node in self._nodes
            for each in (_list_sides(node) if isinstance(node, ast.Compare) else [node] if _asks_for_cuda(node) else [])
        }

    def visit_all(self) -> None:
        """Look at every node, imports first: what they bring under its old name needs no edit where it is used."""
        for node in self._nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._visit_import(node)
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                self._visit_attribute(node)
            elif isinstance(node, ast.Call):
                self._visit_call(node)
            elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                self._visit_string(node)
            elif isinstance(node, ast.Dict):
                self._visit_dict(node)
            elif isinstance(node, ast.ClassDef):
                self._visit_class(node)
            if isinstance(node, ast.expr):
                self._visit_expression(node)

    def _visit_expression(self, node: ast.expr) -> None:
        for pattern, rule in self._index.expressions.get(type(node), ()):
            if self._is_within(rule, node) and fits(pattern, node, lambda each: self._bindings.resolve(each)[0]):
                self._note(rule, node, _written(node))

    def _is_within(self, rule: ScanRule, node: ast.AST) -> bool:
        """Tell whether a place is in one of the functions that a rule is for."""
        parent = self._parents.get(node)
        while rule.within and parent is not None:
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return any(fnmatch.fnmatchcase(parent.name, name) for name in rule.within)
            parent = self._parents.get(parent)
        return not rule.within

    def _visit_class(self, node: ast.ClassDef) -> None:
        for item in node.body:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for rule in self._index.definitions.get(item.name, ()):
                    self._note(rule, item, f"def {item.name}", lines=(item.lineno, item.lineno))

    def finish(self) -> PythonScan:
        """Return the findings that count, and the edits of those that can be mended."""
        kept: dict[tuple[tuple[int, int], bool], _Match] = {}
        for match in self._matches:
            key = (match.span, match.rule.weight == NUMBERS)
            other = kept.get(key)
            if other is None or (match.general, match.rule.order) < (other.general, other.rule.order):
                kept[key] = match
        edits = _Edits()
        findings = []
        # Where a source has kernels of CUDA, a branch for "cuda" leads to them: an NPU must not be sent there.
        kernels = any(match.rule.kind == _KERNEL for match in kept.values()) or any(map(_imports_kernel, self._nodes))
        for match in sorted(kept.values(), key=lambda each: (each.lines, each.span, each.rule.order)):
            clash = [edit for edit in match.edits if edits.clashes(edit)]
            rule, branches = match.rule, kernels and match.span in self._deciding
            patched = bool(match.edits) and not clash and not branches
            if patched:
                edits.add(match.edits)
            weight = LOOK if match.guarded and rule.weight == STOPS else rule.weight
            why = rule.why.replace("{found}", match.found)
            why += " The source goes on without it." if weight != rule.weight else ""
            why += " This source has kernels of CUDA, to which the branch may lead." if branches else ""
            findings.append(
                Finding(
                    rule=rule.id,
                    weight=weight,
                    file="",
                    line=match.lines[0],
                    end_line=match.lines[1],
                    found=match.found,
                    why=why,
                    do=rule.do.replace("{found}", match.found),
                    patched=patched,
                )
            )
        calls = any(self._source[edit.start - 1 : edit.start] == b"." for edit in edits.sorted)
        return PythonScan(tuple(findings), tuple(edits.sorted), calls)

    # The places of nodes, in bytes.

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._at(getattr(node, "lineno", 1), getattr(node, "col_offset", 0)),
            self._at(getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)),
        )

    def _segment(self, node: ast.AST) -> bytes:
        start, end = self._span(node)
        return self._source[start:end]

    def _note(  # noqa: PLR0913  each is a fact of its own
        self,
        rule: ScanRule,
        node: ast.AST,
        found: str,
        edits: Sequence[Edit] = (),
        *,
        general: bool = False,
        lines: tuple[int, int] | None = None,
        guarded: bool = False,
    ) -> None:
        place = lines or (getattr(node, "lineno", 1), getattr(node, "end_lineno", 1))
        shown = found if len(found) <= _LONGEST else f"{found[: _LONGEST - 3]}..."
        self._matches.append(_Match(rule, self._span(node), place, shown, tuple(edits), general, guarded))

    # Names.

    def _visit_attribute(self, node: ast.Attribute) -> None:
        parent = self._parents.get(node)
        if not (isinstance(parent, ast.Attribute) and parent.value is node):
            dotted, nodes = self._bindings.resolve(node)
            for part, rule in choose(self._index.names.find(dotted)) if dotted else ():
                if rule.weight == NUMBERS and self._is_asked_about(node):
                    continue
                length = 1 + part.count(".") - (self._bindings.module_of(nodes[0]) or "").count(".")
                mended = getattr(nodes[0], "id", "") in self._mended and bool(rule.replace_module)
                if length > 1 and not mended:  # written here, and not only imported
                    edits = self._rename(rule, nodes[:length], part)
                    self._note(rule, nodes[length - 1], part, edits, guarded=self._is_guarded(node))
        called = isinstance(parent, ast.Call) and parent.func is node
        if node.attr in self._index.attributes and not called and not self._bindings.resolve(node)[0]:
            for rule in self._index.attributes[node.attr]:
                self._note(rule, node, f".{node.attr}", self._rename(rule, [node], node.attr))

    def _is_asked_about(self, node: ast.AST) -> bool:
        """Tell whether a class is only compared with: ``isinstance(module, torch.nn.Dropout)`` draws nothing."""
        parent = self._parents.get(node)
        parent = self._parents.get(parent) if isinstance(parent, ast.Tuple) else parent
        return isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in {"isinstance", "issubclass"}

    def _rename(self, rule: ScanRule, nodes: Sequence[ast.AST], dotted: str) -> list[Edit]:
        """Return the edits that replace the words of a rule in a dotted name; none if one of them is not written here."""
        edits = []
        parts = dotted.split(".")[-len(nodes) :]
        whole = len(dotted.split(".")) == len(nodes)
        for old, new in rule.replace.items():
            fitting = [node for node, part in zip(nodes, parts, strict=True) if part == old]
            if len(fitting) != 1:
                return []
            node = fitting[0]
            if isinstance(node, ast.Name) and not (whole and "." not in (self._bindings.module_of(node) or "")):
                return []
            written = (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "").encode()
            end = self._span(node)[1]
            if self._source[end - len(written) : end] != written:
                return []
            edits.append(Edit(end - len(written), end, new.encode()))
        return edits

    # Imports.

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.level or not node.module:
                return
            names = {f"{node.module}.{name.name}": name for name in node.names}
            modules = {node.module: node.names[0]}
        else:
            names = {name.name: name for name in node.names}
            modules = dict(names)
        guarded = self._is_guarded(node)
        told = {rule.kind for full in names for _, rule in choose(self._index.names.find(full)) if rule.weight == STOPS}
        for module, alias in modules.items():
            for part, rule in self._index.packages.find(module):
                if rule.kind in told:  # what is imported from it says more
                    continue
                self._note(rule, node if isinstance(node, ast.ImportFrom) else alias, part, guarded=guarded)
        # A rule that asks to look at what a module does says nothing of its bare import.
        matched = [
            (full, part, rule)
            for full in names
            for part, rule in choose(self._index.names.find(full))
            if isinstance(node, ast.ImportFrom) or rule.weight == STOPS
        ]
        renamings = {full: tuple(rule.replace_module.items()) for full, _, rule in matched if rule.weight != NUMBERS}
        # One import brings all its names from one module: either all of them are there too, or none is changed.
        alike = len(renamings) == len(names) and len(set(renamings.values())) == 1
        edits = self._rename_module(node, dict(next(iter(renamings.values())))) if alike else []
        self._mended |= {name.asname or name.name for name in node.names} if edits else set()
        for full, part, rule in matched:
            self._note(rule, names[full], part, edits if rule.replace_module else [], guarded=guarded)

    def _rename_module(self, node: ast.Import | ast.ImportFrom, renaming: Mapping[str, str]) -> list[Edit]:
        """Return the edit of the module's name in an import; an import that binds another name after it has none."""
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        if isinstance(node, ast.Import) and (len(node.names) > 1 or not node.names[0].asname):
            return []
        for old, new in renaming.items():
            if module and (module == old or module.startswith(f"{old}.")):
                start = self._span(node)[0]
                pattern = re.compile(rb"(?:from|import)\s+(" + re.escape(module.encode()) + rb")(?![\w.])")
                found = pattern.match(self._source, start)
                if found:
                    return [Edit(*found.span(1), f"{new}{module[len(old) :]}".encode())]
        return []

    def _is_guarded(self, node: ast.AST) -> bool:
        """Tell whether the source goes on where a library is not there: an import that may fail, and what is used beside it."""
        child, parent = node, self._parents.get(node)
        while parent is not None and not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if isinstance(parent, ast.If) and child in parent.body and _asks_for_library(parent.test):
                return True
            if (
                isinstance(parent, ast.Try)
                and child in parent.body
                and any(isinstance(each, (ast.Import, ast.ImportFrom)) for each in parent.body)
            ):
                for handler in parent.handlers:
                    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                    if any((getattr(kind, "id", "") if kind else "") in _GUARDS for kind in caught):
                        return not any(isinstance(each, ast.Raise) for each in handler.body)
            child, parent = parent, self._parents.get(parent)
        return False

    # Calls.

    def _visit_call(self, node: ast.Call) -> None:
        function = node.func
        dotted, nodes = self._bindings.resolve(function)
        for part, rule in self._index.calls.find(dotted, inside=False) if dotted else ():
            written = len(nodes) - 1 + (self._bindings.module_of(nodes[0]) or "").count(".") >= part.count(".")
            edits = self._rename(rule, nodes, dotted) if written else []
            self._note_call(rule, node, part, edits, general=part not in rule.calls)
        method = function.attr if isinstance(function, ast.Attribute) else ""
        # np.unique() is a function of a module; what a rule knows by its full name is no method either.
        of_module = len(nodes) == 2 and getattr(nodes[0], "id", "") in self._bindings.plain
        known = dotted in _HAVE_MODULE or (bool(dotted) and self._index.knows(dotted))
        of_numpy = isinstance(function, ast.Attribute) and self._bindings.is_array(function.value)
        for rule in self._index.methods.get(method, ()) if not (of_module or known or of_numpy) else ():
            # A class here that defines the method itself would not be called by the new name.
            edits = [] if method in self._bindings.methods else self._rename(rule, [function], method)
            self._note_call(rule, node, f".{method}()", edits)
        for rule in self._index.any_call:
            self._note_call(rule, node, dotted or method, [], general=True)

    def _note_call(self, rule: ScanRule, node: ast.Call, found: str, edits: Sequence[Edit], *, general: bool = False) -> None:
        """Note a call if its arguments are those that the rule asks for."""
        if any(keyword.arg in rule.without for keyword in node.keywords) or self._is_elsewhere(rule, node):
            return
        if rule.unordered and self._is_without_order(node):
            return
        if not rule.given:
            where = node.func
            self._note(rule, where, found, edits, general=general)
            return
        arguments: dict[str, ast.expr] = {str(number): value for number, value in enumerate(node.args)}
        arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        self._note_arguments(rule, arguments, found, edits, general=general)

    def _visit_dict(self, node: ast.Dict) -> None:
        """Look at arguments that are collected before a call: ``{"pin_memory": True}``."""
        arguments = {
            str(key.value): value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
        for rule in self._index.any_call if arguments else ():
            if not any(name in rule.without for name in arguments):
                self._note_arguments(rule, arguments, "", [], general=True)

    def _is_without_order(self, node: ast.Call) -> bool:
        """Tell whether nothing hangs on the order of a list: it is asked whether it is empty, or is sorted later on."""
        child: ast.AST = node
        parent = self._parents.get(node)
        while isinstance(parent, (ast.BinOp, ast.ListComp, ast.comprehension)) or (
            isinstance(parent, ast.Call) and child in parent.args and getattr(parent.func, "id", "") == "list"
        ):
            child, parent = parent, self._parents.get(parent)
        if isinstance(parent, (ast.BoolOp, ast.UnaryOp)) or (isinstance(parent, (ast.If, ast.Assert)) and parent.test is child):
            return True
        targets = parent.targets if isinstance(parent, ast.Assign) else [getattr(parent, "target", None)]
        return any(isinstance(target, ast.Name) and target.id in self._bindings.sorted for target in targets)

    def _note_arguments(
        self, rule: ScanRule, arguments: Mapping[str, ast.expr], found: str, edits: Sequence[Edit], *, general: bool
    ) -> None:
        place: ast.expr | None = None
        for name, pattern in self._index.given[rule.id].items():
            value = arguments.get(name)
            if value is None or not any(pattern.fullmatch(text) for text in self._describe_value(value)):
                return
            place = place or value
            found = f"{name}={_written(value)}" if not name.isdigit() else f"{found.removesuffix('()')}({_written(value)})"
        if place is not None:
            edits = [*edits, *self._replace_value(rule, place)] if rule.replace_value else edits
            self._note(rule, place, found, edits, general=general)

    def _describe_value(self, value: ast.expr) -> list[str]:
        """Return an argument as it is written; of a name that holds whole numbers also as ``int NAME``."""
        text = _written(value)
        return [text, f"int {text}"] if isinstance(value, ast.Name) and value.id in self._bindings.numbers else [text]

    def _replace_value(self, rule: ScanRule, value: ast.expr) -> list[Edit]:
        start, end = self._span(value)
        written = self._source[start:end]
        if written.decode("utf-8", "replace") != _written(value):
            return []
        return [Edit(start, end, rule.replace_value.replace("{}", _written(value)).encode())]

    # Strings.

    def _visit_string(self, node: ast.expr) -> None:
        parent = self._parents.get(node)
        if isinstance(parent, (ast.Expr, ast.JoinedStr)):  # a docstring, or a part of an f-string
            return
        text = _read_string(node)
        for pattern, rule in self._index.items if self._looks_up(node) else self._index.strings:
            if (
                pattern.fullmatch(text)
                and not self._is_elsewhere(rule, node)
                and self._find_partner(node) not in rule.not_named
            ):
                self._note(rule, node, repr(text), self._replace_opening(rule, node, text))
        for pattern, rule in self._index.variables:
            if pattern.fullmatch(text):
                self._note(rule, node, text, self._replace_opening(rule, node, text))
        if self._setup and len(text) < _LONGEST:
            for name, rule in self._index.find_requirements(text):
                self._note(rule, node, name)

    def _looks_up(self, node: ast.expr) -> bool:
        """Tell whether a string is what something is looked up by: ``x["cuda"]``, ``{"cuda": x}``, ``x.get("cuda")``."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Dict):
            return node in parent.keys
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.args:
            return parent.func.attr in _LOOK_UP and parent.args[0] is node
        return isinstance(parent, ast.Subscript) and parent.slice is node

    def _find_partner(self, node: ast.expr) -> str:
        """Return the name of what a string is given to, is the default of, or is compared with; ``""`` if it has none."""
        child: ast.AST = node
        parent = self._parents.get(node)
        while isinstance(parent, (ast.List, ast.Tuple, ast.Set)):  # impl in ["ref", "cuda"]
            child, parent = parent, self._parents.get(parent)
        named: ast.AST | None = None
        if isinstance(parent, ast.keyword):
            return parent.arg or ""
        if isinstance(parent, ast.Compare):
            named = next((each for each in (parent.left, *parent.comparators) if each is not child), None)
        elif isinstance(parent, ast.Assign):
            named = parent.targets[0]
        elif isinstance(parent, ast.arguments):
            places = [*parent.posonlyargs, *parent.args]
            defaults = {id(value): place for place, value in zip(places[::-1], parent.defaults[::-1], strict=False)}
            defaults |= {id(value): place for place, value in zip(parent.kwonlyargs, parent.kw_defaults, strict=True) if value}
            return defaults[id(child)].arg if id(child) in defaults else ""
        return named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""

    def _replace_opening(self, rule: ScanRule, node: ast.expr, text: str) -> list[Edit]:
        """Return the edit of the word that a string begins with; none if it is not written so."""
        start, segment = self._span(node)[0], self._segment(node)
        opening = _OPENING.match(segment)
        for old, new in rule.replace.items():
            if opening and text.startswith(old) and segment[opening.end() :].startswith(old.encode()):
                return [Edit(start + opening.end(), start + opening.end() + len(old.encode()), new.encode())]
        return []

    def _is_elsewhere(self, rule: ScanRule, node: ast.AST) -> bool:
        """Tell whether a string is an argument of a call in which it means something else."""
        if not rule.not_in:
            return False
        child, parent = node, self._parents.get(node)
        while parent is not None and not isinstance(parent, (ast.stmt, ast.Call)):
            child, parent = parent, self._parents.get(parent)
        if not isinstance(parent, ast.Call) or child is parent.func:
            return False
        dotted = self._bindings.resolve(parent.func)[0] or ast.unparse(parent.func)
        return bool(self._index.not_in[rule.id].find(dotted, inside=False))


def _read_string(node: ast.expr) -> str:
    """Return the text of a string; a field of an f-string is ``{}``."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _asks_for_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "is_cuda"


def _imports_kernel(node: ast.AST) -> bool:
    """Tell whether something is imported from beside that is a kernel of CUDA by its name."""
    if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] == "torch":
        return False
    names = [(node.module or "").rpartition(".")[2], *(name.name for name in node.names)]
    return any(_NAMES_KERNEL.fullmatch(name) for name in names)


def _list_sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _asks_for_library(test: ast.expr) -> bool:
    """Tell whether a condition asks if a library is there, as ``if is_apex_available():`` does."""
    called = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    names = [function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "") for function in called]
    return any(_AVAILABLE.fullmatch(name) for name in names)


def _written(value: ast.expr) -> str:
    return ast.unparse(value)


class _Edits:
    """Edits of one source, none of which lies over another."""

    def __init__(self) -> None:
        self.sorted: list[Edit] = []

    def clashes(self, edit: Edit) -> bool:
        """Tell whether an edit lies over one that is there and says something else."""
        place = bisect.bisect_left(self.sorted, edit.start, key=lambda each: each.start)
        near = self.sorted[max(place - 1, 0) : place + 1]  # what is there does not overlap: only neighbours can
        return any(each != edit and each.start < edit.end and edit.start < each.end for each in near)

    def add(self, edits: Sequence[Edit]) -> None:
        """Put edits to the others; one that is there already is not put there again."""
        for edit in edits:
            place = bisect.bisect_left(self.sorted, edit.start, key=lambda each: each.start)
            if self.sorted[place : place + 1] != [edit]:
                self.sorted.insert(place, edit)


def with_import(text: str, scanned: PythonScan, module: str) -> tuple[Edit, int] | None:
    """Return the edit that imports a module, and the line before it; ``None`` if it is imported or not needed.

    It stands behind ``import torch``; in a source that uses the device without importing torch, behind its first import.

    Args:
        text: The source before any edit.
        scanned: What was found in it.
        module: Such as ``torch_npu``.
    """
    tree, source = parse(text), text.encode("utf-8", "surrogatepass")
    brings = any(module.encode() in edit.new for edit in scanned.edits)
    if not scanned.edits or (any(_imports(node, module) for node in tree.body) and not brings):
        return None
    places = [node for node in tree.body if _imports(node, "torch")]
    if not places and (scanned.calls or brings):
        imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        places = [node for node in imports if getattr(node, "module", "") != "__future__"]
    if not places:
        return None
    end_line = places[0].end_lineno or 1
    lines = source.splitlines(keepends=True)
    last = lines[end_line - 1]
    ending = last[len(last.rstrip(b"\r\n")) :]
    statement = f"import {module}  # noqa: F401".encode()
    new = statement + ending if ending else (b"\r\n" if b"\r\n" in source else b"\n") + statement
    end = sum(map(len, lines[:end_line]))
    return Edit(end, end, new), end_line


def _imports(node: ast.stmt, module: str) -> bool:
    """Tell whether a statement at the top of a source imports a module, at once or somewhere inside of ``try`` and ``if``."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    for each in ast.walk(node):
        if isinstance(each, ast.Import) and any(name.name.partition(".")[0] == module for name in each.names):
            return True
        if isinstance(each, ast.ImportFrom) and not each.level and (each.module or "").partition(".")[0] == module:
            return True
    return False


def scan_with_import(text: str, index: Index, *, setup: bool = False) -> tuple[PythonScan, Sequence[Edit]]:
    """Scan a source; return its findings, and the edits with the import that they need.

    A source whose edits do not parse afterwards keeps its findings, as ones that are left by hand.

    Raises:
        SyntaxError: It cannot be parsed.
    """
    scanned = scan_source(text, index, setup=setup)
    if not scanned.edits:
        return scanned, ()
    edits: list[Edit] = list(scanned.edits)
    added = with_import(text, scanned, "torch_npu")
    if added is not None:
        edits = sorted([*edits, added[0]], key=lambda edit: (edit.start, edit.end))
    try:
        parse(apply_edits(text.encode("utf-8", "surrogatepass"), edits).decode("utf-8", "surrogatepass"))
    except SyntaxError:
        return PythonScan(tuple(replace(finding, patched=False) for finding in scanned.findings), ()), ()
    if added is not None:
        line = added[1]
        finding = Finding(
            rule="import.torch_npu",
            weight=STOPS,
            file="",
            line=line,
            end_line=line,
            found="import torch",
            why="torch knows no NPU before torch_npu is imported; torch 2.5 and newer do it by themselves.",
            do="import torch_npu after torch",
            patched=True,
        )
        scanned = PythonScan(tuple(sorted([*scanned.findings, finding], key=lambda each: each.line)), scanned.edits)
    return scanned, edits
