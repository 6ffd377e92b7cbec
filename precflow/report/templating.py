"""The Jinja environment of the report: its filters, escaping for HTML and for Markdown, and an error for undefined names."""

from __future__ import annotations

import functools
import html as html_escapes
import re
from pathlib import Path

import jinja2
from markupsafe import Markup

from precflow import numbers
from precflow.environment.known_issues import describe_sides
from precflow.report import groups, wording
from precflow.resources import directory
from precflow.template_cache import TemplateCache

_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~!])")


@functools.cache  # a sweep writes several reports
def load_templates() -> jinja2.Environment:
    """Return the environment of the shipped templates; HTML is escaped automatically, Markdown by its own filters."""
    loader = jinja2.FileSystemLoader(directory("templates"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=_is_html,  # noqa: S701 - HTML is escaped; in Markdown entities would show
        undefined=jinja2.StrictUndefined,
        bytecode_cache=TemplateCache([Path(__file__)]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": numbers.number,
        "count": numbers.count,
        "plural": numbers.plural,
        "share": numbers.share,
        "use": wording.describe_use,
        "factor": numbers.factor,
        "of_limit": groups.describe_share,
        "duration": wording.duration,
        "words": wording.words,
        "printable": wording.printable,
        "shortened": wording.shorten,
        "breakable": make_breakable,
        "met_sides": describe_sides,
        "prose": escape_prose,
        "code": escape_code,
    }
    return environment


def _is_html(name: str | None) -> bool:
    """Tell whether a template is escaped as HTML: every one but Markdown."""
    return name is None or not name.endswith(".md.j2")


def make_breakable(text: str, letters: str = "./") -> Markup:
    """Return a name that a browser may break behind these letters, so that a long one is broken and not cut.

    >>> make_breakable("layers.0 / <x>"), make_breakable("relative_l2", "_")
    (Markup('layers.<wbr>0 /<wbr> &lt;x&gt;'), Markup('relative_<wbr>l2'))
    """
    return Markup("<wbr>").join(re.split(f"(?<=[{re.escape(letters)}])", wording.printable(text)))


def escape_prose(text: str) -> str:
    r"""Return text that Markdown shows as it is, on one line, with no HTML in it.

    >>> escape_prose("a|b <i>c</i> *d*")
    'a\\|b &lt;i&gt;c&lt;/i&gt; \\*d\\*'
    """
    return html_escapes.escape(_MARKDOWN.sub(r"\\\1", wording.printable(text)), quote=False)


def escape_code(text: str) -> str:
    """Return text as inline code. With a bar or a backtick in it, it becomes HTML: Markdown's own code breaks in a table.

    >>> escape_code("a_b <c>"), escape_code("a|b`c<d")
    ('`a_b <c>`', '<code>a&#124;b&#96;c&lt;d</code>')
    """
    plain = wording.printable(text)
    if plain.strip() and not set(plain) & {"`", "|"}:
        return f"`{plain}`"
    escaped = html_escapes.escape(plain, quote=False)
    for letter in "|`*_[]\\~":
        escaped = escaped.replace(letter, f"&#{ord(letter)};")
    return f"<code>{escaped}</code>"
