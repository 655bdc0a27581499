"""Slices of tensors in files: the ranges of bytes, and the rules of safetensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

# The shortest range of a file that is worth a transfer of its own.
_RUN = 4096


class InvalidSliceError(Exception):
    """A slice that a tensor does not have."""


class TensorSlice(NamedTuple):
    """A slice of a tensor: in each dimension the first index and the number of indices."""

    bounds: tuple[tuple[int, int], ...]
    is_index: tuple[bool, ...]
    """For each dimension, true if one index selects it, so that the slice does not have it."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for (_, count), index in zip(self.bounds, self.is_index) if not index)

    def runs(self, shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[int, int]] | None:
        """Returns the offset and the length of each range of bytes in the tensor, in the order of
        the slice, or None if they are too short to be read one by one."""
        inner = len(shape)
        length = itemsize
        while inner > 0 and self.bounds[inner - 1] == (0, shape[inner - 1]):
            inner -= 1
            length *= shape[inner]
        stride = length
        start = 0
        if inner > 0:
            inner -= 1
            start = self.bounds[inner][0] * stride
            length *= self.bounds[inner][1]
            stride *= shape[inner]
        outer = self.bounds[:inner]
        if not length or not math.prod(count for _, count in outer):
            return iter(())
        if length < _RUN and any(count > 1 for _, count in outer):
            return None
        return self._outer_runs(outer, shape, stride, start, length)

    @staticmethod
    def _outer_runs(
        outer: tuple[tuple[int, int], ...], shape: tuple[int, ...], stride: int, start: int, length: int
    ) -> Iterator[tuple[int, int]]:
        starts = [start]
        for dimension in reversed(range(len(outer))):
            first, count = outer[dimension]
            # The later dimensions are the inner ones.
            starts = [(first + index) * stride + at for index in range(count) for at in starts]
            stride *= shape[dimension]
        return ((at, length) for at in starts)


def parsed(key: Any, shape: tuple[int, ...]) -> TensorSlice | None:
    """Returns a slice of integers and of ranges without a step, or None for another key.

    Raises:
        InvalidSliceError: the tensor has no such slice.
    """
    if isinstance(key, list):
        if key:
            raise InvalidSliceError("Non empty lists are not implemented")
        keys: tuple[Any, ...] = (slice(0, 0),)
    else:
        keys = key if isinstance(key, tuple) else (key,)
    if len(keys) > len(shape):
        return None
    bounds, is_index, shown = [], [], []
    for dimension, (one, count) in enumerate(zip(keys, shape)):
        if isinstance(one, slice):
            if one.step not in (None, 1):
                return None
            start, stop = (None if end is None else _from_end(end, count) for end in (one.start, one.stop))
            shown.append(f"{'' if start is None else start}:{'' if stop is None else stop}")
            start, stop = start or 0, count if stop is None else stop
            bounds.append((start, max(stop - start, 0)))
            is_index.append(False)
        elif hasattr(one, "__index__") and not isinstance(one, bool) and not getattr(one, "shape", ()):
            index = operator.index(one)
            if index < -count:
                raise InvalidSliceError(f"Invalid index {index} for dimension {dimension} of size {count}")
            index = index + count if index < 0 else index
            shown.append(str(index))
            bounds.append((index, 1))
            is_index.append(True)
        else:
            return None
    for dimension in reversed(range(len(keys))):
        (start, counted), count = bounds[dimension], shape[dimension]
        wanted = shown[dimension] != ":"
        if wanted and (start >= count or start + counted > count):
            asked = start if start >= count else start + counted - 1
            raise InvalidSliceError(
                f"Error during slicing [{', '.join(shown)}] with shape {list(shape)}: "
                f"index {asked} out of bounds for tensor dimension #{dimension} of size {count}"
            )
    rest = shape[len(keys) :]
    return TensorSlice((*bounds, *((0, count) for count in rest)), (*is_index, *(False for _ in rest)))


def _from_end(end: Any, count: int) -> int:
    index: int = operator.index(end)
    return max(index + count, 0) if index < 0 else index
