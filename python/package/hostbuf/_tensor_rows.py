"""Rows of bytes at equal distances, of which the slice of a rank consists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def copy_rows(tensor: Any, parts: Iterable[tuple[int, int, int, int, int, int]], into: Any) -> None:
    """Copies parts of a tensor to the slice of a rank. Both are arrays of bytes. A part has the
    offset of its first row in the tensor, the distance of the rows there, their length and their
    number, and the offset and the distance in the slice."""
    from numpy.lib.stride_tricks import as_strided

    for offset, pitch, width, height, target_offset, target_pitch in parts:
        rows = as_strided(tensor[offset:], (height, width), (pitch, 1))
        as_strided(into[target_offset:], (height, width), (target_pitch, 1))[:] = rows
