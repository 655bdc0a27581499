"""The memory of an array as the target or the source of a transfer."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _hostbuf
from ._array_memory import ArrayMemory, host_memory, of_capsule, of_description
from ._error import InvalidError, UnsupportedError
from ._streams import LEGACY

# kDLCUDA, and kDLCUDAManaged for memory that host and GPU share.
_GPU_DEVICES = (2, 13)
# The packages of JAX's arrays, which DLPack does not call read-only.
_IMMUTABLE = ("jax", "jaxlib")


class TransferMemory(NamedTuple):
    """The fields of an array that the native part takes."""

    owner: Any
    """The object that keeps the memory alive and in its place."""
    address: int
    """The address of the first byte."""
    nbytes: int
    """The number of bytes."""
    gpu: int | None
    """The number of the GPU that has the memory, or None for memory of the host."""
    stream: int | None
    """The stream whose work on the memory comes before the transfer, or None."""


def transfer_memory(array: Any, size: int | None, writable: bool, order: int | None = None) -> TransferMemory:
    """Returns the memory of the first ``size`` bytes of an array, or of all of it. ``order`` is the
    handle of the stream in whose order the transfer takes place, if there is one.

    Raises:
        TypeError: the object has no protocol of arrays.
        InvalidError: the array is not contiguous, is read-only but has to be written, or is shorter
            than ``size``.
    """
    if writable and type(array).__module__.partition(".")[0] in _IMMUTABLE:
        raise InvalidError("the array is one of JAX, which are immutable: read the file into an array of numpy or PyTorch", "Invalid")
    memory, gpu, stream = _described(array, order)
    if not _is_dense(memory):
        raise InvalidError(
            f"the array of shape {memory.shape} and strides {memory.strides} is not contiguous: use a contiguous copy, "
            "as from numpy.ascontiguousarray() or tensor.contiguous()",
            "Invalid",
        )
    if writable and memory.readonly:
        raise InvalidError("the array is read-only: read the file into a writable one", "Invalid")
    if size is None:
        size = memory.nbytes
    elif not 0 <= size <= memory.nbytes:
        raise InvalidError(f"invalid size {size}: the array has {memory.nbytes} bytes", "Invalid")
    return TransferMemory(memory.owner, memory.start, size, gpu, stream)


def _described(array: Any, order: int | None) -> tuple[ArrayMemory, int | None, int | None]:
    if isinstance(getattr(array, "__array_interface__", None), dict):
        return host_memory(array), None, None
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        kind, number = array.__dlpack_device__()
        if kind in _GPU_DEVICES:
            # The library lets this stream wait for its own work on the array. It must not be the
            # stream in which the ring copies: the work may wait for a transfer of the ring.
            stream = _array_stream(number) if order is None else order
            return of_capsule(array, stream=stream or LEGACY), number, stream
        return host_memory(array), None, None
    described = getattr(array, "__cuda_array_interface__", None)
    if described is not None:
        memory = of_description(array, described)
        return memory, _gpu_of(array), described.get("stream")
    return host_memory(array), None, None


def _array_stream(gpu: int) -> int:
    if not hasattr(_hostbuf, "array_stream"):
        raise UnsupportedError("this build of hostbuf has no support for CUDA", "Unsupported")
    return _hostbuf.array_stream(gpu)


def _gpu_of(array: Any) -> int:
    """Returns the number of the GPU of an array that describes itself by the CUDA array interface,
    which does not state it."""
    device = getattr(array, "device", 0)
    number = getattr(device, "id", device)
    return number if isinstance(number, int) else 0


def _is_dense(memory: ArrayMemory) -> bool:
    """Returns whether the elements are all bytes from the lowest to the highest, in any order of
    the dimensions."""
    if memory.strides is None:
        return True
    if memory.first:
        return False
    dimensions = sorted((stride, count) for stride, count in zip(memory.strides, memory.shape) if count > 1)
    expected = memory.nbytes - sum((count - 1) * stride for stride, count in dimensions)
    for stride, count in dimensions:
        if stride != expected:
            return False
        expected *= count
    return True
