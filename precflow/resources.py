"""Where the shipped ``conf``, ``recipes`` and ``templates`` folders are."""

from __future__ import annotations

from pathlib import Path

from precflow.errors import PrecflowError

_PACKAGE = Path(__file__).resolve().parent


def directory(name: str) -> Path:
    """Return a shipped folder: that of the checkout if precflow runs from one, else the copy inside the installed package.

    Raises:
        PrecflowError: Neither place has it, so the installation is incomplete.
    """
    places = [_PACKAGE.parent / name, _PACKAGE / "_data" / name]
    if not (_PACKAGE.parent / "pyproject.toml").is_file():  # in site-packages, a folder `conf` may be of another package
        places.reverse()
    for place in places:
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places)
    raise PrecflowError(f"precflow's folder {name!r} is missing; looked in {looked}", next_step="install precflow again")
