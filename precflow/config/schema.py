"""A recipe as frozen dataclasses: every key, its type, its default and what it is for.

This is the only list of keys. Composition (``compose.py``) checks plain data against it, turns values with units into
numbers, and builds one :class:`RunConfig`; nothing behind it ever sees a ``DictConfig``. Field docs are in the class
docstrings, one line a key, because ``precflow show`` and the reference page print them.

Units: fields typed :class:`Share` hold a plain float (``1%`` -> 0.01, ``2^-10`` -> 0.0009765625); ``Ulp`` a number of units in
the last place (``8ulp``); ``Bytes`` an int (``2GB`` -> 2_000_000_000); ``Seconds`` a float (``45m`` -> 2700.0); ``Factor`` a
float (``3x`` -> 3.0); ``Numbers`` ascending ints (``"0-3"`` and ``[0, "2-3"]``). ``units.py`` reads them.

A field whose key is a word of Python ends in an underscore: ``class_`` is the key ``class``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType

Share = NewType("Share", float)
Ulp = NewType("Ulp", float)
Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)
Factor = NewType("Factor", float)
Numbers = NewType("Numbers", tuple[int, ...])

SIDES = ("reference", "target", "golden")


@dataclass(frozen=True)
class About:
    """Who wrote the recipe and which precflow it needs."""

    title: str = ""
    owner: str = ""
    needs: str = ""  # version specifier of precflow, such as ">=0.1"


@dataclass(frozen=True)
class Requirements:
    """What must hold before anything is computed; not met is exit code 2."""

    free_disk: Bytes = Bytes(0)
    torch: str = ""  # version specifier
    python: str = ""  # version specifier


@dataclass(frozen=True)
class Environment:
    """What is demanded of the sides and what must be the same on both."""

    require: Requirements = field(default_factory=Requirements)
    same: tuple[str, ...] = ("weights", "inputs")  # weights, inputs, torch, python, or the name of an installed package


@dataclass(frozen=True)
class Workload:
    """What a side runs: a model and its inputs, in training with loss and optimizer; or (later) a script."""

    model: Mapping[str, Any] = field(default_factory=dict)  # _target_ and its arguments
    inputs: Mapping[str, Any] = field(default_factory=dict)  # _target_ and its arguments
    loss: Mapping[str, Any] = field(default_factory=dict)  # _target_ and its arguments; {}: the one in the model's output
    optimizer: Mapping[str, Any] = field(default_factory=dict)  # _target_ and its arguments; {}: weights stay as they are
    mode: str = "eval"  # eval, train
    tokenizer: str = ""
    script: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One side: where it runs, in which type, with which interpreter and variables."""

    device: tuple[str, ...] = ("cpu",)  # in order of preference: cpu, cuda, npu, emulated
    dtype: str = "float32"
    dump: str = ""  # an existing dump is used instead of running the workload
    interpreter: str = ""  # "" is the judge's own
    setup: tuple[str, ...] = ()  # shell files sourced before the interpreter starts
    launcher: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    migration: str = ""
    ranks: int = 1
    layout: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Determinism:
    """Seeds and switches, applied on every side before the model is built."""

    seed: int | str = 1234  # or "script"
    algorithms: str = "warn"  # strict, warn, native, when_needed
    random_numbers: str = "cpu"  # cpu: drawn on CPU and moved; device: the device's own generator
    dropout: str = "removed"  # removed, kept
    shuffle: str = "kept"  # removed, kept
    data: str = "own"  # own, recorded
    repeat: bool = True  # run the workload once more and compare bitwise, or what statistics tell


@dataclass(frozen=True)
class CaptureRule:
    """Another detail, or a part of each tensor, for the calls that match; the first matching rule counts."""

    match: tuple[str, ...] = ()  # patterns of module names; () is every one
    class_: tuple[str, ...] = ()  # patterns of class names
    operator: tuple[str, ...] = ()  # patterns of operator names
    level: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    step: Numbers = Numbers(())
    rank: Numbers = Numbers(())
    detail: str = ""  # digest, statistics, sketch, tensors, none; "" is that of the section
    slices: str = ""  # the part of each tensor that is kept, as an index such as "[0, :, -1]"
    sample: Share = Share(1.0)  # share of the elements that is kept of large tensors
    because: str = ""


@dataclass(frozen=True)
class Capture:
    """What is recorded on a side, and how much is kept of it."""

    level: tuple[str, ...] = ("module", "api")
    phase: tuple[str, ...] = ("forward",)
    scope: tuple[str, ...] = ("*",)  # module name patterns
    step: Numbers = Numbers((0,))
    rank: Numbers = Numbers(())  # () is every rank
    detail: str = "tensors"  # digest, statistics, sketch, tensors, escalating (sketches, then tensors of the suspects)
    rules: tuple[CaptureRule, ...] = ()  # first match wins; what none matches has the detail above
    budget: Bytes = Bytes(0)  # most that one dump may take; 0 is no limit
    keep_last: int = 0  # the last N steps are kept, and those around a NaN; 0 keeps all
    compress: bool = False  # shards are compressed where that pays
    fine: bool = False  # sketches resolve differences of 3e-8 of a tensor instead of 3e-7, and take twice the room
    slowdown: Factor = Factor(0.0)
    timeout: Seconds = Seconds(3600.0)  # a side that takes longer is stopped


@dataclass(frozen=True)
class Limits:
    """Limits by metric. ``None`` is no limit; ``cosine_similarity`` and shares of good elements are "at least"."""

    cosine_similarity: Share | None = None
    max_abs_error: float | None = None
    mean_abs_error: float | None = None
    max_rel_error: Share | None = None
    mean_rel_error: Share | None = None
    relative_l2: Share | None = None
    accumulated_relative_error: Share | None = None
    kl_divergence: float | None = None
    rmse: float | None = None
    share_within_one_thousandth: Share | None = None
    share_within_five_thousandths: Share | None = None
    allclose_share: Share | None = None
    ulp_distance: Ulp | None = None
    max_rms_error: Share | None = None
    worst_row_error: Share | None = None
    metrics: Mapping[str, Share] = field(default_factory=dict)  # your own metrics, by name: at most


@dataclass(frozen=True)
class Rule(Limits):
    """Other limits for the records that match; the first matching rule wins over standards and plain limits."""

    match: str = "*"  # pattern over "module" or "module / operator"
    phase: str = ""
    because: str = ""


@dataclass(frozen=True)
class Tolerance(Limits):
    """Standards (all of them must pass), plain limits (one more condition, never looser), rules (first match wins)."""

    standards: tuple[str, ...] = ("default",)
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Accepted(Limits):
    """A known difference: counted and shown, not failed, until its last day."""

    match: str = ""
    phase: str = ""
    because: str = ""
    ticket: str = ""
    until: str = ""  # YYYY-MM-DD


@dataclass(frozen=True)
class Coverage:
    """How much must have been compared for a verdict."""

    minimum: Share = Share(1.0)  # of the records; one that is judged by a part of its elements counts as compared
    elements: Share = Share(0.0)  # of the elements of the records that were compared; 100% takes no slice and no sample


@dataclass(frozen=True)
class Report:
    """What the report shows first."""

    columns: tuple[str, ...] = ("cosine_similarity", "relative_l2", "max_abs_error", "ulp_distance")
    formats: tuple[str, ...] = ("html", "markdown", "json", "junit")
    language: str = "en"


@dataclass(frozen=True)
class Emulate:
    """Numerical rules of the emulated target; chosen by ``+emulate=NAME`` from ``conf/emulate``."""

    name: str = ""
    title: str = ""
    rules: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Executor:
    """Who compares the tensors; chosen by ``executor=NAME`` from ``conf/executor``. It changes no result and is in no key."""

    name: str = "local"  # local, dask
    address: str = ""  # of a Dask scheduler, such as tcp://10.0.0.1:8786; "" starts a cluster here
    workers: int = 0  # processes of a cluster that is started here; 0 is one a processor
    threads: int = 0  # of the local executor; 0 is one a processor


@dataclass(frozen=True)
class Site:
    """Facts of a machine. Never written into a recipe, never part of a key."""

    name: str = ""
    store: str = ""
    store_profile: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunConfig:
    """One composed recipe: what ``precflow`` runs."""

    recipe: str = ""  # names given to +recipe=, joined by "+"; set by composition
    about: About = field(default_factory=About)
    environment: Environment = field(default_factory=Environment)
    workload: Workload = field(default_factory=Workload)
    reference: Side = field(default_factory=Side)
    target: Side = field(default_factory=Side)
    golden: Side | None = None
    determinism: Determinism = field(default_factory=Determinism)
    capture: Capture = field(default_factory=Capture)
    curves: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # your own: name -> _target_ and its arguments
    tolerance: Tolerance = field(default_factory=Tolerance)
    accepted: tuple[Accepted, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    stages: tuple[str, ...] = ()  # () is every stage that the recipe needs
    report: Report = field(default_factory=Report)
    emulate: Emulate = field(default_factory=Emulate)
    executor: Executor = field(default_factory=Executor)
    site: Site = field(default_factory=Site)
    sides: tuple[str, ...] = ("reference", "target")  # those that run here
    store: str = ""  # "" is the run folder's own; site.store is used where this is ""
    runs: str = "runs"  # folder of run folders
    output: str = "auto"  # auto, terminal, ci, quiet
    time_limit: Seconds = Seconds(0.0)  # 0 is none
