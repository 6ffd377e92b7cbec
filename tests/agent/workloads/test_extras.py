"""Libraries of workloads: there, missing, or themselves lacking something."""

import json

import pytest

from precflow.agent.failures import AgentError
from precflow.agent.workloads.extras import require


def test_a_library_that_is_there_is_returned():
    assert require("json") is json
    assert require("json.decoder") is json.decoder


@pytest.mark.parametrize("module", ["no_such_library", "no_such_library.models.clip"])
def test_a_missing_one_is_named_with_the_extra_that_brings_it(module):
    with pytest.raises(AgentError, match="no_such_library is not installed in this side's interpreter") as caught:
        require(module)
    assert caught.value.kind == "workload"
    assert caught.value.next_step == "pip install 'precflow[models]', or no_such_library alone"


def test_what_a_library_itself_lacks_is_not_blamed_on_the_library(tmp_path, monkeypatch):
    (tmp_path / "half_a_library.py").write_text("import no_such_part\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        require("half_a_library")


def test_a_part_that_a_library_does_not_have_is_told_as_python_tells_it():
    with pytest.raises(ModuleNotFoundError, match=r"json\.no_such_part"):
        require("json.no_such_part")
