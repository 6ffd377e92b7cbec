"""No variable and no user configuration of the machine reaches these tests."""

import pytest


@pytest.fixture(autouse=True)
def _clean(clean):
    """Take the machine's own settings away."""
