"""The facts that the fallback needs about an operator, read once from its schema."""

from __future__ import annotations

import functools
from typing import Any, FrozenSet, List, NamedTuple, Optional, Tuple

import torch

from precflow.agent.emulated import private

# Operators whose index or source argument may be a CPU tensor; real devices allow that too.
_MIXED = frozenset(
    "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put set_ _copy_from is_set_to".split()
)
_METADATA = frozenset(("set_", "set_.source_Tensor", "set_.source_Storage", "set_.source_Storage_storage_offset"))


class Operator(NamedTuple):
    """Facts about one overload of an aten operator.

    Attributes:
        name: Name without overload, such as ``addmm``.
        overload: Name with overload if it has one, such as ``addmm.out``.
        arguments: Argument names in the order of the schema.
        positional: How many of them, from the left, may be given by position.
        tensors: Arguments that the schema declares as a tensor (not as an optional one or a list).
        written: Arguments that the operator writes into.
        sources: For each result the argument that is returned as this result (in-place and out= operators), else ``None``.
        relabels: It only changes metadata: its CPU kernel runs on the npu tensor itself and keeps its storage.
        draws: It takes an explicit generator.
        draws_silently: It draws random numbers and takes no generator.
        mixed: It accepts CPU tensors beside npu tensors.
    """

    name: str
    overload: str
    arguments: Tuple[str, ...]
    positional: int
    tensors: Tuple[str, ...]
    written: FrozenSet[str]
    sources: Tuple[Optional[str], ...]
    relabels: bool
    draws: bool
    draws_silently: bool
    mixed: bool


@functools.lru_cache(maxsize=None)  # read again and again: the fallback runs for every operator of a model
def read_schema(overload: Any) -> Operator:
    """Return the facts about ``overload`` (an ``OpOverload``)."""
    schema = private.schema_of(overload)
    base = schema.name.split("::")[-1]
    full = base + ("." + schema.overload_name if schema.overload_name else "")
    names = tuple(argument.name for argument in schema.arguments)
    # In `add_(Tensor(a!) self, ...) -> Tensor(a!)` the label "a" says that the result is the argument `self`.
    aliased = {label: argument.name for argument in schema.arguments for label in _labels(argument)}
    sources = [[aliased[label] for label in _labels(result) if label in aliased] for result in schema.returns]
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    views = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    draws = "generator" in names
    return Operator(
        name=base,
        overload=full,
        arguments=names,
        positional=sum(not argument.kwarg_only for argument in schema.arguments),
        tensors=tuple(argument.name for argument in schema.arguments if str(argument.type) == "Tensor"),
        written=written,
        sources=tuple(names[0] if names else None for names in sources),
        relabels=full in _METADATA or (views and not written),
        draws=draws,
        draws_silently=not draws and torch.Tag.nondeterministic_seeded in overload.tags,
        mixed=base in _MIXED,
    )


def _labels(argument: Any) -> List[str]:
    return [] if argument.alias_info is None else list(argument.alias_info.before_set)
