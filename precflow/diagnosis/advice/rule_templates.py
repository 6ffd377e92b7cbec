"""The templates of rules: Jinja in a sandbox, with what could run for ever refused before anything is computed.

A team's rules are data from somebody else. Their templates may contain names, comparisons, sums, ``if`` and a few filters, but
no loops, calls or powers, and what they add and join is bounded. So each takes no more time and memory than its text and
evidence.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, Template, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.environment import TemplateExpression
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from precflow.diagnosis.evidence.pieces import format_evidence
from precflow.errors import ConfigError, Problem
from precflow.template_cache import TemplateCache

_LONGEST = 4000  # characters of a template
_WAYS = 300  # in which a text is tried
_LONGEST_MADE = 1_000_000  # characters of what one join or sum makes
_FILTERS = frozenset(
    "abs capitalize default first float int join last length lower max min percent round shown sort string sum unique"
    " upper".split()
)
# Other methods of a text could take any amount of memory: ``"a".ljust(1000000000)`` makes a gigabyte.
_METHODS = frozenset("endswith split startswith".split())
_ALLOWED_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.CondExpr, nodes.Const, nodes.Name, nodes.List),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Getattr, nodes.Getitem, nodes.Slice),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Filter, nodes.Test, nodes.Call, nodes.Tuple),
    *(nodes.Concat,),
)


@functools.lru_cache(maxsize=1024)
def compile_condition(condition: str) -> TemplateExpression:
    """Return a compiled condition."""
    return _strict_sandbox().compile_expression(condition)


def holds(condition: str, evidence: Mapping[str, Any], *, owner: str) -> bool:
    """Evaluate a condition; evidence that could not be measured makes it false.

    Args:
        condition: An expression over names of evidence.
        evidence: What was measured, by name.
        owner: Whose condition it is, such as ``rule PF214``.

    Raises:
        ConfigError: The condition is wrong for another reason, such as a text that is compared with a number.
    """
    try:
        return bool(compile_test(condition).render(**evidence))
    except UndefinedError:  # evidence that was not measured, as that of tensors which were not kept, or is of a suspect only
        return False
    except Exception as error:
        problem = Problem("", owner, f"{condition}: {error}")
        raise ConfigError(
            f"{owner} cannot be evaluated", problems=[problem], next_step=f"correct the file of {owner}"
        ) from error


def compile_test(condition: str) -> Template:
    """Return a template that is empty where a condition does not hold; it is kept for the next process, unlike an expression.

    Args:
        condition: A condition in which :func:`check_template` finds nothing wrong.
    """
    return _load(_strict_sandbox(), "{% if (" + condition + ") %}yes{% endif %}")


def compile_text(source: str) -> Template:
    """Return a compiled text, which is kept for the next process."""
    return _load(_sandbox(), source)


def _load(sandbox: Environment, source: str) -> Template:
    name = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    _SOURCES[name] = source
    return sandbox.get_template(name)


_SOURCES: dict[str, str] = {}  # by a name that Jinja can write into its code


@functools.lru_cache(maxsize=1024)  # a sweep reads the same rules at each of its runs
def check_template(source: str, *, condition: bool) -> tuple[list[str], list[str]]:
    """Check one text or condition of a rule.

    Args:
        source: The template, or the expression of a condition.
        condition: It is a condition.

    Returns:
        What is wrong with it, and the names that it uses (none if something is wrong).
    """
    if len(source) > _LONGEST:
        return [f"has {len(source)} characters; at most {_LONGEST}"], []
    try:
        tree = _sandbox().parse("{{ (" + source + ") }}" if condition else source)
        refused = list(_find_refused(tree))
        if refused:  # do not compile it: Jinja computes constants such as 9**9**9 as soon as it compiles
            return refused, []
        names = sorted(meta.find_undeclared_variables(tree))
        _ = compile_condition(source) if condition else compile_text(source)
    except TemplateSyntaxError as error:
        return [f"cannot be read: {error.message}"], []
    except RecursionError:
        return ["is nested too deep"], []
    except SecurityError as error:
        return [str(error)], []
    return [], names


@functools.lru_cache(maxsize=1024)
def find_failure(source: str) -> tuple[str, ...]:
    """Return why a text cannot be filled in whatever the evidence is; nothing if it can.

    Nothing says of which type a piece of evidence is, so many ways are tried. A text that none of them suits would end the run
    in which its rule applies.

    Args:
        source: A text in which :func:`check_template` finds nothing wrong.
    """
    _, names = check_template(source, condition=False)
    problem, chance = "", random.Random(0)  # noqa: S311  the same ways each time
    ways = [dict.fromkeys(names, value) for value in _SAMPLES]
    for number in range(_WAYS):
        evidence = ways[number] if number < len(ways) else {name: chance.choice(_SAMPLES) for name in names}
        try:
            compile_text(source).render(**evidence)
        except Exception as error:  # noqa: BLE001  whatever it is, the rule would fail by it
            problem = problem or f"cannot be filled in: {error}"
        else:
            return ()
    return (problem,)


class _Nested(dict[str, Any]):
    """Evidence with names in it, at any depth, as ``graph.start.name``."""

    def __getitem__(self, key: object) -> Any:
        return self


_SAMPLES: tuple[object, ...] = (1.0, "text", ["text"], [1.0], True, _Nested())


def _find_refused(tree: nodes.Template) -> Iterator[str]:
    """Yield what a template contains that no rule needs and that could take any amount of time or memory."""
    for node in tree.find_all(nodes.Node):
        if not isinstance(node, _ALLOWED_NODES):
            yield f"has {type(node).__name__.lower()}; rules may only have names, comparisons, sums, if and filters"
        elif isinstance(node, nodes.Filter) and node.name not in _FILTERS:
            yield f"has the filter {node.name}; filters of rules are {', '.join(sorted(_FILTERS))}"
        elif isinstance(node, nodes.Call) and not (isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS):
            yield f"calls something; rules may only call {', '.join(sorted(_METHODS))} of a text"


class _Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja sandbox in which no value grows beyond what a sentence needs."""

    # Jinja computes these itself unless they are named here: "a" * 10**9 and "%1000000000d" % 1 are short and make a gigabyte.
    intercepted_binops = frozenset(["*", "%", "+"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute one operation.

        Raises:
            SecurityError: A text or list is multiplied or formatted, or a sum of them is too long.
        """
        sized = [value for value in (left, right) if isinstance(value, (str, bytes, list, tuple))]
        if sized and operator != "+":
            raise SecurityError(f"{operator} is for numbers")
        if sum(len(value) for value in sized) > _LONGEST_MADE:
            raise SecurityError(f"+ makes more than {_LONGEST_MADE} characters")
        return super().call_binop(context, operator, left, right)


def _join(values: Sequence[Any], between: str = "") -> str:
    """Join texts as Jinja's filter does.

    Raises:
        SecurityError: The result would be longer than any finding.
    """
    texts = [str(value) for value in values]
    if sum(map(len, texts)) + len(between) * len(texts) > _LONGEST_MADE:
        raise SecurityError(f"join makes more than {_LONGEST_MADE} characters")
    return between.join(texts)


def _round(value: float, digits: int = 0) -> float:
    """Round as Jinja's filter does; a huge number of digits would take Python very long."""
    return round(value, min(max(digits, -300), 300))


@functools.lru_cache(maxsize=1)
def _sandbox() -> _Sandbox:
    # Plain text; the report escapes what it shows.
    sandbox = _Sandbox(
        autoescape=False,
        loader=DictLoader(_SOURCES),
        cache_size=1024,
        bytecode_cache=TemplateCache([Path(__file__)]),
    )
    sandbox.filters["shown"] = format_evidence
    sandbox.filters["percent"] = functools.partial(format_evidence, unit="%")
    sandbox.filters["join"] = _join
    sandbox.filters["round"] = _round
    return sandbox


@functools.lru_cache(maxsize=1)
def _strict_sandbox() -> Environment:
    """Return the sandbox of conditions: `not x` of evidence that was not measured would hold otherwise."""
    return _sandbox().overlay(undefined=StrictUndefined)
