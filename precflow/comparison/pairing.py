"""Which record of the target belongs to which record of the reference: by identity, never by position in a global order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from precflow.agent.contract import Identity
from precflow.dumps.records import Record

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pair:
    """A record of each side; ``None`` where a side has no such record, never on both."""

    reference: Record | None
    target: Record | None


def pair(reference: Iterable[Record], target: Iterable[Record], renames: Mapping[str, str] = _NONE) -> list[Pair]:
    """Join records of both sides by identity.

    Records that share an identity on one side are joined in their order, and what is left over stays alone.

    Args:
        reference: Records of the reference, in order.
        target: Records of the target, in order.
        renames: Prefix of a module name -> what stands for it, on both sides; the longest prefix that fits is taken.
            ``{"text_model.": ""}`` joins ``text_model.encoder`` to ``encoder``.

    Returns:
        Every record once: in the reference's order, then those that only the target has, in the target's.
    """
    prefixes = sorted(renames.items(), key=lambda item: -len(item[0]))
    waiting: dict[Identity, deque[Record]] = defaultdict(deque)
    targets = list(target)
    for record in targets:
        waiting[_renamed(record.identity, prefixes)].append(record)
    pairs = []
    for record in reference:
        partners = waiting.get(_renamed(record.identity, prefixes))
        pairs.append(Pair(record, partners.popleft() if partners else None))
    alone = {id(record) for partners in waiting.values() for record in partners}
    return pairs + [Pair(None, record) for record in targets if id(record) in alone]


def _renamed(identity: Identity, prefixes: list[tuple[str, str]]) -> Identity:
    for prefix, other in prefixes:
        if identity.module.startswith(prefix):
            return identity._replace(module=other + identity.module[len(prefix) :])
        if identity.module + "." == prefix:  # the module that carries the prefix itself
            return identity._replace(module=other.removesuffix("."))
    return identity
