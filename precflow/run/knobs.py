"""What of a recipe can be made smaller: what section ``reduce`` declares, and what is named or shaped as such things are.

* a number: layers, a width, samples, tokens, steps of a script, a dimension of a shape, and whatever the recipe declares; also
  inside of the configuration of a model, a JSON file that the recipe names, of which a smaller copy is written then;
* entries: of the lists of the inputs (prompts), and of the recorded steps;
* a length: of the entries of such a list (tokens of a prompt).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow import keys
from precflow.config.overrides import format_value
from precflow.config.schema import RunConfig
from precflow.config.sections.reduce_section import (
    BELOW,
    CONFIGURATION,
    as_number,
    find_configuration,
    look_up,
    read_configuration,
)
from precflow.config.trust import TARGET
from precflow.errors import StoreError
from precflow.files import write_text

NUMBER, ENTRIES, LENGTH, END = "number", "entries", "length", "end"
STEPS, STOP = "capture.step", "workload.stop_early"
Size = int | tuple[int, ...]
"""A number, or which entries of a list are left."""
Setting = Mapping[str, Size]
"""Name of a knob -> its size."""

_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "heads")
_NAMES = (  # what is tried first stands first; words of other cases and with dashes are the same
    ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "layers", "depth", "num_blocks", "blocks"),
    ("max_steps", "train_steps", "num_steps", "steps", "train_iters", "max_iters", "iterations", "iters"),
    ("batch_size", "micro_batch_size", "per_device_train_batch_size", "global_batch_size", "batch", "samples"),
    ("sequence_length", "seq_length", "seq_len", "max_length", "max_seq_len", "max_new_tokens", "tokens", "length", "context"),
    ("image_size", "img_size", "sample_size", "crop_size", "resolution", "height"),
    ("intermediate_size", "ffn_hidden_size", "ffn_dim", "hidden_size", "d_model", "embed_dim", "n_embd", "hidden", "width"),
    (*_HEADS, "num_key_value_heads"),
    ("vocab_size", "vocabulary"),
)
_ORDER = {name: place for place, names in enumerate(_NAMES) for name in names}
_PICTURES, _WIDTHS = frozenset(_NAMES[4]), frozenset(_NAMES[5])
_USUAL_MULTIPLE = 8  # of a width whose heads are not known
_SHAPES, _SIZES = ("shape", "image_size", "resolution"), "sizes"  # ends of the names of lists of dimensions; sizes by axis
_LARGEST_BESIDE = 50_000_000  # bytes of a file that is copied with a configuration


@dataclass(frozen=True)
class Knob:
    """Something that can be smaller.

    Attributes:
        name: What it is called.
        keys: Keys that hold it; several lists of the same length lose the same entries.
        kind: ``NUMBER``, ``ENTRIES``, ``LENGTH`` or ``END``: whether a script goes on (1) behind the last recorded step.
        now: What it is in the recipe.
        smallest: The smallest number.
        multiple_of: Only multiples of this number are possible.
    """

    name: str
    keys: tuple[str, ...]
    kind: str
    now: Size
    smallest: int = 1
    multiple_of: int = 1

    @property
    def least(self) -> Size:
        """The smallest size: the first entry of a list; of a number, its smallest multiple."""
        if isinstance(self.now, tuple):
            return self.now[:1]
        return min(-(-self.smallest // self.multiple_of) * self.multiple_of, self.now)

    def describe(self, size: Size) -> str:
        """Return a size in words: ``12``, or how many entries are left."""
        if self.kind == END:
            return "to its own end" if size else "to the last recorded step"
        return str(len(size)) if isinstance(size, tuple) else str(size)


def find_knobs(config: RunConfig) -> list[Knob]:
    """Return what can be made smaller, in the order in which it is tried: what the recipe declares first.

    A number stands for itself where its key has the name of such things, ``num_hidden_layers`` or ``batch-size``.
    """
    declared = [
        Knob(name, (knob.at,), NUMBER, as_number(look_up(config, knob.at)) or knob.value, knob.smallest, knob.multiple_of)
        for name, knob in config.reduce.items()
    ]
    taken = {key for knob in declared for key in knob.keys}
    shapes = [knob for knob in _find_shapes(config) if not taken.intersection(knob.keys)]
    taken |= {key for knob in shapes for key in knob.keys}
    named = [one for one in _find_numbers(config) if one[0] not in taken]
    found = [*declared, *_find_steps(config), *_find_lists(config), *_tie(shapes, list(_make_numbers(named)))]
    names = [knob.name for knob in found]
    # Two things of the same name are called by their whole keys.
    found = [knob if names.count(knob.name) == 1 else _with_name(knob, " ".join(knob.keys)) for knob in found]
    return [knob for knob in found if knob.least != knob.now]


def write_words(config: RunConfig, knobs: Sequence[Knob], setting: Setting, folder: Path | None = None) -> list[str]:
    """Return the overrides that set knobs to these sizes, for those that are not as in the recipe.

    Args:
        config: The recipe.
        knobs: Its knobs.
        setting: Their sizes.
        folder: Where smaller configurations of a model are written.

    Raises:
        StoreError: A configuration cannot be written.
    """
    changed = [knob for knob in knobs if setting[knob.name] != knob.now]
    values: dict[str, Any] = {}
    for knob in sorted(changed, key=lambda one: one.kind == LENGTH):  # entries are left out before the others are cut
        size = setting[knob.name]
        for key in knob.keys:
            if knob.kind == END:
                values[key] = not size
            elif isinstance(size, tuple):
                rows = list(config.capture.step) if key == STEPS else look_up(config, key)
                values[key] = [rows[number] for number in size]
            elif knob.kind == LENGTH:
                values[key] = [row[:size] for row in values.get(key, look_up(config, key))]
            else:
                values[key] = [size] if key == STEPS else size
    whole = _put_into_place(config, values, folder)
    return [f"{key}={format_value(value)}" for key, value in whole.items()]


def _put_into_place(config: RunConfig, values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the values by the keys that an override can set: a list as a whole, a configuration as the file of its copy."""
    whole: dict[str, Any] = {}
    copies: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        holder = _find_holder(config, key)
        inside = key[len(holder) + 1 :].split(".") if holder else []
        if not holder:
            whole[key] = value
        elif isinstance(given := look_up(config, holder), str):
            copy: Any = copies.setdefault(holder, _copy(read_configuration(given)))
            for part in inside[:-1]:
                copy = copy[int(part)] if isinstance(copy, list) else copy[part]
            copy[int(inside[-1]) if isinstance(copy, list) else inside[-1]] = value
        else:
            rows = whole.setdefault(holder, list(given))
            rows[int(inside[0])] = value
    for holder, copy in copies.items():
        if folder is not None:
            whole[holder] = _write_configuration(str(look_up(config, holder)), copy, folder)
    return whole


def _find_holder(config: RunConfig, key: str) -> str:
    """Return the shortest beginning of a key that holds a list of numbers or names a configuration; ``""`` if none does."""
    parts = key.split(".")
    for length in range(3, len(parts)):
        beginning = ".".join(parts[:length])
        value = look_up(config, beginning) if parts[1] in BELOW else None
        if isinstance(value, (list, tuple)) or (isinstance(value, str) and find_configuration(value)):
            return beginning
    return ""


def _copy(plain: Mapping[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(plain))
    return copied


def _write_configuration(given: str, plain: Mapping[str, Any], folder: Path) -> str:
    """Write a configuration, with what lies beside it if a folder was given; return its path in the same form.

    Raises:
        StoreError: It cannot be written.
    """
    text = json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
    source = Path(given).expanduser()
    made = folder / f"{source.name.removesuffix('.json')}-{keys.digest([text])[:8]}"
    try:
        if source.is_dir():
            made.mkdir(parents=True, exist_ok=True)
            for file in source.iterdir():  # a tokenizer; weights lie in no such folder
                if file.is_file() and file.name != CONFIGURATION and file.stat().st_size <= _LARGEST_BESIDE:
                    shutil.copyfile(file, made / file.name)
            write_text(made / CONFIGURATION, text)
            return str(made)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(made.with_suffix(".json"), text)
        return str(made.with_suffix(".json"))
    except OSError as error:
        raise StoreError(
            f"{made} cannot be written: {error.strerror or error}", next_step="name another folder: --to"
        ) from error


def _find_steps(config: RunConfig) -> Iterator[Knob]:
    steps = config.capture.step
    if len(steps) > 1:
        yield Knob("recorded steps", (STEPS,), ENTRIES, tuple(range(len(steps))))
    elif steps[0] > 0:
        yield Knob("recorded step", (STEPS,), NUMBER, steps[0], smallest=0)
    if config.workload.script and not config.workload.stop_early:
        yield Knob("the script runs", (STOP,), END, 1, smallest=0)


def _find_lists(config: RunConfig) -> Iterator[Knob]:
    lists = {
        f"workload.inputs.{name}": rows
        for name, rows in config.workload.inputs.items()
        if isinstance(rows, (list, tuple)) and rows and all(isinstance(row, (list, tuple, str)) for row in rows)
    }
    for count in dict.fromkeys(map(len, lists.values())):
        keys = tuple(key for key, rows in lists.items() if len(rows) == count)
        yield Knob(" and ".join(map(_last, keys)), keys, ENTRIES, tuple(range(count)))
    for key, rows in lists.items():
        yield Knob(f"length of {_last(key)}", (key,), LENGTH, max(map(len, rows)))


def _find_shapes(config: RunConfig) -> Iterator[Knob]:
    """Yield the dimensions of shapes: lists of whole numbers, and sizes by the names of axes."""
    waiting = [(f"workload.{name}", getattr(config.workload, name)) for name in BELOW]
    while waiting:
        place, section = waiting.pop(0)
        for name, value in section.items():
            key, plain = f"{place}.{name}", _plain(name)
            if isinstance(value, Mapping) and plain != _SIZES:
                waiting.append((key, value))
            elif (plain.endswith(_SHAPES) or plain == _SIZES) and isinstance(value, (list, tuple, Mapping)):
                yield from _make_dimensions(key, list(value.items() if isinstance(value, Mapping) else enumerate(value)))


def _make_dimensions(key: str, dimensions: Sequence[tuple[Any, Any]]) -> Iterator[Knob]:
    """Yield a knob for each size of a shape; a picture is as high as it is wide and stays so."""
    numbers = [(str(part), as_number(value)) for part, value in dimensions if "." not in str(part)]
    for number in dict.fromkeys(number for _, number in numbers if number > 1):
        parts = [part for part, size in numbers if size == number]
        multiple = _USUAL_MULTIPLE if number % _USUAL_MULTIPLE == 0 else 1
        for tied in [parts] if number >= _USUAL_MULTIPLE else [[part] for part in parts]:
            name = f"{_last(key)} {' and '.join(tied)}"
            yield Knob(name, tuple(f"{key}.{part}" for part in tied), NUMBER, number, multiple, multiple)


def _tie(shapes: Sequence[Knob], named: Sequence[Knob]) -> list[Knob]:
    """Return both with one knob where a dimension is as large as a width or a picture of the model: it would not fit alone."""
    tied: dict[str, Knob] = {knob.name: knob for knob in named}
    alone = []
    for shape in shapes:
        fitting = [one for one in named if one.now == shape.now and _plain(_last(one.keys[0])) in _WIDTHS | _PICTURES]
        if len(fitting) != 1 or tied[fitting[0].name] is not fitting[0]:
            alone.append(shape)
            continue
        other = fitting[0]
        multiple = math.lcm(shape.multiple_of, other.multiple_of)
        both = Knob(f"{other.name} and {shape.name}", (*other.keys, *shape.keys), NUMBER, other.now, multiple, multiple)
        tied[other.name] = both
    return [*alone, *tied.values()]


def _find_numbers(config: RunConfig) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield key, number and the section around it, of the numbers that are named as things that can be smaller."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [(f"workload.{name}", getattr(config.workload, name)) for name in BELOW]
    while waiting:
        place, section = waiting.pop(0)
        for name, value in section.items():
            key = f"{place}.{name}"
            inside = value if isinstance(value, Mapping) else read_configuration(value) if name != TARGET else {}
            if inside and "." not in name:
                waiting.append((key, inside))
            elif name != TARGET and _plain(name) in _ORDER and "." not in name and (number := as_number(value)):
                yield key, number, section


def _make_numbers(named: Iterable[tuple[str, int, Mapping[str, Any]]]) -> Iterator[Knob]:
    for key, number, section in sorted(named, key=lambda one: _ORDER[_plain(_last(one[0]))]):
        multiple = 1
        if _plain(_last(key)) in _WIDTHS:
            heads = next((as_number(value) for name, value in section.items() if _plain(name) in _HEADS), 0)
            # An even number for each head, so that rotary embeddings have their halves.
            multiple = next((one for one in (2 * heads, heads, _USUAL_MULTIPLE) if one and number % one == 0), 1)
        elif _plain(_last(key)) in _PICTURES:
            patch = as_number(section.get("patch_size"))
            multiple = next((one for one in (patch, _USUAL_MULTIPLE) if one and number % one == 0), 1)
        yield Knob(_last(key), (key,), NUMBER, number, multiple, multiple)


def _with_name(knob: Knob, name: str) -> Knob:
    return Knob(name, knob.keys, knob.kind, knob.now, knob.smallest, knob.multiple_of)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
