"""Making a tensor of recorded ones by cutting, joining and reordering, to compare it with one of another layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow.agent.sampling import parse_slices


@dataclass(frozen=True)
class Derivation:
    """How a tensor is made of recorded ones: cut or joined, then its axes reordered, then a part taken, then filled up.

    Attributes:
        axis: Axis that is cut, or joined along.
        part: Which part is taken; -1 for all.
        parts: How many there are.
        sizes: Their sizes; empty for equal parts.
        groups: The axis holds this many groups, each with all parts one after the other.
        permute: Order of the axes; empty leaves it.
        slices: Index of the part that is taken; ``""`` takes all.
        padding: What fills the tensor up at the end of each axis; ``None`` does not.
        padded: The shape that it is filled up to.
    """

    axis: int = -1
    part: int = -1
    parts: int = 1
    sizes: tuple[int, ...] = ()
    groups: int = 1
    permute: tuple[int, ...] = ()
    slices: str = ""
    padding: float | None = None
    padded: tuple[int, ...] = ()

    def find_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of the result.

        Raises:
            ValueError: The change does not fit the shapes.
        """
        shape = list(shapes[0])
        if self.parts > 1 and not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"it has no axis {self.axis}")
        if len(shapes) > 1:
            axis = self.axis % len(shape)
            others = {(len(part), *part[:axis], *part[axis + 1 :]) for part in shapes}
            if len(others) > 1:
                raise ValueError(f"the parts {', '.join(str(list(part)) for part in shapes)} do not fit together")
            if any(part[self.axis] % self.groups for part in shapes):
                raise ValueError(f"its axis {self.axis} holds no {self.groups} groups")
            shape[self.axis] = sum(part[self.axis] for part in shapes)
        elif self.part >= 0:
            shape[self.axis] = self.groups * self._find_sizes(shape[self.axis])[self.part]
        if self.permute and sorted(self.permute) != list(range(len(shape))):
            raise ValueError(f"{list(self.permute)} is no order of its {len(shape)} axes")
        shape = [shape[axis] for axis in self.permute] or shape
        if self.slices:
            shape = list(_find_slice_shape(shape, self.slices))
        if self.padding is not None:
            if len(self.padded) != len(shape) or any(size > most for size, most in zip(shape, self.padded, strict=True)):
                raise ValueError(f"it cannot be filled up to the reference's shape, {list(self.padded)}")
            shape = list(self.padded)
        return tuple(shape)

    def apply(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the tensor that is made of these."""
        array, axis = arrays[0], self.axis % max(1, arrays[0].ndim)
        # With groups the parts lie group by group, such as q, k and v of each head: [q0 k0 v0 q1 k1 v1] holds the part
        # [q0 q1]. So the axis is taken apart into groups first, and put together behind.
        if len(arrays) > 1:
            grouped = [_group(part, axis, self.groups) for part in arrays]
            array = _ungroup(np.concatenate(grouped, axis=axis + 1), axis)
        elif self.part >= 0:
            sizes = self._find_sizes(array.shape[axis])
            start = sum(sizes[: self.part])
            chosen = (*[slice(None)] * (axis + 1), slice(start, start + sizes[self.part]))
            array = _ungroup(_group(array, axis, self.groups)[chosen], axis)
        if self.permute:
            array = array.transpose(self.permute)
        if self.slices:
            array = array[_make_index(self.slices)]
        if self.padding is not None:
            filled = np.full(self.padded, self.padding, dtype=array.dtype)
            filled[tuple(slice(0, size) for size in array.shape)] = array
            array = filled
        return np.ascontiguousarray(array)

    def _find_sizes(self, size: int) -> tuple[int, ...]:
        """Return the sizes of the parts of one group.

        Raises:
            ValueError: They do not make up the axis.
        """
        group, rest = divmod(size, self.groups)
        sizes = self.sizes or (group // self.parts,) * self.parts
        if rest or sum(sizes) != group:
            groups = f" in {self.groups} groups" if self.groups > 1 else ""
            wanted = f"parts of {list(self.sizes)}" if self.sizes else f"{self.parts} equal parts"
            raise ValueError(f"its axis {self.axis}, of size {size}, cannot be cut into {wanted}{groups}")
        return sizes


def _group(array: npt.NDArray[Any], axis: int, groups: int) -> npt.NDArray[Any]:
    return array.reshape(*array.shape[:axis], groups, array.shape[axis] // groups, *array.shape[axis + 1 :])


def _ungroup(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    return array.reshape(*array.shape[:axis], array.shape[axis] * array.shape[axis + 1], *array.shape[axis + 2 :])


def _make_index(slices: str) -> tuple[Any, ...]:
    return tuple(Ellipsis if axis == "..." else axis for axis in parse_slices(slices))


def _find_slice_shape(shape: Sequence[int], slices: str) -> tuple[int, ...]:
    """Return the shape of a part; nothing is allocated, because the array that is indexed has a single element in memory.

    Raises:
        ValueError: The index does not fit the shape.
    """
    try:
        return tuple(np.broadcast_to(np.zeros((), np.uint8), tuple(shape))[_make_index(slices)].shape)
    except IndexError as error:
        raise ValueError(f"{slices} is no index of a tensor of this shape") from error
