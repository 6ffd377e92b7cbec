import pytest

from precflow.agent.variables import select_recorded


@pytest.mark.parametrize("name", ["NCCL_TOKEN", "HCCL_AUTH_FILE", "ASCEND_SECRET", "TORCH_API_KEY", "CUDA_PASSWORD"])
def test_what_looks_secret_is_never_shown(name):
    assert select_recorded({name: "hush"}) == {name: "(redacted)"}


def test_other_variables_are_nobody_s_business():
    assert select_recorded({"HOME": "/home/ann", "PATH": "/bin", "MY_TOKEN": "hush"}) == {}
    assert list(select_recorded({"TORCH_LOGS": "", "ACL_MODE": "1"})) == ["ACL_MODE", "TORCH_LOGS"]
