"""The files that a run's report can be written as, and writing them into a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from precflow import language
from precflow.errors import PrecflowError, StoreError
from precflow.files import replacing
from precflow.report import html, junit, markdown, result_json, sarif
from precflow.report.model import ReportModel

FORMATS: Mapping[str, tuple[str, Callable[[ReportModel], str]]] = {
    "html": ("report.html", html.render),
    "markdown": ("report.md", markdown.render),
    "json": ("result.json", result_json.render),
    "junit": ("junit.xml", junit.render),
    "sarif": ("result.sarif", sarif.render),
}
CHINESE_MARKDOWN = "report.zh.md"  # beside the English one, of a report in both languages


def write(model: ReportModel, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write each format into the folder, create the folder if needed, and return the files in order of the formats.

    Each file appears whole or not at all: a reader never sees half a report.

    Raises:
        PrecflowError: A format is unknown.
        StoreError: The folder cannot be written.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        known = ", ".join(FORMATS)
        raise PrecflowError(f"no report format {', '.join(unknown)}; there are {known}", next_step=f"report.formats=[{known}]")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [_write(folder / FORMATS[name][0], FORMATS[name][1](model)) for name in formats]
        if "markdown" in formats and model.language == language.BOTH:
            written.append(_write(folder / CHINESE_MARKDOWN, markdown.render_chinese(model)))
    except OSError as error:
        message = f"the report cannot be written into {folder}: {error.strerror or error}"
        raise StoreError(message, next_step="choose another folder with runs=FOLDER, or free some space") from error
    return written


def _write(path: Path, text: str) -> Path:
    """Replace a report as a whole. It is made readable for everyone, whatever the umask: reports are meant to be published."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        temporary.chmod(0o644)
    return path
