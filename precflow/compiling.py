"""Compiles functions with numba, and keeps the result for other processes in a folder that belongs to exactly this source.

numba checks the file of a function to see whether its stored form is out of date, but not the files of what it calls. So the
name of the folder has a fingerprint of all packages that compiled code takes helpers and constants from. Only compiled code
imports this module, because importing numba takes 0.2 s.
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
_SOURCES = ("comparison/**/*.py", "dumps/**/*.py", "agent/contract.py")  # the contract has constants of fills and checksums
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}  # the last is not in numba's annotations


def _load_numba() -> None:
    """Import what numba would import at the first call, but without SciPy's linear algebra: that takes 0.14 s and is not used.

    numba then believes that it is missing. It is told otherwise at the end, for other code in this process that uses it.
    """
    algebra = "scipy.linalg"
    if algebra in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    sys.modules[algebra] = cast("ModuleType", None)  # makes its import fail
    try:
        arrays: Any = importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules[algebra]
    arrays._HAVE_BLAS = True  # noqa: SLF001  numba looks only once, at import


_load_numba()


def folder() -> Path:
    """Return the folder for compiled code: in ``NUMBA_CACHE_DIR`` if that is set, else in the user's cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("precflow"))
    return base / f"kernel-{fingerprint()}"


def fingerprint() -> str:
    """Return 16 hex digits that change with every source file that compiled code may be made of."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parent
    for path in sorted(path for pattern in _SOURCES for path in root.glob(pattern)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def compile_cached(function: Function) -> Function:
    """Compile a function so that it releases the interpreter's lock, and keep the result for other processes.

    The function must not allocate memory. So numba counts no references, which took a third of the time for short blocks.

    If the folder cannot be written to, nothing is kept: code is never loaded from a folder that others can write to.
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
