"""GPU sections of buffers."""

from __future__ import annotations

from typing import Any

from . import _hostbuf
from ._proof import Proof


class GpuSection:
    """A section of a buffer on one or several GPUs, from :meth:`Buffer.gpu_section`. It has one
    address in all ranks of all hosts that use GPUs, so pointers in it are valid in all of them. All
    GPUs that the process sees have access to it; the CPU has none. Its contents are undefined at
    first.

    It supports the CUDA array interface as an array of ``uint8`` (``cupy.asarray(section)``),
    without a copy. It stays mapped until the process ends.
    """

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, handle: _hostbuf.GpuSectionHandle) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        frozen = ", frozen" if self.frozen else ""
        return f'<hostbuf.GpuSection "{self.name}": {self.nbytes} bytes at {self.address:#x}{frozen}>'

    @property
    def name(self) -> str:
        """Returns the name."""
        return self._handle.name()

    @property
    def address(self) -> int:
        """Returns the address of the first byte on the GPUs, the same in every rank of every host
        that uses GPUs."""
        return self._handle.address()

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes: the requested size, rounded up to a multiple of 2 MiB, and
        at least 2 MiB for each entry of ``gpu=``."""
        return self._handle.size()

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Returns the pieces, in the order of their addresses: the number of the GPU on
        the host, in the order of the PCI addresses, and the number of bytes."""
        return self._handle.pieces()

    @property
    def frozen(self) -> bool:
        """Returns whether the section has been frozen on this host."""
        return self._handle.frozen()

    def freeze(self, comm: Any) -> Proof:
        """Makes the section permanently read-only, for all GPUs of all ranks of ``comm``. A kernel
        that writes to it afterwards fails, which breaks the context of its process. Finish all work
        that writes to it first. Collective over all ranks that use GPUs.

        The proof is never sealed, since GPU memory cannot be sealed.

        Raises:
            UnsupportedError: in all ranks, if a driver refuses it. A section that was writable
                stays writable.
        """
        why = self._handle.freeze(comm)
        return Proof(why is None, why)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the bytes for CuPy, Numba, PyTorch and other libraries, without a copy. The
        array is read-only if the section is frozen, and PyTorch rejects it then."""
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (self.address, self.frozen),
            # The ranks agree by other means on when the contents are complete.
            "stream": None,
        }
