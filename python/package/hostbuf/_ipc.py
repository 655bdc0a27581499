"""Memory of a GPU that other programs export by the legacy handles of CUDA."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import Any

from . import _hostbuf
from ._error import InvalidError
from ._gpu import check_support


class CudaIpcMemory:
    """Memory of a GPU that another program has allocated, from :func:`open_cuda_ipc`, until it is
    closed. It has the CUDA array interface, as an array of ``uint8``."""

    __slots__ = ("__weakref__", "_native", "device", "nbytes")

    device: int
    """The number of the GPU in this process."""
    nbytes: int
    """The number of bytes of the array."""

    def __init__(self, native: _hostbuf.IpcMemoryHandle, device: int, nbytes: int) -> None:
        self._native = native
        self.device = device
        self.nbytes = nbytes

    def __enter__(self) -> CudaIpcMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<hostbuf.CudaIpcMemory of {self.nbytes} bytes on GPU {self.device}{state}>"

    @property
    def closed(self) -> bool:
        """Returns true after :meth:`close`."""
        return self._native.address() is None

    @property
    def address(self) -> int:
        """Returns the GPU's address of the first byte, for this process.

        Raises:
            ValueError: the memory is closed.
        """
        address = self._native.address()
        if address is None:
            raise ValueError("the memory is closed")
        return address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the bytes for CuPy, Numba, PyTorch and other libraries, without a copy. An array
        keeps this object, and is valid until :meth:`close`."""
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (self.address, False),
            # The programs agree by other means on when the content is complete.
            "stream": None,
        }

    def close(self) -> None:
        """Closes the memory, before the program that has made it frees it. All work that uses it
        has ended. Closing it again does nothing."""
        self._native.close()


def open_cuda_ipc(handle: Any, length: int | None = None, gpu: int = 0) -> CudaIpcMemory:
    """Opens memory of a GPU that another program of the host exports by a legacy handle of CUDA.
    hostbuf makes no such handles: :meth:`Pool.gpu_producer` shares memory without their limits.

    Args:
        handle: the 64 bytes of ``cudaIpcGetMemHandle``. A process opens a handle once at a time,
            and none of its own.
        length: the number of bytes to use, or ``None`` for the whole allocation.
        gpu: the number of the GPU in this process.

    Raises:
        GpuError: there is no driver or no such GPU, or the driver refuses the handle.
        InvalidError: the handle does not have 64 bytes, or the allocation is shorter than
            ``length``.
    """
    check_support()
    number = operator.index(gpu)
    if not 0 <= number < 1 << 31:
        raise InvalidError(f"invalid gpu {number}: expected the number of a GPU", "Invalid")
    native = _hostbuf.open_ipc_memory(bytes(handle), number)
    size = native.size()
    wanted = size if length is None else operator.index(length)
    if not 0 < wanted <= size:
        native.close()
        raise InvalidError(f"invalid length {wanted}: the allocation has {size} bytes", "Invalid")
    return CudaIpcMemory(native, number, wanted)
