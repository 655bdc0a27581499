"""Tasks of event loops that wait for blocks and transfers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

from . import _hostbuf


class _LoopWaits:
    """The tasks of one loop that wait. The native part wakes the loop by a socket, so
    that no thread waits for them."""

    __slots__ = ("__weakref__", "futures", "numbers", "queue")

    def __init__(self) -> None:
        self.queue = _hostbuf.ReadyQueue()
        self.numbers = itertools.count()
        self.futures: dict[int, asyncio.Future[None]] = {}

    def wake(self) -> None:
        for number in self.queue.take():
            if number in self.futures:
                end_wait(self.futures[number])


# A loop has an entry while tasks wait. Only the loop, which calls `wake`, keeps the waits: they
# refer to its tasks, so with a strong reference here a loop that is closed would keep its blocks.
_waits: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ReferenceType[_LoopWaits]] = (
    weakref.WeakKeyDictionary()
)


def end_wait(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@contextlib.contextmanager
def loop_wait() -> Iterator[tuple[_hostbuf.ReadyQueue, int, asyncio.Future[None]]]:
    """Lets a task of the running loop wait: the native part ends the future by the queue and the
    number."""
    loop = asyncio.get_running_loop()
    entry = _waits.get(loop)
    waits = None if entry is None else entry()
    if waits is None:
        waits = _LoopWaits()
        _waits[loop] = weakref.ref(waits)
        loop.add_reader(waits.queue.fileno(), waits.wake)
    number = next(waits.numbers)
    waits.futures[number] = future = loop.create_future()
    try:
        yield waits.queue, number, future
    finally:
        del waits.futures[number]
        if not waits.futures:
            if not loop.is_closed():
                loop.remove_reader(waits.queue.fileno())
            _waits.pop(loop, None)


async def take_async(producer: Any, layout: Any, timeout: float | None) -> Any:
    """Returns the handle of a free block, for which the task waits at most ``timeout`` seconds."""
    handle = producer.take(layout, 0.0, None)
    if handle is not None:
        return handle
    if timeout is not None and timeout <= 0:
        # This raises the error.
        return producer.take(layout, timeout, timeout)
    with loop_wait() as (queue, number, future):
        request = producer.request(layout, queue, number)
        timer = None
        try:
            handle = request.get()
            if handle is None:
                if timeout is not None:
                    timer = future.get_loop().call_later(timeout, end_wait, future)
                await future
                handle = request.get()
        finally:
            if timer is not None:
                timer.cancel()
            request.cancel()
    # Only the timer ends a wait without a block. The call raises the error, unless a block is free.
    return producer.take(layout, 0.0, timeout) if handle is None else handle
