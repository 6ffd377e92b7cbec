"""Compiles functions with numba, and caches the result for other processes in a folder that belongs to exactly this source.

numba's cache notices a change of the file that defines a function, but not of other files whose helpers and constants it uses.
So the name of the folder contains a fingerprint of all these files. Only compiled code imports this module, because importing
numba takes 0.2 s.
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

Compilable = TypeVar("Compilable", bound=Callable[..., Any])
_CONFIG: Any = config
_LOCK = threading.Lock()
# Compiled functions, and every module that these import: constants are compiled in, such as fills and factors of checksums.
_SOURCES = (
    *("comparison/compiled/**/*.py", "comparison/fused/**/*.py", "dumps/compiled/**/*.py"),
    *("dumps/digest.py", "dumps/dtypes.py", "dumps/mapped_pages.py", "agent/contract.py", "compiling.py"),
)
# `nogil`: threads run at the same time. `error_model`: division by 0 gives infinity or NaN as in NumPy, and no exception.
# `_nrt`: without numba's memory management, see `compile_cached`; numba's annotations lack it.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def _load_numba() -> None:
    """Import numba's array functions without SciPy's linear algebra, which takes 0.14 s and is not used here.

    numba would import it at the first call. Here the import fails, so that numba assumes that it is not installed. At the end
    numba's flag is set to what it would have been, for other code in this process that needs linear algebra in compiled code.
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
    """Return the folder for compiled code: inside ``NUMBA_CACHE_DIR`` if that is set, else inside the user's cache folder."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("precflow"))
    return base / f"kernel-{fingerprint()}"


def fingerprint() -> str:
    """Return 16 hex digits that change whenever a source file changes from which compiled code may be built."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parent
    for path in list_sources():
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def list_sources() -> list[Path]:
    """Return the source files from which compiled code may be built."""
    root = Path(__file__).parent
    return sorted(path for pattern in _SOURCES for path in root.glob(pattern))


def compile_cached(function: Compilable) -> Compilable:
    """Compile a function so that it releases the interpreter's lock, and cache the result for other processes.

    The function must not allocate memory. So numba need not count references, which took a third of the time for short blocks.

    If the folder cannot be written to, nothing is cached, and no code is loaded from it.
    """
    with _LOCK:  # numba reads its cache folder from a global setting, so only one function at a time may change it
        before = _CONFIG.CACHE_DIR
        _CONFIG.CACHE_DIR = str(folder())
        try:
            compiled: Any = njit(cache=_is_writable(folder()), **_OPTIONS)(function)
        finally:
            _CONFIG.CACHE_DIR = before
    return cast("Compilable", compiled)


def _is_writable(place: Path) -> bool:
    """Create a folder that only this user may open, unless it exists, and tell whether this process may write to it."""
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(place, os.W_OK)
