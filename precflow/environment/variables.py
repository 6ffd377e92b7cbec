"""Environment variables that nobody reads because their names are misspelt.

A wrong name is silent: the switch stays as it was. Only names that resemble one of the known names are reported; anything
else may belong to a library that is not listed here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precflow.config.schema import RunConfig

KNOWN = frozenset(
    # PyTorch
    "PYTHONHASHSEED PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_JIT "
    "PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_ENABLE_MPS_FALLBACK TORCH_DEVICE_BACKEND_AUTOLOAD "
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CUDNN_V8_API_DISABLED TORCH_NCCL_ASYNC_ERROR_HANDLING "
    "TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_DISTRIBUTED_DEBUG TORCH_SHOW_CPP_STACKTRACES "
    "TORCH_CPP_LOG_LEVEL TORCH_LOGS TORCH_COMPILE_DEBUG TORCHINDUCTOR_CACHE_DIR TORCHDYNAMO_DISABLE TORCH_HOME "
    "TORCH_EXTENSIONS_DIR TORCH_CUDA_ARCH_LIST TORCH_BLAS_PREFER_CUBLASLT TORCH_LINALG_PREFER_CUSOLVER "
    # threads and CPU libraries
    "OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_DYNAMIC OMP_WAIT_POLICY GOMP_CPU_AFFINITY KMP_AFFINITY "
    "KMP_BLOCKTIME KMP_DUPLICATE_LIB_OK MKL_NUM_THREADS MKL_DYNAMIC MKL_CBWR MKL_VERBOSE MKL_DEBUG_CPU_TYPE "
    "MKL_ENABLE_INSTRUCTIONS OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE DNNL_MAX_CPU_ISA ONEDNN_MAX_CPU_ISA "
    "ONEDNN_DEFAULT_FPMATH_MODE DNNL_DEFAULT_FPMATH_MODE NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS "
    "ATEN_CPU_CAPABILITY "
    # CUDA
    "CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER "
    "CUDA_HOME CUDA_PATH CUDA_CACHE_PATH CUDA_CACHE_DISABLE CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS "
    "CUDNN_LOGDEST_DBG CUDNN_LOGINFO_DBG NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES "
    "NVIDIA_REQUIRE_CUDA NCCL_ALGO NCCL_PROTO NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS NCCL_IB_DISABLE "
    "NCCL_IB_HCA NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_SOCKET_IFNAME NCCL_NVLS_ENABLE "
    "NCCL_LAUNCH_MODE NCCL_BUFFSIZE NCCL_NTHREADS NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_CROSS_NIC NCCL_NET "
    "NCCL_TIMEOUT NCCL_VERSION "
    # Ascend: CANN, torch_npu, HCCL and the libraries around them
    "ASCEND_LAUNCH_BLOCKING ASCEND_RT_VISIBLE_DEVICES ASCEND_VISIBLE_DEVICES ASCEND_DEVICE_ID ASCEND_HOME_PATH "
    "ASCEND_TOOLKIT_HOME ASCEND_OPP_PATH ASCEND_AICPU_PATH ASCEND_CUSTOM_OPP_PATH ASCEND_GLOBAL_LOG_LEVEL "
    "ASCEND_GLOBAL_EVENT_ENABLE ASCEND_SLOG_PRINT_TO_STDOUT ASCEND_PROCESS_LOG_PATH ASCEND_WORK_PATH "
    "ASCEND_CACHE_PATH ASCEND_MAX_OP_CACHE_SIZE ASCEND_DRIVER_PATH ASCEND_ENGINE_PATH ASCEND_COREDUMP_SIGNAL "
    "ACL_OP_INIT_MODE ACL_OP_DETERMINISTIC ACL_OPT_DETERMINISTIC ACL_PRECISION_MODE ACL_OP_SELECT_IMPL_MODE "
    "ACL_OP_DEBUG_LEVEL ACL_DEVICE_SYNC_TIMEOUT ACL_STREAM_TIMEOUT ACL_DUMP_DATA ATB_MATMUL_SHUFFLE_K_ENABLE "
    "ATB_LLM_LCOC_ENABLE ATB_WORKSPACE_MEM_ALLOC_GLOBAL ATB_STREAM_SYNC_EVERY_KERNEL_ENABLE ATB_HOME_PATH "
    "ATB_STREAM_SYNC_EVERY_OPERATION_ENABLE ATB_OPSRUNNER_SETUP_CACHE_ENABLE HCCL_DETERMINISTIC HCCL_ALGO "
    "HCCL_BUFFSIZE HCCL_CONNECT_TIMEOUT HCCL_EXEC_TIMEOUT HCCL_IF_IP HCCL_IF_BASE_PORT HCCL_SOCKET_IFNAME "
    "HCCL_SOCKET_FAMILY HCCL_WHITELIST_DISABLE HCCL_WHITELIST_FILE HCCL_INTRA_PCIE_ENABLE HCCL_INTRA_ROCE_ENABLE "
    "HCCL_OP_EXPANSION_MODE HCCL_RDMA_TC HCCL_RDMA_SL HCCL_RDMA_TIMEOUT HCCL_RDMA_RETRY_CNT HCCL_ENTRY_LOG_ENABLE "
    "HCCL_ASYNC_ERROR_HANDLING HCCL_NPU_NET_PROTOCOL LCCL_DETERMINISTIC LCCL_PARALLEL INF_NAN_MODE_ENABLE "
    "INF_NAN_MODE_FORCE_DISABLE FORCE_OVERFLOW_CHECK TASK_QUEUE_ENABLE PER_STREAM_QUEUE MULTI_STREAM_MEMORY_REUSE "
    "COMBINED_ENABLE OP_HOOK_ENABLE FORCE_ACLNN_OP_LIST CLOSE_MATMUL_K_SHIFT CUSTOM_MATMUL_SHUFFLE "
    "ENABLE_HF32_EXECUTION CPU_AFFINITY_CONF NPU_ASD_ENABLE NPU_ASD_CONFIG NPU_VISIBLE_DEVICES NPU_HOST_IP "
    "PYTORCH_NPU_ALLOC_CONF TORCH_NPU_USE_COMPATIBLE_IMPL TORCH_NPU_LEGACY_IMPL_LIST TORCH_NPU_FALLBACK_CPU_DISABLE "
    "TORCH_NPU_DEVICE_CAPABILITY TORCH_HCCL_ZERO_COPY "
    # libraries that load models
    "TRANSFORMERS_OFFLINE TRANSFORMERS_CACHE TRANSFORMERS_VERBOSITY HF_HUB_OFFLINE HF_HOME HF_DATASETS_OFFLINE "
    "TOKENIZERS_PARALLELISM".split()
)
_NEAR = 0.9  # similarity that a misspelling of ten letters and more still has
_LONG = 8  # letters; shorter names are near one another by chance
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Misspelt:
    """A variable that is set and that nobody reads.

    Attributes:
        name: As it is set.
        meant: The known name that it resembles.
        value: What it is set to.
    """

    name: str
    meant: str
    value: str

    @property
    def text(self) -> str:
        """One line: ``HCCL_DETERMINISITIC is set and nobody reads it: HCCL_DETERMINISTIC``."""
        return f"{self.name} is set and nobody reads it: {self.meant}"


def lint(variables: Mapping[str, str]) -> list[Misspelt]:
    """Return the variables whose names resemble a known name and are none, sorted by name."""
    found = ((name, _resembled(name)) for name in sorted(variables) if name not in KNOWN)
    return [Misspelt(name, meant, variables[name]) for name, meant in found if meant]


def misspelt(config: RunConfig, surroundings: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that a side would get under a name that nobody reads.

    Args:
        config: The composed recipe, whose sides set variables.
        surroundings: Variables of this process, which the sides inherit.
    """
    given = {"reference": config.reference.variables, "target": config.target.variables}
    named = [(f"{side}.variables.{one.name}", one) for side in given for one in lint(given[side])]
    named += [(one.name, one) for one in lint(surroundings)]
    return [f"{place}: nobody reads a variable of this name. Did you mean  {one.meant} ?" for place, one in named]


def _resembled(name: str) -> str:
    """Return the known name that a name is a misspelling of, ``""`` for none."""
    if len(name) < _LONG or name != name.upper():
        return _other_case(name)
    near = difflib.get_close_matches(name, _candidates(name), n=1, cutoff=_NEAR)
    return near[0] if near and not _is_variant(name, near[0]) else ""


def _other_case(name: str) -> str:
    return name.upper() if name.upper() in KNOWN and "_" in name else ""


def _candidates(name: str) -> Iterable[str]:
    """Yield known names of the same family; all of them where the family itself may be misspelt."""
    family = name.partition("_")[0]
    same = [known for known in KNOWN if known.partition("_")[0] == family]
    return same or KNOWN


def _is_variant(name: str, known: str) -> bool:
    """Tell whether a name is a numbered or longer sibling of a known one rather than a misspelling of it."""
    if _DIGITS.sub("", name) == _DIGITS.sub("", known):
        return True
    return name.startswith(f"{known}_") or known.startswith(f"{name}_")
