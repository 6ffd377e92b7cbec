"""Interventions: what a what-if changes while the target runs its workload, all of it taken off again afterwards.

Nothing of the user's code is edited. Single calls are found by module, operator and ordinal, which are counted as capture
counts them, and are changed by a mode below capture, so that capture records the changed results::

    model  ->  hooks and modes of capture  ->  a mode of this file  ->  the operator, changed

A module is changed by changing every operator inside it; written out are those that have a definition. What concerns the
whole run (switches of torch, the implementation of attention, parts that are raised) is set when the block begins and put back
when it ends.
"""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode

from precflow.agent.capture import autograd
from precflow.agent.capture.arguments import Signatures
from precflow.agent.capture.lineage import version_of
from precflow.agent.capture.nesting import leaves
from precflow.agent.capture.operator_names import is_movement, operator_name
from precflow.agent.capture.torch_functions import Function
from precflow.agent.contract import FORWARD, OPERATOR, OUTSIDE, PLACEMENT, join_names, level_of, parse_identity
from precflow.agent.failures import AgentError
from precflow.agent.replay.calls import CannotCompute, parse_argument
from precflow.agent.session.disturbance import Schema, SchemaMode
from precflow.agent.session.raised_parts import raise_parts
from precflow.agent.session.workload_model import map_tensors
from precflow.agent.session.written_out import DEFINITIONS

if TYPE_CHECKING:
    from precflow.agent.request import ArmChange

CallId = Tuple[str, int, str, int]  # module, its number, operator, ordinal
_RunChange = Callable[[torch.nn.Module, Any], ContextManager[Any]]

_OF_AUTOGRAD = frozenset(["detach", "alias"])  # capture does not count them: autograd inserts them by itself
_MASKS = ("attn_mask", "attention_mask", "mask", "atten_mask")  # names of the argument in torch and torch_npu
_PLACE_OF_MASK = {"scaled_dot_product_attention": 3, "masked_fill": 1}  # where it may be passed by position
_ADDS_BIAS = frozenset(["addmm", "baddbmm"])
_ROWS_OF = frozenset("linear matmul mm addmm bmm baddbmm".split())  # their first axes are rows that do not depend on each other


class Interventions:
    """Changes a model's calls while its block runs; a context manager that may be entered once a step.

    Args:
        model: The model.
        changes: What is changed.
        is_quiet: Tells whether capture works at the moment: its own operators are left alone.
        uncast: Name of a weight -> its tensor before the model was cast, of the parts that are raised to a wider type.

    Attributes:
        changed: Number of calls that were changed so far.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        changes: Sequence[ArmChange],
        is_quiet: Callable[[], bool] = lambda: False,
        uncast: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self.changed = 0
        self._met = 0  # calls that are to be changed, also where a change would leave them as they are
        self._model = model
        self._is_quiet = is_quiet
        self._of_run = [change for change in changes if not change.records]
        raise_them = functools.partial(raise_parts, weights=uncast)
        self._run_changes: Dict[str, _RunChange] = {**_RUN_CHANGES, "part": raise_them}
        self._of_calls: Dict[CallId, Dict[str, Any]] = {}
        self._of_modules: Dict[Tuple[str, int], Dict[str, Any]] = {}
        self._below = False  # some of the calls are aten operators
        for change in changes:
            for record in change.records:
                self._add(record, change)
        self._names = {id(module): join_names("", name) for name, module in model.named_modules()}
        self._running: List[Tuple[str, int, Counter[str]]] = []  # innermost last, with how often each operator ran in it
        self._entries: Counter[str] = Counter()
        self._signatures = Signatures()
        self._undo = ExitStack()

    def _add(self, record: str, change: ArmChange) -> None:
        identity = parse_identity(record)
        value = change.value.get(record, {}) if change.kind == "arguments" else change.value
        # Nothing can be changed inside backward: the forward of the module is, and autograd follows.
        if not identity.operator or identity.phase != FORWARD:
            self._of_modules.setdefault((identity.module, identity.call), {})[change.kind] = value
            return
        self._below = self._below or level_of(identity.operator) == OPERATOR
        call = (identity.module, identity.call, identity.operator, identity.ordinal)
        self._of_calls.setdefault(call, {})[change.kind] = value

    def __enter__(self) -> None:
        self._entries.clear()
        self._running = [(OUTSIDE, 0, Counter())]
        with ExitStack() as undo:
            for change in self._of_run:
                undo.enter_context(self._run_changes[change.kind](self._model, change.value))
            if self._of_calls or self._of_modules:
                for module in self._model.modules():
                    undo.callback(module.register_forward_pre_hook(self._enter_module, prepend=True).remove)
                    undo.callback(module.register_forward_hook(self._leave_module, always_call=True).remove)
                if self._below:
                    undo.enter_context(_AtenMode(self))
                undo.enter_context(_FunctionMode(self))
            self._undo = undo.pop_all()

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def check_acted(self) -> None:
        """Refuse an intervention that changed none of its calls: the run would look as if it did not help.

        Raises:
            AgentError: ``unsupported``: no call was changed.
        """
        if self._met and not self.changed:
            message = "there is nothing in its calls that it would change"
            raise AgentError("unsupported", message, "choose another what-if")
        if (self._of_calls or self._of_modules) and not self.changed:
            message = "none of its calls ran in a way that it can change"
            raise AgentError("unsupported", message, "calls inside backward and compiled code are out of its reach")

    def _enter_module(self, module: torch.nn.Module, _: Any) -> None:
        name = self._names.get(id(module))
        if name is not None and not autograd.is_in_backward():
            self._running.append((name, self._entries[name], Counter()))
            self._entries[name] += 1

    def _leave_module(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        name = self._names.get(id(module))
        # From the top: an exception may have left calls above it. Entry 0 is (outside) and never leaves.
        for depth in range(len(self._running) - 1, 0, -1):
            if self._running[depth][0] == name:
                del self._running[depth:]
                return

    def call(self, function: Function, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run a torch function, changed if it is one of the calls."""
        name = operator_name(function)
        if not name or name in PLACEMENT or autograd.is_in_backward():
            return function(*positional, **keywords)
        change = self._find(name, name)
        # What only moves values inside a changed module keeps its type: views have to stay views.
        if not change or (is_movement(name) and "layout" not in change):
            return function(*positional, **keywords)
        return self._run(function, name, positional, keywords, change)

    def call_aten(self, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an aten operator of the forward pass, changed if it is one of the calls."""

        def run(*given: Any, **named: Any) -> Any:
            """Run the operator as the function that ``_run`` expects, with arguments spread."""
            return schema.run(given, named)

        if self._is_quiet() or schema.name in PLACEMENT or schema.name in _OF_AUTOGRAD or autograd.is_in_backward():
            return run(*positional, **keywords)
        change = self._find("aten." + schema.name, "")
        if not change:
            return run(*positional, **keywords)
        with DisableTorchFunction():  # casts are no calls of the model
            return self._run(run, schema.name, positional, keywords, change)

    def _find(self, counted: str, inside: str) -> Mapping[str, Any]:
        """Count a run of an operator and return what is changed about it.

        Args:
            counted: The operator as identities name it.
            inside: The operator if a change of its module counts for it too.
        """
        module, number, runs = self._running[-1]
        ordinal = runs[counted]
        runs[counted] += 1
        change = self._of_calls.get((module, number, counted, ordinal))
        if change is None and inside:
            # Everything runs inside (outside); only what runs directly in it belongs to it.
            entries = self._running[1:] or self._running
            around = (self._of_modules.get(entry[:2]) for entry in reversed(entries))
            change = next((inherited for inherited in around if inherited), None)
            if change and "operator" in change and inside not in DEFINITIONS:  # the others of its module are written out
                change = {kind: value for kind, value in change.items() if kind != "operator"}
        return change or {}

    def _run(
        self, function: Function, name: str, positional: Sequence[Any], keywords: Dict[str, Any], change: Mapping[str, Any]
    ) -> Any:
        given, named = list(positional), dict(keywords)
        run, wide = function, _TYPES.get(str(change.get("dtype")))
        converts = "mask" in change and _convert_mask(name, given, named, boolean=change["mask"] == "boolean")
        self._met += 1
        if not (converts or change.keys() & _ALWAYS_ACTING or _is_narrower(given, named, wide) or _pads(change, name, given)):
            return function(*positional, **keywords)
        self.changed += 1
        if "arguments" in change:
            self._replace_arguments(function, change["arguments"], given, named)
        if "operator" in change:
            run = _definition(name)
            wide = wide or torch.float32
        if "padded_to" in change and name in _ROWS_OF:
            run = functools.partial(_run_padded, run, int(change["padded_to"]), name in _ADDS_BIAS)
        if "layout" in change:
            given, named = map_tensors(given, _pack), map_tensors(named, _pack)
        where = torch.device("cpu") if "device" in change else None
        return _run_elsewhere(run, given, named, wide, where, name)

    def _replace_arguments(self, function: Function, texts: Mapping[str, str], given: List[Any], named: Dict[str, Any]) -> None:
        names = self._signatures.parameter_names(function)
        for name, text in texts.items():
            try:
                value = parse_argument(text)
            except CannotCompute as error:
                raise AgentError("unsupported", str(error)) from error
            place = int(name) if name.isdigit() else names.index(name) if name in names else len(given)
            if name not in named and place < len(given):
                given[place] = value
            else:
                named[name] = value


class _FunctionMode(TorchFunctionMode):
    def __init__(self, interventions: Interventions) -> None:
        super().__init__()
        self._interventions = interventions

    def __torch_function__(
        self, func: Function, types: Tuple[type, ...], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        del types
        return self._interventions.call(func, args, kwargs or {})


class _AtenMode(SchemaMode):
    def __init__(self, interventions: Interventions) -> None:
        super().__init__()
        self._interventions = interventions

    def run_operator(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an operator, changed if it is one of the calls; the schema runs it, whatever its overload."""
        del function
        return self._interventions.call_aten(schema, positional, keywords)


# Changes of one call

_TYPES = {"float32": torch.float32, "float64": torch.float64}


_ALWAYS_ACTING = frozenset({"arguments", "operator", "layout", "device"})
"""Changes that make another call of any; the others may find it as they would have it."""


def _is_narrower(positional: Sequence[Any], keywords: Mapping[str, Any], wide: Optional[torch.dtype]) -> bool:
    """Tell whether a tensor of a call, or a type that it asks for, is narrower than another type."""
    if wide is None:
        return False
    values = [leaf for _, leaf in leaves((list(positional), dict(keywords)))]
    kinds = [value if isinstance(value, torch.dtype) else getattr(value, "dtype", None) for value in values]
    kinds += [value for value in (*positional, *keywords.values()) if isinstance(value, torch.dtype)]
    floating = [kind for kind in kinds if isinstance(kind, torch.dtype) and kind.is_floating_point]
    return any(torch.finfo(kind).bits < torch.finfo(wide).bits for kind in floating)


def _run_elsewhere(  # noqa: PLR0913, PLR0917  the call, and where and how it is to run
    run: Function,
    positional: Sequence[Any],
    keywords: Mapping[str, Any],
    wide: Optional[torch.dtype],
    where: Optional[torch.device],
    name: str,
) -> Any:
    """Run a call on copies of its tensors in a wider type or on another device, and bring its results back.

    What the call wrote to a copy is written to the original: a mask filled in place, the running mean of a batch norm.
    """
    copies: List[Tuple[torch.Tensor, torch.Tensor, Optional[int]]] = []

    def bring(tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the wide type on the other device; what already is both stays itself."""
        widens = wide is not None and tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < torch.finfo(wide).bits
        copy = tensor.to(device=where or tensor.device, dtype=wide if widens else tensor.dtype)
        if copy is not tensor:
            copies.append((tensor, copy, version_of(copy)))
        return copy

    def widen(value: Any) -> Any:
        """Return the wide type for a narrower one: ``softmax(x, dtype=torch.bfloat16)`` asks for a type of its own."""
        narrow = isinstance(value, torch.dtype) and value.is_floating_point and wide is not None
        return wide if narrow and torch.finfo(value).bits < torch.finfo(wide).bits else value  # type: ignore[arg-type]  # both checked

    asked = [value for value in (*positional, *keywords.values()) if isinstance(value, torch.dtype)]
    tensors = [leaf for _, leaf in leaves((positional, dict(keywords))) if isinstance(leaf, torch.Tensor)]
    kinds = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    native = asked[0] if asked else functools.reduce(torch.promote_types, kinds) if kinds else None
    home = tensors[0].device if tensors else None
    given = [widen(value) for value in map_tensors(list(positional), bring)]
    named = {name: widen(value) for name, value in map_tensors(dict(keywords), bring).items()}
    result = run(*given, **named)
    for number, (tensor, copy, version) in enumerate(copies):
        unversioned = version is None and name.endswith("_") and number == 0  # an inference tensor has no version
        # The kernel that updates running statistics raises no version. Copying weights back changes nothing.
        statistics = name.endswith(("batch_norm", "instance_norm")) and number > 0 and not tensor.requires_grad
        if version_of(copy) != version or unversioned or statistics:
            tensor.copy_(copy)
    originals = {id(copy): tensor for tensor, copy, _ in copies}

    def send_back(tensor: torch.Tensor) -> torch.Tensor:
        """Return a result as the call itself would have returned it: an argument that it wrote to is that argument."""
        if id(tensor) in originals:
            return originals[id(tensor)]
        narrows = wide is not None and native is not None and tensor.dtype == wide and native.is_floating_point
        return tensor.to(device=home or tensor.device, dtype=native if narrows else tensor.dtype)

    return map_tensors(result, send_back)


def _definition(name: str) -> Function:
    if name not in DEFINITIONS:
        raise AgentError("unsupported", "no definition of %s is written out" % name, "choose another what-if")

    def run(*positional: Any, **keywords: Any) -> Any:
        """Compute it as written out; an option that is not written out makes the what-if unsupported."""
        try:
            return DEFINITIONS[name](*positional, **keywords)
        except CannotCompute as error:
            raise AgentError("unsupported", "%s cannot be written out: %s" % (name, error)) from error

    return run


def _pack(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that is dense in C order, even of a tensor that is so already: its address changes too."""
    return tensor.clone(memory_format=torch.contiguous_format) if tensor.layout == torch.strided else tensor


def _convert_mask(name: str, given: List[Any], named: Dict[str, Any], *, boolean: bool) -> bool:
    """Replace a mask by one of the other kind: true where a place takes part, or 0 there and -inf elsewhere.

    Returns:
        Whether there is a mask, and it was of the other kind.
    """
    keys = [key for key in _MASKS if isinstance(named.get(key), torch.Tensor)]
    place = _PLACE_OF_MASK.get(name, -1)
    if keys:
        before, named[keys[0]] = named[keys[0]], _convert(named[keys[0]], given, boolean=boolean)
        return named[keys[0]] is not before
    if 0 <= place < len(given) and isinstance(given[place], torch.Tensor):
        before, given[place] = given[place], _convert(given[place], given, boolean=boolean)
        return given[place] is not before
    return False


def _convert(mask: torch.Tensor, given: Sequence[Any], *, boolean: bool) -> torch.Tensor:
    if boolean and mask.is_floating_point():
        return mask > torch.finfo(mask.dtype).min / 2
    if not boolean and mask.dtype == torch.bool:
        dtype = given[0].dtype if given and isinstance(given[0], torch.Tensor) else torch.float32
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask.logical_not(), -float("inf"))
    return mask


def _pads(change: Mapping[str, Any], name: str, positional: Sequence[Any]) -> bool:
    """Tell whether a matmul has to get rows for its number of rows to be a multiple."""
    if "padded_to" not in change or name not in _ROWS_OF:
        return False
    left = positional[1 if name in _ADDS_BIAS else 0]
    return left.dim() > 1 and bool(-left.shape[-2] % int(change["padded_to"]))


def _run_padded(run: Function, multiple: int, adds: bool, *positional: Any, **keywords: Any) -> Any:  # noqa: FBT001
    """Run a matmul with rows of zeros added up to a multiple, and cut them off the result.

    Kernels choose how they cut a product into tiles by its shape. Only the left operand gets rows: the first argument, or the
    second where an operator adds its first one (``adds``), as ``addmm(bias, left, right)`` does. That bias stays as it is, and
    where it has as many rows as the result, so does the call.
    """
    place = 1 if adds else 0
    left = positional[place]
    missing = -left.shape[-2] % multiple if left.dim() > 1 else 0
    if not missing or (place and positional[0].dim() > 1 and positional[0].shape[-2] == left.shape[-2]):
        return run(*positional, **keywords)
    wider = torch.nn.functional.pad(left, (0, 0, 0, missing))
    result = run(*positional[:place], wider, *positional[place + 1 :], **keywords)
    return result[..., : left.shape[-2], :]


# Changes of the whole run


class _Switches:
    """Sets switches of torch while its block runs."""

    def __init__(self, _: torch.nn.Module, names: Any) -> None:
        self._names: Sequence[str] = [names] if isinstance(names, str) else names
        self._undo: List[Callable[[], Any]] = []

    def __enter__(self) -> None:
        for name in self._names:
            self._undo.extend(_SWITCHES[name]())

    def __exit__(self, *error: object) -> None:
        while self._undo:
            self._undo.pop()()


def _use_full_precision() -> Iterator[Callable[[], Any]]:
    """Switch TF32 and HF32 off; yield what puts each switch back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield lambda: torch.set_float32_matmul_precision(before)
    npu = getattr(torch, "npu", None)
    owners = [(torch.backends.cudnn, "allow_tf32")]
    owners += [(getattr(npu, unit), "allow_hf32") for unit in ("matmul", "conv") if hasattr(npu, unit)]
    for owner, switch in owners:
        value = getattr(owner, switch)
        setattr(owner, switch, False)
        yield functools.partial(setattr, owner, switch, value)


def _use_deterministic_algorithms() -> Iterator[Callable[[], Any]]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # What the public function calls; that one imports torch's compiler, which takes two seconds.
    switch = getattr(torch._C, "_set_deterministic_algorithms", torch.use_deterministic_algorithms)  # noqa: SLF001  the reason above
    switch(True, warn_only=True)  # noqa: FBT003  it takes no name
    yield lambda: switch(before[0], warn_only=before[1])


_SWITCHES: Mapping[str, Callable[[], Iterator[Callable[[], Any]]]] = {
    "full_precision": _use_full_precision,
    "deterministic": _use_deterministic_algorithms,
}


class _EagerAttention:
    """Has transformers compute attention in single operators while its block runs.

    Its models look the implementation up in their configuration at every call.
    """

    def __init__(self, model: torch.nn.Module, _: Any) -> None:
        self._model = model
        self._before: List[Tuple[Any, str]] = []

    def __enter__(self) -> None:
        seen: Set[int] = set()
        for module in self._model.modules():
            config = getattr(module, "config", None)
            used = getattr(config, "_attn_implementation", None)
            if isinstance(used, str) and used != "eager" and id(config) not in seen:
                seen.add(id(config))
                self._before.append((config, used))
        if not self._before:
            step = "written_out acts on calls of scaled_dot_product_attention"
            message = "no module has a configuration that says how attention is computed"
            if any(
                getattr(getattr(module, "config", None), "_attn_implementation", "") == "eager"
                for module in self._model.modules()
            ):
                message = "attention is computed in single operators already"
            raise AgentError("unsupported", message, step)
        for config, _ in self._before:
            config._attn_implementation = "eager"  # noqa: SLF001  transformers has no public way to change it later

    def __exit__(self, *error: object) -> None:
        for config, used in self._before:
            config._attn_implementation = used  # noqa: SLF001  the same
        self._before = []


_RUN_CHANGES: Mapping[str, _RunChange] = {
    "switches": _Switches,
    "attention": _EagerAttention,
}
