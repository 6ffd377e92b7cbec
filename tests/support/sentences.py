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
        for place, text in read_module(path.read_text(encoding="utf-8"), str(path.relative_to(root))):
            yield place, " ".join(text.split())
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


def read_module(source: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of the literals of a module."""
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
            yield f"{name}:{node.lineno}", text


_ERRORS = re.compile(r"(?:[A-Z][A-Za-z]*Error|Problem)")
_MESSAGES = ("message", "next_step")  # names of what an error is given
_OF_PYTHON = ("ValueError", "TypeError", "KeyError", "OSError", "RuntimeError", "SyntaxError", "TemplateNotFound")


def list_errors(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield ``file:line`` and each text that an error or a problem is given; each branch of a condition is a text."""
    for path in sorted((root / "precflow").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "Error(" not in source and "Problem(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _MESSAGES:
                yield from ((f"{path.relative_to(root)}:{node.lineno}", text) for text in _list_texts(node.value))
            elif isinstance(node, ast.Call) and _ERRORS.fullmatch(name := ast.unparse(node.func)) and name not in _OF_PYTHON:
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    yield from ((f"{path.relative_to(root)}:{node.lineno}", text) for text in _list_texts(argument))


def _list_texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.IfExp):
        return [*_list_texts(node.body), *_list_texts(node.orelse)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return [re.sub(r"%[srd]", "{}", text) for text in _list_texts(node.left)]
    if not isinstance(node, ast.JoinedStr):
        return []
    texts = [""]
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        told = _list_texts(inner) if isinstance(inner, (ast.Constant, ast.IfExp)) else []
        texts = [before + each for before in texts for each in (told or ["{}"])]
    return texts


if __name__ == "__main__":
    chosen = sys.argv[1:]
    for place, sentence in list_sentences():
        if not chosen or any(word in place for word in chosen):
            sys.stdout.write(f"{place}: {sentence}\n")
