"""List every sentence that precflow says to a user, with its place, to be read aloud: ``python tests/support/sentences.py``.

Sentences are the text of templates and of rules, what-ifs and the like, and the literals of four words and more in the package,
without docstrings: errors, screens, evidence. ``{}`` stands for what is filled in.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FEWEST = 4  # words of a sentence
_MARKUP = re.compile(r"{%.*?%}|{#.*?#}|<(script|style).*?</\1>|<[^>]*>", re.DOTALL)
_VALUES = re.compile(r"{{.*?}}", re.DOTALL)


def list_sentences(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield ``file:line`` and the sentence."""
    for path in sorted((root / "precflow").rglob("*.py")):
        yield from _read_module(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    for path in (path for path in sorted(root.glob("conf/**/*.yaml")) if "translation" not in path.parts):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line.split()) >= _FEWEST and not line.startswith("#"):
                yield f"{path.relative_to(root)}:{number}", line.strip()
    for path in sorted([*root.glob("templates/*.j2"), *root.glob("templates/html/*.j2")]):
        text = _MARKUP.sub(lambda found: "\n" * found.group().count("\n") or "\0", path.read_text(encoding="utf-8"))
        for number, line in enumerate(_VALUES.sub("{}", text).splitlines(), 1):
            for part in line.split("\0"):
                if len(part.split()) >= _FEWEST:
                    yield f"{path.relative_to(root)}:{number}", part.strip()


def _read_module(source: str, name: str) -> Iterator[tuple[str, str]]:
    tree = ast.parse(source)
    silent = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(node.value)  # a docstring
        if isinstance(node, ast.JoinedStr):
            silent.update(part for part in ast.walk(node) if part is not node and not isinstance(part, ast.JoinedStr))
    for node in ast.walk(tree):
        if node in silent:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        else:
            continue
        if len(text.split()) >= _FEWEST and re.search(r"[a-z]{3}", text):
            yield f"{name}:{node.lineno}", " ".join(text.split())


if __name__ == "__main__":
    chosen = sys.argv[1:]
    for place, sentence in list_sentences():
        if not chosen or any(word in place for word in chosen):
            sys.stdout.write(f"{place}: {sentence}\n")
