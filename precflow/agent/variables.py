"""Environment variables: which of them are recorded, and which a recipe may set.

Both programs use it: the agent records what its process was started with, the judge what it starts a side with, and what a
recipe wants set is checked here. Python 3.8, standard library, no torch.
"""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, Mapping

from precflow.agent import redaction

# "recorded": it changes what a side computes, or which device and library it finds, and it is no secret.
#
# "settable": a recipe may set it: a switch of arithmetic, threads, memory, transport or logging. None of these names a file, a
# folder, a library, a device or a host, and none makes a program load, run or write something: recipes come from strangers.
# Other variables are set by a site file or on the command line.
_TABLE = """
# PyTorch
PYTHONHASHSEED                          recorded  settable
PYTORCH_ALLOC_CONF                      recorded  settable
PYTORCH_CUDA_ALLOC_CONF                 recorded  settable
PYTORCH_ENABLE_MPS_FALLBACK             recorded  settable
PYTORCH_JIT                             recorded  settable
PYTORCH_NO_CUDA_MEMORY_CACHING          recorded  settable
PYTORCH_NVML_BASED_CUDA_CHECK           recorded  settable
TORCHDYNAMO_DISABLE                               settable
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE        recorded  settable
TORCH_BLAS_PREFER_CUBLASLT              recorded  settable
TORCH_COMPILE_DEBUG                     recorded
TORCH_CPP_LOG_LEVEL                     recorded  settable
TORCH_CUDA_ARCH_LIST                    recorded
TORCH_CUDNN_V8_API_DISABLED             recorded  settable
TORCH_DEVICE_BACKEND_AUTOLOAD           recorded
TORCH_DISTRIBUTED_DEBUG                 recorded  settable
TORCH_EXTENSIONS_DIR                    recorded
TORCH_HOME                              recorded
TORCH_LINALG_PREFER_CUSOLVER            recorded  settable
TORCH_LOGS                              recorded
TORCH_NCCL_ASYNC_ERROR_HANDLING         recorded  settable
TORCH_NCCL_AVOID_RECORD_STREAMS         recorded  settable
TORCH_NCCL_BLOCKING_WAIT                recorded  settable
TORCH_SHOW_CPP_STACKTRACES              recorded
# threads and CPU libraries
ATEN_CPU_CAPABILITY                     recorded  settable
DNNL_DEFAULT_FPMATH_MODE                recorded  settable
DNNL_MAX_CPU_ISA                        recorded  settable
GOMP_CPU_AFFINITY                       recorded  settable
KMP_AFFINITY                            recorded  settable
KMP_BLOCKTIME                           recorded  settable
KMP_DUPLICATE_LIB_OK                    recorded
MKL_CBWR                                recorded  settable
MKL_DEBUG_CPU_TYPE                      recorded  settable
MKL_DYNAMIC                             recorded  settable
MKL_ENABLE_INSTRUCTIONS                 recorded  settable
MKL_NUM_THREADS                         recorded  settable
MKL_VERBOSE                             recorded  settable
NUMEXPR_NUM_THREADS                               settable
OMP_DYNAMIC                             recorded  settable
OMP_NUM_THREADS                         recorded  settable
OMP_PLACES                              recorded  settable
OMP_PROC_BIND                           recorded  settable
OMP_SCHEDULE                            recorded  settable
OMP_WAIT_POLICY                         recorded  settable
ONEDNN_DEFAULT_FPMATH_MODE              recorded  settable
ONEDNN_MAX_CPU_ISA                      recorded  settable
OPENBLAS_CORETYPE                       recorded  settable
OPENBLAS_NUM_THREADS                    recorded  settable
VECLIB_MAXIMUM_THREADS                            settable
# CUDA
CUBLASLT_WORKSPACE_SIZE                 recorded  settable
CUBLAS_WORKSPACE_CONFIG                 recorded  settable
CUDA_CACHE_DISABLE                      recorded  settable
CUDA_CACHE_PATH                         recorded
CUDA_DEVICE_MAX_CONNECTIONS             recorded  settable
CUDA_DEVICE_ORDER                       recorded
CUDA_HOME                               recorded
CUDA_LAUNCH_BLOCKING                    recorded  settable
CUDA_MODULE_LOADING                     recorded  settable
CUDA_PATH                               recorded
CUDA_VISIBLE_DEVICES                    recorded
CUDNN_LOGDEST_DBG                       recorded
CUDNN_LOGINFO_DBG                       recorded  settable
NCCL_ALGO                               recorded  settable
NCCL_BUFFSIZE                           recorded  settable
NCCL_CROSS_NIC                          recorded  settable
NCCL_DEBUG                              recorded  settable
NCCL_DEBUG_FILE                         recorded
NCCL_DEBUG_SUBSYS                       recorded  settable
NCCL_IB_DISABLE                         recorded  settable
NCCL_IB_HCA                             recorded
NCCL_LAUNCH_MODE                        recorded  settable
NCCL_MAX_NCHANNELS                      recorded  settable
NCCL_MIN_NCHANNELS                      recorded  settable
NCCL_NET                                recorded
NCCL_NTHREADS                           recorded  settable
NCCL_NVLS_ENABLE                        recorded  settable
NCCL_P2P_DISABLE                        recorded  settable
NCCL_P2P_LEVEL                          recorded  settable
NCCL_PROTO                              recorded  settable
NCCL_SHM_DISABLE                        recorded  settable
NCCL_SOCKET_IFNAME                      recorded
NCCL_TIMEOUT                            recorded  settable
NCCL_VERSION                            recorded
NVIDIA_TF32_OVERRIDE                    recorded  settable
# Ascend: CANN, torch_npu, HCCL and the libraries around them
ACL_DEVICE_SYNC_TIMEOUT                 recorded  settable
ACL_DUMP_DATA                           recorded
ACL_OPT_DETERMINISTIC                   recorded  settable
ACL_OP_DEBUG_LEVEL                      recorded
ACL_OP_DETERMINISTIC                    recorded  settable
ACL_OP_INIT_MODE                        recorded  settable
ACL_OP_SELECT_IMPL_MODE                 recorded  settable
ACL_PRECISION_MODE                      recorded  settable
ACL_STREAM_TIMEOUT                      recorded  settable
ASCEND_AICPU_PATH                       recorded
ASCEND_CACHE_PATH                       recorded
ASCEND_COREDUMP_SIGNAL                  recorded
ASCEND_CUSTOM_OPP_PATH                  recorded
ASCEND_DEVICE_ID                        recorded
ASCEND_DRIVER_PATH                      recorded
ASCEND_ENGINE_PATH                      recorded
ASCEND_GLOBAL_EVENT_ENABLE              recorded  settable
ASCEND_GLOBAL_LOG_LEVEL                 recorded  settable
ASCEND_HOME_PATH                        recorded
ASCEND_LAUNCH_BLOCKING                  recorded  settable
ASCEND_MAX_OP_CACHE_SIZE                recorded  settable
ASCEND_OPP_PATH                         recorded
ASCEND_PROCESS_LOG_PATH
ASCEND_RT_VISIBLE_DEVICES               recorded
ASCEND_SLOG_PRINT_TO_STDOUT             recorded  settable
ASCEND_TOOLKIT_HOME                     recorded
ASCEND_VISIBLE_DEVICES                  recorded
ASCEND_WORK_PATH                        recorded
ATB_HOME_PATH                           recorded
ATB_LLM_LCOC_ENABLE                     recorded  settable
ATB_MATMUL_SHUFFLE_K_ENABLE             recorded  settable
ATB_OPSRUNNER_SETUP_CACHE_ENABLE        recorded  settable
ATB_STREAM_SYNC_EVERY_KERNEL_ENABLE     recorded  settable
ATB_STREAM_SYNC_EVERY_OPERATION_ENABLE  recorded  settable
ATB_WORKSPACE_MEM_ALLOC_GLOBAL          recorded  settable
CLOSE_MATMUL_K_SHIFT                    recorded  settable
COMBINED_ENABLE                         recorded  settable
CPU_AFFINITY_CONF                       recorded
CUSTOM_MATMUL_SHUFFLE                   recorded  settable
ENABLE_HF32_EXECUTION                   recorded  settable
FORCE_ACLNN_OP_LIST                     recorded
FORCE_OVERFLOW_CHECK                    recorded  settable
HCCL_ALGO                               recorded  settable
HCCL_ASYNC_ERROR_HANDLING               recorded  settable
HCCL_BUFFSIZE                           recorded  settable
HCCL_CONNECT_TIMEOUT                    recorded  settable
HCCL_DETERMINISTIC                      recorded  settable
HCCL_ENTRY_LOG_ENABLE                   recorded  settable
HCCL_EXEC_TIMEOUT                       recorded  settable
HCCL_IF_BASE_PORT                       recorded
HCCL_IF_IP                              recorded
HCCL_INTRA_PCIE_ENABLE                  recorded  settable
HCCL_INTRA_ROCE_ENABLE                  recorded  settable
HCCL_NPU_NET_PROTOCOL                   recorded
HCCL_OP_EXPANSION_MODE                  recorded  settable
HCCL_RDMA_RETRY_CNT                     recorded  settable
HCCL_RDMA_SL                            recorded  settable
HCCL_RDMA_TC                            recorded  settable
HCCL_RDMA_TIMEOUT                       recorded  settable
HCCL_SOCKET_FAMILY                      recorded
HCCL_SOCKET_IFNAME                      recorded
HCCL_WHITELIST_DISABLE                  recorded
HCCL_WHITELIST_FILE                     recorded
INF_NAN_MODE_ENABLE                     recorded  settable
INF_NAN_MODE_FORCE_DISABLE              recorded  settable
LCCL_DETERMINISTIC                      recorded  settable
LCCL_PARALLEL                           recorded  settable
MULTI_STREAM_MEMORY_REUSE               recorded  settable
NPU_ASD_CONFIG                          recorded
NPU_ASD_ENABLE                          recorded  settable
NPU_HOST_IP                             recorded
NPU_VISIBLE_DEVICES                     recorded
OP_HOOK_ENABLE                          recorded
PER_STREAM_QUEUE                        recorded  settable
PYTORCH_NPU_ALLOC_CONF                  recorded  settable
TASK_QUEUE_ENABLE                       recorded  settable
TORCH_HCCL_ZERO_COPY                    recorded  settable
TORCH_NPU_DEVICE_CAPABILITY             recorded
TORCH_NPU_FALLBACK_CPU_DISABLE          recorded  settable
TORCH_NPU_LEGACY_IMPL_LIST              recorded
TORCH_NPU_USE_COMPATIBLE_IMPL           recorded  settable
# what else decides which code is loaded, and with which seed
LD_LIBRARY_PATH                         recorded
LD_PRELOAD                              recorded
PYTHONPATH                              recorded
# libraries that load models
HF_HUB_OFFLINE                          recorded
TOKENIZERS_PARALLELISM                            settable
TRANSFORMERS_CACHE                      recorded
TRANSFORMERS_OFFLINE                    recorded
TRANSFORMERS_VERBOSITY                  recorded  settable
"""


def _names(use: str) -> FrozenSet[str]:
    rows = (line.split() for line in _TABLE.splitlines() if line and not line.startswith("#"))
    return frozenset(row[0] for row in rows if use in row[1:])


RECORDED = _names("recorded")
SETTABLE = _names("settable")

# A new variable may change numbers before the table knows it. Of those with these beginnings it is recorded that they are set,
# but the value only where it can be nothing but a switch: behind many names stands a password.
_PREFIXES = tuple(
    "ACL_ ASCEND_ ATB_ CANN_ CUBLAS_ CUDA_ CUDNN_ GOMP_ HCCL_ INF_NAN_MODE_ KMP_ LCCL_ MKL_ NCCL_ NPU_ NVIDIA_TF32_ OMP_ "
    "OPENBLAS_ PYTORCH_ TORCH_ TRANSFORMERS_".split()
)
_WORDS = re.compile(r"[\w.:,;=+%-]{0,100}", re.ASCII)
_SWITCH = re.compile(r"[+-]?\d{0,9}(\.\d+)?|true|false|on|off|yes|no|none|enabled?|disabled?", re.IGNORECASE)


def select_recorded(variables: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that matter for numbers, sorted by name, without secrets.

    >>> select_recorded({"HOME": "/home/ann", "OMP_NUM_THREADS": "2", "NCCL_TOKEN": "abc", "ACL_NEW_SWITCH": "1"})
    {'ACL_NEW_SWITCH': '1', 'NCCL_TOKEN': '(redacted)', 'OMP_NUM_THREADS': '2'}
    """
    recorded: Dict[str, str] = {}
    for name in sorted(variables):
        value = variables[name]
        if name in RECORDED:
            recorded[name] = redaction.redact_text(value)
        elif name.startswith(_PREFIXES):
            shown = _SWITCH.fullmatch(value) is not None and not redaction.is_secret(name)
            recorded[name] = value if shown else redaction.REDACTED
    return recorded


def is_switch_value(value: str) -> bool:
    """Tell whether a recipe may set a variable to this: a number, a word, or a short list of them; no path, no address.

    >>> is_switch_value(":4096:8"), is_switch_value("max_split_size_mb:128"), is_switch_value("/tmp/x"), is_switch_value("http://x")
    (True, True, False, False)
    """
    return _WORDS.fullmatch(value) is not None
