"""Files, and transfers between them and arrays on the host or on a GPU."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Generator
from types import TracebackType
from typing import Any, NamedTuple

from . import _hostbuf
from ._error import InvalidError
from ._streams import handle_of
from ._transfer_memory import TransferMemory, transfer_memory
from ._waits import loop_wait

_FLAGS = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_RDWR | os.O_CREAT | os.O_TRUNC}


class FileBackend(NamedTuple):
    """The backend by which a file is read and written, and the reason for it."""

    name: str
    """``posix``: through the page cache. ``direct``: bypassing it (``O_DIRECT``). ``uring``: by
    io_uring. ``mmap``: reads and writes copy through a mapping, for files on
    tmpfs."""
    why: str
    """The reason, one clause."""


class CachedPages(NamedTuple):
    """The pages of a file in the page cache, in pages of the system."""

    cached: int
    """The number of pages in the page cache."""
    dirty: int
    """The number of those that are not written to the disk yet."""
    pages: int
    """The number of pages of the file."""


class Transfer:
    """A transfer between a file and an array, from :meth:`File.pread` and :meth:`File.pwrite`.

    It goes on until it has ended, even if there is no reference to it: closing the file waits for
    it. Until then it keeps the array, which nothing else may use meanwhile, except that data that
    is being written may be read.

    In a task of asyncio, ``await transfer`` returns what :meth:`get` returns. No thread waits, so
    thousands of transfers may be in flight. Cancelling the task cancels the transfer.
    """

    __slots__ = ("__weakref__", "_handle", "nbytes")

    nbytes: int
    """The number of bytes to transfer."""

    def __init__(self, handle: _hostbuf.TransferHandle, nbytes: int) -> None:
        self._handle = handle
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"<hostbuf.Transfer: {self.landed} of {self.nbytes} bytes>"

    def get(self) -> int:
        """Waits until the transfer has ended, and returns the number of its bytes.

        Other threads of Python run meanwhile. Ctrl-C cancels the transfer, and raises
        KeyboardInterrupt once nothing accesses the array any more; a second Ctrl-C raises it at
        once.

        Raises:
            TransferIOError: the file could not be read or written.
            EndOfFileError: the file ends before the end of the transfer.
            TransferCancelledError: the transfer was cancelled.
            GpuTransferError: the GPU has failed.
            ForkedError: the transfer is one of the parent process.
        """
        return self._handle.get()

    def done(self) -> bool:
        """Returns whether the transfer has ended, without waiting."""
        return self._handle.done()

    def cancel(self) -> None:
        """Cancels the transfer, unless it has ended. It ends soon: :meth:`get` waits for that, and
        raises TransferCancelledError."""
        self._handle.cancel()

    @property
    def landed(self) -> int:
        """Returns the number of bytes at the beginning of the transfer that have landed."""
        return self._handle.landed()

    def __await__(self) -> Generator[Any, None, int]:
        return self._result().__await__()

    async def _result(self) -> int:
        try:
            await self._end()
        except asyncio.CancelledError:
            self._handle.cancel()
            # The array may be used again when the task has ended.
            await self._end()
            raise
        return self._handle.get()

    async def _end(self) -> None:
        if self._handle.done():
            return
        with loop_wait() as (queue, number, future):
            if self._handle.watch(queue, number):
                await future


class File:
    """A file for transfers to and from arrays on the host or on a GPU.

    >>> import hostbuf, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hostbuf.File(f"{folder}/numbers", "w") as file:
    ...         written = file.write(bytes(range(100)))
    ...     with hostbuf.File(f"{folder}/numbers") as file:
    ...         out = bytearray(10)
    ...         transfer = file.pread(out, offset=50)  # returns at once
    ...         written, transfer.get(), out[0], file.size
    (100, 10, 50, 100)

    An array is any contiguous object with the buffer protocol, DLPack, or an array interface: of
    numpy, of PyTorch on the host or a GPU, of CuPy. Leaving the ``with`` block closes the file.

    Args:
        path: the path of the file.
        mode: ``r`` to read, ``r+`` to read and write a file that exists, or ``w`` to make the file,
            without the bytes that it has.
        backend: ``auto``, or the name of a backend, as :class:`FileBackend` has it.

    Raises:
        OSError: the file cannot be opened, or has no such backend; it is a FIFO or a folder.
        InvalidError: there is no such mode or backend.
    """

    __slots__ = ("__weakref__", "_handle", "_mode", "_path")

    def __init__(self, path: str | os.PathLike[str], mode: str = "r", backend: str = "auto") -> None:
        if mode not in _FLAGS:
            raise InvalidError(f'invalid mode "{mode}": expected {", ".join(_FLAGS)}', "Invalid")
        self._path = os.fspath(path)
        self._mode = mode
        # This makes the file, and raises the exceptions of open(), which does not wait for the
        # other end of a FIFO.
        os.close(os.open(self._path, _FLAGS[mode] & ~os.O_TRUNC | os.O_NONBLOCK, 0o666))
        self._handle = _hostbuf.FileHandle(self._path, mode != "r", backend)
        if _FLAGS[mode] & os.O_TRUNC:
            # All arguments are valid. The backend depends on the length of the file.
            os.truncate(self._path, 0)
            self._handle = _hostbuf.FileHandle(self._path, True, backend)

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handle.close(kind is not None)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode {self._mode!r}, {self.backend.name}"
        return f"<hostbuf.File {self._path!r}, {state}>"

    @property
    def name(self) -> str:
        """Returns the path with which the file was opened."""
        return self._path

    @property
    def mode(self) -> str:
        """Returns the mode with which the file was opened."""
        return self._mode

    @property
    def size(self) -> int:
        """Returns the number of bytes of the file."""
        return self._handle.size()

    @property
    def backend(self) -> FileBackend:
        """Returns the backend by which the file is read and written, and the reason for it."""
        return FileBackend(*self._handle.backend())

    @property
    def closed(self) -> bool:
        """Returns whether the file is closed."""
        return self._handle.closed

    def fileno(self) -> int:
        """Returns the number of the file's descriptor."""
        return self._handle.fileno()

    def pread(self, out: Any, *, offset: int = 0, size: int | None = None, stream: Any = None) -> Transfer:
        """Starts to read bytes of the file into an array.

        Args:
            out: the array. If the transfer fails, the rest of it has indeterminate contents.
            offset: the offset of the first byte in the file.
            size: the number of bytes, by default all of the array's.
            stream: a stream of the array's GPU, in whose order the bytes are read: the transfer
                begins after the work that the stream has now, and the stream's later work waits
                for it, even if it fails. A stream of PyTorch or CuPy, an object with
                ``__cuda_stream__``, or a handle as a number. By default the transfer begins after
                the work on the array, and no stream waits for it.

        Raises:
            InvalidError: the array is not contiguous, is read-only, or is too short; there is a
                stream, and the array lies in memory of the host.
            TypeError: it is no array, or no stream.
            GpuError: there is no driver, or the process does not see the GPU.
            UnsupportedError: the stream is being captured.
            ValueError: the file is closed.
        """
        order = None if stream is None else handle_of(stream)
        memory = _memory(out, size, True, order)
        return Transfer(self._handle.read(memory, _checked(offset), order), memory.nbytes)

    def pwrite(self, data: Any, *, offset: int = 0, size: int | None = None, stream: Any = None) -> Transfer:
        """Starts to write an array to the file. The bytes are written in any order;
        :meth:`sync` makes them durable.

        Args:
            data: the array, which may be read-only.
            offset: the offset of the first byte in the file.
            size: the number of bytes, by default all of the array's.
            stream: a stream of the array's GPU, in whose order the bytes are written: as for
                :meth:`pread`. The stream's later work may change the array.

        Raises:
            io.UnsupportedOperation: the file is open for reading only.
            InvalidError: the array is not contiguous, or is too short; there is a stream, and the
                array lies in memory of the host.
            TypeError: it is no array, or no stream.
            GpuError: there is no driver, or the process does not see the GPU.
            UnsupportedError: the stream is being captured.
            ValueError: the file is closed.
        """
        if self._mode == "r":
            raise io.UnsupportedOperation(f'not writable: {self._path} is open with mode "r"')
        order = None if stream is None else handle_of(stream)
        memory = _memory(data, size, False, order)
        return Transfer(self._handle.write(memory, _checked(offset), order), memory.nbytes)

    def read(self, out: Any, *, offset: int = 0, size: int | None = None) -> int:
        """Reads bytes of the file into an array, and returns their number: ``pread().get()``."""
        return self.pread(out, offset=offset, size=size).get()

    def write(self, data: Any, *, offset: int = 0, size: int | None = None) -> int:
        """Writes an array to the file, and returns the number of its bytes: ``pwrite().get()``."""
        return self.pwrite(data, offset=offset, size=size).get()

    def sync(self) -> None:
        """Writes what the page cache has of the file to the disk, and waits for it."""
        self._handle.sync()

    def close(self) -> None:
        """Waits for the transfers in flight, and closes the file. Closing it again does nothing.

        A ``with`` block that an exception leaves cancels the transfers first.

        Raises:
            TransferError: a transfer has failed that no part of the program has asked for its
                result, and to which there is no reference.
        """
        self._handle.close(False)


def _memory(array: Any, size: int | None, writable: bool, order: int | None) -> TransferMemory:
    memory = transfer_memory(array, size, writable, order)
    if order is not None and memory.gpu is None:
        raise InvalidError("the array lies in memory of the host, and a stream orders transfers of a GPU: leave it out", "Invalid")
    return memory


def _checked(offset: int) -> int:
    if not 0 <= offset < 1 << 63:
        raise InvalidError(f"invalid offset {offset}: expected 0 to 2^63 - 1", "Invalid")
    return offset


def page_cache(path: str | os.PathLike[str]) -> CachedPages:
    """Returns how much of a file is in the page cache.

    Raises:
        OSError: the file cannot be opened, or is a FIFO; the kernel is older than Linux 6.5, or the
            file has no page cache.
    """
    return CachedPages(*_hostbuf.page_cache(os.fspath(path)))


def drop_page_cache(path: str | os.PathLike[str]) -> None:
    """Drops the pages of a file from the page cache, after it has written them. Pages that a
    process maps stay.

    Raises:
        OSError: the file cannot be opened, is a FIFO, or cannot be written to the disk.
    """
    _hostbuf.drop_page_cache(os.fspath(path))
