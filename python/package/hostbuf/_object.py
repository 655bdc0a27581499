"""Python objects in a buffer: what one rank's function returned, found by all.

An object is written by pickle's protocol 5, which hands out the memory of arrays instead of copying it. Arrays that the arena
gave are in the buffer already; others are copied there, once. Who reads gets the same object with views of that memory. The
root is this head, with offsets from the beginning of the buffer, and after it a pair of numbers for each piece of memory.
"""

from __future__ import annotations

import bisect
import io
import pickle
import struct
import sys
import warnings
from typing import Any

from . import _hostbuf
from ._error import Error

_HEAD = struct.Struct("<8sQQQ")  # magic, where the pickle is, its length, how many pieces of memory
_PIECE = struct.Struct("<QQ")  # where it is, its length
_MAGIC = b"hbpyobj1"
_ALIGNMENT = 64
# So much in the pickle itself is memory that each rank will have for itself.
_PRIVATE = 1 << 20


class _Pickler(pickle.Pickler):
    """Hands out the memory of numpy's own subclasses of arrays too, which pickle itself copies."""

    def reducer_override(self, value: Any) -> Any:
        np = sys.modules.get("numpy")
        if np is None or not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return NotImplemented
        if type(value) is np.memmap:  # in the buffer it is no file any more
            return np.asarray, (np.asarray(value),)
        if type(value) in (np.recarray, np.matrix):
            return _as, (np.asarray(value), type(value), value.dtype)
        if type(value) is np.ma.MaskedArray:
            # Without a mask it has none here either, of which each rank would have its own.
            mask = None if value.mask is np.ma.nomask else np.asarray(value.mask)
            return _masked, (np.asarray(value.data), mask, value.fill_value, value.hardmask)
        return NotImplemented


def _as(array: Any, kind: Any, dtype: Any) -> Any:
    return array.view(dtype, kind)


def _masked(data: Any, mask: Any, fill_value: Any, hard: bool) -> Any:
    import numpy as np

    mask = np.ma.nomask if mask is None else mask
    return np.ma.MaskedArray(data, mask=mask, fill_value=fill_value, hard_mask=hard, copy=False)


def write(value: Any, native: _hostbuf.Arena, handle: _hostbuf.Handle, taken: list[tuple[int, int]]) -> int:
    """Puts an object into the buffer that is being filled; its root's address.

    ``taken`` says what the arena has given out for arrays: where, and how many bytes. Only that lies in the buffer for good."""
    base, size = handle.address(), handle.size()
    memory: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            memory.append(buffer.raw())
        except BufferError:  # in pieces: pickle copies it
            return True
        return False

    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=keep).dump(value)
    data = stream.getvalue()
    if len(data) > _PRIVATE:
        warnings.warn(
            f"of what the function returned every rank gets {len(data)} bytes as a copy of its own: arrays that do not lie in one piece, or "
            "are of a type that pickle copies",
            stacklevel=2,
        )
    # Memory of the buffer that nobody has taken is about to be used.
    taken = sorted(taken)
    kept: list[int | bytes | memoryview] = []
    for raw in memory:
        start, length = _hostbuf.span_of(raw)
        before = bisect.bisect_right(taken, (start, sys.maxsize))
        at, most = taken[before - 1] if before else (0, 0)
        if at <= start and start + length <= at + most:
            kept.append(start - base)
        else:
            kept.append(bytes(raw) if start < base + size and base < start + length else raw)
    with memoryview(_hostbuf.Memory(handle, False)).cast("B") as whole:

        def place(part: bytes | memoryview) -> int:
            at = native.take(len(part), _ALIGNMENT) - base
            whole[at : at + len(part)] = part
            return at

        pieces = [(part if isinstance(part, int) else place(part), len(raw)) for part, raw in zip(kept, memory)]
        at = place(data)
        head = _HEAD.pack(_MAGIC, at, len(data), len(pieces)) + b"".join(_PIECE.pack(*piece) for piece in pieces)
        root = base + place(head)
    for raw in memory:
        raw.release()
    return root


def read(handle: _hostbuf.Handle, root: int) -> Any:
    """The object whose root is there, with read-only views of the buffer."""
    whole = memoryview(_hostbuf.Memory(handle, True)).cast("B")
    at = root - handle.address()
    if whole[at : at + len(_MAGIC)] != _MAGIC:
        raise Error(
            f"what fills the buffer was not written by Python: its root is at {root:#x}; Buffer.array gives views of the memory",
            "Fill",
        )
    _, data, length, count = _HEAD.unpack_from(whole, at)
    table = whole[at + _HEAD.size : at + _HEAD.size + count * _PIECE.size]
    pieces = [whole[start : start + size] for start, size in _PIECE.iter_unpack(table)]
    return pickle.loads(whole[data : data + length], buffers=pieces)
