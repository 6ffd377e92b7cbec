"""Pages and Markdown of verbs, which have no script, in the languages that are asked for: a file for each."""

from __future__ import annotations

from collections.abc import Mapping

from precflow import language
from precflow.report.templating import escape_prose

_PAGE, _MARKDOWN = ".html", ".md"
_HEAD = '<p class="run">'
_LINK = ' <a href="{file}" hreflang="{tag}" lang="{tag}" translate="no">{name}</a>'
_NAMES = {language.ENGLISH: "EN", language.CHINESE: "中文"}


def translate(name: str, text: str, wanted: str, also: Mapping[str, str] | None = None) -> str:
    """Return a page or Markdown in another language, by the name of its file; any other file as it is: machines read it.

    Args:
        name: Name of the file.
        text: In English.
        wanted: ``zh``; any other language leaves it as it is.
        also: Further texts and what they are in that language, such as those of findings.
    """
    if wanted != language.CHINESE:
        return text
    if name.endswith(_PAGE):
        page = text.replace('lang="en"', f'lang="{language.TAGS[wanted]}"', 1)
        return language.translate_page(page, wanted, also)
    return language.translate_markdown(text, wanted, also, escape=escape_prose) if name.endswith(_MARKDOWN) else text


def as_spoken(page: str, also: Mapping[str, str] | None = None) -> str:
    """Return a page in the language of the screen; see :func:`translate`."""
    return translate(_PAGE, page, language.spoken(), also)


def in_languages(name: str, text: str, wanted: str) -> dict[str, str]:
    """Return name of a file -> its text, for a file in the languages of a report.

    In both there are two pages, each of which leads to the other, and two files of Markdown.

    Args:
        name: Such as ``report.html``; that in Chinese beside it is ``report.zh.html``.
        text: In English.
        wanted: ``en``, ``zh`` or ``both``, as ``report.language`` has it.
    """
    if wanted != language.BOTH or not name.endswith((_PAGE, _MARKDOWN)):
        return {name: translate(name, text, wanted)}
    stem, _, ending = name.rpartition(".")
    chinese = f"{stem}.{language.CHINESE}.{ending}"
    made = {name: text, chinese: translate(name, text, language.CHINESE)}
    if not name.endswith(_PAGE):
        return made
    return {
        name: _add_link(text, chinese, language.CHINESE),
        chinese: _add_link(made[chinese], name, language.ENGLISH),
    }


def _add_link(page: str, file: str, to: str) -> str:
    """Return a page whose first line leads to itself in another language."""
    before, head, rest = page.partition(_HEAD)
    line, end, after = rest.partition("</p>")
    return f"{before}{head}{line}{_LINK.format(file=file, tag=language.TAGS[to], name=_NAMES[to])}{end}{after}"
