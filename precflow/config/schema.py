"""A recipe as frozen dataclasses: every key, its type, its default, what it means and an example.

This is the only list of keys. Composition (``composition.py``) checks plain data against it, turns values with units into
numbers, and builds one :class:`RunConfig`; nothing behind it ever sees a ``DictConfig``. :func:`key` holds what
``precflow explain`` and docs/keys.md say; the first line of a class is what they say about the section.

Units: fields typed :class:`Share` hold a plain float (``1%`` -> 0.01, ``2^-10`` -> 0.0009765625); ``Ulp`` a number of units in
the last place (``8ulp``); ``Bytes`` an int (``2GB`` -> 2_000_000_000); ``Seconds`` a float (``45m`` -> 2700.0); ``Numbers``
ascending ints (``"0-3"`` and ``[0, "2-3"]``). ``units.py`` reads them.

A field whose key is a word of Python ends in an underscore: ``class_`` is the key ``class``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NewType, Optional, TypeVar, cast

from precflow.agent.contract import CHECKED, KEPT, LEFT_OUT, RECORDED, UNCHECKED
from precflow.metrics import LIMITED, METRICS

Share = NewType("Share", float)
Ulp = NewType("Ulp", float)
Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)
Numbers = NewType("Numbers", tuple[int, ...])
Seed = NewType("Seed", object)  # an int, or the word `script`

SIDES = ("reference", "target")

_Value = TypeVar("_Value")


def key(default: _Value, meaning: str, example: str) -> _Value:
    """Declare one key.

    Args:
        default: Its value where nobody sets it.
        meaning: What it means, in sentences. ``precflow explain`` and docs/keys.md show them.
        example: A value as YAML, as a recipe or a site file would say it.
    """
    metadata = {"meaning": meaning, "example": example}
    if isinstance(default, dict):
        return cast("_Value", field(default_factory=dict, metadata=metadata))
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class About:
    """Who wrote the recipe and which precflow it needs."""

    title: str = key(
        "", "What the recipe is about, in one line; `precflow ls` and the report show it.", "7B pre-training, A100 to 910B"
    )
    owner: str = key("", "Who answers for the recipe.", "llm-platform")
    needs: str = key(
        "", "Versions of precflow that the recipe works with. Another one refuses it, with its own version.", '">=0.1"'
    )
    asks: Mapping[str, str] = key(
        {},
        "What the recipe cannot know: words that whoever runs it adds, each with an example, under a name of your own. If a "
        "side has nothing to run, those that are missing are asked for.",
        "{script: workload.script=train.py}",
    )


CHECKS = (  # rows of `precflow doctor` that a recipe may require to be right
    "matching_table",
    "known_issues",
    "toolkit",
    "devices",
    "visible_devices",
    "ports",
    "disk",
    "locale",
    "clock",
    "build_tools",
    "variables",
)


@dataclass(frozen=True)
class Requirements:
    """What must hold before anything is computed; not met is exit code 2."""

    free_disk: Bytes = key(Bytes(0), "Room that must be free on the disk of the store before a side is recorded.", "20GB")
    torch: str = key("", "Versions of torch that a side may have.", '">=2.1"')
    python: str = key("", "Versions of Python that a side's interpreter may have.", '">=3.9,<3.13"')
    versions: Mapping[str, str] = key(
        {},
        "Versions of anything else that a side may have, by its name: an installed package, `cann`, `cuda`, `cudnn`, "
        "`ascend-driver`, `ascend-firmware`, `nvidia-driver`.",
        '{cann: ">=8.5", transformers: ">=4.40,<5"}',
    )
    device_memory: Bytes = key(Bytes(0), "Memory of the device that must be free.", "40GB")
    shared_memory: Bytes = key(Bytes(0), "Room that must be free in /dev/shm.", "8GB")
    checks: tuple[str, ...] = key(
        (),
        "Checks that a side must pass, by what `precflow doctor` calls them. What could not be told has not passed, and a side "
        "with any known issue has not passed `known_issues`.",
        "[matching_table, toolkit, devices]",
    )


SAME_AT_START = ("weights", "inputs")  # what both sides start from, unless somebody says that it differs on purpose


@dataclass(frozen=True)
class Environment:
    """What is demanded of the sides and what must be the same on both."""

    require: Requirements = field(default_factory=Requirements)
    same: tuple[str, ...] = key(
        SAME_AT_START,
        "What must be the same on both sides: `weights`, `inputs`, `torch`, `python`, or the name of an installed package. "
        "A difference is a finding; where weights or inputs differ, no tensor is compared and the run is inconclusive, and so "
        "it is for `sources`, `hyperparameters` and `data_order` where they are named.",
        "[weights, inputs, transformers]",
    )


@dataclass(frozen=True)
class Workload:
    """What a side runs: a model and its inputs, and for training loss and optimizer."""

    model: Mapping[str, Any] = key(
        {},
        "The function that returns the model, as `_target_` (its dotted name), and its arguments by name.",
        "{_target_: precflow.workloads.stable_diffusion.text_encoder, weights: seeded}",
    )
    inputs: Mapping[str, Any] = key(
        {},
        "The function that returns the model's inputs, a dict by name or a tuple in the order of its forward, and its "
        "arguments.",
        "{_target_: precflow.workloads.stable_diffusion.prompts, token_ids: [[49406, 320, 49407]]}",
    )
    loss: Mapping[str, Any] = key(
        {},
        "The function that returns the loss function, and its arguments. Without it the loss is `loss` in the model's output.",
        "{_target_: torch.nn.CrossEntropyLoss}",
    )
    optimizer: Mapping[str, Any] = key(
        {},
        "The optimizer and its arguments; without it weights stay as they are. torch's own need no trust.",
        "{_target_: torch.optim.AdamW, lr: 0.001}",
    )
    learning_rate: float | None = key(
        None,
        "Learning rate of every step, in place of the optimizer's own and whatever a schedule says. With 0 the weights stay as "
        "they are, so that many steps of forward and backward are compared without updates.",
        "0.0",
    )
    mode: str = key("eval", "Whether the model is put into evaluation or training mode.", "train")
    parts: tuple[str, ...] = key(
        (),
        "Parts of the model, as names of its modules in order. The target runs each once more on the inputs that the reference "
        "gave it, which tells the parts that are to blame from those that inherit. Needs `capture.detail=tensors`.",
        "[text_encoder, unet, vae_decoder]",
    )
    script: str = key(
        "",
        "A training script, run unchanged in place of model and inputs (docs/scripts.md), or a module in the form "
        "`-m package.train`. It comes from the command line, or a recipe names it below a folder of the site: "
        "`${site.code.NAME}/train.py`, or a module of a package that the user trusts.",
        "train.py",
    )
    arguments: Mapping[str, Any] = key(
        {},
        "Arguments of the script: `name: value` becomes `--name value`, `true` a bare flag, `null` takes one away again; "
        "words without a name are listed under `_`.",
        '{lr: "1e-4", bf16: true}',
    )
    compile: str = key(
        "eager",
        "Whether `torch.compile` compiles in the script: `eager` runs its modules as they were written, so that all are "
        "recorded; `kept` records compiled modules at their boundary.",
        "kept",
    )
    evaluation: bool = key(
        False, "Calls of a script's model in evaluation mode without gradients are recorded, each as a step of its own.", "true"
    )
    stop_early: bool = key(False, "The script is ended after the last step that is recorded.", "true")
    files: tuple[str, ...] = key(
        (),
        "Files that the script writes and that are kept with its dump, as patterns below the folder that it runs in.",
        "[gpulog.json]",
    )


@dataclass(frozen=True)
class MixedPrecision:
    """What a side computes in 16 bits and what in float32 (docs/mixed-precision.md)."""

    level: str = key(
        "",
        "As apex means it: `O1` is autocast, whose lists say which operators run in the 16-bit type; `O2` casts the model "
        "except for batch norms, and the optimizer holds master weights in float32.",
        "O1",
    )
    dtype: str = key("bfloat16", "The 16-bit type of the level.", "float16")
    float32_modules: tuple[str, ...] = key(
        (), "Patterns of module names that stay in float32, with everything inside them.", '["*.norm", head]'
    )
    operators: Mapping[str, str] = key(
        {}, "Torch functions that run in another type than the lists of autocast say.", "{softmax: float16, linear: float32}"
    )
    loss_scale: str = key(
        "",
        "Factor of the loss in backward, taken off again before the optimizer: a number, or `dynamic`, which starts at 65536, "
        "doubles after growth_interval steps, and is halved where a gradient overflows, whose step is skipped.",
        '"1024"',
    )
    growth_interval: int = key(2000, "Steps without an overflow after which a dynamic loss scale doubles.", "200")


@dataclass(frozen=True)
class Conversion:
    """How a side runs a converted model in place of torch's (docs/converted-models.md)."""

    runtime: str = key(
        "", "What runs the model: empty is torch, `onnxruntime` runs the graph that it is exported to.", "onnxruntime"
    )
    file: str = key(
        "", "A graph that exists already, in place of exporting one. Weights in files of their own lie beside it.", "model.onnx"
    )
    exporter: str = key("dynamo", "Which of torch's two exporters makes the graph.", "legacy")
    opset: int = key(20, "Version of ONNX's operators that the graph is exported to.", "17")
    optimise: str = key(
        "extended",
        "How far ONNX Runtime optimises the graph that is judged: `all` also changes layouts, so that fewer tensors keep their "
        "names.",
        "none",
    )
    provider: str = key("CPUExecutionProvider", "ONNX Runtime's name of the device.", "CANNExecutionProvider")
    keep_float32: tuple[str, ...] = key(
        (), "Nodes, or operators such as Softmax, that stay in float32 where the side's type is float16.", "[node_softmax_3]"
    )


@dataclass(frozen=True)
class Side:
    """Where a side runs, in which element type, with which interpreter and variables."""

    device: tuple[str, ...] = key(
        ("cpu",),
        "The device, or several in order of preference: the first one that is here is taken. In continuous integration "
        "`emulated` is taken only where it is the single one named.",
        "[npu, emulated]",
    )
    dtype: str = key(
        "float32",
        "Floating-point type in which the workload runs. A dump that exists already keeps the type that it was made in.",
        "float16",
    )
    mixed_precision: MixedPrecision = field(default_factory=MixedPrecision)
    conversion: Conversion = field(default_factory=Conversion)
    dump: str = key(
        "",
        "Folder of a dump that exists already; it is used in place of running the workload. In a folder of several dumps the "
        "newest is meant, so that a site file may name where they are collected.",
        "/data/dumps/a100",
    )
    interpreter: str = key(
        "",
        "Python that runs this side: 3.8 or newer, with torch 2.1 or newer, and nothing of precflow installed. "
        "Without it the side runs in precflow's own interpreter.",
        "/opt/envs/PyTorch-2.1.0/bin/python",
    )
    setup: tuple[str, ...] = key(
        (),
        "Shell files that are sourced, in order, before the interpreter starts.",
        "[/usr/local/Ascend/ascend-toolkit/set_env.sh]",
    )
    launcher: tuple[str, ...] = key(
        (),
        "Words that stand before the interpreter, one an entry. The command goes to their end, or where `{command}` stands.",
        "[taskset, -c, 0-7]",
    )
    log: tuple[str, ...] = key(
        (),
        "Log of a training run that exists already: curves are read from it, and this side runs nothing. Further ones of the "
        "reference are repeats of the same run, which show how much it differs from run to run.",
        "[gpu.json, gpu_repeat.json]",
    )
    variables: Mapping[str, str] = key(
        {},
        "Environment variables, set before Python starts. Quote what is no plain word. A recipe may set switches alone "
        "(docs/recipe-safety.md).",
        '{HCCL_DETERMINISTIC: "true"}',
    )
    ranks: int = key(
        1,
        "Processes that run the side together, each with its own rank. A launcher may start them (`[torchrun, ...]`); without "
        "one they are started here, with the variables that torchrun sets (docs/ranks.md).",
        "2",
    )
    arguments: Mapping[str, Any] = key(
        {}, "Arguments of the script on this side alone, over those of the workload.", "{use-fused-rmsnorm: true}"
    )
    script: str = key(
        "",
        "The script of this side alone in place of `workload.script`: the same program after a port, with another text or "
        "name. What differs is shown (docs/scripts.md#a-ported-script).",
        "train_npu.py",
    )
    migration: str = key(
        "", "What is imported before the script, so that one written for CUDA runs on the NPU.", "transfer_to_npu"
    )


@dataclass(frozen=True)
class Golden:
    """A third run of the workload in higher precision, which both sides are held to (docs/standards.md)."""

    dtype: str = key(
        "",
        "Element type of the third run: each record of both sides is compared with it, and a dual benchmark (`cann_dual`) then "
        "judges the whole run. Without it there is no third run.",
        "float64",
    )
    device: tuple[str, ...] = key(("cpu",), "Where the third run is made, on the machine of the target.", "cpu")


@dataclass(frozen=True)
class Determinism:
    """Seeds and switches, applied on every side before the model is built."""

    seed: Seed = key(
        Seed(1234),
        "Seed of Python, NumPy, torch and the device, set before the model is built. `script` sets none: the workload does.",
        "42",
    )
    algorithms: str = key(
        "warn",
        "Deterministic algorithms: `strict` refuses operators that have none, `warn` names them, `native` leaves the switch as "
        "it is. `when_needed`, for a script that is run twice (`repeat`): `native`, and `warn` only if the two runs differ.",
        "strict",
    )
    random_numbers: str = key(
        "cpu", "Where random numbers come from: `cpu` draws them there and moves them, the same for every device.", "device"
    )
    dropout: str = key("removed", "Whether dropout is taken out of the model.", "kept")
    repeat: bool = key(
        True,
        "Run each side once more and compare the two runs: what is not repeatable is named and proves nothing.",
        "false",
    )
    data: str = key(
        "script",
        "Whose batches the target computes on: those that its script reads, or, with `recorded`, those that the models of the "
        "reference's script were given, up to the last recorded step, with what the script computes its losses with.",
        RECORDED,
    )
    observer: str = key(
        UNCHECKED,
        "`checked` runs the first recorded step of each side without capture too, and compares loss, weights and the states of "
        "the generators bit for bit: watching must not change what is computed.",
        CHECKED,
    )
    as_is: str = key(
        UNCHECKED,
        "`checked` runs each side once more as it is (dropout kept, draws where they are, native algorithms, compiled), up to "
        "the last recorded step, and compares losses and gradients: a fault may sit in what the recipe changes.",
        CHECKED,
    )


@dataclass(frozen=True)
class CaptureRule:
    """Another detail, or a part of each tensor, for the calls that match; the first matching rule counts."""

    match: tuple[str, ...] = key((), "Patterns of module names; none is every module.", '["*.self_attn"]')
    class_: tuple[str, ...] = key((), "Patterns of class names of modules.", "[Embedding]")
    operator: tuple[str, ...] = key((), "Patterns of operator names.", "[softmax]")
    level: tuple[str, ...] = key((), "Levels; none is every level.", "[api]")
    phase: tuple[str, ...] = key((), "Phases; none is every phase.", "[backward]")
    step: Numbers = key(Numbers(()), "Steps; none is every step.", '"0-3"')
    rank: Numbers = key(Numbers(()), "Ranks; none is every rank.", "[0]")
    detail: str = key(
        "", 'How much is kept of each tensor; "" is the detail of the section, `none` leaves no record.', "tensors"
    )
    slices: str = key("", "The part of each tensor that is kept, as an index.", '"[0, :, -1]"')
    sample: Share = key(Share(1.0), "Share of the elements that is kept of large tensors.", "1%")
    because: str = key("", "Why, for the reader.", "equal on both sides, and large")


@dataclass(frozen=True)
class Capture:
    """What is recorded on a side, and how much is kept of it (docs/capture.md)."""

    level: tuple[str, ...] = key(
        ("module", "api"),
        "Which calls are recorded: modules, torch functions (`api`), aten operators (`operator`, in backward too).",
        "[module, operator]",
    )
    phase: tuple[str, ...] = key(
        ("forward",),
        "When: the forward pass, gradients at modules, gradients of parameters, the optimizer's step.",
        "[forward, gradient]",
    )
    scope: tuple[str, ...] = key(("*",), "Patterns of module names; nothing outside of them is recorded.", '["encoder.*"]')
    step: Numbers = key(Numbers((0,)), "Steps that are recorded, counted from 0: numbers and ranges.", '[0, "10-12"]')
    rank: Numbers = key(Numbers(()), "Ranks that are recorded; none is every rank.", "[0]")
    detail: str = key(
        "tensors",
        "How much is kept of each tensor, where no rule says otherwise. `escalating` keeps sketches of everything first, then "
        "the tensors around the suspects in a second pass.",
        "sketch",
    )
    rules: tuple[CaptureRule, ...] = key(
        (), "Another detail for some calls. The first rule that matches counts.", '[{match: "*.self_attn", detail: tensors}]'
    )
    budget: Bytes = key(
        Bytes(0), "Most that one dump may take on disk; 0 is no limit. It is checked before and during a run.", "20GB"
    )
    keep_last: int = key(0, "Only the last steps are kept, this many, and those around a NaN; 0 keeps all.", "3")
    fine: bool = key(
        False,
        "Sketches resolve differences of 3e-8 of a tensor in place of 3e-7, and take twice the room.",
        "true",
    )
    weights: str = key(
        KEPT,
        "Whether detail `tensors` stores the weights that operators are given, each once. Without them no operator that has "
        "weights can be computed again from the dump.",
        LEFT_OUT,
    )
    compiled: str = key(
        "",
        "What becomes of compiled modules and functions (`torch.compile`): `eager` runs them as they were written, so that "
        "their inside is recorded; `kept` runs compiled code and records modules at their boundary. Empty means eager for a "
        "script (unless `workload.compile` says otherwise), kept for a model.",
        "eager",
    )
    debug: str = key(
        "",
        "`blocking` makes devices wait for each call (CUDA_LAUNCH_BLOCKING, ASCEND_LAUNCH_BLOCKING), so that a crash shows "
        "at the call that caused it.",
        "blocking",
    )
    device_log: str = key(
        "",
        "Least level of what the libraries of a device log: `debug`, `info`, `warning`, `error`; CANN counts them from 0 to 3. "
        "The logs lie beside the dump, cut to size and without secrets. Empty leaves it to the side's variables; where a side "
        "breaks, logs with errors are looked for in any case.",
        "info",
    )
    timeout: Seconds = key(Seconds(3600.0), "A side that takes longer than this is stopped; 0 is no limit.", "2h")


_Class = TypeVar("_Class", bound=type)
_LIMIT_TYPES: Mapping[str, type] = {"share": Share, "value": float, "ulp": Ulp, "nats": float}  # by the metric's unit


def _add_limits(section: _Class) -> _Class:
    """Give a class one key for each metric that recipes can limit, before all others."""
    limits = {name: METRICS[name] for name in LIMITED}
    section.__annotations__ = {
        **{name: Optional[_LIMIT_TYPES[metric.unit]] for name, metric in limits.items()},  # noqa: UP045  a NewType has no | in Python 3.9
        **section.__annotations__,
    }
    for name, metric in limits.items():
        setattr(section, name, key(None, f"{metric.meaning}: {metric.direction}.", metric.example))
    return section


# Decorators apply from the bottom up: the keys have to be there before `dataclass` looks for fields.
@dataclass(frozen=True)
@_add_limits
class Limits:
    """Limits by metric (docs/metrics.md). None is set where nobody sets it."""

    metrics: Mapping[str, Share] = key({}, "Limits on your own metrics (see `metrics`), by name: at most.", "{sign_flips: 1%}")


@dataclass(frozen=True)
class ToleranceRule(Limits):
    """Other limits for the records that match; the first matching rule wins over standards and plain limits."""

    match: str = key("*", "Pattern over `module` or `module / operator`.", '"*.final_layer_norm"')
    phase: str = key("", 'Only records of this phase; "" is every phase.', "gradient")
    because: str = key(
        "",
        "Why. A rule that loosens a standard or a plain limit is refused without it.",
        "feeds every cross attention of the UNet",
    )


@dataclass(frozen=True)
class Tolerance(Limits):
    """Standards (all of them must pass), plain limits (one more condition, never looser), rules (first match wins)."""

    standards: tuple[str, ...] = key(
        ("calibrated",), "Names of standards (`precflow ls standard`). Every one of them must pass.", "[calibrated, allclose]"
    )
    rules: tuple[ToleranceRule, ...] = key(
        (),
        "Other limits for some records. The first rule that matches wins over standards and plain limits.",
        '[{match: "*.router", relative_l2: 5%, because: ties of the top k break by rounding}]',
    )
    fills: tuple[float, ...] = key(
        (),
        "Constants that masks are filled with, beside the usual ones (docs/metrics.md): they are measured by themselves.",
        "[-12345.0]",
    )


@dataclass(frozen=True)
class Accepted(Limits):
    """A known difference: counted and shown, not failed, until its last day."""

    match: str = key("", "Pattern over `module` or `module / operator`. Needed.", '"embedding.word_embeddings"')
    phase: str = key("", 'Only records of this phase; "" is every phase.', "gradient")
    because: str = key("", "Why it is accepted. Needed.", "index_put accumulates in another order")
    ticket: str = key("", "Where it is followed up.", "LLM-1301")
    until: str = key("", "Last day, as YYYY-MM-DD. After it the difference fails again. Needed.", '"2027-03-31"')


@dataclass(frozen=True)
class PairingRule:
    """What the target names or cuts differently; the first rule that matches a call of the target counts (docs/pairing.md)."""

    reference: tuple[str, ...] = key(
        (), "Names on the reference: a module, or `module / operator`; `*` is any text. Needed.", '["*.q_proj", "*.k_proj"]'
    )
    target: tuple[str, ...] = key(
        (), "The same on the target, with as many `*`, which stand for the same texts. Needed.", '["*.qk_proj"]'
    )
    phase: str = key(
        "", 'Only records of this phase; "" is every one, and the forward for a rule that changes tensors.', "gradient"
    )
    index: str = key("", 'Only this output of the call; "" is every one.', '"0"')
    axis: int = key(-1, "Axis that is cut where one side has several names, and joined along.", "0")
    sizes: tuple[int, ...] = key((), "Sizes of the parts along that axis; none is equal parts.", "[64, 16, 16]")
    groups: int = key(1, "The axis holds this many groups, each with all parts in order: a fused QKV by heads.", "8")
    permute: tuple[int, ...] = key((), "Order of the target's axes that makes it the reference's.", "[0, 2, 1, 3]")
    slices: str = key("", "The part of the target's tensor that the reference has, as an index.", '"[:, :77]"')
    reference_slices: str = key("", "The part of the reference's tensor that the target has.", '"[:, :77]"')
    pad: float | None = key(
        None, "Fill the target's tensor up to the reference's shape, at the end of each axis, with this number.", "0.0"
    )
    pair_by: str = key(
        "", "`request` compares one request of a batch on each side, in every record; the rule has no names then.", "request"
    )
    reference_batch: tuple[int, ...] = key(
        (), "With `pair_by`: prompts and tokens of the reference's batch, or tokens that are packed.", "[3, 77]"
    )
    batch: tuple[int, ...] = key((), "The same of the target.", "[31]")
    because: str = key("", "Why, for the reader.", "fused QKV")


@dataclass(frozen=True)
class Pairing:
    """Which records of the two sides are compared, where their names or shapes differ by design."""

    rules: tuple[PairingRule, ...] = key(
        (),
        "Renames and changes of the target's records. A call that no rule matches is paired by its name.",
        '[{reference: ["*.q", "*.k", "*.v"], target: ["*.qkv"]}]',
    )


@dataclass(frozen=True)
class CurveSource:
    """Where one side has a curve, if it logs in another way than the other side."""

    pattern: str = key("", "Pattern of this side's log, in place of `curves.NAME.pattern`.", "megatron")
    file: str = key("", "File that the run of this side leaves, in place of `curves.NAME.file`.", "npulog.json")
    column: str = key("", "Column of this side's numbers, in place of `curves.NAME.column`.", "actor/pg_loss")
    step_column: str = key("", "Column of this side's steps, in place of `curves.NAME.step_column`.", "iter")


@dataclass(frozen=True)
class Curve:
    """A number that a training run logs at its steps, such as the loss: where it is found and how near it has to be."""

    pattern: str = key(
        "",
        "Regular expression for lines of a text log, with the groups `step` and `value`, or the name of a shipped one, "
        "such as megatron (docs/curves.md lists them). Without it the kind of the log is found out.",
        r"'step (?P<step>\d+).* loss: (?P<value>\S+)'",
    )
    file: str = key(
        "",
        "Name of a file among those that `workload.files` keeps of a run, to read in place of what the run has printed.",
        "gpulog.json",
    )
    column: str = key(
        "",
        "Key, column or tag of the numbers in JSON, CSV and TensorBoard's files. Without it: the name of the curve, or another "
        "usual name of it.",
        "train/loss",
    )
    step_column: str = key("", "Key or column of the steps. Without it: step, iteration, global_step and their like.", "iter")
    reference: CurveSource = field(default_factory=CurveSource)
    target: CurveSource = field(default_factory=CurveSource)
    steps: int = key(0, "Steps that are compared, from the first; fewer are inconclusive. 0 is all that a side has.", "2000")
    standard: str = key("", "Name of a standard that judges losses (`precflow ls standard`).", "mindformers_migration")
    first_abs_error: float | None = key(None, "Absolute difference of the first step: at most.", "0.005")
    first_rel_error: Share | None = key(None, "Difference of the first step as a share of the reference: at most.", "0.5%")
    max_abs_error: float | None = key(None, "Largest absolute difference of a step: at most.", "0.1")
    max_rel_error: Share | None = key(None, "Largest difference of a step as a share of the reference: at most.", "5%")
    mean_abs_error: float | None = key(None, "Mean of the absolute differences: at most.", "0.01")
    mean_rel_error: Share | None = key(None, "Mean of the differences as shares of the reference: at most.", "10%")


@dataclass(frozen=True)
class TaskMetric:
    """A number of what the model is for, such as the PSNR of its pictures: it is held to a limit beside the tensors."""

    kind: str = key(
        "", "Which metric it is (docs/task-metrics.md). Without it: the one that the entry is named after.", "class_agreement"
    )
    function: Mapping[str, Any] = key(
        {},
        "A function of your own in place of a kind, as `_target_`, and its arguments. It is given one sample of both sides.",
        "{_target_: our_metrics.clip_score}",
    )
    output: str = key(
        "(model)",
        "What it reads: an output of this module, or of `module / operator`. Several calls are several batches, and of tokens "
        "the next ones.",
        "vae_decoder",
    )
    index: str = key("", "Which output that is, where there are several.", "image")
    limit: Share | None = key(None, "How bad it may be, in its own unit. Without it the metric is shown and not judged.", "30")
    direction: str = key("", "Which values of your own function are good: `at_least` the limit, or `at_most`.", "at_least")
    range: tuple[float, ...] = key((), "Of pictures: their smallest and largest possible value. Needed.", "[0, 1]")
    layout: str = key("NCHW", "Of pictures: what each axis is. N are the samples, C the channels.", "NHWC")
    axis: int = key(0, "Of anything else: the axis of the samples.", "1")
    labels: str = key("", "What is true: an input or output of the model, by its name.", "labels")
    classes: tuple[int, ...] = key((), "What is true, one class a sample, in place of `labels`.", "[207, 3, 3, 81]")
    tokenizer: str = key(
        "", "Of `bleu` and `chrf`: a tokenizer.json, or a folder that has one, by which tokens become text.", "/models/qwen"
    )
    weights: str = key("", "Of `clip_score`: a from_pretrained folder of CLIP.", "/models/clip-vit-large-patch14")
    prompts: tuple[str, ...] = key(
        (), "Of `clip_score`: the text of each picture.", "[a photograph of an astronaut riding a horse]"
    )


@dataclass(frozen=True)
class Coverage:
    """How much must have been compared for a verdict."""

    minimum: Share = key(
        Share(1.0),
        "Share of the records that must have been compared; less is inconclusive. A sampled record counts, and a covered one.",
        "99%",
    )
    elements: Share = key(
        Share(0.0),
        "Share of the elements of these records that must have been compared; 100% takes no slice and no sample.",
        "100%",
    )


@dataclass(frozen=True)
class Operators:
    """The table of operators that recipe `operator_check` makes."""

    against: str = key(
        "",
        "Table of another version of the device (`public/operators.json` of an earlier run): errors are shown beside, and what "
        "got worse is named.",
        "/data/tables/cann_8.0/operators.json",
    )


@dataclass(frozen=True)
class Scan:
    """A source tree that is searched for what ties it to CUDA (docs/migration-scan.md)."""

    tree: str = key(
        "",
        "Folder of the source tree. Recipe `migration_scan` asks for it; beside a comparison, its findings name what was found "
        "at their lines.",
        "training",
    )
    dtype: str = key(
        "",
        "What the source is going to compute in on the target: functions that lack it by the vendor's list are found, too.",
        "bfloat16",
    )


@dataclass(frozen=True)
class Knob:
    """Something of a recipe that `precflow reduce` makes smaller, by a name of your own (docs/reduce.md)."""

    at: str = key(
        "",
        "The key that holds the number: below `workload.model`, `workload.inputs` or `workload.arguments`. Needed.",
        "workload.arguments.layers",
    )
    value: int = key(0, "The number where the recipe does not set the key: the function's or script's own.", "32")
    smallest: int = key(1, "The smallest number that is tried.", "2")
    multiple_of: int = key(1, "Only multiples of this number are tried: a width is one of the number of heads.", "8")


@dataclass(frozen=True)
class Report:
    """What the report shows first, and in which formats it is written."""

    columns: tuple[str, ...] = key(
        ("cosine_similarity", "relative_l2", "max_abs_error", "ulp_distance"),
        "Metrics that the tables show first. All of them are computed.",
        "[relative_l2, max_rel_error]",
    )
    formats: tuple[str, ...] = key(
        ("html", "markdown", "json", "junit", "csv"),
        "Files that are written: to `public/`, and beside it tables of all records (csv, xlsx, parquet) and event files "
        "(tensorboard).",
        "[markdown, json, xlsx]",
    )
    language: str = key(
        "en",
        "Language of page and Markdown: `en`, `zh`, or `both`, a page with a switch. Tables, JSON and JUnit are English.",
        "both",
    )


@dataclass(frozen=True)
class Emulate:
    """Numerical rules of the emulated target; chosen by `+emulate=NAME`, a file of `conf/emulate`."""

    name: str = key("", "Name of the fault.", "hf32_matmul")
    title: str = key("", "What it does, in one line.", "HF32 switched on for matrix products")
    rules: tuple[Mapping[str, Any], ...] = key(
        (), "Which operators compute how (docs/emulation.md).", "[{operator: mm|addmm, rule: slices, width: 48}]"
    )


@dataclass(frozen=True)
class Executor:
    """Who compares the tensors; chosen by `executor=NAME`. It changes no result and is in no key."""

    name: str = key("local", "Threads of this process, or a Dask cluster.", "dask")
    address: str = key("", "Address of a Dask scheduler; without it a cluster is started here.", "tcp://10.0.0.1:8786")
    workers: int = key(0, "Processes of a cluster that is started here; 0 is one a processor.", "8")
    threads: int = key(0, "Threads of the local executor; 0 is one a processor.", "4")


@dataclass(frozen=True)
class Site:
    """Facts of a machine. Never written into a recipe, never part of a key."""

    name: str = key("", "Name of the machine or place.", "guiyang_910b")
    store: str = key(
        "", "Store for runs on this machine, a folder or a URL; `store` on the command line wins.", "s3://llm-alignment"
    )
    store_profile: str = key(
        "",
        "Profile of the AWS configuration that has the credentials for a store at `s3://`; they never stand here.",
        "obs-guiyang",
    )
    store_endpoint: str = key(
        "", "URL of the service behind `s3://` where it is not Amazon's.", "https://obs.cn-southwest-2.myhuaweicloud.com"
    )
    paths: Mapping[str, str] = key(
        {},
        "Folders that recipes may name, as `${site.paths.NAME}`. What is in them enters keys, where they are does not.",
        "{models: /cache/models}",
    )
    code: Mapping[str, str] = key(
        {},
        "Folders of scripts that recipes may run, as `workload.script: ${site.code.NAME}/train.py`: what lies below one may be "
        "run by any recipe. Absolute, and no folder that others write to.",
        "{megatron: /opt/megatron}",
    )
    trusted: tuple[str, ...] = key((), "Packages whose functions a recipe may name in `_target_`.", "[our_llm]")


@dataclass(frozen=True)
class RunConfig:
    """One composed recipe: what `precflow` runs."""

    recipe: str = key("", "Chosen by `+recipe=NAME`; several are laid over each other: `+recipe=[a,b]`.", "sd_text_encoder")
    about: About = field(default_factory=About)
    environment: Environment = field(default_factory=Environment)
    workload: Workload = field(default_factory=Workload)
    reference: Side = field(default_factory=Side)
    target: Side = field(default_factory=Side)
    golden: Golden = field(default_factory=Golden)
    determinism: Determinism = field(default_factory=Determinism)
    capture: Capture = field(default_factory=Capture)
    metrics: Mapping[str, Mapping[str, Any]] = key(
        {},
        "Your own metrics by name: a class as `_target_` and its arguments (docs/metrics.md).",
        "{sign_flips: {_target_: our_metrics.SignFlips}}",
    )
    curves: Mapping[str, Curve] = key(
        {},
        "Curves of a training run that are compared, by name (docs/curves.md).",
        "{loss: {standard: loss_1_percent}, grad_norm: {mean_rel_error: 10%}}",
    )
    task_metrics: Mapping[str, TaskMetric] = key(
        {},
        "Numbers of what the model is for (its pictures, words, classes), by name (docs/task-metrics.md).",
        "{psnr: {output: vae_decoder, range: [0, 1], limit: 30}}",
    )
    tolerance: Tolerance = field(default_factory=Tolerance)
    accepted: tuple[Accepted, ...] = key(
        (),
        "Known differences, counted and shown and not failed until their last day. One that matches nothing is a finding.",
        '[{match: "embedding", relative_l2: 2%, because: other order of sums, until: "2027-03-31"}]',
    )
    pairing: Pairing = field(default_factory=Pairing)
    coverage: Coverage = field(default_factory=Coverage)
    stages: tuple[str, ...] = key(
        (),
        "Stages that run, on what others have made before. None is every stage that the recipe needs.",
        "[environment, dump]",
    )
    whatif: tuple[str, ...] = key(
        (),
        "What-ifs: the target runs again with something changed, to see whether that fixes it. Names (`precflow ls whatif`), "
        "ids of rules whose findings are to be confirmed, `top` for what the evidence suggests, `cheapest` for the fewest "
        "parts in a wider type that make the run pass, `reference_choice` to give the target the reference's choices where its "
        "own are near ties or differ, `suspects_alone` to run each suspect alone on the target.",
        "[PF214, suspects_on_cpu]",
    )
    reduce: Mapping[str, Knob] = key(
        {},
        "What `precflow reduce` makes smaller, by name, beside what it finds by itself (docs/reduce.md).",
        "{layers: {at: workload.arguments.layers, value: 32}}",
    )
    operators: Operators = field(default_factory=Operators)
    scan: Scan = field(default_factory=Scan)
    report: Report = field(default_factory=Report)
    emulate: Emulate = field(default_factory=Emulate)
    executor: Executor = field(default_factory=Executor)
    site: Site = field(default_factory=Site)
    sides: tuple[str, ...] = key(
        ("reference", "target"), "Sides that run here. One that does not is looked up in the store.", "[target]"
    )
    store: str = key(
        "",
        "Store of finished stages, shared between machines and run folders: a folder, or a URL such as `s3://bucket/folder` "
        "(docs/two-places.md). Without it: `site.store`, else the run folder's own.",
        "/shared/alignment",
    )
    runs: str = key("runs", "Folder of the run folders.", "/data/runs")
    name: str = key(
        "",
        "Name of the run folder, by which `ls runs`, `open` and `diff` know its runs. Without it: the recipe's. A second run "
        "of the same name is the next number in that folder.",
        "warm_start",
    )
    output: str = key("auto", "How progress is shown: `ci` prints plain lines with the verdict last.", "ci")


def key_of(field: str) -> str:
    """Return the key that a field stands for: no field in Python can be called ``class``, so the field is ``class_``.

    >>> key_of("class_"), key_of("keep_last")
    ('class', 'keep_last')
    """
    return field.rstrip("_")


def plain(value: Any) -> Any:
    """Return a configuration value as dicts, lists and scalars, which ``json.dumps`` takes as they are.

    Fields of dataclasses keep the order of their declaration, tuples become lists, keys of mappings become text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key_of(field.name): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


MACHINE = "machine"  # a stage; recipe `environment_check` consists of it


def checks_environment_alone(config: RunConfig) -> bool:
    """Tell whether a recipe checks environments and nothing else, so that nothing has to be there to run."""
    return MACHINE in config.stages and not set(config.stages) - {MACHINE, "report"}
