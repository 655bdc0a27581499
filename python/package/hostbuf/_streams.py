"""Streams of a GPU, of any library."""

from __future__ import annotations

import operator
from typing import Any

from ._error import InvalidError

# The handle of the default stream by the name that every library gives it.
LEGACY = 1


def handle_of(stream: Any) -> int:
    """Returns the driver's handle of a stream.

    Args:
        stream: a handle (``cudaStream_t``, ``CUstream``) as a number, or an object with
            ``__cuda_stream__``, ``cuda_stream`` (PyTorch) or ``ptr`` (CuPy).

    Raises:
        TypeError: it is no stream.
    """
    handle = _handle(stream)
    if handle is None:
        kind = type(stream).__name__
        if _is_event(stream):
            raise TypeError(f"expected a stream, not the event {kind}: pass the stream that it was recorded in")
        raise TypeError(f"expected a CUDA stream (its handle as a number, or a stream of PyTorch or CuPy), not {kind}")
    if not 0 <= handle < 1 << 64:
        raise InvalidError(f"invalid stream {handle}: expected a handle of the driver; 0 is the default stream", "Invalid")
    return handle


def is_handle(stream: Any) -> bool:
    """Returns whether an object is a stream whose handle is known."""
    return _handle(stream) is not None


def _is_event(stream: Any) -> bool:
    # CuPy's streams have `done`, too.
    return hasattr(stream, "cuda_event") or hasattr(stream, "done") and not hasattr(stream, "wait_event")


def _handle(stream: Any) -> int | None:
    if isinstance(stream, bool) or _is_event(stream):
        return None
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A method, which was a property in early versions of the protocol.
        _, handle = protocol() if callable(protocol) else protocol
        return operator.index(handle)
    value: Any
    for value in (stream, getattr(stream, "cuda_stream", None), getattr(stream, "ptr", None)):
        try:
            return operator.index(value)
        except TypeError:
            continue
    return None
