"""What of a recipe can be made smaller: what section ``reduce`` declares, and what is named or shaped as such things are.

* a number: layers, a width, samples, tokens, steps of a script, and whatever the recipe declares;
* entries: of the lists of the inputs (prompts), and of the recorded steps;
* a length: of the entries of such a list (tokens of a prompt).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precflow.config.overrides import format_value
from precflow.config.schema import RunConfig
from precflow.config.sections.reduce_section import BELOW, as_number, look_up
from precflow.config.trust import TARGET

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
    ("intermediate_size", "ffn_hidden_size", "ffn_dim", "hidden_size", "d_model", "embed_dim", "n_embd", "hidden", "width"),
    (*_HEADS, "num_key_value_heads"),
    ("vocab_size", "vocabulary"),
)
_ORDER = {name: place for place, names in enumerate(_NAMES) for name in names}
_WIDTHS = frozenset(_NAMES[4])
_USUAL_MULTIPLE = 8  # of a width whose heads are not known


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
    named = [one for one in _find_numbers(config) if one[0] not in taken]
    found = [*declared, *_find_steps(config), *_find_lists(config), *_make_numbers(named)]
    names = [knob.name for knob in found]
    # Two things of the same name are called by their whole keys.
    found = [knob if names.count(knob.name) == 1 else _with_name(knob, " ".join(knob.keys)) for knob in found]
    return [knob for knob in found if knob.least != knob.now]


def write_words(config: RunConfig, knobs: Sequence[Knob], setting: Setting) -> list[str]:
    """Return the overrides that set knobs to these sizes, for those that are not as in the recipe."""
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
    return [f"{key}={format_value(value)}" for key, value in values.items()]


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


def _find_numbers(config: RunConfig) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield key, number and the section around it, of the numbers that are named as things that can be smaller."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [(f"workload.{name}", getattr(config.workload, name)) for name in BELOW]
    while waiting:
        place, section = waiting.pop(0)
        for name, value in section.items():
            key = f"{place}.{name}"
            if isinstance(value, Mapping):
                waiting.append((key, value))
            elif name != TARGET and _plain(name) in _ORDER and "." not in name and (number := as_number(value)):
                yield key, number, section


def _make_numbers(named: Iterable[tuple[str, int, Mapping[str, Any]]]) -> Iterator[Knob]:
    for key, number, section in sorted(named, key=lambda one: _ORDER[_plain(_last(one[0]))]):
        multiple = 1
        if _plain(_last(key)) in _WIDTHS:
            heads = next((as_number(value) for name, value in section.items() if _plain(name) in _HEADS), 0)
            # An even number for each head, so that rotary embeddings have their halves.
            multiple = next((one for one in (2 * heads, heads, _USUAL_MULTIPLE) if one and number % one == 0), 1)
        yield Knob(_last(key), (key,), NUMBER, number, multiple, multiple)


def _with_name(knob: Knob, name: str) -> Knob:
    return Knob(name, knob.keys, knob.kind, knob.now, knob.smallest, knob.multiple_of)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
