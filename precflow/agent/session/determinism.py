"""Seeds and switches: set before the model is built, and read back afterwards, since only what is in effect counts."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict

from precflow.agent.contract import join_names
from precflow.agent.devices.protocol import Device
from precflow.agent.request import DeterminismSection

if TYPE_CHECKING:
    import torch

_COMPILER, _COMPILER_VARIABLE = "torch._inductor.config", "TORCHINDUCTOR_DETERMINISTIC"
# cuBLAS reads this variable once, when it starts. Without it, torch refuses matrix products on CUDA in strict mode.
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def apply(settings: DeterminismSection, device: Device) -> None:
    """Set algorithms and seeds for Python, NumPy (where it is installed), torch and the device.

    Args:
        settings: Section of the request; with ``native`` algorithms every switch stays as the side's environment has it.
        device: A started device.
    """
    if settings.algorithms != "native":
        _choose_deterministic(warn_only=settings.algorithms == "warn")
        os.environ.setdefault(_CUBLAS, ":4096:8")
    device.deterministic(settings.algorithms)
    reseed(settings, device)


def reseed(settings: DeterminismSection, device: Device) -> None:
    """Seed every generator again, unless the workload seeds itself."""
    if settings.seed is None:
        return
    import torch

    random.seed(settings.seed)
    with suppress(ImportError):  # a workload may draw from NumPy; the agent itself does not need it
        importlib.import_module("numpy").random.seed(settings.seed % 2**32)  # NumPy refuses a longer seed
    torch.manual_seed(settings.seed)
    device.seed(settings.seed)


def read_generators(device: Device) -> Dict[str, str]:
    """Return a hash of the state of each generator that a workload may draw from, by name."""
    import torch

    from precflow.agent.measure.content_id import content_id

    states: Dict[str, Any] = {"Python": random.getstate(), "torch": content_id(torch.get_rng_state())}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["NumPy"] = (kind, keys.tobytes(), rest)
    read: Any = getattr(getattr(torch, device.name, None), "get_rng_state", None) if device.name != "cpu" else None
    if read is not None:
        states[device.name] = content_id(read())
    return {name: hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest() for name, state in states.items()}


def remove_dropout(model: torch.nn.Module) -> Dict[str, torch.nn.Module]:
    """Set the probability of every dropout in the model to 0; return the modules that had one, by name.

    Attention and recurrent modules of torch have an attribute ``dropout`` of their own. Functional dropout is removed by
    :class:`precflow.agent.session.random_numbers.RandomNumbers`.
    """
    import torch

    dropouts = torch.nn.modules.dropout._DropoutNd  # noqa: SLF001  the only common base of all dropout modules
    removed: Dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        attribute = "p" if isinstance(module, dropouts) else "dropout"
        if not isinstance(module, (dropouts, torch.nn.MultiheadAttention, torch.nn.RNNBase)):
            continue
        if getattr(module, attribute) > 0:
            setattr(module, attribute, 0.0)
            removed[join_names("", name)] = module
    return removed


def acts_in_training(model: torch.nn.Module) -> bool:
    """Tell whether a model computes something else in training than in evaluation: it drops out, or averages a batch.

    Functional dropout goes by an attribute such as ``attention_dropout``.
    """
    import torch

    dropouts = torch.nn.modules.dropout._DropoutNd  # noqa: SLF001  the only common base of all dropout modules
    norms = torch.nn.modules.batchnorm._NormBase  # noqa: SLF001  of batch and instance norms
    for module in model.modules():
        if isinstance(module, norms) and module.track_running_stats:
            return True
        rates = [value for name, value in vars(module).items() if "drop" in name and type(value) is float]
        if any(rates) or (isinstance(module, dropouts) and module.p > 0):
            return True
    return False


def read_switches() -> Dict[str, str]:
    """Return torch's own switches as they are now, as text."""
    import torch

    filled = getattr(getattr(torch.utils, "deterministic", None), "fill_uninitialized_memory", "unknown")
    return {
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "deterministic_warn_only": str(torch.is_deterministic_algorithms_warn_only_enabled()),
        "fill_uninitialized_memory": str(filled),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()).rpartition(".")[2],
        "threads": str(torch.get_num_threads()),
    }


def _choose_deterministic(*, warn_only: bool) -> None:
    """Do what ``torch.use_deterministic_algorithms`` does, without its import of torch's compiler, which takes two seconds.

    The public function imports the compiler to set one switch of it. Here an environment variable sets the switch if somebody
    imports the compiler later.
    """
    import torch

    switch = getattr(torch._C, "_set_deterministic_algorithms", None)  # noqa: SLF001  what the public function calls
    if switch is None:
        torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)
    else:
        switch(True, warn_only=warn_only)  # noqa: FBT003  it takes no name
        os.environ[_COMPILER_VARIABLE] = "1"
        compiler: Any = sys.modules.get(_COMPILER)
        if hasattr(compiler, "deterministic"):  # older ones have no such switch
            compiler.deterministic = True
    if warn_only:
        warnings.filterwarnings("once", message=".*deterministic.*")
    deterministic = getattr(torch.utils, "deterministic", None)
    if deterministic is not None:  # filling the result of empty() takes time and changes no defined value
        deterministic.fill_uninitialized_memory = False
