"""Arrays of other libraries that a GPU reads where they are."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from . import _hostbuf
from ._array_memory import ArrayMemory, memory_of
from ._releases import release_after


class Dma:
    """An array with its device address, from :func:`dma`, until it is released.

    It keeps the array. Release it when the device has finished with the bytes: at the end of its
    ``with`` block, by :meth:`release`, or by :meth:`release_after`.
    """

    __slots__ = ("__weakref__", "_memory", "_native", "_writable", "device", "nbytes", "why")

    device: str
    """The name of the device."""
    nbytes: int
    """The number of bytes from the lowest to the highest byte of the array."""
    why: str | None
    """The reason why the device cannot access the array directly, or None if it can."""

    def __init__(self, memory: ArrayMemory, device: str, writable: bool) -> None:
        self._memory: ArrayMemory | None = memory
        self._writable = writable
        self.device = device
        self.nbytes = memory.nbytes
        self._native, self.why = _hostbuf.adopt_memory(device, memory.start, memory.nbytes, writable)

    @property
    def direct(self) -> bool:
        """Returns whether the device accesses the array where it is. If not, copy it: :attr:`why`
        is the reason."""
        return self.why is None

    @property
    def address(self) -> int:
        """Returns the device's address of the array's first element. For ``mlock``, which has no
        addresses of its own, it is the address in hostbuf's mapping.

        Raises:
            ValueError: the array is not direct, or was released.
        """
        memory = self._open()
        address = self._native and self._native.address()
        if not address:
            raise ValueError(f"the array has no device address: {self.why}")
        return address + memory.first

    def _open(self) -> ArrayMemory:
        if self._memory is None:
            raise ValueError("the array was released")
        return self._memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the array at the GPU's address, for CuPy, PyTorch and other libraries: a view
        without a copy. It is valid until this is released."""
        # Libraries expect AttributeError from objects without the interface.
        if not self.direct or not self.device.startswith("cuda"):
            raise AttributeError(self.why or f"{self.device} is no GPU")
        return {**self._interface(self.address), "stream": None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Returns the array for numpy: a view of pinned memory if it is direct, which a copy to the
        GPU reads at full speed, otherwise a view of the array itself. It is valid until this is
        released."""
        memory = self._open()
        host = self._native.host_address() if self._native else None
        return self._interface((host or memory.start) + memory.first)

    def _interface(self, address: int) -> dict[str, Any]:
        memory = self._open()
        if memory.typestr is None:
            raise AttributeError("the interface has no name for the type of the elements")
        return {
            "version": 3,
            "shape": memory.shape,
            "typestr": memory.typestr,
            "data": (address, not self._writable),
            "strides": memory.strides,
        }

    def release_after(self, stream: Any) -> None:
        """Releases the array when the work that is queued in a stream now is complete, for example
        a copy to the GPU. This returns at once.

        Args:
            stream: a stream of PyTorch or CuPy, an event that was recorded in one, or the handle of
                a CUDA stream, as a number or by ``__cuda_stream__``. A handle belongs to the GPU
                that the array was adopted for.

        Raises:
            ValueError: the array was released.
            GpuError: the handle is none of the GPU's streams. The array is not released.
        """
        kept, native = [self._open()], self._native

        def release() -> None:
            if native:
                native.close()
            kept.clear()

        release_after(stream, release, self._gpu())
        # The thread has both now.
        self._memory = self._native = None

    def _gpu(self) -> int:
        """Returns the number of the device's GPU, which is 0 without one."""
        kind, _, number = self.device.partition(":")
        return int(number) if kind == "cuda" and number.isdecimal() else 0

    def release(self) -> None:
        """Releases the array. Releasing it again does nothing."""
        if self._native:
            self._native.close()
        self._memory = self._native = None

    def __enter__(self) -> Dma:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._memory is None else "direct" if self.direct else f"copy: {self.why}"
        return f"<hostbuf.Dma of {self.nbytes} bytes for {self.device}, {state}>"


def dma(array: Any, device: str = "cuda", writable: bool = False) -> Dma:
    """Returns the device address of an array that lies in shared memory of any library: zenoh,
    dora, PyTorch, ``multiprocessing``. The first call for a file registers all of it; later calls
    find the registration. Nothing is copied.

    Args:
        array: an object with ``__array_interface__``, ``__dlpack__`` or the buffer protocol.
        device: the name of a device: ``cuda``, ``cuda:1``, or ``mlock`` to lock the pages only.
        writable: also let the device write to the array.

    If the array cannot be accessed directly (it is not in shared memory, or there is no GPU), the
    result's :attr:`~Dma.direct` is false, and :attr:`~Dma.why` says why. The program then copies.

    >>> import hostbuf
    >>> from multiprocessing.shared_memory import SharedMemory
    >>> shared = SharedMemory(create=True, size=8192)
    >>> shared.buf[:5] = b"frame"
    >>> with hostbuf.dma(shared.buf, "mlock") as frame:
    ...     frame.direct, frame.nbytes
    (True, 8192)
    >>> hostbuf.dma(bytearray(8), "mlock").direct
    False
    >>> shared.close(); shared.unlink()

    Raises:
        TypeError: the object is no array.
        ValueError: the array has no bytes, is not contiguous, or may only be read and ``writable``
            is true.
        InvalidError: the name of the device is invalid, or the array lies in memory of a GPU, where
            it has an address already (:meth:`Pool.gpu_producer` shares memory of a GPU).
    """
    memory = memory_of(array)
    if writable and memory.readonly:
        raise ValueError("the array may only be read, and the device would write to it")
    return Dma(memory, device, writable)
