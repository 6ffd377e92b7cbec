"""The compiled pass needs numba: extra `fast`, part of extra `test`."""

import pytest

pytest.importorskip("numba")
