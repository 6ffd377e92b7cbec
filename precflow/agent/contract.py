"""What judge and agent must agree on: words, versions, file names and the text form of a record's identity.

The judge imports this file too, so it uses Python 3.8 and the standard library, but no torch. (The only other modules of the
agent that the judge imports are ``selection``, ``sampling``, ``variables``, ``intake`` and ``redaction``.) Identities are
explained in ``docs/record-identity.md``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import pkgutil
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Literal, Mapping, NamedTuple, Sequence, Tuple, get_args
from urllib.parse import unquote


def list_modules(folder: str, without: Sequence[str] = ()) -> Tuple[str, ...]:
    """Return the names of the modules in a folder of the agent, each one of a kind; also if the agent is a zip file."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), folder)
    return tuple(found.name for found in pkgutil.iter_modules([path]) if found.name not in without)


REQUEST_SCHEMA = 1
DUMP_SCHEMA = 2  # 1 had no checksum over dump.json and step.json
DUMP_FORMAT = "precflow-dump"
DIGEST_SEEDS = (0x243F6A88, 0x85A308D3)  # of the weights of a content id: digits of pi
DIGEST_FACTOR = 0x9E3779B1  # that mixes its words: 2^32 over the golden ratio
DIGEST_SIZE = 16  # bytes of every blake2b in a dump: content ids, checksums of files, the content of a header

PADDING = "padding-"  # entries of a shard whose keys begin with this only keep the next tensor aligned

HEADER_FILE = "dump.json"  # written last: a dump without it is incomplete
STEP_FILE = "step.json"  # in a step's folder, written last: a step without it is incomplete
SOURCES_FILE = "sources.json"  # beside the header: name -> text of the imported sources of model and script
ERROR_FILE = "error.json"  # written instead of the header when the workload raised
FACTS_FILE = "facts.json"  # what actions "environment" and "machine" write
LOG_FILE = "agent.log"
RANK_LOG_FILE = "agent-rank%d.log"  # of the ranks from 1 on that the agent itself has started
RANK_FILE = "rank%d.json"  # what a rank from 1 on leaves for rank 0, which removes it when it seals the dump
LAST_CALL_FILE, LAST_CALL_BYTES = "last-call-rank%d", 2048  # the call that a rank began last, until its dump is sealed
OUTPUT_FILE = "output.log"  # beside the dump of a script: what the script printed
OUTPUT_OF_RANK = "output-rank%d.log"  # the same of the ranks from 1 on
BATCHES_FOLDER = "batches"  # the same: what a script has given to its models, for `determinism.data: recorded`
FILES_FOLDER = "files"  # beside the dump of a script: files that the script wrote
DRAWS_PATCH = "draws.patch"  # beside the dump of a script: draws its random numbers on the CPU
FILES_OF_RANK = "files-rank%d"  # the same of the ranks from 1 on
PLAIN_FILE = "plain-rank%d.json"  # what the optimizers of a script left, run without hooks
AS_IS_FILE = "as-is-rank%d.json"  # losses and gradients of a run in which the recipe changes nothing (action ``as_is``)
NOISE_FILE = "noise.json"  # what action "noise" writes last, beside the folders of its dumps
NOISES = ("jitter", "chunks", "weights")  # its disturbances, in order; each has a dump in a folder of its name
CHOICES_FILE = "choices.json"  # the reference's choices that a run is given, see ``session/given_choices.py``
WHATIF_FILE = "whatif.json"  # what action "whatif" writes last, beside the folders of its dumps
UNCHANGED = "unchanged"  # the arm of action "whatif" in which nothing is changed
CALLS_FILE = "calls.jsonl"  # what actions "evaluate" and "replay" read: calls with their tensors, see ``replay/calls.py``
ERRORS_FILE = "errors.json"  # beside the calls: which errors of standards to measure, see ``replay/errors.py``
EVALUATED_FILE = "evaluated.jsonl"  # what action "evaluate" writes
UNARY_FILE = "unary.json"  # what action "unary" writes
REPLAYED_FILE = "replayed.jsonl"  # what action "replay" writes
REHEARSAL_FILE = "rehearsal.json"  # what action "rehearse" writes beside the lines of its step

ROOT_MODULE = ""  # the model itself
BEFORE = "before"  # index `weight.before` of an input of the optimizer: the weight before the step
COPY_IN = "copy_in_"  # index `weight.copy_in_average` of an output of the optimizer: what the script keeps in `average`
_WRAPPED = "_orig_mod"  # where the wrapper that torch.compile puts around a module keeps it
OUTSIDE = "(outside)"  # module of operators that run while no module of the model is running

OWN_NUMBER = "self."  # before the name of a setting that no class declares: a float that a module of the user's keeps
MODULES = "modules"  # of a header's facts: name of a module -> how it was set when its first call was recorded
CHECKSUM = "checksum"  # key of a JSON file with the checksum over everything else in it

# Every key of a header with its empty value. The writer fills in the keys that its caller leaves out; a reader
# (``precflow/dumps/header.py``) requires all keys and refuses unknown ones.
EMPTY_HEADER: Dict[str, Any] = {
    "schema": DUMP_SCHEMA,
    "format": DUMP_FORMAT,
    "id": "",
    "agent": "",
    "side": "",
    "recipe": "",
    "declared": "",
    "device": {"name": "", "kind": "", "description": "", "emulated": False},
    "dtype": "",
    "emulate": {"name": "", "rules": []},
    "facts": {},
    "determinism": {},
    "capture": {},
    "fills": {"version": 1, "constants": []},
    "weights": {"digest": "", "entries": {}},
    "inputs": {"digest": "", "entries": {}},
    "repeat": {"checked": False, "records": 0, "by": [], "different": []},
    "observer": {"checked": False, "step": 0, "different": []},
    "ran": [],
    "compiled": {"unseen": {}, "eager": []},
    "losses": [],
    "loss_steps": [],
    "updates": {},
    "draws": [],
    "counts": {"calls": 0, "records": 0, "tensors": 0, "bytes": 0},
    "sites": [],
    "sites_of_ranks": {},
    "seconds": {},
    "dropped": {},
    "files": {},
    "script": {},
    "tool": "",
    "lacks": [],
    "fused": {},
    "conversion": {},
    "content": "",
}

# The words of a record. They are listed only here, in the order in which users see them; recipes, requests, dumps and reports
# use these lists. They are ``Literal`` types because the reader of record lines checks types against them.
Level = Literal["module", "api", "operator"]
Phase = Literal["forward", "backward", "gradient", "optimizer"]
Role = Literal["input", "output"]
LEVELS: Tuple[str, ...] = get_args(Level)
PHASES: Tuple[str, ...] = get_args(Phase)
ROLES: Tuple[str, ...] = get_args(Role)
MODULE, API, OPERATOR = LEVELS
FORWARD, BACKWARD, GRADIENT, OPTIMIZER = PHASES
INPUT, OUTPUT = ROLES


class Detail(NamedTuple):
    """How much is kept of a tensor: a row of ``DETAIL_FACTS``.

    Attributes:
        kept: What a record of this detail holds, as words for a sentence.
        line_bytes: Rough number of bytes that a record takes in its line; it varies with the length of the names.
        covers: Other details that follow from this one and need not be measured if this one is.
    """

    kept: str
    line_bytes: int
    covers: FrozenSet[str] = frozenset()


# From the least to the most. To add a detail: a row here, its measurement in ``measure/batching.py`` and, for the judge, what
# can be concluded from it in ``comparison/estimated/``.
DETAIL_FACTS: Dict[str, Detail] = {
    "digest": Detail("its content id", 280),
    "statistics": Detail("its statistics", 400),  # has no content id, which costs several times as much
    "sketch": Detail("its sketch", 360, frozenset(("digest", "statistics"))),
    "tensors": Detail("the tensor", 280, frozenset(("digest",))),
}
DETAILS = tuple(DETAIL_FACTS)
NONE = "none"  # a recipe's rule with this detail: such calls are not recorded

CHECKED, UNCHECKED = "checked", "unchecked"  # `determinism.observer`: whether a run without capture computes the same
RECORDED = "recorded"  # `determinism.data`: the target is given the batches of the reference
WHEN_NEEDED = "when_needed"  # `determinism.algorithms`: deterministic ones only if two runs of a side differ

# What a run may change in what it runs, in the order in which people are told, see ``session/changes.py``.
CHANGES = ("dropout", "batches", "choices", "draws", "compiled", "learning_rate", "seeds", "algorithms")

KEPT, LEFT_OUT = WEIGHTS_CHOICES = ("kept", "left_out")  # `capture.weights`: whether detail `tensors` stores weights

EAGER = "eager"
COMPILED_CHOICES = ("", KEPT, EAGER)
"""`capture.compiled`: whether compiled code runs compiled or as it was written; ``""`` is eager for scripts, else kept."""

RUNTIMES = ("", "onnxruntime")  # what runs a model: torch, or another
EXPORTERS = ("dynamo", "legacy")
OPTIMISATIONS = ("none", "basic", "extended", "all")  # of ONNX Runtime
MIXED_LEVELS = O1, O2 = ("O1", "O2")  # of mixed precision, as apex means them
MIXED_TYPES = ("float16", "bfloat16")
MIXED_OPERATOR_TYPES = (*MIXED_TYPES, "float32")
DYNAMIC = "dynamic"  # a loss scale that grows until a gradient overflows

DEVICE_KINDS = list_modules("devices", without=("choose", "protocol"))
"""Kinds of devices as recipes name them: the modules of folder ``devices``."""

# What a what-if may change, and to what; ``()``: a number or other values, checked where they are read. Those of the run change
# switches or the whole model, all others single calls.
WHATIF_KINDS: Dict[str, Tuple[str, ...]] = {
    "dtype": ("float32", "float64"),  # the call computes in it, and its results are rounded to their own type
    "device": ("cpu",),
    "arguments": ("reference",),  # those that the reference's record has, or a mapping of names to values
    "layout": ("contiguous",),
    "mask": ("boolean", "additive"),
    "operator": ("written_out",),  # computed from its definition instead of by the device's kernel
    "padded_to": (),  # rows of a matmul, up to a multiple of this number
    "attention": ("eager",),
    "switches": ("full_precision", "deterministic"),  # one or a list
    "part": (),  # modules that run in a wider type or on another device, see ``session/raised_parts.py``
}
WHATIF_OF_RUN = ("attention", "switches", "part")

# Rules of an emulated fault: the judge checks them in a recipe, the agent applies them.
FAULT_KEYS = ("operator", "rule", "module", "phase", "call", "inputs")  # any rule may have these; others are its effect's
FAULT_PHASES = (FORWARD, BACKWARD)  # the phases in which operators run
FAULT_INPUTS = ("float16", "bfloat16", "float32", "float64")  # element types that a rule can be held to
REDRAW = "redraw"  # the only rule that draws parameters anew instead of changing operators

# Mask fills: the constants that masks are made of, such as -65504 in attention scores. They outweigh every other element of a
# sum, so they are counted separately. A value is a fill if it lies in the band around a constant of the list, and the constant
# is at least ``FILLS_FAR`` times as large as every finite value of its tensor that lies in no band. Every other value is an
# ordinary number, however large: 3e4 among values of 2e4 is data.
FILLS_VERSION = 2  # of this definition; version 1 took every large value for a fill, and its headers do not name a version
FILLS_FAR = 8.0
LARGEST: Dict[str, float] = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}
FILLS: Tuple[float, ...] = (
    *(sign * largest for largest in LARGEST.values() for sign in (-1.0, 1.0)),
    -1e4,  # BERT, GPT-2, Megatron
    -1e8,
    -1e9,  # T5 and most decoders by hand
    -1e10,  # Flax
    -1e12,
    -1e18,  # OpenNMT
    -1e20,  # ParlAI
    -1e30,  # XLNet, AllenNLP
    -0.7 * 3.4028234663852886e38,  # flash attention in JAX
)
FEWEST_DIGITS = 8  # types with fewer bits have no fills: float8 is scaled to its own maximum, so large values are data there
# Half width of a band: an attention score may have been added to the constant. 1 % of the constant, at most 1000, but at least
# two units in the last place, because the sum is rounded.
_BAND, _MOST_BAND = 0.01, 1000.0
_UNITS = 2


class Band(NamedTuple):
    """The range of values around one constant that count as this fill.

    Attributes:
        low: Lower end, a value of the element type; part of the band.
        high: Upper end, a value of the element type; part of the band.
        constant: The constant, rounded to the element type.
        number: Index of the constant in the list.
    """

    low: float
    high: float
    constant: float
    number: int


def fill_bands(digits: int, largest: float, constants: Sequence[float] = FILLS) -> Tuple[Band, ...]:
    """Return the bands of an element type, from low to high; constants too large for the type are left out.

    Args:
        digits: Bits of its significand, including the hidden one.
        largest: Its largest finite value.
        constants: ``FILLS``, and the constants that a recipe adds.

    >>> [(band.low, band.high) for band in fill_bands(11, 65504.0) if band.constant < 0]
    [(-65504.0, -64864.0), (-10096.0, -9904.0)]
    """
    bands = []
    for number, constant in enumerate(constants if digits >= FEWEST_DIGITS else ()):
        if abs(constant) > largest:
            continue
        size = _rounded(abs(constant), digits)
        room = max(math.ldexp(_UNITS, math.frexp(size)[1] - digits), min(_BAND * size, _MOST_BAND))
        # min() keeps the upper end at `largest`: next to the largest float64, size + room would overflow.
        low, high = _rounded(size - room, digits), _rounded(min(size, largest - room) + room, digits)
        ends = (-high, -low) if constant < 0 else (low, high)
        bands.append(Band(ends[0], ends[1], math.copysign(size, constant), number))
    return tuple(sorted(bands))


def _rounded(value: float, digits: int) -> float:
    """Return the value rounded to ``digits`` significant bits: as the element type would hold it."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, digits)), exponent - digits)


# Statistics of one tensor, in the order of a record line. The first four are over ordinary elements only, and null if there
# are none; the others are counts unless described below. The judge classifies values in the same way, in
# ``precflow/comparison/fused/value_classes.py``. Real and imaginary part of a complex element count as two values.
#   sentinel   number of mask fills, high and low
#   zero       number of ordinary elements that are 0
#   saturated  number of elements whose magnitude is the largest finite value of their type
#   high       number of mask fills with a positive constant
#   places     checksum of the positions of all elements that are not ordinary: the sum, modulo 2^32, over elements p in C
#              order, of code(p) * ((w0[p % 16384] ^ mix32(p // 16384)) | 1). The code is 0 for ordinary values, 1 NaN, 2 +inf,
#              3 high fill, 4 low fill or -inf (both mask in the same way); w0 is the digest's first table. 0 if there are none
#   fill       the constant, rounded to the type, if all fills are of the same one; else null. This and the next are left out
#              if there are no fills
#   spread     largest distance of a fill from that constant
STATISTICS = (
    "minimum",
    "maximum",
    "sum",
    "square",
    "nan",
    "positive_infinity",
    "negative_infinity",
    "sentinel",
    "zero",
    "saturated",
    "high",
    "places",
    "fill",
    "spread",
)

DTYPE_OF_SAFETENSORS: Dict[str, str] = {  # safetensors' short name -> ours (torch's, without the prefix)
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
}
SAFETENSORS_OF_DTYPE: Dict[str, str] = {ours: theirs for theirs, ours in DTYPE_OF_SAFETENSORS.items()}

# Operators that move or relabel values and never round. They are recorded to help localization, but they are not judged, one
# that is missing on one side is not counted as unpaired, and of their outputs only digests are stored.
MOVEMENT = frozenset(
    "alias as_strided broadcast_to cat chunk clone concat concatenate contiguous copy_ detach diagonal expand "
    "expand_as flatten flip gather getitem hsplit index_select masked_select meshgrid movedim moveaxis narrow "
    "permute pin_memory ravel repeat repeat_interleave reshape reshape_as roll select setitem slice split "
    "split_with_sizes squeeze stack swapaxes swapdims t tensor_split tile transpose tril triu unbind unflatten "
    "unfold unsqueeze view view_as vsplit dsplit take take_along_dim rot90 fliplr flipud T mT H mH "
    "reshape_alias unsafe_view select_backward slice_backward select_scatter slice_scatter".split()
)
# Operators that only move tensors to a device, cast or allocate: these differ between devices on purpose. Never recorded.
PLACEMENT = frozenset(
    "to cuda npu cpu type type_as float half bfloat16 double empty empty_like new_empty data requires_grad_ "
    "retain_grad is_contiguous item tolist numpy size dim numel stride storage_offset data_ptr element_size "
    "is_floating_point is_complex is_tensor result_type promote_types finfo broadcast_tensors "
    "to_copy empty_strided empty_permuted new_empty_strided local_scalar_dense lift lift_fresh is_same_size deepcopy".split()
)
# Those of PLACEMENT whose result holds no values of their inputs.
ALLOCATION = frozenset("empty empty_like new_empty empty_strided empty_permuted new_empty_strided".split())


SHIPPED = "precflow.workloads."  # prefix of our own factories in recipes

# Functions of ours that recipes may name without the user's trust, without the prefix.
FACTORIES = (
    "diffusion.image_to_image",
    "diffusion.latents",
    "diffusion.noisy_latents",
    "diffusion.pictures",
    "diffusion.prompted_pictures",
    "diffusion.safety_checker",
    "diffusion.text_encoder",
    "diffusion.unet",
    "diffusion.vae_decoder",
    "diffusion.vae_encoder",
    "language_model.prompts",
    "language_model.writer",
    "onnx_graph.inputs",
    "onnx_graph.load",
    "stable_diffusion.prompts",
    "stable_diffusion.text_encoder",
)

_OF_TORCH = {  # key of a recipe -> names allowed there without the user's trust, because only torch's own code runs
    "workload.optimizer": re.compile(r"torch\.optim\.[A-Z]\w*"),
    "workload.loss": re.compile(r"torch\.nn\.[A-Z]\w*Loss"),
}


def is_of_torch(key: str, target: str) -> bool:
    """Tell whether a ``_target_`` is one of torch's optimizers or losses and stands under the key for one.

    >>> is_of_torch("workload.optimizer", "torch.optim.AdamW"), is_of_torch("workload.model", "torch.optim.AdamW")
    (True, False)
    """
    return key in _OF_TORCH and _OF_TORCH[key].fullmatch(target) is not None


def is_trusted(key: str, target: str, packages: Iterable[str]) -> bool:
    """Tell whether a ``_target_`` may be imported and called: one of our factories, one of torch's own, or the user trusts it.

    Args:
        key: Its key in the recipe, such as ``workload.model``.
        target: Dotted name.
        packages: Packages that the user trusts; every function in them may be named.

    >>> [is_trusted("workload.model", name, ["our_llm"]) for name in ("our_llm.models.build", "our_llm2.build")]
    [True, False]
    >>> is_trusted("workload.model", "precflow.workloads.extras.require", [])
    False
    """
    shipped = key.startswith("workload.") and target in [SHIPPED + name for name in FACTORIES]
    return shipped or is_of_torch(key, target) or any(target.startswith(package + ".") for package in packages)


def script_module(script: str) -> str:
    """Return the module that ``workload.script`` names in the form ``-m package.train``; ``""`` if it names a file.

    >>> script_module("-m package.train"), script_module("train.py")
    ('package.train', '')
    """
    return script[3:].strip() if script.startswith("-m ") else ""


def is_scale(text: str) -> bool:
    """Tell whether a text is a fixed loss scale: a number above 0 that float32 holds.

    >>> is_scale("1024"), is_scale("0"), is_scale("much")
    (True, False, False)
    """
    try:
        return 0 < float(text) <= LARGEST["float32"]
    except ValueError:
        return False


def checksum_of(plain: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON file's content: BLAKE2b over its compact ASCII form, keys sorted, without ``checksum``.

    >>> checksum_of({"b": 1, "a": [0.5]}) == checksum_of({"a": [0.5], "b": 1, "checksum": "whatever"})
    True
    """
    rest = {key: value for key, value in plain.items() if key != CHECKSUM}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=DIGEST_SIZE).hexdigest()


_ATEN = "aten."  # prefix of the operator in an identity of level ``operator``


def operator_of(level: str, operator: str) -> str:
    """Return the operator's name in an identity: an aten ``mul`` gets a prefix, to differ from the API call ``mul`` around it.

    >>> operator_of("api", "mul"), operator_of("operator", "mul"), operator_of("module", "")
    ('mul', 'aten.mul', '')
    """
    return _ATEN + operator if level == OPERATOR else operator


def level_of(operator: str) -> str:
    """Return the level of a record from the operator's name in its identity: the inverse of :func:`operator_of`.

    >>> level_of("mul"), level_of("aten.mul"), level_of("")
    ('api', 'operator', 'module')
    """
    if not operator:
        return MODULE
    return OPERATOR if operator.startswith(_ATEN) else API


class Identity(NamedTuple):
    """The name by which a record is paired with the other side's; it does not depend on how many records come before.

    Attributes:
        module: Qualified name of the innermost running module; ``""`` is the model itself.
        call: How often this module was entered before, in this step; 0 is the first call.
        operator: Canonical operator name, with ``aten.`` before it at level ``operator``; ``""`` for the module itself.
        ordinal: How often this operator ran before inside this module call.
        phase: One of ``PHASES``.
        role: One of ``ROLES``.
        index: Path of the tensor in the nested arguments or outputs, such as ``0`` or ``last_hidden_state``.
        step: Step number, from 0.
        rank: Rank, from 0.
    """

    module: str
    call: int
    operator: str
    ordinal: int
    phase: str
    role: str
    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls on an identity
    step: int
    rank: int


_SPELLED = {ROOT_MODULE: "(model)", OUTSIDE: OUTSIDE}
_UNSPELLED = {spelled: module for module, spelled in _SPELLED.items()}
_RESERVED = re.compile(r"[%/~@()\x00-\x1f\x7f]")


@functools.lru_cache(maxsize=1 << 16)  # the same names of modules and operators are escaped for every record
def _escape(name: str) -> str:
    return _RESERVED.sub(lambda match: "%%%02X" % ord(match.group()), name)


def join_names(prefix: str, name: str) -> str:
    """Return the name of something inside a model that has a name itself, without the wrappers that ``torch.compile`` adds.

    >>> join_names("critic", "layers.0"), join_names("", "layers.0._orig_mod.linear"), join_names("critic", "")
    ('critic.layers.0', 'layers.0.linear', 'critic')
    """
    return ".".join(part for part in (prefix, *name.split(".")) if part not in ("", _WRAPPED))


_PLAIN_KEY = re.compile(r"(?![0-9-]+$|['\"(])[^.]+")  # no number, no quote or bracket at its start, no dot


def name_keys(keys: Iterable[Any]) -> List[str]:
    """Return the names of a mapping's keys in paths such as ``past.0.key``: another one for every key.

    A text is its own name unless it could be taken for a number or for several keys: then it has quotes. What is neither a
    text nor an integer has brackets.

    >>> name_keys(["hidden", 1, "1", "a.b", None, 1.5])
    ['hidden', '1', "'1'", "'a.b'", '(None)', '(1.5)']
    """
    names: Dict[str, None] = {}
    for key in keys:
        name = _name_key(key)
        while name in names:  # other objects with the same text
            name += "'"
        names[name] = None
    return list(names)


def _name_key(key: Any) -> str:
    if isinstance(key, str):
        text = str.__str__(key)  # of a subclass too, such as an enumeration of texts
        return text if text.isidentifier() or _PLAIN_KEY.fullmatch(text) else repr(text)
    return "%d" % key if isinstance(key, int) and not isinstance(key, bool) else "(%s)" % (key,)


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\([^()]*\)|[^.]+")


def split_path(path: str) -> List[str]:
    """Return the names that a path of nested values is made of: what :func:`name_keys` has quoted stays together.

    >>> split_path("past.0.key"), split_path("x.'a.b'.0")
    (['past', '0', 'key'], ['x', "'a.b'", '0'])
    """
    return _QUOTED.findall(path)


def module_text(module: str, call: int = 0) -> str:
    """Return ``encoder.layers.0`` or, from the second call on, ``encoder.layers.0~1``; the model itself is ``(model)``.

    ``% / ~ @ ( )`` and control characters in a name are percent-encoded, so that :func:`parse_identity` can read the text.
    """
    name = _SPELLED.get(module) or _escape(module)
    return name + ("~%d" % call if call else "")


def identity_text(identity: Identity) -> str:
    """Return ``module~call/operator.ordinal/phase.role.index``, followed by ``@step.rank`` unless both are 0.

    >>> identity_text(Identity("layers.0.attn", 0, "softmax", 1, "forward", "output", "0", 0, 0))
    'layers.0.attn/softmax.1/forward.output.0'
    >>> identity_text(Identity("", 1, "", 0, "forward", "output", "0", 2, 0))
    '(model)~1/forward.output.0@2.0'
    """
    operator = "/%s.%d" % (_escape(identity.operator), identity.ordinal) if identity.operator else ""
    when = "@%d.%d" % (identity.step, identity.rank) if identity.step or identity.rank else ""
    tail = "/%s.%s.%s" % (identity.phase, identity.role, _escape(identity.index))
    return module_text(identity.module, identity.call) + operator + tail + when


def parse_identity(text: str) -> Identity:
    """Read back what :func:`identity_text` wrote.

    Raises:
        ValueError: The text is not an identity.
    """
    parts = text.split("/")
    if len(parts) not in (2, 3):
        raise ValueError("not a record identity: %r" % text)
    name, _, call = parts[0].partition("~")  # "layers.0~1" is the second call of layers.0
    module = _UNSPELLED[name] if name in _UNSPELLED else unquote(name)
    operator, _, ordinal = parts[1].rpartition(".") if len(parts) == 3 else ("", "", "0")
    phase, role, rest = parts[-1].split(".", 2)
    index, at, when = rest.rpartition("@")
    step, rank = (0, 0)
    if at and when.replace(".", "", 1).isdigit() and when.count(".") == 1:
        step, rank = (int(number) for number in when.split("."))
    else:
        index = rest
    return Identity(module, int(call or 0), unquote(operator), int(ordinal), phase, role, unquote(index), step, rank)
