# ruff: noqa: SLF001  this file exists to name private things
"""All private names of torch that the emulated device uses, in one place.

torch may change any of them in any release. ``tests/agent/emulated/test_private.py`` tests the behaviour of each one and says
what to do if it changes. Import this only after the version of torch has been checked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decompositions as _decompositions
from torch.utils import _device
from torch.utils import _python_dispatch as _modes
from torch.utils import backend_registration as _registration

_core: Any = torch._C
_known: Any = _decompositions
_backend: Any = _registration

# the device's name, hooks, guard and module
set_up_backend: Any = _backend._setup_privateuseone_for_python_backend
set_up_storage_methods: Any = _backend._generate_storage_methods_for_privateuse1_backend

# the same memory under another label
export_capsule: Any = _core._to_dlpack
import_capsule: Any = _core._from_dlpack
toggle_conjugate: Any = torch.ops.aten._conj
toggle_negative: Any = torch._neg_view

# the dispatcher
DispatchKey: Any = _core.DispatchKey
DispatchKeySet: Any = _core.DispatchKeySet
ExcludeDispatchKeys: Any = _core._ExcludeDispatchKeyGuard
has_kernel: Any = _core._dispatch_has_kernel_for_dispatch_key
all_operator_names: Any = _core._dispatch_get_all_op_names
count_dispatch_modes: Any = _core._len_torch_dispatch_stack
fill_device_constructors: Any = _device._device_constructors
without_dispatch_modes: Any = _modes._disable_current_modes
running_backward: Any = _core._current_graph_task_id  # -1 if no backward is running
softmax: Any = torch.ops.aten._softmax.default
log_softmax: Any = torch.ops.aten._log_softmax.default

# classes
PlainGenerator: Any = _core.Generator  # torch.Generator is rebound by the installation; instances carry ``_cdata``
StorageBase: Any = torch.storage._StorageBase  # carries ``to``

# kernels of recurrent layers for devices without one
recurrent_kernels: Any = (
    ("lstm.input", _known.lstm_impl),
    ("lstm.data", _known.lstm_data_impl),
    ("gru.input", _known.gru_impl),
    ("gru.data", _known.gru_impl_data),
)


def run_on_key(operator: Any, key: str, *arguments: Any, **named: Any) -> Any:
    """Run the kernel that ``operator`` has for the dispatch key named ``key``."""
    return operator._op_dk(getattr(DispatchKey, key), *arguments, **named)


def schema_of(overload: Any) -> Any:
    """Return the schema of an ``OpOverload``."""
    return overload._schema
