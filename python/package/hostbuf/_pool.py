"""Pools: blocks of memory that one process writes and other processes of the host read in place."""

from __future__ import annotations

import json
import math
import operator
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _hostbuf
from ._block import Block, BlockRef, _element, _Layout, _layout, _number, _optional, _token
from ._error import InvalidError
from ._gpu import GpuBlock, GpuBlockRef, check_support
from ._waits import take_async

if TYPE_CHECKING:
    import os

# The time in seconds after which a thread that waits for a block looks for signals.
_SLICE = 0.25

_B = TypeVar("_B")
_S = TypeVar("_S", bound="_BlockSource[Any]")


class _BlockSource(Generic[_B]):
    """The calls that take blocks, on the host or on a GPU."""

    __slots__ = ("__weakref__", "_handle", "_layout")

    def __init__(self, handle: Any, layout: _Layout | None) -> None:
        self._handle = handle
        self._layout = layout

    def _made(self, handle: Any) -> _B:
        raise NotImplementedError

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def block_bytes(self) -> int:
        """Returns the length of a block in bytes."""
        size: int = self._handle.block_bytes()
        return size

    @property
    def blocks(self) -> int:
        """Returns the number of blocks."""
        count: int = self._handle.blocks()
        return count

    def _array(self, shape: Any, dtype: Any, strides: Any) -> _Layout | None:
        return _layout(shape, dtype, strides) or self._layout

    def try_block(self, shape: Any = None, dtype: Any = None, strides: Any = None) -> _B | None:
        """Returns a free block, or ``None`` if there is none. The arguments are those of
        :meth:`block`."""
        handle = self._handle.take(self._array(shape, dtype, strides), 0.0, None)
        return None if handle is None else self._made(handle)

    def block(self, shape: Any = None, dtype: Any = None, strides: Any = None, timeout: float | None = None) -> _B:
        """Returns a free block for an array, for which it waits at most ``timeout`` seconds. It
        releases the GIL and handles signals.

        Args:
            shape: the extents of the array. Without a shape it is that of the producer, or the
                whole block as bytes.
            dtype: the element type, of numpy or PyTorch or as a text; ``uint8`` without one.
            strides: the strides in bytes, for rows with padding.
            timeout: the number of seconds, or ``None`` to wait without a limit.

        Raises:
            PoolTimeoutError: no block became free in time. The message states who holds them.
            InvalidError: the array does not fit into a block.
        """
        layout = self._array(shape, dtype, strides)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            wait, limit = _next(timeout, end)
            handle = self._handle.take(layout, wait, limit)
            if handle is not None:
                return self._made(handle)

    async def block_async(
        self, shape: Any = None, dtype: Any = None, strides: Any = None, timeout: float | None = None
    ) -> _B:
        """Returns a free block as :meth:`block`, without blocking the event loop. No thread of its
        executor waits, and tasks get their blocks in the order in which they have asked. A
        cancelled task gives up its place.

        >>> import asyncio, hostbuf
        >>> async def produce(producer):
        ...     with await producer.block_async((2, 3), "f4") as block:
        ...         return block.publish()
        >>> pool = hostbuf.Pool("example", mode="private")
        >>> len(asyncio.run(produce(pool.producer(4096))))
        48
        """
        return self._made(await take_async(self._handle, self._array(shape, dtype, strides), timeout))

    def close(self) -> None:
        """Closes the producer. Its unpublished blocks stay valid, and threads and tasks that wait
        for a block get ``ValueError``. Closing it again does nothing."""
        self._handle.close()


class Producer(_BlockSource[Block]):
    """A producer of blocks, from :meth:`Pool.producer`. Threads may share it.

    Leaving its ``with`` block closes it. Its published blocks stay readable for some seconds, and
    until their last reader has released them.
    """

    __slots__ = ()

    def _made(self, handle: _hostbuf.BlockHandle) -> Block:
        return Block(handle)

    def publish(
        self,
        array: Any,
        *,
        frame: int = 0,
        captured_ns: int | None = None,
        user_data: bytes = b"",
        timeout: float | None = None,
    ) -> bytes:
        """Copies an array of numpy, or an object that numpy converts, into a free block, publishes
        it and returns its token.

        >>> import hostbuf
        >>> pool = hostbuf.Pool("example", mode="private")
        >>> token = pool.producer(4096).publish([[1, 2], [3, 4]], frame=7)
        """
        import numpy as np

        array = np.asarray(array)
        with self.block(array.shape, array.dtype, timeout=timeout) as block:
            block.numpy()[...] = array
            return block.publish(frame=frame, captured_ns=captured_ns, user_data=user_data)


class GpuProducer(_BlockSource[GpuBlock]):
    """A producer of blocks on a GPU, from :meth:`Pool.gpu_producer`. Threads may share it.

    Leaving its ``with`` block closes it. Once its blocks are gone too, it waits for the work that
    writes published blocks. They stay readable for some seconds, and until their last reader has
    released them.
    """

    __slots__ = ()

    @property
    def device(self) -> int:
        """Returns the number of the GPU in this process."""
        number: int = self._handle.device()
        return number

    def _made(self, handle: _hostbuf.GpuBlockHandle) -> GpuBlock:
        return GpuBlock(handle)


def _next(timeout: float | None, end: float | None) -> tuple[float, float | None]:
    """Returns the time of the next wait, and the limit if it is the last one."""
    if timeout is None or end is None:
        return _SLICE, None
    left = end - time.monotonic()
    if left > _SLICE:
        return _SLICE, None
    # A negative timeout is refused by the native part.
    return (max(left, 0.0) if timeout >= 0 else timeout), timeout


def _block_bytes(block_bytes: int | None, layout: _Layout | None) -> int:
    """Returns the length of a block: the stated one, or that of an array."""
    if block_bytes is not None:
        return _number("block_bytes", block_bytes)
    if layout is None:
        raise TypeError("block_bytes or shape is missing")
    return max(1, math.prod(layout[1]) * _element(layout[0])[1])


def _counts(blocks: int, readers: int, retain: int | None, quota: int | None) -> tuple[int, int, int | None, int | None]:
    """Returns the numbers of a producer, if each is one."""
    return (
        _number("blocks", blocks, 32),
        _number("readers", readers, 32),
        _optional("retain", retain, 32),
        _optional("quota", quota, 32),
    )


def _names(wait_for: Iterable[str]) -> list[str]:
    return [wait_for] if isinstance(wait_for, str) else list(wait_for)


class Pool:
    """A connection of this process to a pool of blocks.

    A camera writes frames in place, and other processes read them in place; a token of 48 bytes
    names a frame, and goes to the readers by any transport:

    >>> import hostbuf
    >>> pool = hostbuf.Pool("camera", mode="private")       # without a mode it is shared
    >>> with pool.producer(shape=(2, 3), dtype="uint16") as producer:
    ...     with producer.block() as block:
    ...         block.numpy()[:] = 7
    ...         token = block.publish(frame=1)
    >>> with pool.acquire(token) as frame:                  # in another process
    ...     print(frame.header.frame, frame.dtype, frame.numpy().sum())
    1 uint16 42

    Args:
        name: the name of this client, for people and for producers that wait for it.
        mode: the behaviour without a broker: ``optional`` (the pool is one of this process alone),
            ``required`` (an error), ``auto`` (a broker is started) or ``private`` (no broker is
            used). Without it the variable ``HOSTBUF_POOL`` applies, or ``optional``.
        socket: the abstract name of the broker's socket, instead of this user's.
        path: the path of the broker's socket.
        timeout: the number of seconds for which a request waits for the broker.

    Raises:
        NoBrokerError: there is no broker, and the mode needs one.
    """

    __slots__ = ("__weakref__", "_handle")

    def __init__(
        self,
        name: str,
        mode: str | None = None,
        socket: str | None = None,
        path: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._handle = _hostbuf.PoolHandle(name, mode, socket, path, timeout)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def shared(self) -> bool:
        """Returns whether a broker makes the memory, so that other processes share it."""
        return self._handle.is_shared()

    @property
    def id(self) -> str:
        """Returns the identity of the pool. It changes when the broker is restarted."""
        return self._handle.id()

    @property
    def closed(self) -> bool:
        """Returns true after :meth:`close`."""
        return self._handle.closed

    def status(self) -> dict[str, Any]:
        """Returns the state of the pool: clients, producers, and the holders of each block."""
        state: dict[str, Any] = json.loads(self._handle.status())
        return state

    def producer(
        self,
        block_bytes: int | None = None,
        *,
        shape: Any = None,
        dtype: Any = None,
        blocks: int = 8,
        readers: int = 8,
        retain: int | None = None,
        quota: int | None = None,
        wait_for: Iterable[str] = (),
        stream: str = "",
    ) -> Producer:
        """Makes a producer with memory for its blocks.

        Args:
            block_bytes: the length of a block, which is rounded up to whole pages of 4 KiB. Without
                it a block holds an array of ``shape`` and ``dtype``.
            shape: the extents of the arrays, unless :meth:`Producer.block` has others.
            dtype: the element type of the arrays, ``uint8`` without one.
            blocks: the number of blocks.
            readers: the number of processes that may read at the same time.
            retain: the number of published blocks that late readers may still acquire; half of the
                blocks without it.
            quota: the number of blocks that one reader may hold; half of the blocks without it.
            wait_for: the names of the readers that must have read a block before it is reused.
            stream: the name of the stream, for people.

        Raises:
            PoolSpaceError: the blocks would exceed a limit of the broker.
        """
        layout = _layout(shape, dtype, None)
        size = _block_bytes(block_bytes, layout)
        counts = _counts(blocks, readers, retain, quota)
        handle = self._handle.producer(size, *counts, _names(wait_for), stream)
        return Producer(handle, layout)

    def gpu_producer(
        self,
        block_bytes: int | None = None,
        *,
        device: int = 0,
        shape: Any = None,
        dtype: Any = None,
        blocks: int = 8,
        readers: int = 8,
        retain: int | None = None,
        quota: int | None = None,
        wait_for: Iterable[str] = (),
        stream: str = "",
    ) -> GpuProducer:
        """Makes a producer with memory on a GPU for its blocks, which processes read in place. The
        first call loads the driver. Readers use :meth:`acquire_gpu`.

        Args:
            block_bytes: as for :meth:`producer`, and so are the other arguments.
            device: the number of the GPU in this process, as in ``torch.device("cuda", 0)``.

        Raises:
            GpuError: there is no driver or no such GPU, or it has too little memory.
            PoolSpaceError: the blocks would exceed a limit of the broker for GPUs.
        """
        check_support()
        layout = _layout(shape, dtype, None)
        size = _block_bytes(block_bytes, layout)
        number = operator.index(device)
        if not 0 <= number < 1 << 31:
            raise InvalidError(f"invalid device {number}: expected the number of a GPU", "Invalid")
        names = _names(wait_for)
        counts = _counts(blocks, readers, retain, quota)
        handle = _hostbuf.gpu_producer(self._handle, number, size, *counts, names, stream)
        return GpuProducer(handle, layout)

    def acquire(self, token: Any) -> BlockRef:
        """Holds the block of a token, for reading.

        Args:
            token: the 48 bytes, any object with the buffer protocol, or 96 hexadecimal digits.

        Raises:
            BlockGoneError: the producer has reused the block, or has ended.
            QuotaError: this process holds as many blocks of the producer as it may.
            InvalidTokenError: it is no token.
            BlockOnGpuError: the block lies on a GPU: use :meth:`acquire_gpu`.
        """
        return BlockRef(self._handle.acquire(_token(token)))

    def acquire_gpu(self, token: Any) -> GpuBlockRef:
        """Holds the block of a token on a GPU, for reading. The first token of a producer finds the
        GPU by its UUID, and maps all blocks of the producer; no driver is loaded before.

        Args:
            token: as for :meth:`acquire`.

        Raises:
            BlockOnHostError: the block lies on the host: use :meth:`acquire`.
            GpuError: there is no driver, or this process does not see the GPU. Nothing is held.
            BlockGoneError: as for :meth:`acquire`, and so are the other errors.
        """
        check_support()
        return GpuBlockRef(_hostbuf.acquire_gpu(self._handle, _token(token)))

    def skip(self, token: Any) -> None:
        """States that this process does not need the block of a token, for a producer that waits
        for this reader."""
        self._handle.skip(_token(token))

    def close(self) -> None:
        """Closes the connection. It ends with its last producer and its last block. Closing it
        again does nothing."""
        self._handle.close()
