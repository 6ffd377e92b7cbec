"""The languages in which precflow speaks: English, and what a catalogue says in place of it.

Everything is English where it is made, stored and read by machines. It becomes another language only where a person reads it:
on a page or on a screen. A catalogue, the files of ``conf/translation/zh``, has one line for a text::

    "{#} of {#} compared": 已比对 {0} / {1} 条

``{}`` stands for a value and ``{#}`` for a number; the translation takes them by position, in any order. So a sentence is
translated by its words and its values, whoever made it and whenever: a run that was stored years ago can be read in a language
that was added since, and nothing that computes has to know of languages. A value of several words is translated too where
the catalogue knows it, a single word only where the translation says so, ``{0!}``: it may be the name of a module. ``{&}``
stands for an enumeration, ``a, b and c``, of which the catalogue has to know every part. Text that no line fits is cut at its
sentences and semicolons, and what is unknown then stays English: nothing is ever lost.

Rules have their translation beside their English, under ``zh`` in the same file, so that a rule is still one file. So have
rules of a scan and known issues, whose texts do not depend on a run: they are lines of the catalogue too.
"""

from __future__ import annotations

import contextlib
import functools
import html as html_escapes
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import yaml

from precflow import resources

ENGLISH, CHINESE, BOTH = LANGUAGES = ("en", "zh", "both")
TAGS = {ENGLISH: "en", CHINESE: "zh-CN"}
"""Of a language as HTML has it."""
VARIABLE = "PRECFLOW_LANG"
_PLACE = re.compile(r"{([#&]?)}")
_FILLED = re.compile(r"{(\d)(!?)}")
_NUMBER = r"([+-]?(?:[\d.,\u202f\u00d7%]|(?<=\d) (?=[\d%\u00d7])|e-?\d|infinity|NaN)+)"
_WORDS = re.compile(r"[A-Za-z]{2}")
_SENTENCES = re.compile(r"(?<=[.?!]) +(?=[A-Z])")
_WORD = re.compile(r"(?<![\w./-])[a-z]{2,}(?![\w./-])")  # of a sentence, and no part of a name
_WHOLE_WORD = re.compile(r"(?<![^\W_])(?<![{}])[^\W_]+(?![^\W_])(?![{}])")  # of a line: a value may begin or end others
_ANY_WORD = re.compile(r"[^\W_]+")
_BETWEEN = re.compile(r"(?:, | and )(?![^()]*\))")  # parts of an enumeration, which may have more of their own in brackets
_FEW = 3  # words
_SCRIPT = "script"
_DATA = ("scan", "known_issue")
"""Folders of ``conf`` whose files have texts beside their English."""
_FOUND = "{found}"  # a place in a text of them
_GAP = "   "  # between two columns of a screen
_SEPARATORS = ((_GAP, _GAP), (" · ", " · "), (":  ", "：  "), ("; ", "；"), (": ", "："))

_LONGEST = 4000  # characters of a text that is looked up


class Catalogue:
    """Translations into one language.

    Args:
        entries: English -> the other language, both with places for values.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._exact = {text: said for text, said in entries.items() if not _PLACE.search(text)}
        patterns = []
        for text, said in entries.items():
            literals = _PLACE.split(text)[::2]
            if len(literals) > 1:
                kinds = _PLACE.findall(text)
                source = re.escape(literals[0])
                for kind, literal in zip(kinds, literals[1:], strict=True):
                    source += (_NUMBER if kind == "#" else "(.+?)") + re.escape(literal)
                # The one with the most words of its own fits best, and of two a number fits better than any text.
                place = (-sum(map(len, literals)), kinds.count(""))
                listed = [number for number, kind in enumerate(kinds, 1) if kind == "&"]
                whole_words = _WHOLE_WORD.findall(text.lower())
                patterns.append((place, whole_words, max(literals, key=len), _GAP in text, source, listed, said))
        patterns.sort(key=lambda entry: entry[0])
        self._patterns = [entry[2:] for entry in patterns]
        # Of several hundred lines only those can fit a text that has a certain word of theirs, the rarest one.
        counts = Counter(word for _, words, *_ in patterns for word in set(words))
        self._of_word: dict[str, list[int]] = defaultdict(list)
        for number, (_, words, *_) in enumerate(patterns):
            self._of_word[min(words, key=lambda word: counts[word], default="")].append(number)
        self._known: dict[str, str | None] = {}
        self._known_whole: dict[str, str | None] = {}

    def translate(self, text: str, also: Mapping[str, str] | None = None) -> str:
        """Return a text in the other language, as far as the catalogue knows it.

        Args:
            text: In English.
            also: Further texts and what they are, such as those of the findings of a run.
        """
        core = text.strip()
        if len(core) > _LONGEST or not _WORDS.search(core):
            return text
        said = self._find(core, also or {})
        return text if said is None else text.replace(core, said, 1)

    def translate_whole(self, text: str) -> str | None:
        """Return what one line of the catalogue says of a text; ``None`` if there is no such line."""
        if text not in self._known_whole:
            self._known_whole[text] = self._match(text, {})
        return self._known_whole[text]

    def _find(self, text: str, also: Mapping[str, str]) -> str | None:
        if text in also:
            return also[text]
        if not also and text in self._known:
            return self._known[text]
        said = self._match(text, also)
        if said is None and text[-1:] == "." and (said := self._match(text[:-1], also)) is not None:
            said += "。"
        if said is None:
            said = self._find_parts(text, also)
        if not also:
            self._known[text] = said
        return said

    def _match(self, text: str, also: Mapping[str, str]) -> str | None:
        """Return what one line of the catalogue says of the whole text, whether or not it begins with a capital."""
        words = {"", *_ANY_WORD.findall(text.lower())}
        may_fit = sorted(number for word in words for number in self._of_word.get(word, ()))
        for form in dict.fromkeys((text, text[:1].lower() + text[1:], text[:1].upper() + text[1:])):
            if (said := also.get(form) or self._exact.get(form)) is not None:
                return said
            for literal, has_gap, source, listed, said in map(self._patterns.__getitem__, may_fit):
                # No sentence reaches over a gap between columns.
                if literal in form and has_gap >= (_GAP in form) and (found := _compile(source).fullmatch(form)):
                    enumerations = {number: self._enumerate(found[number], also) for number in listed}
                    if None in enumerations.values() or (not listed and self._is_by_chance(found, also)):
                        continue
                    return _FILLED.sub(functools.partial(self._fill_in, found, also, enumerations), said)
        return None

    def _is_by_chance(self, found: re.Match[str], also: Mapping[str, str]) -> bool:
        """Tell whether a line of few words fits only because one of its places took most of a sentence that nobody knows."""
        own = len(_WORD.findall(_compile(r"\(.*?\)").sub("", found.re.pattern)))
        return any(
            own <= _FEW < max(len(_WORD.findall(part)) for part in value.split(", "))
            and "<" not in value
            and self._find(value, also) is None
            for value in found.groups()
        )

    def _enumerate(self, text: str, also: Mapping[str, str]) -> str | None:
        """Return an enumeration; ``None`` if the catalogue does not know one of its parts."""
        said = [self._match(part, also) for part in _BETWEEN.split(text)]
        return None if None in said else "、".join(filter(None, said))

    def _fill_in(
        self, found: re.Match[str], also: Mapping[str, str], enumerations: Mapping[int, str | None], place: re.Match[str]
    ) -> str:
        number = int(place[1]) + 1
        if enumerations.get(number):
            return enumerations[number] or ""
        value = found[number]
        if "<" in value or not (place[2] or " " in value):
            return value
        return self._find(value, also) or value

    def _find_parts(self, text: str, also: Mapping[str, str]) -> str | None:
        sentences = _SENTENCES.split(text)
        if len(sentences) > 1:
            said = [self._find(one, also) for one in sentences]
            return _join(sentences, said, "") if any(said) else None
        for between, joined in _SEPARATORS:
            parts = text.split(between)
            said = [self._find(part, also) if part else "" for part in parts] if len(parts) > 1 else []
            if any(said):
                return joined.join(part if one is None else one for part, one in zip(parts, said, strict=True))
        listed = text.split(", ")
        said = [self._match(part, also) for part in listed] if len(listed) > 1 else [None]
        return "、".join(filter(None, said)) if all(said) else None


def _join(parts: list[str], said: list[str | None], between: str) -> str:
    """Join sentences; behind one that is English at its end there is a space."""
    texts = [part + " " if one is None else one + " " * one[-1:].isascii() for part, one in zip(parts, said, strict=True)]
    return between.join(texts).strip()


@functools.cache  # the first time that its words are met: to compile all of them takes a third of a second
def _compile(source: str) -> re.Pattern[str]:
    return re.compile(source, re.DOTALL)


@functools.cache
def load(language: str) -> Catalogue | None:
    """Return the catalogue of a language; ``None`` for English, which needs none."""
    if language == ENGLISH:
        return None
    return Catalogue(read_entries(language))


def read_entries(language: str, *, script: bool = False) -> dict[str, str]:
    """Return the lines of the catalogue of a language.

    Args:
        language: Such as ``zh``.
        script: Only those of the page's script, which it takes along; all others without.
    """
    conf = resources.directory("conf")
    entries: dict[str, str] = {}
    if not script:
        for path in (path for name in _DATA for path in sorted((conf / name).glob("*.yaml"))):
            entries |= _pair_texts(_read(path), language)
        for path in (path for folder in _further for path in sorted(folder.glob("*.yaml"))):
            with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):  # whoever loads a team's rules says so
                entries |= _pair_texts(_read(path), language)
    for path in sorted((conf / "translation" / language).glob("*.yaml")):
        if (path.stem == _SCRIPT) == script:
            entries |= _read(path)
    return entries


def _read(path: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506  a safe loader


def _pair_texts(data: Any, language: str) -> dict[str, str]:
    """Return English -> the other language for each text of a file of data that has it beside itself."""
    if not isinstance(data, Mapping):
        return {}
    beside = data.get(language)
    said = {
        " ".join(data[key].split()).replace(_FOUND, "{}"): " ".join(text.split()).replace(_FOUND, "{0}")
        for key, text in (beside.items() if isinstance(beside, Mapping) else ())
        if isinstance(text, str) and isinstance(data.get(key), str)
    }
    for key, value in data.items():
        if key != language:
            said |= _pair_texts(value, language)
    return said


_further: list[Path] = []


def read_also(folders: Iterable[Path]) -> None:
    """Let a catalogue have the texts of further files of data: those of a team, once they have been checked.

    They are read once a language is spoken.
    """
    new = [folder for folder in folders if folder not in _further]
    if new:
        _further.extend(new)
        load.cache_clear()


_spoken: ContextVar[tuple[str, Mapping[str, str]]] = ContextVar("spoken", default=(ENGLISH, {}))


@contextlib.contextmanager
def speaking(language: str, also: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let :func:`said` speak a language.

    Args:
        language: ``en`` or ``zh``.
        also: Further texts and what they are in that language.
    """
    token = _spoken.set((language, also or {}))
    try:
        yield
    finally:
        _spoken.reset(token)


def spoken() -> str:
    """Return the language that is spoken."""
    return _spoken.get()[0]


def said(text: str) -> str:
    """Return a text in the language that is spoken, see :func:`speaking`."""
    language, also = _spoken.get()
    catalogue = load(language)
    return text if catalogue is None else catalogue.translate(text, also)


def language_of_screen(variables: Mapping[str, str] = os.environ) -> str:
    """Return the language of screens: that of ``PRECFLOW_LANG``, else that of the locale; English if there is no catalogue.

    >>> language_of_screen({"LANG": "zh_CN.UTF-8"}), language_of_screen({"LANG": "zh_CN.UTF-8", "PRECFLOW_LANG": "en"})
    ('zh', 'en')
    >>> language_of_screen({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}), language_of_screen({})
    ('en', 'en')
    """
    given = next((variables[name] for name in (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG") if variables.get(name)), "")
    return CHINESE if given.lower().startswith(CHINESE) else ENGLISH


# Lines of a screen

_CELLS = re.compile(r"( {3,}|(?<![ :])(?<!mean) {2}(?! ))")  # two spaces stand before a command too, and before what is meant
_TYPED = frozenset({"environment", "mend", "report"})  # in a column these are names of stages, as `stages=[...]` takes them


def translate_lines(text: str, count_cells: Callable[[str], int]) -> str:
    """Return lines of a screen as they are spoken; what stands in columns stays below each other.

    Args:
        text: Lines, whose cells are two spaces or more apart.
        count_cells: Returns how many columns of a screen a text takes.
    """
    if spoken() == ENGLISH:
        return text
    return "\n".join(_translate_line(line, count_cells) for line in text.split("\n"))


def _translate_line(line: str, count_cells: Callable[[str], int]) -> str:
    whole = said(line)
    pieces = _CELLS.split(line)
    if len(pieces) < 2 or (whole != line and not _CELLS.search(line.strip())):
        return whole
    shown, end = "", 0  # end: of the cell in English
    for number, piece in enumerate(pieces):
        if number % 2:
            end += len(piece)
            shown += " " * max(end - count_cells(shown), 2)
        else:
            end += count_cells(piece)
            shown += piece if piece.strip() in _TYPED else said(piece)
    return shown


# Pages

_TOKEN = re.compile(
    r"<!--.*?-->|<![^>]*>|<(?P<whole>script|style|pre|title)\b.*?</(?P=whole)>|<(?P<end>/?)(?P<name>[a-z0-9]+)(?P<rest>[^<>]*)>|[^<]+",
    re.DOTALL | re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r'(\s(?:title|aria-label|placeholder|alt|data-label|data-title))="([^"]+)"')
_INLINE = frozenset("a b br code em i small span strong sub sup wbr".split())
_INLINE_TAG = re.compile(rf"</?(?:{'|'.join(sorted(_INLINE))})>")
_TEXT_BRACKETS = str.maketrans({"<": "\ue000", ">": "\ue001"})  # of the text itself, which is never a tag
_BACK = str.maketrans({"\ue000": "<", "\ue001": ">"})
_UNTOUCHED = ("code", "samp")


def translate_page(page: str, language: str, also: Mapping[str, str] | None = None) -> str:
    """Return a page, or a part of one, in another language.

    What stands between two blocks is one text, in which tags such as ``<em>`` have their place; where the catalogue does not
    know it, each piece between tags is looked up alone. Code, scripts and styles stay as they are, and what is in a block with
    ``translate="no"``.

    Args:
        page: HTML in which text is escaped, as our templates make it.
        language: ``zh``; ``en`` leaves it as it is.
        also: Further texts and what they are in that language.
    """
    catalogue = load(language)
    if catalogue is None:
        return page
    translate = functools.cache(functools.partial(catalogue.translate, also=also))

    @functools.cache  # tables repeat themselves
    def translate_inline(*pieces: tuple[str, str, str]) -> str:
        """Return what stands between two blocks, translated."""
        return _translate_inline(pieces, translate, catalogue.translate_whole)

    made: list[str] = []
    closing = ""  # the tag that ends what is marked as not to be translated
    inline: list[tuple[str, str, str]] = []  # of the text that is being read: tag without attributes or "", as it is, its text
    for token in _TOKEN.finditer(page):
        name, text = (token["name"] or "").lower(), token[0]
        if closing:
            made.append(text)
            closing = "" if text == closing else closing
        elif name in _INLINE:
            inline.append((f"<{token['end']}{name}>", _translate_attributes(text, translate), ""))
        elif not text.startswith("<"):
            inline.append(("", text, html_escapes.unescape(text)))
        else:
            made.append(translate_inline(*inline))
            inline = []
            if (token["whole"] or "").lower() == "title":
                head, _, rest = text.partition(">")
                words, _, end = rest.rpartition("<")
                text = f"{head}>{html_escapes.escape(translate(html_escapes.unescape(words)), quote=False)}<{end}"
            made.append(_translate_attributes(text, translate) if name else text)
            if 'translate="no"' in (token["rest"] or ""):
                closing = f"</{name}>"
    return "".join([*made, translate_inline(*inline)])


def _translate_attributes(tag: str, translate: Callable[[str], str]) -> str:
    if "=" not in tag:
        return tag
    return _ATTRIBUTE.sub(lambda found: f'{found[1]}="{html_escapes.escape(translate(html_escapes.unescape(found[2])))}"', tag)


def _translate_inline(
    pieces: Sequence[tuple[str, str, str]], translate: Callable[[str], str], translate_whole: Callable[[str], str | None]
) -> str:
    """Return text with its inline tags, translated as a whole where the catalogue knows that, else piece by piece."""
    if not any(text.strip() for _, _, text in pieces):
        return "".join(written for _, written, _ in pieces)
    tags = [tag for tag, _, _ in pieces if tag]
    if tags:
        whole = " ".join("".join(tag or text.translate(_TEXT_BRACKETS) for tag, _, text in pieces).split())
        said_whole = translate_whole(whole)
        if said_whole is not None and Counter(_INLINE_TAG.findall(said_whole)) == Counter(tags):
            return _put_tags_back(said_whole, pieces)
    made, inside = [], 0
    for tag, written, text in pieces:
        if tag.strip("</>") in _UNTOUCHED:
            inside += -1 if tag.startswith("</") else 1
        if tag or inside or not text.strip():
            made.append(written)
        else:
            made.append(html_escapes.escape(translate(text), quote=False))
    return "".join(made)


def _put_tags_back(text: str, pieces: Sequence[tuple[str, str, str]]) -> str:
    """Return translated text with the tags as they were written; of several equal ones the first comes first."""
    written: dict[str, list[str]] = defaultdict(list)
    for tag, as_it_is, _ in pieces:
        if tag:
            written[tag].append(as_it_is)
    made, end = [], 0
    for found in _INLINE_TAG.finditer(text):
        made += [html_escapes.escape(text[end : found.start()].translate(_BACK), quote=False), written[found[0]].pop(0)]
        end = found.end()
    return "".join([*made, html_escapes.escape(text[end:].translate(_BACK), quote=False)])


# Markdown

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_MARKS = re.compile(r"(^\s*(?:[-*>]|\d+\.|#+) |(?<!\\)\||`[^`]*`|<code>.*?</code>|<[^<>]+>|(?<!\\)\*\*|(?<!\\)\*)")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]#|~!])")


def translate_markdown(text: str, language: str, also: Mapping[str, str] | None = None, *, escape: Callable[[str], str]) -> str:
    """Return Markdown in another language: what stands between its marks is looked up, code stays as it is.

    Args:
        text: Markdown as our template makes it.
        language: ``zh``; ``en`` leaves it as it is.
        also: Further texts and what they are in that language.
        escape: Returns plain text as Markdown.
    """
    catalogue = load(language)
    if catalogue is None:
        return text

    def translate(piece: str) -> str:
        """Return a piece between two marks, translated and escaped again."""
        plain = html_escapes.unescape(_ESCAPED.sub(r"\1", piece))
        shown = catalogue.translate(plain, also)
        return piece if shown == plain else escape(shown)

    blocks = _FENCE.split(text)
    for number in range(0, len(blocks), 2):
        lines = (_MARKS.split(line) for line in blocks[number].split("\n"))
        blocks[number] = "\n".join(
            "".join(piece if place % 2 else translate(piece) for place, piece in enumerate(pieces)) for pieces in lines
        )
    return "".join(blocks)
