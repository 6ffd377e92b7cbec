"""Compiling by numba, and where the outcome is kept between processes: a folder that only this very source ever reads from.

numba looks at the file of a function to see whether its stored form is out of date, and not at the files of what it calls.
So the folder carries a fingerprint of every package that compiled code takes helpers and constants from. Imported by such
code only, because numba takes 0.2 s.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import platformdirs
from numba import njit
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., Any])
_CONFIG: Any = config
_LOCK = threading.Lock()
_SOURCES = ("comparison", "dumps")
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}  # the last is not in numba's annotations


def _load_numba() -> None:
    """Import what numba does at the first call, without SciPy's linear algebra: it takes 0.14 s, and nothing here uses it.

    numba takes it for missing then, and is told again what is there, for what others in this process may compile.
    """
    algebra = "scipy.linalg"
    if algebra in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    sys.modules[algebra] = cast("ModuleType", None)  # so that its import fails
    try:
        arrays: Any = importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules[algebra]
    arrays._HAVE_BLAS = True  # noqa: SLF001  numba looks once, when this is imported


_load_numba()


def folder() -> Path:
    """Return the folder: below ``NUMBA_CACHE_DIR`` where that is set, else below the user's own cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("precflow"))
    return base / f"kernel-{fingerprint()}"


def fingerprint() -> str:
    """Return 16 hex digits that change with any source file that compiled code is made of."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parent
    for path in sorted(path for package in _SOURCES for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def compile_cached(function: Function) -> Function:
    """Compile a function so that it holds no lock of the interpreter, and keep the outcome for other processes.

    It may allocate nothing, so that numba counts no references: where blocks are short that took a third of the time.

    Where the folder cannot be written to nothing is kept: no folder that others can write to is ever read from.
    """
    with _LOCK:
        before = _CONFIG.CACHE_DIR
        _CONFIG.CACHE_DIR = str(folder())
        try:
            compiled: Any = njit(cache=_is_writable(folder()), **_OPTIONS)(function)
        finally:
            _CONFIG.CACHE_DIR = before
    return cast("Function", compiled)


def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(place, os.W_OK)
