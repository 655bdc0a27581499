"""Blocks of a pool: tokens, blocks that a producer writes, and blocks that a process reads."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _hostbuf
from ._error import InvalidError
from ._releases import release_after

if TYPE_CHECKING:
    import numpy as np

_Layout = tuple[str, tuple[int, ...], "tuple[int, ...] | None"]

# The bits of a request of the buffer protocol.
_FORMAT, _STRIDES = 0x4, 0x10

# DLPack's kinds of memory: of the host (kDLCPU), and of the host for a GPU (kDLCUDAHost).
_CPU, _CUDA_HOST = (1, 0), (3, 0)


class Token(NamedTuple):
    """The fields of a token, the name of a published block.

    >>> import hostbuf
    >>> pool = hostbuf.Pool("example", mode="private")
    >>> token = pool.producer(4096).block().publish()
    >>> len(token), hostbuf.Token.parse(token).length
    (48, 4096)
    """

    pool: str
    """The identity of the pool."""
    segment: int
    """The number of the producer's memory in its pool."""
    block: int
    """The number of the block in this memory."""
    generation: int
    """The number of times that the block was taken before."""
    length: int
    """The length of the content in bytes."""

    @staticmethod
    def parse(token: Any) -> Token:
        """Returns the fields of 48 bytes, or of 96 hexadecimal digits.

        Raises:
            InvalidTokenError: it is no token, or a damaged one.
        """
        return Token(*_hostbuf.parse_token(_token(token)))


class BlockHeader(NamedTuple):
    """The description of the content of a published block."""

    dtype: str
    """The name of the element type, as in numpy: ``uint8``, ``float32``, ``bfloat16``; ``void8``
    for bytes without a type."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """The strides in bytes."""
    length: int
    """The length of the content in bytes. It may continue behind the array."""
    generation: int
    """The number of times that the block was taken before."""
    sequence: int
    """The number of blocks that the producer published before this one. A gap is the number of
    blocks that the reader has missed."""
    published_ns: int
    """The time of publication, as :func:`time.monotonic_ns` on this host."""
    captured_ns: int | None
    """The time of capture, if the producer has stated one."""
    frame: int
    """The number that the producer gave the frame."""
    user_data: bytes
    """The 48 bytes that the producer added."""


def _token(token: Any) -> bytes:
    """Returns the bytes of a token: an object with the buffer protocol, or hexadecimal digits."""
    if isinstance(token, bytes):
        return token
    if isinstance(token, str):
        try:
            return bytes.fromhex(token)
        except ValueError:
            return token.encode()
    return bytes(memoryview(token))


def _element(dtype: Any) -> tuple[str, int]:
    """Returns the name and the size of an element type: of numpy, of PyTorch, or a text."""
    found = None
    if isinstance(dtype, str):
        found = _hostbuf.element_type(dtype) or _hostbuf.element_type("<" + dtype)
    elif str(dtype).startswith("torch."):
        found = _hostbuf.element_type(str(dtype)[len("torch.") :])
    if found is None:
        import numpy as np

        try:
            kind = np.dtype(dtype)
        except TypeError:
            raise InvalidError(f"invalid dtype {dtype}: blocks have no such type", "Invalid") from None
        found = _hostbuf.element_type(kind.name) if kind.isnative else None
    if found is None:
        raise InvalidError(f"invalid dtype {dtype}: blocks have no such type", "Invalid")
    return found


def _numbers(shape: int | Iterable[int]) -> tuple[int, ...]:
    try:
        return (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(operator.index(extent) for extent in shape)  # type: ignore[union-attr]


def _number(name: str, value: Any, bits: int = 64) -> int:
    """Returns an argument as a number of this many bits without a sign."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise InvalidError(f"invalid {name} {number}: expected a number from 0 to {(1 << bits) - 1}", "Invalid")
    return number


def _optional(name: str, value: Any, bits: int = 64) -> int | None:
    return None if value is None else _number(name, value, bits)


def _content(
    length: int | None, frame: int, captured_ns: int | None, user_data: bytes
) -> tuple[int | None, int, int | None, bytes]:
    """Returns the description of a block's content for its header, if its numbers are valid."""
    return _optional("length", length), _number("frame", frame), _optional("captured_ns", captured_ns), bytes(user_data)


def _layout(shape: Any, dtype: Any, strides: Any) -> _Layout | None:
    if shape is None and dtype is None and strides is None:
        return None
    if shape is None:
        raise TypeError("shape is missing: a dtype and strides describe an array together with its shape")
    extents = _numbers(shape)
    for extent in extents:
        if extent < 0:
            raise InvalidError(f"invalid shape {extents}: an extent is negative", "Invalid")
    name, _ = _element("uint8" if dtype is None else dtype)
    return name, extents, None if strides is None else _numbers(strides)


def _view(memory: Any, layout: tuple[str, list[int], list[int]]) -> np.ndarray[Any, Any]:
    """Returns an array at the beginning of an object with the buffer protocol."""
    import numpy as np

    name, shape, strides = layout
    if name == "void8":
        name = "uint8"
    try:
        kind = np.dtype(name)
    except TypeError:
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ImportError:
            raise TypeError(f"numpy has no {name}: install ml_dtypes, or use torch()") from None
        kind = np.dtype(getattr(ml_dtypes, name))
    return np.ndarray(tuple(shape), kind, buffer=memory, strides=tuple(strides))


def _check_device(stream: Any, dl_device: Any) -> None:
    if stream is not None:
        raise BufferError("a block lies in the memory of the host, which has no streams: pass stream=None")
    if dl_device is not None and tuple(dl_device) != _CPU:
        raise BufferError(f"a block lies in the memory of the host, and is not copied to the device {tuple(dl_device)}")


def _is_versioned(max_version: Any) -> bool:
    return max_version is not None and max_version[0] >= 1


class DmaPath(NamedTuple):
    """The way in which a device reads a block."""

    address: int | None
    """The address at which the device reads the content, or ``None`` if the program has to copy
    it."""
    why: str | None
    """The reason for a copy."""

    @property
    def direct(self) -> bool:
        """Returns whether the device reads the block itself."""
        return self.address is not None


def _header(handle: _hostbuf.BlockRefHandle | _hostbuf.GpuBlockRefHandle) -> BlockHeader:
    """Returns the description of the content of a block that is held."""
    name, shape, strides = handle.layout()
    length, generation, sequence, published, captured, frame = handle.numbers()
    user_data = handle.user_data()
    return BlockHeader(
        name, tuple(shape), tuple(strides), length, generation, sequence, published, captured, frame, user_data
    )


def _typestr(name: str) -> str:
    """Returns the type of the array interface. Libraries expect AttributeError from objects without
    the interface."""
    typestr = "|u1" if name == "void8" else _hostbuf.typestr(name)
    if typestr is None:
        raise AttributeError(f"the array interface has no {name}")
    return typestr


class Block(_hostbuf.BlockExporter):
    """A block that its producer writes, from :meth:`Producer.block`. No reader has it before
    :meth:`publish`. Leaving its ``with`` block frees it, unless it is published.

    It supports the buffer protocol (``stream.readinto(block)``) and DLPack.
    """

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, handle: _hostbuf.BlockHandle) -> None:
        self._handle = handle

    def __enter__(self) -> Block:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hostbuf.Block, {self.state}: {self.dtype} {self.shape}>"

    @property
    def state(self) -> str:
        """Returns ``writing``, ``published`` or ``freed``."""
        return self._handle.state

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the extents of the array."""
        return tuple(self._handle.layout()[1])

    @property
    def dtype(self) -> str:
        """Returns the name of the element type, as in :class:`BlockHeader`."""
        return self._handle.layout()[0]

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the array, writable and without a copy. Its elements are those of an earlier
        content, or zeros. Delete it and its views before :meth:`publish`."""
        return _view(self._handle.memory(True), self._handle.layout())

    def torch(self) -> Any:
        """Returns the array as a PyTorch tensor, without a copy. Delete it before
        :meth:`publish`."""
        torch = importlib.import_module("torch")
        return torch.utils.dlpack.from_dlpack(self._handle.dlpack(False))

    def publish(
        self, *, frame: int = 0, captured_ns: int | None = None, user_data: bytes = b"", length: int | None = None
    ) -> bytes:
        """Publishes the block, and returns its token, 48 bytes for its readers.

        Args:
            frame: a number for the readers, such as the camera's.
            captured_ns: the time of capture, by a clock that producer and readers agree on.
            user_data: at most 48 bytes for the readers.
            length: the length of the content in bytes, if it continues behind the array or, in a
                block without a shape, ends before the block.

        Raises:
            BufferError: arrays or views of the block exist, through which the content could be
                overwritten. The block is not published.
            ValueError: the block is published or freed.
        """
        return self._handle.publish(*_content(length, frame, captured_ns, user_data))

    def close(self) -> None:
        """Frees the block, unless it is published. While an array or a view of it exists, its
        memory is not reused. Closing it again does nothing."""
        self._handle.free()

    def _export(self, flags: int) -> Any:
        # numpy.ndarray(buffer=...) is the one caller of this kind. It ends its view at once and
        # keeps this object alone, so publish() would not know of the array.
        if flags & _STRIDES and not flags & _FORMAT:
            raise BufferError("this kind of view does not prevent publish(): use numpy() or memoryview(block)")
        return self._handle.memory(False)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Returns the array for libraries with DLPack, such as ``numpy.from_dlpack(block)``: the
        block's memory, which is writable."""
        _check_device(stream, dl_device)
        if copy:
            raise BufferError("a block that is being written is not copied")
        return self._handle.dlpack(_is_versioned(max_version))

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's name of the host's memory."""
        return _CPU


class BlockRef(_hostbuf.BlockExporter):
    """A reader's hold on a published block, from :meth:`Pool.acquire`. The producer does not reuse
    the block while it exists.

    It supports the buffer protocol (``memoryview(block)``), numpy's array interface and DLPack; all
    views are read-only, and bytes without a type appear as ``uint8``. Leaving the ``with`` block
    releases the hold. An array, tensor or view that was made before keeps the block until it is
    gone itself, so it never shows another content.
    """

    __slots__ = ("__weakref__", "_gpu_address", "_handle", "_kept")

    def __init__(self, handle: _hostbuf.BlockRefHandle) -> None:
        self._handle = handle
        self._gpu_address: int | None = None
        self._kept: Any = None

    def __enter__(self) -> BlockRef:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        released = ", released" if self._handle.released else ""
        return f"<hostbuf.BlockRef{released}: {self.dtype} {self.shape}>"

    @property
    def header(self) -> BlockHeader:
        """Returns the description of the content."""
        return _header(self._handle)

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the extents of the array."""
        return tuple(self._handle.layout()[1])

    @property
    def dtype(self) -> str:
        """Returns the name of the element type, as in :class:`BlockHeader`."""
        return self._handle.layout()[0]

    @property
    def closed(self) -> bool:
        """Returns true after :meth:`close`."""
        return self._handle.released

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the array, read-only and without a copy."""
        return _view(self._handle.memory(True), self._handle.layout())

    def torch(self) -> Any:
        """Returns the array as a PyTorch tensor, without a copy. PyTorch has no read-only tensors:
        a write to this one ends the process with SIGSEGV."""
        torch = importlib.import_module("torch")
        return torch.utils.dlpack.from_dlpack(self._handle.dlpack(False, False, False))

    def content(self) -> memoryview:
        """Returns all bytes of the content, read-only and without a copy, also those behind the
        array."""
        return memoryview(self._handle.memory(True))

    def dma(self, device: str = "cuda") -> DmaPath:
        """Returns the address at which a device reads the content while the block is held. The
        first call for a producer registers all of its blocks, so that copies from arrays and
        tensors run at full speed too; no driver is loaded before. With the address of a GPU the
        block has ``__cuda_array_interface__`` from then on.

        >>> import hostbuf
        >>> pool = hostbuf.Pool("example", mode="private")
        >>> with pool.acquire(pool.producer(4096).block().publish()) as block:
        ...     block.dma("mlock").direct
        True

        Raises:
            InvalidError: the name of the device is invalid.
        """
        path = DmaPath(*self._handle.dma(device))
        if path.direct and device.startswith("cuda"):
            self._gpu_address = path.address
        return path

    def release_after(self, stream: Any, device: int = 0) -> None:
        """Releases the hold when the work that is queued in a stream now is complete, for example a
        copy to the GPU. This returns at once.

        Args:
            stream: a stream of PyTorch or CuPy, an event that was recorded in one, or the handle of
                a CUDA stream, as a number or by ``__cuda_stream__``.
            device: the number of the GPU to which a handle belongs.

        Raises:
            GpuError: the handle is none of the GPU's streams. The block is still held.
        """
        if self._handle.released:
            raise ValueError("the block is released")
        # The thread has the hold from now on.
        held = self._handle.split()
        try:
            release_after(stream, held.release, device)
        except BaseException:
            self._handle = held
            raise

    def close(self) -> None:
        """Releases the hold. The block is reused once the arrays and views of it are gone too.
        Closing it again does nothing."""
        self._handle.release()

    def _export(self, flags: int) -> Any:
        memory = self._handle.memory(False)
        # numpy.ndarray(buffer=...) is the one caller of this kind. It ends its view at once and
        # keeps this object alone.
        if flags & _STRIDES and not flags & _FORMAT:
            self._kept = memory
        return memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Returns the array for libraries with numpy's array interface, which has an address only:
        the block is kept until this object is gone, also after :meth:`close`."""
        name, shape, strides = self._handle.layout()
        typestr = _typestr(name)
        self._kept = self._handle.memory(True)
        return {
            "version": 3,
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": typestr,
            "data": (self._handle.address(), True),
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the array at the GPU's address, for CuPy and Numba, once :meth:`dma` has returned
        one: the GPU reads it over the bus. PyTorch refuses read-only arrays of this interface: use
        :meth:`torch`. The block is kept until this object is gone, also after :meth:`close`."""
        # Libraries expect AttributeError from objects without the interface.
        if self._gpu_address is None:
            raise AttributeError('the block has no address on a GPU: call dma("cuda"), and copy the content if it says so')
        name, shape, strides = self._handle.layout()
        typestr = _typestr(name)
        self._kept = self._handle.memory(True)
        return {
            "version": 3,
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": typestr,
            "data": (self._gpu_address, True),
            # The content was complete before it was published.
            "stream": None,
        }

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Returns the array for libraries with DLPack, such as ``numpy.from_dlpack(block)``.

        Args:
            dl_device: ``(3, 0)``, pinned memory of the host (``kDLCUDAHost``), is for a block that
                :meth:`dma` has registered with a GPU. Without it the memory is that of the host
                (``kDLCPU``), since PyTorch accepts no other and finds out itself that it is pinned.

        Raises:
            BufferError: the library does not know of read-only arrays (DLPack before version 1),
                and requests no copy; or the block is not in the memory of ``dl_device``.
        """
        is_pinned = dl_device is not None and tuple(dl_device) == _CUDA_HOST
        _check_device(stream, None if is_pinned else dl_device)
        if is_pinned and self._gpu_address is None:
            raise BufferError('the block is not registered with a GPU: call dma("cuda") before')
        if is_pinned and copy:
            raise BufferError("a copy of the block is not in pinned memory: pass copy=None")
        versioned = _is_versioned(max_version)
        if not versioned and not copy:
            raise BufferError(
                "the block is read-only, which DLPack states only from version 1 on: pass max_version=(1, 0) or copy=True, or use torch()"
            )
        return self._handle.dlpack(versioned, bool(copy), is_pinned)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's name of the host's memory."""
        return _CPU
