"""Blocks on a GPU: blocks that a producer writes, and blocks that a process reads."""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Any

from . import _hostbuf
from ._block import BlockHeader, _content, _header, _is_versioned, _typestr
from ._error import UnsupportedError
from ._releases import release_after
from ._streams import LEGACY, handle_of, is_handle

# DLPack's kind of the memory of a GPU (kDLCUDA).
_CUDA = 2


def check_support() -> None:
    """Raises UnsupportedError if the native part was built without CUDA."""
    if not hasattr(_hostbuf, "gpu_producer"):
        raise UnsupportedError("this build of hostbuf has no support for CUDA", "Unsupported")


def _check_device(dl_device: Any, copy: bool | None, gpu: int) -> None:
    if dl_device is not None and tuple(dl_device) != (_CUDA, gpu):
        raise BufferError(f"the block lies on GPU {gpu}, and is not copied to the device {tuple(dl_device)}")
    if copy:
        raise BufferError("a block on a GPU is not copied: copy the array that has its memory")


class GpuBlock:
    """A block on a GPU that its producer writes, from :meth:`GpuProducer.block`. No reader has it
    before :meth:`publish_after` or :meth:`publish`. Leaving its ``with`` block frees it, unless it
    is published.

    It supports the CUDA array interface (``cupy.asarray(block)``) and DLPack
    (``torch.from_dlpack(block)``); both have its memory, without a copy. A tensor by DLPack that
    still exists prevents publishing. An array by the CUDA array interface does not, since that
    passes an address only: do not write to one after publishing.
    """

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, handle: _hostbuf.GpuBlockHandle) -> None:
        self._handle = handle

    def __enter__(self) -> GpuBlock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hostbuf.GpuBlock, {self.state}: {self.dtype} {self.shape}>"

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

    @property
    def device(self) -> int:
        """Returns the number of the GPU in this process."""
        return self._handle.device()

    @property
    def address(self) -> int:
        """Returns the GPU's address of the first byte."""
        return self._handle.address()

    def torch(self) -> Any:
        """Returns the array as a PyTorch tensor, without a copy. Delete it before publishing."""
        torch = importlib.import_module("torch")
        return torch.utils.dlpack.from_dlpack(self._handle.dlpack(False))

    def publish_after(
        self,
        stream: Any,
        *,
        frame: int = 0,
        captured_ns: int | None = None,
        user_data: bytes = b"",
        length: int | None = None,
    ) -> bytes:
        """Publishes the block after the work that is queued in a stream now, and returns its token,
        48 bytes for its readers. It does not wait: readers get the block at once, and their streams
        wait for the GPU (:meth:`GpuBlockRef.wait_ready`).

        Args:
            stream: a stream of this GPU: of PyTorch or CuPy, an object with ``__cuda_stream__``, or
                the driver's handle as a number; 0 is the default stream.
            frame: as for :meth:`Block.publish`, and so are the other arguments.

        Raises:
            BufferError: tensors of the block exist. The block is not published.
            GpuError: the driver refuses the stream. The block is not published.
            ValueError: the block is published or freed.
        """
        return self._handle.publish(handle_of(stream), *_content(length, frame, captured_ns, user_data))

    def publish(
        self, *, frame: int = 0, captured_ns: int | None = None, user_data: bytes = b"", length: int | None = None
    ) -> bytes:
        """Publishes the block as :meth:`publish_after`. All work that writes it has ended."""
        return self._handle.publish(None, *_content(length, frame, captured_ns, user_data))

    def close(self) -> None:
        """Frees the block, unless it is published. All work that writes it has ended. While a
        tensor of it exists, or an array by the CUDA array interface, its memory is not reused.
        Closing it again does nothing."""
        self._handle.free()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the array for CuPy, Numba, PyTorch and other libraries: the block's memory, which
        is writable."""
        name, shape, strides = self._handle.layout()
        return {
            "version": 3,
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": _typestr(name),
            "data": (self._handle.show(), False),
            # No reader has the block, so there is nothing to wait for.
            "stream": None,
        }

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Returns the array for libraries with DLPack: the block's memory, which is writable."""
        _check_device(dl_device, copy, self.device)
        return self._handle.dlpack(_is_versioned(max_version))

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's name of the GPU."""
        return _CUDA, self.device


class GpuBlockRef:
    """A reader's hold on a published block on a GPU, from :meth:`Pool.acquire_gpu`. The producer
    does not reuse the block while it exists.

    The GPU may still write the content: :meth:`wait_ready` makes a stream wait for it. It supports
    the CUDA array interface (``cupy.asarray(block)``) and DLPack; bytes without a type appear as
    ``uint8``. Leaving the ``with`` block releases the hold at once, also if the GPU still reads the
    content: use :meth:`release_after` then. An array or a tensor that was made before keeps the
    block until it is gone itself.
    """

    __slots__ = ("__weakref__", "_handle", "_kept", "_waited")

    def __init__(self, handle: _hostbuf.GpuBlockRefHandle) -> None:
        self._handle = handle
        self._kept: _hostbuf.GpuBlockRefHandle | None = None
        self._waited: Any = None

    def __enter__(self) -> GpuBlockRef:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        released = ", released" if self._handle.released else ""
        return f"<hostbuf.GpuBlockRef{released}: {self.dtype} {self.shape}>"

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
    def device(self) -> int:
        """Returns the number of the GPU in this process."""
        return self._handle.device()

    @property
    def address(self) -> int:
        """Returns the GPU's address of the first byte, for this process."""
        return self._handle.address()

    @property
    def why_writable(self) -> str | None:
        """Returns the reason why this process could write to the block. It is None where the driver
        maps memory for reading only, and a write is an error of the GPU."""
        return self._handle.why_writable()

    @property
    def closed(self) -> bool:
        """Returns true after :meth:`close`."""
        return self._handle.released

    def wait_ready(self, stream: Any) -> None:
        """Makes all later work in a stream wait until the GPU has written the content. This returns
        at once.

        Args:
            stream: as for :meth:`GpuBlock.publish_after`.

        Raises:
            ProducerEndedError: the producer ended before the content was complete. The stream waits
                for nothing.
            GpuError: the driver refuses the stream or the producer's event.
        """
        handle = handle_of(stream)
        self._handle.wait_ready(handle)
        # A library may have to wait for the stream, so it stays alive.
        self._waited = (handle or LEGACY, stream)

    def is_ready(self) -> bool:
        """Returns whether the GPU has written the content. It does not wait.

        Raises:
            ProducerEndedError: the producer ended before the content was complete.
        """
        return self._handle.is_ready()

    def torch(self) -> Any:
        """Returns the array as a PyTorch tensor, without a copy. PyTorch's current stream waits for
        the content. PyTorch has no read-only tensors: do not write to this one."""
        torch = importlib.import_module("torch")
        self.wait_ready(torch.cuda.current_stream(self.device))
        return torch.utils.dlpack.from_dlpack(self._handle.dlpack(False))

    def release_after(self, stream: Any) -> None:
        """Releases the hold when the work that is queued in a stream now is complete, for example a
        kernel that reads the content. This returns at once.

        Args:
            stream: as for :meth:`GpuBlock.publish_after`, or an event of PyTorch or CuPy that was
                recorded in a stream.

        Raises:
            GpuError: the driver refuses the stream. The block is still held.
        """
        if is_handle(stream):
            self._handle.release_after(handle_of(stream))
            return
        held = self._handle.add_hold()
        release_after(stream, held.release)
        self._handle.release()

    def close(self) -> None:
        """Releases the hold. The block is reused once the arrays and tensors of it are gone too.
        Closing it again does nothing."""
        self._handle.release()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the array for CuPy, Numba and other libraries, which wait for the stated stream.
        PyTorch does not: call :meth:`wait_ready` first, or use :meth:`torch`. The block is kept
        until this object is gone, also after :meth:`close`."""
        name, shape, strides = self._handle.layout()
        typestr = _typestr(name)
        stream = None
        if not self._handle.is_ready():
            if self._waited is None:
                self.wait_ready(LEGACY)
            stream = self._waited[0]
        self._kept = self._handle.add_hold()
        return {
            "version": 3,
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": typestr,
            "data": (self._handle.address(), True),
            "stream": stream,
        }

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Returns the array for libraries with DLPack. The library's stream waits for the content.

        Raises:
            BufferError: the library does not know of read-only arrays (DLPack before version 1).
        """
        _check_device(dl_device, copy, self.device)
        if not _is_versioned(max_version):
            raise BufferError(
                "the block is read-only, which DLPack states only from version 1 on: pass max_version=(1, 0), or use torch()"
            )
        if stream == 0 and not isinstance(stream, bool):
            raise BufferError("DLPack has no stream 0: pass 1 for the default stream, or 2 for that of the thread")
        # -1 requests no synchronisation.
        if stream is None or stream != -1:
            self._handle.wait_ready(LEGACY if stream is None else handle_of(stream))
        return self._handle.dlpack(True)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's name of the GPU."""
        return _CUDA, self.device
