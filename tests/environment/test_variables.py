"""Misspelt variables are found; others are left alone."""

import pytest

from precflow.config.schema import RunConfig, Side
from precflow.environment.variables import KNOWN, describe_misspelt, find_misspelt


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HCCL_DETERMINISITIC", "HCCL_DETERMINISTIC"),
        ("HCCL_DETERMINSTIC", "HCCL_DETERMINISTIC"),
        ("HCLL_DETERMINISTIC", "HCCL_DETERMINISTIC"),
        ("CUBLAS_WORKSPACE_CONFG", "CUBLAS_WORKSPACE_CONFIG"),
        ("ASCEND_LAUNCH_BLOKING", "ASCEND_LAUNCH_BLOCKING"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("PYTHONHASHSED", "PYTHONHASHSEED"),
        ("CLOSE_MATMUL_KSHIFT", "CLOSE_MATMUL_K_SHIFT"),
        ("hccl_deterministic", "HCCL_DETERMINISTIC"),
    ],
)
def test_a_misspelling_is_named_with_what_was_meant(name, meant):
    (problem,) = find_misspelt({name: "true", "HOME": "/root"})
    assert (problem.name, problem.meant, problem.value) == (name, meant, "true")
    assert problem.text == f"{name} is set, but nothing reads it: did you mean {meant}?"


def test_variables_of_a_recipe_are_named_by_their_key():
    target = Side(variables={"HCCL_DETERMINISITIC": "true", "HCCL_ALGO": "ring"})
    told = describe_misspelt(RunConfig(target=target), {"OMP_NUM_THREAD": "2", "HOME": "/root"})
    assert [text.partition(":")[0] for text in told] == ["target.variables.HCCL_DETERMINISITIC", "OMP_NUM_THREAD"]
    assert all("Did you mean" in text for text in told)


def test_known_names_are_fine():
    assert find_misspelt(dict.fromkeys(KNOWN, "1")) == []


OTHERS = (
    "PATH HOME LANG LC_ALL PYTHONPATH PYTHONUNBUFFERED LD_LIBRARY_PATH CUDA_VERSION CUDA_PATH_V12_1 "
    "NV_CUDA_CUDART_VERSION NVIDIA_PRODUCT_NAME NCCL_ROOT MKLROOT OMP_DISPLAY_ENV OMPI_COMM_WORLD_RANK "
    "PRECFLOW_TRUST TORCH_LIB HCCL_SOMETHING_NEW ASCEND_NNAE_PATH http_proxy SSH_CONNECTION VIRTUAL_ENV "
    "KUBERNETES_SERVICE_PORT TRANSFORMERS_NO_ADVISORY_WARNINGS HF_TOKEN CI_COMMIT_MESSAGE ATB_LOG_LEVEL "
    "PYTORCH_VERSION PYTORCH_BUILD_NUMBER CUDNN_VERSION NVIDIA_VISIBLE_DEVICES TASK_ID MASTER_PORT "
)


def test_unrelated_names_raise_no_alarm():
    assert [name for name in OTHERS.split() if find_misspelt({name: "x"})] == []
