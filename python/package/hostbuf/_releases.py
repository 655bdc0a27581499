"""Objects that are kept until an operation of a GPU is complete."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from . import _hostbuf
from ._error import UnsupportedError
from ._streams import handle_of, is_handle

# The longest time, in seconds, between the completion of an operation and the release.
_PAUSE = 0.001


def completion_of(stream: Any, gpu: int = 0) -> Callable[[], bool]:
    """Returns a function that returns whether the work that was queued in a stream before this call
    is complete.

    Args:
        stream: a stream of PyTorch or CuPy, an event that was recorded in one, or the handle of a
            stream as a number or by ``__cuda_stream__``.
        gpu: the number of the GPU to which a handle belongs.

    Raises:
        TypeError: it is none of these.
        GpuError: there is no driver, or the handle is none of the GPU's streams.
    """
    if callable(getattr(stream, "record_event", None)):  # torch.cuda.Stream
        return completion_of(stream.record_event(), gpu)
    if callable(getattr(stream, "record", None)) and callable(getattr(stream, "wait_event", None)):  # cupy.cuda.Stream
        return completion_of(stream.record(), gpu)
    if callable(getattr(stream, "query", None)):  # torch.cuda.Event
        query: Callable[[], bool] = stream.query
        return query
    if hasattr(stream, "done"):  # cupy.cuda.Event
        return lambda: bool(stream.done)
    if is_handle(stream):
        if not hasattr(_hostbuf, "event_after"):
            raise UnsupportedError("this build of hostbuf has no support for CUDA", "Unsupported")
        return _hostbuf.event_after(handle_of(stream), gpu).query
    raise TypeError(
        f"expected a stream or an event of PyTorch or CuPy, or the handle of a CUDA stream, not {type(stream).__name__}"
    )


class _Releases:
    """The pending releases, and the thread that ends them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.added: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.started = False

    def add(self, is_complete: Callable[[], bool], release: Callable[[], None]) -> None:
        with self.changed:
            if not self.started:
                threading.Thread(target=self.run, name="hostbuf-release", daemon=True).start()
                self.started = True
            self.added.append((is_complete, release))
            self.changed.notify()

    def run(self) -> None:
        pending: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        while True:
            with self.changed:
                if not self.added:
                    self.changed.wait(_PAUSE if pending else None)
                pending += self.added
                self.added.clear()
            pending = [one for one in pending if not _ended(*one)]


def _ended(is_complete: Callable[[], bool], release: Callable[[], None]) -> bool:
    """Releases what is complete. A device that has failed executes nothing more. No error ends the
    thread, which has the releases of the whole process."""
    try:
        if not is_complete():
            return False
    except BaseException:
        logging.getLogger("hostbuf").exception("an operation on adopted memory has failed")
    try:
        release()
    except BaseException:
        logging.getLogger("hostbuf").exception("a block or an array was not released after an operation")
    return True


_releases = _Releases()
# The releases of a parent stay alive in a child: ending a CUDA event there is an error.
_inherited: list[_Releases] = []


def _in_child() -> None:
    global _releases
    _inherited.append(_releases)
    _releases = _Releases()


os.register_at_fork(after_in_child=_in_child)


def release_after(stream: Any, release: Callable[[], None], gpu: int = 0) -> None:
    """Calls ``release`` in a thread once the work queued in a stream is complete. The first call
    starts the thread. The arguments are those of :func:`completion_of`."""
    _releases.add(completion_of(stream, gpu), release)
