"""The rules of a scan by what they look for, so that a name is looked up and not compared with every rule."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from precflow.scan.expressions import read_expression
from precflow.scan.rules import LOOK, NUMBERS, RuleSet, ScanRule


class Index:
    """The rules by what they look for."""

    def __init__(self, rules: RuleSet) -> None:
        self.all = rules.rules
        self.names = Names(rules.rules, "names")
        self.calls = Names(rules.rules, "calls")
        self.packages = Names(rules.rules, "packages")
        self.not_in = {rule.id: Names([rule], "not_in") for rule in rules.rules if rule.not_in}
        self.methods = _list_by(rules.rules, "methods")
        self.attributes = _list_by(rules.rules, "attributes")
        self.definitions = _list_by(rules.rules, "definitions")
        self.strings = [(re.compile(rule.strings), rule) for rule in rules.rules if rule.strings]
        self.items = [(re.compile(rule.items), rule) for rule in rules.rules if rule.items]
        self.expressions: dict[type[ast.expr], list[tuple[ast.expr, ScanRule]]] = {}
        for rule in rules.rules:
            for pattern in map(read_expression, rule.expressions):
                self.expressions.setdefault(type(pattern), []).append((pattern, rule))
        self.variables = [(re.compile(fnmatch.translate(pattern)), rule) for rule in rules.rules for pattern in rule.variables]
        self.any_call = [rule for rule in rules.rules if rule.given and not (rule.calls or rule.methods)]
        self.given = {rule.id: {name: re.compile(text) for name, text in rule.given.items()} for rule in rules.rules}

    def knows(self, dotted: str) -> bool:
        """Tell whether a rule has this very name."""
        return bool(self.names.find(dotted, inside=False) or self.calls.find(dotted, inside=False))

    @cached_property
    def requirements(self) -> re.Pattern[str]:
        """Names of packages as requirements say them; ``-``, ``_`` and ``.`` are the same."""
        names = sorted({name for rule in self.all for name in rule.packages if "*" not in name}, key=len, reverse=True)
        options = "|".join(re.sub(r"[-_.]", "[-_.]", re.escape(name).replace("\\-", "-").replace("\\.", ".")) for name in names)
        return re.compile(rf"(?<![\w.-])(?:{options})(?![\w-])", re.IGNORECASE)

    def find_requirements(self, text: str) -> Iterator[tuple[str, ScanRule]]:
        """Yield the packages that a line of requirements names, with their rules."""
        for found in self.requirements.finditer(text):
            name = re.sub(r"[-_.]", "_", found[0].lower())
            for rule in self.all:
                if any(re.sub(r"[-_.]", "_", package.lower()) == name for package in rule.packages):
                    yield found[0], rule
                    break


class Names:
    """Rules by dotted names: plain ones by a look into a dict, those with ``*`` one after the other."""

    def __init__(self, rules: Sequence[ScanRule], key: str) -> None:
        self._plain: dict[str, list[ScanRule]] = {}
        self._patterns: list[tuple[re.Pattern[str], ScanRule]] = []
        for rule in rules:
            for name in getattr(rule, key):
                if "*" in name:
                    self._patterns.append((re.compile(fnmatch.translate(name)), rule))
                else:
                    self._plain.setdefault(name, []).append(rule)

    def find(self, dotted: str, *, inside: bool = True) -> list[tuple[str, ScanRule]]:
        """Return the matched part of a dotted name and its rule; with `inside`, a rule for ``a.b`` is found in ``a.b.c``."""
        found = [(dotted, rule) for rule in self._plain.get(dotted, ())]
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 0, -1) if inside else ():
            found += [(".".join(parts[:length]), rule) for rule in self._plain.get(".".join(parts[:length]), ())]
        return found + [(dotted, rule) for pattern, rule in self._patterns if pattern.fullmatch(dotted)]


def _list_by(rules: Sequence[ScanRule], key: str) -> Mapping[str, list[ScanRule]]:
    listed: dict[str, list[ScanRule]] = {}
    for rule in rules:
        for name in getattr(rule, key):
            listed.setdefault(name, []).append(rule)
    return listed


def choose(found: Sequence[tuple[str, ScanRule]]) -> Iterator[tuple[str, ScanRule]]:
    """Yield the rule for a name that counts, and the one that says which numbers are at stake.

    A name that a rule has in full counts before a pattern, a longer one before a shorter one. A pattern that asks to look says
    nothing more where another rule of its kind knows the name.
    """
    known = {rule.kind for part, rule in found if part in rule.names}
    for about_numbers in (False, True):
        fitting = [
            (part, rule)
            for part, rule in found
            if (rule.weight == NUMBERS) == about_numbers
            and not (rule.weight == LOOK and part not in rule.names and rule.kind in known)
        ]
        if fitting:
            yield min(fitting, key=lambda each: (each[0] not in each[1].names, -len(each[0]), each[1].order))
