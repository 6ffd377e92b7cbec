"""Fits the expressions of rules to those of a source: ``X * torch.rsqrt(V + E)``, whatever stands for the capital letters."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Resolve = Callable[[ast.AST], str]
"""Returns the dotted name of an expression by what was imported; ``""`` if it has none."""

_Pair = tuple[ast.AST, ast.AST]  # of the rule, and of the source
_EITHER_WAY = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)


def read_expression(text: str) -> ast.expr:
    """Return an expression of a rule.

    Raises:
        SyntaxError: It is none.
    """
    return ast.parse(text, mode="eval").body


def fits(pattern: ast.expr, node: ast.AST, resolve: Resolve) -> bool:
    """Tell whether an expression of a source is one that a rule describes.

    A capital letter stands for any expression, and the same letter for the same one. Names with a dot are those of modules,
    whatever they are imported as. ``...`` stands for any further arguments. Sums and products fit either way round.

    Args:
        pattern: The expression of the rule.
        node: The expression of the source.
        resolve: What was imported in the source.
    """
    return any(True for _ in _fit(pattern, node, {}, resolve))


def _fit(pattern: ast.AST, node: ast.AST, bound: dict[str, str], resolve: Resolve) -> Iterator[dict[str, str]]:
    """Yield what the letters stand for, each way in which it fits."""
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1 and pattern.id.isupper():
        written = ast.dump(node)
        if bound.setdefault(pattern.id, written) == written:
            yield bound
    elif dotted := _dotted(pattern):
        if resolve(node) == dotted:
            yield bound
    elif isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
        for found in _fit(pattern.func, node.func, dict(bound), resolve):
            yield from _fit_arguments(pattern, node, found, resolve)
    else:
        for pairs in _list_ways(pattern, node):
            yield from _fit_all(pairs, dict(bound), resolve)


def _list_ways(pattern: ast.AST, node: ast.AST) -> Iterator[list[_Pair]]:
    """Yield the pairs of parts that have to fit: of a sum or a product two ways, and none if the nodes are of other kinds."""
    if type(pattern) is not type(node):
        return
    pairs: list[_Pair] = []
    for name in set(pattern._fields) - {"ctx"}:
        wanted, given = (each if isinstance(each, list) else [each] for each in (getattr(pattern, name), getattr(node, name)))
        plain = [one for one in wanted if not isinstance(one, ast.AST)]
        if len(wanted) != len(given) or plain != [one for one in given if not isinstance(one, ast.AST)]:
            return
        pairs += [(mine, theirs) for mine, theirs in zip(wanted, given, strict=True) if isinstance(mine, ast.AST)]
    yield pairs
    if isinstance(pattern, ast.BinOp) and isinstance(node, ast.BinOp) and isinstance(pattern.op, _EITHER_WAY):
        yield [(pattern.op, node.op), (pattern.left, node.right), (pattern.right, node.left)]


def _fit_arguments(pattern: ast.Call, node: ast.Call, bound: dict[str, str], resolve: Resolve) -> Iterator[dict[str, str]]:
    wanted = [each for each in pattern.args if not (isinstance(each, ast.Constant) and each.value is ...)]
    further = len(wanted) < len(pattern.args)
    named = {each.arg: each.value for each in node.keywords}
    if len(node.args) < len(wanted) or any(each.arg not in named for each in pattern.keywords):
        return
    if not further and (len(node.args), len(node.keywords)) != (len(wanted), len(pattern.keywords)):
        return
    pairs: list[_Pair] = [*zip(wanted, node.args[: len(wanted)], strict=True)]
    yield from _fit_all([*pairs, *((each.value, named[each.arg]) for each in pattern.keywords)], bound, resolve)


def _fit_all(pairs: list[_Pair], bound: dict[str, str], resolve: Resolve) -> Iterator[dict[str, str]]:
    if not pairs:
        yield bound
        return
    for found in _fit(*pairs[0], dict(bound), resolve):
        yield from _fit_all(pairs[1:], found, resolve)


def _dotted(node: ast.AST) -> str:
    """Return ``torch.rsqrt`` for a name of a module in a rule; ``""`` for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    is_module = isinstance(node, ast.Name) and not (len(node.id) == 1 and node.id.isupper())
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) and is_module and parts else ""
