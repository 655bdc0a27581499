"""Python objects in a buffer: all ranks get the object that the fill function returned in one rank.

Pickle's protocol 5 writes an object and exports the memory of its arrays instead of copying it.
Arrays from the arena are in the buffer already; other arrays are copied there once. Readers get an
equal object with views of that memory. The root is the head below, with offsets from the beginning
of the buffer, followed by a pair of numbers for each piece of memory.

Not every array is shared: pickle writes some as bytes, and some classes copy the arrays from which
they are loaded. The rank that fills the buffer detects both and warns.
"""

from __future__ import annotations

import bisect
import copyreg
import io
import itertools
import pickle
import struct
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any

from . import _hostbuf
from ._copies import Trace
from ._error import Error

_HEAD = struct.Struct("<8sQQQ")  # magic, offset of the pickle, its length, number of pieces of memory
_PIECE = struct.Struct("<QQ")  # offset, length
_MAGIC = b"hbpyobj1"
_ALIGNMENT = 64


class _Pickler(pickle.Pickler):
    """Exports the memory of all arrays that can be shared, including those that pickle itself would
    copy, and keeps a trace."""

    def __init__(self, stream: io.BytesIO, root: Any) -> None:
        super().__init__(stream, protocol=5, buffer_callback=self._hand_out)
        self.trace = Trace(root)
        self.memory: list[memoryview] = []
        self.arrays: list[Any] = []
        """The objects that own the memory."""

    def _hand_out(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            self.memory.append(buffer.raw())
        except BufferError:  # non-contiguous: pickle copies it
            return True
        self.arrays.append(memoryview(buffer).obj)
        return False

    def reducer_override(self, value: Any) -> Any:
        # Pickle writes types and functions by name.
        if isinstance(value, (type, types.FunctionType)):
            return NotImplemented
        np = sys.modules.get("numpy")
        reduced = None
        if np is not None and isinstance(value, np.ndarray):
            if type(value) is np.ndarray and _exports(value):
                return NotImplemented
            reduced = _reduced(np, value)
        if reduced is None:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered else value.__reduce_ex__(5)
        self.trace.add(value, reduced)
        return reduced


def _exports(array: Any) -> bool:
    """Returns whether pickle exports an array's memory: it is contiguous, and the buffer protocol
    supports its type."""
    if array.dtype.hasobject or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return False
    try:
        memoryview(array).release()
    except (BufferError, ValueError):  # dates and times
        return False
    return True


def _reduced(np: Any, value: Any) -> Any:
    """Returns a reduced form, for an array that pickle would copy, from arrays that pickle exports;
    ``None`` if there is none."""
    if value.dtype.itemsize == 0 or value.dtype.hasobject:
        return None
    if type(value) is np.ndarray:
        if not (value.flags.c_contiguous or value.flags.f_contiguous):
            return np.asarray, (np.ascontiguousarray(value),)
        return _as, (value.view(f"V{value.dtype.itemsize}"), np.ndarray, value.dtype)
    if type(value) is np.memmap:  # the buffer is not the file
        return np.asarray, (np.asarray(value),)
    if type(value) in (np.recarray, np.matrix):
        return _as, (np.asarray(value), type(value), value.dtype)
    if type(value) is np.ma.MaskedArray:
        # An array without a mask stays without one, since each rank would have its own copy of the
        # mask.
        mask = None if value.mask is np.ma.nomask else np.asarray(value.mask)
        return _masked, (np.asarray(value.data), mask, value.fill_value, value.hardmask)
    return None


def _as(array: Any, kind: Any, dtype: Any) -> Any:
    return array.view(dtype, kind)


def _masked(data: Any, mask: Any, fill_value: Any, hard: bool) -> Any:
    import numpy as np

    mask = np.ma.nomask if mask is None else mask
    return np.ma.MaskedArray(data, mask=mask, fill_value=fill_value, hard_mask=hard, copy=False)


class _Spans:
    """Ranges of memory."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(spans)
        self._starts = [start for start, _ in ordered]
        # For each range the highest end of it and all ranges before it.
        self._ends = list(itertools.accumulate((start + length for start, length in ordered), max))

    def cover(self, start: int, length: int) -> bool:
        """Returns whether the ranges contain all of these bytes."""
        before = bisect.bisect_right(self._starts, start)
        return before > 0 and start + length <= self._ends[before - 1]


class _Piece(_hostbuf.Memory):
    """The memory that one array of a loaded object views. It lives as long as its last view."""

    __slots__ = ("__weakref__",)


def write(value: Any, native: _hostbuf.Arena, handle: _hostbuf.Handle, taken: list[tuple[int, int]]) -> tuple[int, Any]:
    """Writes an object into the buffer that is being filled, and warns of the data that each rank
    will copy.

    ``taken`` lists the memory that the arena has allocated for arrays, and the sections, as
    (address, bytes); only this memory stays in the buffer. Returns the root's address, and the
    object as :func:`read` returns it in the other ranks."""
    base, size = handle.address(), handle.size()
    stream = io.BytesIO()
    pickler = _Pickler(stream, value)
    pickler.dump(value)
    data, memory = stream.getvalue(), pickler.memory
    # Memory of the buffer that was not allocated may be overwritten by the allocations below.
    taken = sorted(taken)
    spans = [_hostbuf.span_of(raw) for raw in memory]
    kept: list[int | bytes | memoryview] = []
    for (start, length), raw in zip(spans, memory):
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

        # Two arrays may be views of the same memory, such as the row names of a table and of its
        # columns.
        places: dict[tuple[int, int], int] = {}
        for span, part in zip(spans, kept):
            if span not in places:
                places[span] = part if isinstance(part, int) else place(part)
        pieces = [(places[span], span[1]) for span in spans]
        at = place(data)
        head = _HEAD.pack(_MAGIC, at, len(data), len(pieces)) + b"".join(_PIECE.pack(*piece) for piece in pieces)
        root = base + place(head)
    # The object is loaded now, so that a failure to load fails all ranks, and to detect classes
    # that copy their arrays: no view of their memory remains.
    views = [memoryview(_Piece(handle, True)).cast("B")[at : at + length] for at, length in pieces]
    alive = [weakref.ref(view.obj) for view in views]
    found = pickle.loads(data, buffers=views)
    del views
    viewed = _Spans(span for span, piece in zip(spans, alive) if piece() is not None)
    dropped = [array for array, span in zip(pickler.arrays, spans) if span[1] > 0 and not viewed.cover(*span)]
    pickler.trace.warn(len(data), dropped)
    for raw in memory:
        raw.release()
    return root, found


def read(handle: _hostbuf.Handle, root: int) -> Any:
    """Returns the object with this root, with read-only views of the buffer."""
    whole = memoryview(_hostbuf.Memory(handle, True)).cast("B")
    at = root - handle.address()
    if whole[at : at + len(_MAGIC)] != _MAGIC:
        raise Error(
            f"the object in the buffer was not written by Python: its root is at {root:#x}; Buffer.array returns views of the memory",
            "Fill",
        )
    _, data, length, count = _HEAD.unpack_from(whole, at)
    table = whole[at + _HEAD.size : at + _HEAD.size + count * _PIECE.size]
    pieces = [whole[start : start + size] for start, size in _PIECE.iter_unpack(table)]
    return pickle.loads(whole[data : data + length], buffers=pieces)
