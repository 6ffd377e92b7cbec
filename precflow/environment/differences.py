"""What differs between the environments of two sides, the most important first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from precflow import keys
from precflow.agent import redaction
from precflow.agent.contract import MODULES
from precflow.environment.program import BATCHES, SAMPLES, find_first_other_batch, find_moved

ABSENT = "(absent)"
_EXPECTED = re.compile(
    r"device\.(name|kind|description|emulated)"  # the two sides are different devices: that is the point
    r"|system\.(kernel|processors)|python\.executable|torch\.(git|cuda_build|parallel)"
    r"|variables\.(ASCEND_RT_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES|LD_LIBRARY_PATH|PYTHONPATH|PRECFLOW_.*)"
)
# What belongs to a kind of device: another kind does not have it, and so does not differ in it.
_OF_A_DEVICE = re.compile(r"(device|switches)\..*|packages\.torch-npu")
_FIRST = ("torch.version", "packages.torch-npu", "python.version")
_SECTIONS = (
    *("device", "switches", "variables", "hyperparameters", MODULES, "loaders", SAMPLES, BATCHES, "program", "sources"),
    *("torch", "python", "system", "packages"),
)
_COMPUTE = ("torch", "torch-npu", "transformers", "diffusers", "tokenizers", "numpy", "accelerate", "safetensors")
_REDUCED = re.compile(r"tf32|hf32|matmul_precision|cube_math", re.IGNORECASE)
_CONVOLUTION = re.compile(r"conv|cudnn", re.IGNORECASE)
_FULL = frozenset({"False", "highest", "ieee", "none", "unknown", "0", ABSENT})


def find_differences(
    reference: Mapping[str, Any], target: Mapping[str, Any], *, same: Sequence[str] = ()
) -> dict[str, tuple[str, str]]:
    """Return dotted fact -> (reference, target) for everything that differs and should not.

    First come the versions of torch and Python, then packages that the recipe wants the same, then device libraries,
    switches and variables, then the rest. Device names, kernels and paths differ on purpose and are left out, and where the
    sides are two kinds of devices, so is a switch or a library that only one kind has.

    Args:
        reference: Facts of the reference, nested plain data.
        target: Facts of the target.
        same: What the recipe wants to be the same.
    """
    if not (reference and target):  # the dump of another tool says nothing of its environment
        return {}
    moved = {f"sources.{name}": f"sources.{to}" for name, to in find_moved(reference, target).items()}
    here, there = _flatten(reference), {moved.get(name, name): text for name, text in _flatten(target).items()}
    names = [name for name in (*here, *there) if not _EXPECTED.fullmatch(name)]
    changed = {name: (here.get(name, ABSENT), there.get(name, ABSENT)) for name in names}
    wanted = [f"packages.{package_name(name)}" for name in same]
    if here.get("device.kind") != there.get("device.kind"):
        changed = {name: pair for name, pair in changed.items() if ABSENT not in pair or not _OF_A_DEVICE.fullmatch(name)}
    ordered = sorted(changed, key=lambda name: (_measure_importance(name, wanted), name))
    first = find_first_other_batch(reference, target)
    kept = {} if first is None else {f"{BATCHES}.{first[0]}": first[1]}  # from there on all differ
    found = {name: changed[name] for name in ordered if changed[name][0] != changed[name][1]}
    # Of each loader the first batch of other samples.
    loaders = {name.rpartition(".")[0]: name for name in sorted(found, reverse=True) if name.startswith(f"{SAMPLES}.")}
    left_out = {name for name in found if name.startswith((f"{SAMPLES}.", f"{BATCHES}."))} - {*kept, *loaders.values()}
    # A setting of a module that one side does not have says nothing, and of many that are set alike the first one is enough.
    alike = {
        (name.rpartition(".")[2], pair): name
        for name, pair in reversed(found.items())
        if name.startswith(f"{MODULES}.") and ABSENT not in pair
    }
    left_out |= {name for name in found if name.startswith(f"{MODULES}.")} - {*alike.values()}
    return {name: kept.get(name, pair) for name, pair in found.items() if name not in left_out}


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return dotted fact -> (before, after) for every fact of one side that changed between two runs, most important first.

    Unlike :func:`find_differences` this is about one side, so that another card, driver or interpreter counts too.

    >>> find_changes({"torch.version": "2.5", "python.version": "3.10"}, {"torch.version": "2.6", "python.version": "3.10"})
    {'torch.version': ('2.5', '2.6')}
    """
    names = dict.fromkeys([*before, *after])
    changed = {name: (before.get(name, ABSENT), after.get(name, ABSENT)) for name in names}
    ordered = sorted(changed, key=lambda name: (_measure_importance(name, ()), name))
    return {name: changed[name] for name in ordered if changed[name][0] != changed[name][1]}


def read_variables(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a side."""
    variables = facts.get("variables")
    return {str(name): str(value) for name, value in variables.items()} if isinstance(variables, Mapping) else {}


def is_compute_package(name: str, same: Sequence[str] = ()) -> bool:
    """Tell whether a fact is the version of a package that computes: torch, the usual libraries, or one of ``same``.

    >>> is_compute_package("packages.transformers"), is_compute_package("packages.rich"), is_compute_package("torch.version")
    (True, False, True)
    """
    wanted = {f"packages.{package_name(one)}" for one in (*_COMPUTE, *same)}
    return name == "torch.version" or name in wanted


def package_name(name: str) -> str:
    """Return a distribution's name as facts spell it: ``torch_npu`` -> ``torch-npu``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_reduced_switches(facts: Mapping[str, Any], *, convolution: bool) -> list[str]:
    """Return ``name=value`` of the switches that are on and allow float32 products to be rounded: TF32, HF32 and their like.

    >>> find_reduced_switches({"switches": {"matmul.allow_hf32": "True", "conv.allow_hf32": "True"}}, convolution=False)
    ['matmul.allow_hf32=True']
    """
    switches = facts.get("switches")
    if not isinstance(switches, Mapping):
        return []
    chosen = [name for name in switches if _REDUCED.search(name) and bool(_CONVOLUTION.search(name)) == convolution]
    return [f"{name}={switches[name]}" for name in chosen if str(switches[name]) not in _FULL]


def _flatten(facts: Mapping[str, Any]) -> dict[str, str]:
    # Redacted once more: a dump may be older than redaction.
    return {name: redaction.redact_text(str(value)) for name, value in keys.flatten(facts)}


def _measure_importance(name: str, wanted: Sequence[str]) -> int:
    if name in _FIRST:
        return _FIRST.index(name)
    if name in wanted:
        return len(_FIRST)
    if is_compute_package(name):
        return len(_FIRST) + 1
    section = name.partition(".")[0]
    return len(_FIRST) + 2 + (_SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS))
