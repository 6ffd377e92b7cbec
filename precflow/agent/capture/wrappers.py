"""What stands around the modules that an author wrote: wrappers for compilation and for several devices, and compiled code.

Compiled code cannot be looked into: no Python of a module runs there, and hooks or modes of ours would be compiled into it. So
a compiled module is recorded at its boundary, what is inside it is counted as unseen, and :func:`compile_nothing` runs it as
it was written where that is asked for.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional

import torch

# Wrappers by the names of their classes (to import these would import whole libraries), and where each keeps its module.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
}
COMPILED_CALL = "_compiled_call_impl"  # what nn.Module calls instead of its forward; set by Module.compile()
_WRITTEN = "_torchdynamo_orig_callable"  # where torch keeps the function that was compiled, or kept out of compilation
_KEPT_OUT = "_torchdynamo_disable"
_SWITCH = "TORCHDYNAMO_DISABLE"  # read when a function is compiled


def _never() -> bool:
    return False


# True only in code that a compiler is tracing, which folds away what depends on it. torch before 2.3 has it elsewhere, and
# there only while its compiler is loaded.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", _never)


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that the author wrote, without the wrappers for several devices and for compilation."""
    while is_wrapper(module):
        inner = getattr(module, _WRAPPERS[type(module).__name__], None)
        if not isinstance(inner, torch.nn.Module):
            break
        module = inner
    return module


def is_wrapper(module: torch.nn.Module) -> bool:
    """Tell whether a module only stands around another one."""
    return type(module).__name__ in _WRAPPERS


def find_boundary(module: torch.nn.Module) -> torch.nn.Module:
    """Return the outermost compiled module of a module and what it wraps, else the module that the author wrote."""
    inner = module
    while is_wrapper(inner) and not is_compiled(inner):
        following = getattr(inner, _WRAPPERS[type(inner).__name__], None)
        if not isinstance(following, torch.nn.Module):
            break
        inner = following
    return inner


def is_compiled(module: torch.nn.Module) -> bool:
    """Tell whether calling the module runs compiled code: ``torch.compile``, ``Module.compile()`` or TorchScript."""
    return bypasses_hooks(module) or is_optimized(module) or has_compiled_forward(module)


def is_optimized(module: torch.nn.Module) -> bool:
    """Tell whether a module is the wrapper that ``torch.compile`` puts around one."""
    return type(module).__name__ == "OptimizedModule"  # by name: importing the class would import the whole compiler


def bypasses_hooks(module: torch.nn.Module) -> bool:
    """Tell whether the hooks of a module are part of its compiled code, or are refused (TorchScript)."""
    return isinstance(module, torch.jit.ScriptModule) or module.__dict__.get(COMPILED_CALL) is not None


def has_compiled_forward(module: torch.nn.Module) -> bool:
    """Tell whether ``forward`` itself was given to ``torch.compile``, in its class or on the module."""
    forward = getattr(module.forward, "__func__", module.forward)
    return not is_optimized(module) and _is_compiled_function(forward)


def _is_compiled_function(function: Any) -> bool:
    return getattr(function, _WRITTEN, None) is not None and not getattr(function, _KEPT_OUT, False)


def list_compiled_functions(*, ran: bool) -> List[str]:
    """Return the names of functions that were given to ``torch.compile`` and are no forward of a module, sorted.

    Args:
        ran: Only those of which there is compiled code, so that they have run; a torch that cannot tell lists all.
    """
    if "torch._dynamo" not in sys.modules:
        return []
    core: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    read_cache: Optional[Callable[[Any], List[Any]]] = getattr(core, "_debug_get_cache_entry_list", None)
    names = set()
    for each in gc.get_objects():
        if type(each) is not _FUNCTION or not _is_compiled_function(each):
            continue
        written = getattr(each, _WRITTEN)
        function = getattr(written, "__func__", written)
        code, module = getattr(function, "__code__", None), str(getattr(function, "__module__", "") or "")
        is_method_of_module = isinstance(getattr(written, "__self__", None), torch.nn.Module)
        name = str(getattr(function, "__qualname__", ""))
        if code is None or is_method_of_module or name.endswith(".forward") or module.partition(".")[0] == "torch":
            continue
        if not ran or read_cache is None or read_cache(code):
            names.add(name)
    return sorted(names)


_FUNCTION = type(_never)


@contextmanager
def compile_nothing(*, unless: bool = False) -> Iterator[None]:
    """Run compiled modules and functions as they were written until the block ends.

    Args:
        unless: Do nothing.
    """
    if unless:
        yield
    elif runs_compiled_code_eagerly():
        with torch.compiler.set_stance("force_eager"):
            yield
    else:  # compile() returns what it was given, without the wrapper that newer versions put around it
        before = os.environ.get(_SWITCH)
        os.environ[_SWITCH] = "1"
        try:
            yield
        finally:
            os.environ.pop(_SWITCH)
            if before is not None:
                os.environ[_SWITCH] = before


def runs_compiled_code_eagerly() -> bool:
    """Tell whether this torch can run what is compiled already as it was written; others only leave uncompiled what comes."""
    return hasattr(torch.compiler, "set_stance")  # torch 2.6
