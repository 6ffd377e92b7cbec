"""Random numbers of the emulated device: a stream of its own, as real devices have.

The same seed gives other numbers than the CPU's generator, and drawing here never moves the CPU's stream.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any, Iterator, List, Optional

import torch

from precflow.agent.emulated import ordinal
from precflow.agent.emulated.private import PlainGenerator
from precflow.agent.emulated.relabel import CPU, DEVICE_TYPE

_FIRST_SEED = 67280421310721  # torch's own default seed
_STRETCH = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: as a factor it moves neighbouring seeds far apart
_SALT = 0xA5CE4D  # added to a seed, so that its stream differs from the CPU's; any number would do
_device_of_plain: Any = PlainGenerator.device

_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_defaults: List[Any] = []


class _AnyGenerator(type(PlainGenerator)):  # type: ignore[misc]  # the metaclass is known at run time only
    """Makes ``isinstance(x, torch.Generator)`` true for plain generators too, although the name is bound to our class."""

    def __instancecheck__(cls, instance: object) -> bool:
        """Return whether ``instance`` is a generator of any device."""
        return isinstance(instance, PlainGenerator)


class Generator(PlainGenerator, metaclass=_AnyGenerator):  # type: ignore[misc]  # the base is known at run time only
    """A ``torch.Generator`` that also accepts ``device="npu:1"``: then a CPU generator with a salted seed."""

    emulated_index: Optional[int]
    _seed: int

    def __new__(cls, device: Any = "cpu") -> Any:
        """Create a generator of ``device``."""
        named = torch.device(device)
        emulated = named.type == DEVICE_TYPE
        self = super().__new__(cls, CPU if emulated else named)
        self.emulated_index = ordinal.index_of(named) if emulated else None
        if emulated:
            _alive[self._cdata] = self
            self.manual_seed(_FIRST_SEED)
        return self

    @property
    def device(self) -> torch.device:
        """The device whose tensors this generator fills."""
        if self.emulated_index is not None:
            return torch.device(DEVICE_TYPE, self.emulated_index)
        plain: torch.device = _device_of_plain.__get__(self)
        return plain

    def manual_seed(self, seed: int) -> Any:
        """Start the stream of ``seed`` and return the generator."""
        self._seed = int(seed)
        emulated = self.emulated_index is not None
        super().manual_seed((self._seed * _STRETCH + _SALT) % (1 << 63) if emulated else seed)
        return self

    def initial_seed(self) -> int:
        """Return the seed as given by the caller, without the salt."""
        return self._seed if self.emulated_index is not None else int(super().initial_seed())

    def seed(self) -> int:
        """Start a stream with a random seed and return that seed."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed


def create_defaults() -> List[Any]:
    """Create the default generator of each device; called once, by the installation."""
    _defaults[:] = [Generator(torch.device(DEVICE_TYPE, index)) for index in range(ordinal.device_count())]
    return _defaults


def default(index: int) -> Any:
    """Return the default generator of ``npu:index``."""
    return _defaults[index]


def check(given: Optional[Any], index: int) -> Any:
    """Return the generator that an operator on ``npu:index`` draws from.

    Raises:
        RuntimeError: ``given`` belongs to another device.
    """
    if given is None:
        return default(index)
    if given._cdata not in _alive:  # noqa: SLF001  the dispatcher hands over a new Python object; this is its identity
        raise RuntimeError("Expected a 'npu' device type for generator but found '%s'" % given.device.type)
    return given


@contextlib.contextmanager
def as_default(index: int) -> Iterator[None]:
    """Let the CPU's default generator continue the stream of ``npu:index``; its own state is restored afterwards."""
    # For operators such as native_dropout: they take no generator and always draw from the CPU's default one.
    own, host = default(index), torch.default_generator
    kept = host.get_state()
    host.set_state(own.get_state())
    try:
        yield
    finally:
        own.set_state(host.get_state())
        host.set_state(kept)


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    default(ordinal.current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed every device; ``torch.manual_seed`` calls this too."""
    for own in _defaults:
        own.manual_seed(seed)


def seed() -> None:
    """Give the current device a random seed."""
    default(ordinal.current_device()).seed()


def seed_all() -> None:
    """Give all devices the same random seed."""
    manual_seed_all(default(0).seed())


def initial_seed() -> int:
    """Return the seed of the current device."""
    return int(default(ordinal.current_device()).initial_seed())


def get_rng_state(device: Any = DEVICE_TYPE) -> torch.Tensor:
    """Return the state of the stream of ``device`` as a uint8 CPU tensor."""
    state: torch.Tensor = default(ordinal.index_of(device)).get_state()
    return state


def set_rng_state(new_state: torch.Tensor, device: Any = DEVICE_TYPE) -> None:
    """Continue from ``new_state``, a uint8 CPU tensor."""
    default(ordinal.index_of(device)).set_state(new_state)


def get_rng_state_all() -> List[torch.Tensor]:
    """Return the state of every device."""
    return [own.get_state() for own in _defaults]


def set_rng_state_all(new_states: List[torch.Tensor]) -> None:
    """Continue every device from its state."""
    for own, state in zip(_defaults, new_states):
        own.set_state(state)
