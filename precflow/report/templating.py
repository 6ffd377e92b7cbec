"""Jinja for the report: escaping by format, and no undefined name passes silently."""

from __future__ import annotations

import html as html_escapes
import re

import jinja2
from markupsafe import Markup

from precflow.report import wording
from precflow.resources import directory

_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~!])")


def environment() -> jinja2.Environment:
    """Return the environment that reads the shipped templates; all is escaped but Markdown, which has its own filters."""
    loader = jinja2.FileSystemLoader(directory("templates"))
    found = jinja2.Environment(
        loader=loader,
        autoescape=_is_html,  # noqa: S701 - HTML is escaped; in Markdown entities would show
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {
        "number": wording.number,
        "count": wording.count,
        "plural": wording.plural,
        "share": wording.share,
        "used": wording.used,
        "factor": wording.factor,
        "duration": wording.duration,
        "words": wording.words,
        "printable": wording.printable,
        "shortened": wording.shortened,
        "breakable": breakable,
        "prose": markdown_prose,
        "code": markdown_code,
    }
    return found


def _is_html(name: str | None) -> bool:
    """Tell whether a template is escaped as HTML: all are, but Markdown."""
    return name is None or not name.endswith(".md.j2")


def breakable(text: str, letters: str = "./") -> Markup:
    """Return a name that HTML may break behind these letters: it is never cut, however narrow the page is.

    >>> breakable("layers.0 / <x>"), breakable("relative_l2", "_")
    (Markup('layers.<wbr>0 /<wbr> &lt;x&gt;'), Markup('relative_<wbr>l2'))
    """
    return Markup("<wbr>").join(re.split(f"(?<=[{re.escape(letters)}])", wording.printable(text)))


def markdown_prose(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line, with no HTML in it.

    >>> markdown_prose("a|b <i>c</i> *d*")
    'a\\|b &lt;i&gt;c&lt;/i&gt; \\*d\\*'
    """
    return html_escapes.escape(_MARKDOWN.sub(r"\\\1", wording.printable(text)), quote=False)


def markdown_code(text: str) -> str:
    """Return text as inline code that also stands in a table: as HTML where Markdown's own cannot hold a bar or a backtick.

    >>> markdown_code("a_b <c>"), markdown_code("a|b`c<d")
    ('`a_b <c>`', '<code>a&#124;b&#96;c&lt;d</code>')
    """
    plain = wording.printable(text)
    if plain.strip() and not set(plain) & {"`", "|"}:
        return f"`{plain}`"
    escaped = html_escapes.escape(plain, quote=False)
    for letter in "|`*_[]\\~":
        escaped = escaped.replace(letter, f"&#{ord(letter)};")
    return f"<code>{escaped}</code>"
