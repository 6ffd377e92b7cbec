"""What several tests share: a working directory, so that equal dumps are made once a session."""

import pytest


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    """Return one working directory for the whole session of this worker; in its ``runs/`` equal keys are made once."""
    return tmp_path_factory.mktemp("workplace")
