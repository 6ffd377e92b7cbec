"""Draws the cases from a seed: which fault, where, how large, in which host and element type, and on which chip."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from . import chips, hosts
from .calls import CallName, Calls
from .faults import KINDS, OF_BACKWARD, Kind, Site

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ALONE = frozenset({"one_nan", "dropout_left_on"})  # nothing behind them can be told


@dataclass(frozen=True)
class Fault:
    """One fault of a case.

    Attributes:
        kind: Name of its kind.
        calls: The calls that are wrong; empty where the fault is in weights, inputs or the optimizer.
        size: Its size, 0 if the kind has none.
    """

    kind: str
    calls: tuple[CallName, ...]
    size: float


@dataclass(frozen=True)
class Case:
    """One pair of runs: the reference on this CPU, the target on another chip, with faults or without.

    Attributes:
        name: Unique; everything in the case can be drawn from it again.
        backward: The backward pass runs and is recorded.
        reference: Other implementations on the reference.
        target: Other implementations on the target.
    """

    name: str
    group: str
    host: str
    dtype: str
    chip: tuple[str, ...]
    seed: int
    backward: bool
    faults: tuple[Fault, ...] = ()
    reference: dict[str, str] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)


@functools.cache
def sites_of(host: str, dtype: str) -> tuple[Site, ...]:
    """Return the calls of a host's forward and loss, in order."""
    made = hosts.HOSTS[host]
    model = made.make(DTYPES[dtype])
    sites: list[Site] = []
    with Calls(model, watch=lambda *call: sites.append(Site.of(*call))):
        made.run(model, made.inputs(DTYPES[dtype]), backward=False)
    return tuple(sites)


def _candidates(kind: Kind, host: str, dtype: str) -> list[Site]:
    return [site for site in sites_of(host, dtype) if kind.where(site)]


def _applies(kind: Kind, host: str, dtype: str) -> bool:
    return bool(_candidates(kind, host, dtype)) and not (dtype == "bfloat16" and _needs_bits(kind))


def _needs_bits(kind: Kind) -> bool:
    """Return whether the fault only takes bits away that 16-bit types do not have, or rounds partial sums as they may."""
    return kind.family == "environment" or "bfloat16" in kind.name


def _draw(kind: Kind, host: str, dtype: str, rng: random.Random) -> Fault:
    """Draw a call and a size."""
    fits = _candidates(kind, host, dtype)
    chosen = rng.choice(fits)
    if kind.of == "weights" and kind.reach == "one" and not chosen.own_weight:  # drawn again, so that other cases stay
        chosen = rng.choice([site for site in fits if site.own_weight])
    calls: Sequence[Site] = (chosen,)
    if kind.reach == "module":
        calls = [site for site in fits if site.name[:2] == chosen.name[:2]]
    elif kind.reach == "model":
        calls = fits
    size = 0.0
    if kind.sizes:
        low, high = kind.sizes[dtype != "float32"]
        size = float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")
    named = () if kind.of in {"inputs", "optimizer"} or kind.name == "weights_through_bfloat16" else calls
    return Fault(kind.name, tuple(site.name for site in named), size)


def singles(kinds: Sequence[Kind], chosen: Sequence[str], dtypes: Sequence[str], seeds: Sequence[int]) -> Iterator[Case]:
    """Yield one fault a case: each kind in each element type, by turns in the hosts that it applies to."""
    for dtype in dtypes:
        for kind in kinds:
            number = list(KINDS).index(kind.name)  # the same cases whatever else is asked for
            fitting = [host for host in chosen if not hosts.HOSTS[host].controls_only and _applies(kind, host, dtype)]
            if kind.of == "optimizer":  # one weight is like another, and the diffusion models have hundreds
                fitting = [host for host in fitting if not hosts.HOSTS[host].needs]
            for seed in seeds if fitting else ():
                yield make_single(kind, fitting[(number + seed) % len(fitting)], dtype, seed)


def make_single(kind: Kind, host: str, dtype: str, seed: int) -> Case:
    """Draw a case with one fault."""
    name = f"{kind.name}-{host}-{dtype}-{seed}"
    rng = random.Random(name)
    backward = kind.of in OF_BACKWARD | {"optimizer"} or rng.random() < 0.5
    chip = rng.choice(chips.BACKGROUNDS)
    return Case(name, "single", host, dtype, chip, seed, backward, (_draw(kind, host, dtype, rng),))


def several(count: int, chosen: Sequence[str], dtypes: Sequence[str], seeds: Sequence[int]) -> Iterator[Case]:
    """Yield cases with ``count`` faults in one run, in every host."""
    fitting = [host for host in chosen if not hosts.HOSTS[host].controls_only]
    for dtype, host, seed in itertools.product(dtypes, fitting, seeds):
        yield make_several(count, host, dtype, seed)


def make_several(count: int, host: str, dtype: str, seed: int) -> Case:
    """Draw a case with ``count`` faults of any kinds, at different calls of the forward pass."""
    fitting = [
        kind
        for kind in KINDS.values()
        if kind.of == "forward" and kind.reach == "one" and kind.name not in _ALONE and _applies(kind, host, dtype)
        if dtype != "float16" or not _needs_bits(kind)
    ]
    name = f"{count}_faults-{host}-{dtype}-{seed}"
    rng = random.Random(name)
    faults: list[Fault] = []
    while len(faults) < min(count, len(fitting)):
        drawn = _draw(rng.choice(fitting), host, dtype, rng)
        if drawn.calls[0] not in [fault.calls[0] for fault in faults]:
            faults.append(drawn)
    chip = rng.choice(chips.BACKGROUNDS)
    return Case(name, f"{count} faults", host, dtype, chip, seed, rng.random() < 0.5, tuple(faults))


@dataclass(frozen=True)
class Control:
    """A correct target that computes otherwise.

    Attributes:
        chip: Parts of the chip.
        reference: Implementations on the reference.
        target: Implementations on the target.
        needs: A host has to have this variant.
        hosts: Those that it is for, none for all.
    """

    chip: tuple[str, ...] = ()
    reference: tuple[tuple[str, str], ...] = ()
    target: tuple[tuple[str, str], ...] = ()
    needs: str = ""
    hosts: tuple[str, ...] = ()


_SDPA = (("attention", "sdpa"),)
_FUSED = (("norm", "fused"),)
_TIES = (("routing", "near_ties"),)
LATER = {
    "winograd": Control(("winograd",), hosts=("unet",)),
    "small_tiles": Control(("small_tiles", "vec1"), hosts=("unet",)),
    "fourier": Control(("fourier",), hosts=("unet",)),
    "sigmoid_by_tanh": Control(
        ("sigmoid_by_tanh",), hosts=("text_encoder", "decoder", "llama", "experts", "lstm", "unet", "dit")
    ),
    "reciprocals": Control(("reciprocals",)),
    "norms_in_pieces": Control(("norms_in_pieces",), hosts=("text_encoder", "minilm", "lstm", "unet", "dit")),
    "erf_by_polynomial": Control(("erf_by_polynomial",), hosts=("minilm", "unet")),
    "split_sums": Control(("split_sums", "split_k")),
    "rounds_once_more": Control(("rounds_once_more",)),
    "rounds_twice_more": Control(("rounds_twice_more", "chunk2")),
    "functions_round_once_more": Control(("rounds_once_more",), hosts=("functions",)),
    "functions_round_twice_more": Control(("rounds_twice_more", "k16"), hosts=("functions",)),
}
CONTROLS = {
    **{part: Control((part,)) for part in chips.PARTS if part not in LATER},
    "chunk8r+vec2": Control(("chunk8r", "vec2")),
    "chunk64+one_pass": Control(("chunk64", "one_pass")),
    "k16+vec2+one_pass": Control(("k16", "vec2", "one_pass")),
    "k16_trunc+vec1": Control(("k16_trunc", "vec1")),
    "stochastic+chunk2": Control(("stochastic", "chunk2")),
    "strands+unfused+vec1": Control(("strands", "unfused", "vec1")),
    "flash_on_target": Control(("chunk2",), target=_SDPA, needs="attention"),
    "flash_on_reference": Control(("chunk64", "vec1"), reference=_SDPA, needs="attention"),
    "flash_on_both": Control(("chunk8r",), _SDPA, _SDPA, needs="attention"),
    "fused_norm_on_target": Control(("k16",), target=_FUSED, needs="norm"),
    "fused_norm_on_reference": Control(("chunk2", "vec1"), reference=_FUSED, needs="norm"),
    "fused_both_on_target": Control(("chunk8r", "vec2"), target=_SDPA + _FUSED, needs="norm"),
    "routing_near_ties": Control(("chunk2", "vec1"), _TIES, _TIES, hosts=("experts",)),
    "routing_near_ties+float64": Control(("float64",), _TIES, _TIES, hosts=("experts",)),
    "grouped_experts_on_target": Control(("chunk64",), target=(("experts", "grouped_mm"),), hosts=("experts",)),
    **LATER,  # last: the place of a control draws its host
}


def controls(names: Sequence[str], chosen: Sequence[str], dtypes: Sequence[str], seeds: Sequence[int]) -> Iterator[Case]:
    """Yield each control in each element type, by turns in the hosts that it applies to."""
    for dtype in dtypes:
        for name in names:
            number = list(CONTROLS).index(name)
            control = CONTROLS[name]
            fitting = [
                host
                for host in chosen
                if (host in control.hosts if control.hosts else not hosts.HOSTS[host].controls_only)
                and (not control.needs or control.needs in hosts.HOSTS[host].variants)
            ]
            for seed in seeds if fitting else ():
                yield make_control(name, fitting[(number + seed) % len(fitting)], dtype, seed)


def draw_one_each(planned: Iterable[Case]) -> list[Case]:
    """Return one case of each kind and seed, drawn: many seeds then cover all element types at the price of one type."""
    groups: dict[tuple[str, int], list[Case]] = defaultdict(list)
    for case in planned:
        groups[case.name.rsplit("-", 3)[0], case.seed].append(case)
    return [random.Random(f"{what}-{seed}").choice(alike) for (what, seed), alike in groups.items()]


def make_control(name: str, host: str, dtype: str, seed: int) -> Case:
    """Draw a case without a fault: whether backward runs."""
    control = CONTROLS[name]
    full = f"control-{name}-{host}-{dtype}-{seed}"
    sides = (dict(control.reference), dict(control.target))
    return Case(full, "control", host, dtype, control.chip, seed, random.Random(full).random() < 0.5, (), *sides)


def by_name(name: str) -> Case:
    """Draw the case of this name, also one that no plan has, such as a fault in another host.

    Raises:
        ValueError: There is no such kind, control, host or element type, or the fault does not fit the host.
    """
    try:
        *what, host, dtype, seed = name.split("-")
        if what[0] == "control":
            return make_control(what[1], host, dtype, int(seed))
        if what[0] in {"2_faults", "3_faults"}:
            return make_several(int(what[0][0]), host, dtype, int(seed))
        return make_single(KINDS[what[0]], host, dtype, int(seed))
    except (KeyError, ValueError, IndexError) as error:
        expected = "expected FAULT-HOST-TYPE-SEED, control-CONTROL-HOST-TYPE-SEED or 2_faults-HOST-TYPE-SEED"
        raise ValueError(f"there is no case {name}: {expected}, with a fault that the host has operators for") from error
