"""A store for zarr 3 that reads and writes chunks by :class:`hostbuf.File`.

>>> import hostbuf.zarr, numpy as np, tempfile, zarr
>>> with tempfile.TemporaryDirectory() as folder:
...     store = hostbuf.zarr.FileStore(folder)
...     array = zarr.create_array(store, shape=1000, chunks=100, dtype="f4")
...     array[:] = np.arange(1000)
...     float(array[507]), float(zarr.open_array(folder)[507])
(507.0, 507.0)

It needs zarr 3.1 or later (``pip install zarr``). After ``zarr.config.enable_gpu()`` chunks are
read into memory of the GPU that CuPy allocates.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import uuid
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ._error import of_transfer
from ._file import File
from ._hostbuf import check_backend

try:
    from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype, cpu, default_buffer_prototype
    from zarr.storage import LocalStore
except ImportError as error:
    raise ImportError(f"hostbuf.zarr needs zarr 3.1 or later (pip install zarr): {error}") from error

__all__ = ["FileStore"]

# The names of documents with metadata in the versions 3 and 2 of the format.
_DOCUMENTS = frozenset(["zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"])
# Between threads and the loop, a transfer of up to so many bytes on the host takes longer than the
# read itself.
_SHORT = 256 << 10
# A key has no value if its path has no file.
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

_Result = TypeVar("_Result")


class _Request(NamedTuple):
    """A part of an open file."""

    file: File
    start: int
    size: int


class FileStore(LocalStore):
    """A store in a folder, with the files of :class:`zarr.storage.LocalStore`.

    Chunks and parts of shards are read and written by :class:`hostbuf.File`, straight into and from
    the memory of zarr's buffers, which may be that of a GPU. Metadata (``zarr.json``, and
    ``.zarray``, ``.zattrs``, ``.zgroup`` and ``.zmetadata`` of version 2) takes the way of
    LocalStore, and so do requests of up to 256 KiB in memory of the host. A value is written to a
    new file, which then replaces the old one.

    Threads of asyncio's pool open files and do the short requests; no thread waits for a transfer.

    Args:
        root: the folder.
        read_only: whether writing is an error.
        backend: a backend of :class:`hostbuf.File`.

    Raises:
        InvalidError: there is no such backend.
    """

    backend: str
    """The backend with which files are opened."""

    def __init__(self, root: os.PathLike[str] | str, *, read_only: bool = False, backend: str = "auto") -> None:
        check_backend(backend)
        super().__init__(pathlib.Path(root), read_only=read_only)
        self.backend = backend

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self}')"

    @classmethod
    async def open(
        cls, root: os.PathLike[str] | str, *, read_only: bool = False, mode: Any = None, backend: str = "auto"
    ) -> FileStore:
        """Opens the store in a folder.

        Args:
            root: the folder.
            read_only: whether writing is an error.
            mode: with ``r`` or ``r+`` it is an error if the folder does not exist.
            backend: a backend of :class:`hostbuf.File`.

        Raises:
            FileNotFoundError: the folder does not exist, and must not be made.
        """
        store = cls(root, read_only=read_only, backend=backend)
        await cls(root, read_only=read_only if mode is None else mode in ("r", "r+"))._open()
        await store._open()
        return store

    def with_read_only(self, read_only: bool = False) -> FileStore:
        """Returns a store in the same folder that is read-only, or is not."""
        return type(self)(self.root, read_only=read_only, backend=self.backend)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Reads a value, or a part of it, into a buffer of the prototype.

        Returns ``None`` if the store has no such key. A range that ends beyond the value is cut
        there.

        Raises:
            OSError: the file could not be read.
            EndOfFileError: another process has made the file shorter meanwhile.
        """
        if _is_document(key):
            return await super().get(key, prototype, byte_range)
        await self._ensure_open()
        kind = prototype or default_buffer_prototype()
        try:
            begun = await _in_thread(lambda: self._begin(key, byte_range, kind))
        except _MISSING:
            return None
        if isinstance(begun, Buffer):
            return begun
        with begun.file:
            memory, buffer = _allocate(kind, begun.size)
            if begun.size:
                await begun.file.pread(memory, offset=begun.start)
        return buffer

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Reads a value as :meth:`get` does, in the calling thread, with zarr 3.1.6 or later."""
        if _is_document(key):
            return super().get_sync(key, prototype=prototype, byte_range=byte_range)
        self._ensure_open_sync()
        kind = prototype or default_buffer_prototype()
        try:
            begun = self._begin(key, byte_range, kind)
        except _MISSING:
            return None
        if isinstance(begun, Buffer):
            return begun
        with begun.file:
            memory, buffer = _allocate(kind, begun.size)
            if begun.size:
                begun.file.read(memory, offset=begun.start)
        return buffer

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Reads several values, or parts of them, at the same time."""
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))

    async def set(self, key: str, value: Buffer) -> None:
        """Writes a value.

        Raises:
            OSError: the file could not be written. The store keeps the old value.
        """
        await self._write(key, value, False)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Writes a value, unless the store has one."""
        try:
            await self._write(key, value, True)
        except FileExistsError:
            pass

    def set_sync(self, key: str, value: Buffer) -> None:
        """Writes a value as :meth:`set` does, in the calling thread, with zarr 3.1.6 or later."""
        if _is_document(key) or _is_short(value):
            super().set_sync(key, value)
            return
        self._ensure_open_sync()
        self._check_writable()
        memory = _memory_of(value)
        path = self.root / key
        partial = _partial(path)
        try:
            with self._create(partial) as file:
                if len(value):
                    file.write(memory)
            _publish(partial, path, False)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    async def _write(self, key: str, value: Buffer, exclusive: bool) -> None:
        if _is_document(key) or _is_short(value):
            await (super().set_if_not_exists if exclusive else super().set)(key, value)
            return
        await self._ensure_open()
        self._check_writable()
        memory = _memory_of(value)
        path = self.root / key
        partial = _partial(path)
        try:
            file = await _in_thread(lambda: self._create(partial))
            try:
                if len(value):
                    await file.pwrite(memory)
            finally:
                # On a network file system this may wait for the server.
                await _in_thread(file.close)
            await _in_thread(lambda: _publish(partial, path, exclusive))
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _begin(self, key: str, byte_range: ByteRequest | None, prototype: BufferPrototype) -> Buffer | _Request:
        """Reads a short value, or opens the file of another one."""
        path = self.root / key
        if issubclass(prototype.nd_buffer, cpu.NDBuffer):
            with path.open("rb", buffering=0) as plain:
                start, end = _bounds(byte_range, os.fstat(plain.fileno()).st_size)
                if end - start <= _SHORT:
                    return _read_short(plain, start, max(0, end - start), prototype)
        elif path.is_dir():
            raise IsADirectoryError(path)
        file = File(path, backend=self.backend)
        try:
            start, end = _bounds(byte_range, file.size)
        except BaseException:
            file.close()
            raise
        return _Request(file, start, max(0, end - start))

    def _create(self, partial: pathlib.Path) -> File:
        partial.parent.mkdir(parents=True, exist_ok=True)
        return File(partial, "w", self.backend)


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _DOCUMENTS


def _bounds(byte_range: ByteRequest | None, size: int) -> tuple[int, int]:
    """Returns the offsets of the first byte of a request and of the end, in a file of a size."""
    if byte_range is None:
        return 0, size
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, min(byte_range.end, size)
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset, size
    if isinstance(byte_range, SuffixByteRequest):
        return max(0, size - byte_range.suffix), size
    raise TypeError(f"Unexpected byte_range, got {byte_range}: expected a RangeByteRequest, OffsetByteRequest or SuffixByteRequest.")


def _allocate(prototype: BufferPrototype, size: int) -> tuple[Any, Buffer]:
    """Returns memory of the kind that the prototype has, and the buffer of it."""
    memory: Any = prototype.nd_buffer.empty(shape=(size,), dtype="B").as_ndarray_like()
    return memory, prototype.buffer.from_array_like(memory)


def _read_short(file: BinaryIO, start: int, size: int, prototype: BufferPrototype) -> Buffer:
    data = bytearray(size)
    view, landed = memoryview(data), 0
    while landed < size:
        count = os.preadv(file.fileno(), [view[landed:]], start + landed)
        if not count:
            what = f"cannot read {size} bytes at offset {start} of {file.name}: the file ends before"
            raise of_transfer("UnexpectedEnd", what, landed, None)
        landed += count
    return prototype.buffer.from_bytes(data)


def _is_short(value: Buffer) -> bool:
    return isinstance(value, cpu.Buffer) and len(value) <= _SHORT


def _memory_of(value: Buffer) -> Any:
    if not isinstance(value, Buffer):
        raise TypeError(f"FileStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead.")
    return value.as_array_like()


def _partial(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of a new file beside one that it will replace."""
    return path.with_suffix(f".{uuid.uuid4().hex}.partial")


def _publish(partial: pathlib.Path, path: pathlib.Path, exclusive: bool) -> None:
    """Moves a complete file to its path. With `exclusive` it is an error if there is one."""
    if exclusive:
        os.link(partial, path)
        partial.unlink()
    else:
        partial.replace(path)


async def _in_thread(call: Callable[[], _Result]) -> _Result:
    """Calls a function in a thread of the loop's pool. A task that is cancelled waits for the call,
    so that it can undo it."""
    called = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(called)
    except asyncio.CancelledError:
        await asyncio.wait([called])
        raise
