"""The memory of an array, by the protocols with which libraries pass arrays to each other."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

from . import _hostbuf
from ._error import InvalidError

_ORDER = "<" if sys.byteorder == "little" else ">"
# kDLCPU, and kDLCUDAHost for page-locked memory.
_HOST_DEVICES = (1, 3)
# The kinds of kDLInt, kDLUInt, kDLFloat, kDLComplex and kDLBool. The array interface has no name
# for other types, such as bfloat16.
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_FORMAT_KINDS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("efd", "f")}


class ArrayMemory(NamedTuple):
    """The memory and the layout of an array."""

    start: int
    """The address of the lowest byte."""
    nbytes: int
    """The number of bytes from the lowest to the highest byte."""
    first: int
    """The offset of the first element from the lowest byte."""
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """The distances of elements in bytes, or None for an array in C order."""
    typestr: str | None
    """The type of the elements, as in the array interface, or None if that has no name for it."""
    readonly: bool
    owner: Any
    """The object that keeps the memory alive and in its place."""


class _DLTensor(ctypes.Structure):
    """The description of a tensor, as dlpack.h declares it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    """A tensor of version 1 of the protocol. One of version 0 begins with its DLTensor."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_READ_ONLY = 1
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def memory_of(array: Any) -> ArrayMemory:
    """Returns the memory of an array, by ``__array_interface__``, ``__dlpack__``, or the buffer
    protocol.

    Raises:
        TypeError: the object has none of these protocols.
        ValueError: the array has no bytes.
        InvalidError: the array lies in memory of a device.
    """
    memory = host_memory(array)
    if not memory.nbytes:
        raise ValueError("the array has no bytes")
    return memory


def host_memory(array: Any) -> ArrayMemory:
    """Returns the memory of an array as :func:`memory_of`, also of one without bytes."""
    if isinstance(getattr(array, "__array_interface__", None), dict):
        memory = _of_interface(array)
    elif hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        memory = _of_dlpack(array)
    elif hasattr(array, "__cuda_array_interface__"):
        raise _on_device("__cuda_array_interface__")
    else:
        memory = _of_buffer(array)
    return memory


def _on_device(what: str) -> InvalidError:
    return InvalidError(
        f"the array lies in memory of a device already ({what}), where it has an address: use that in this process, and "
        "Pool.gpu_producer() to share memory of a GPU with others",
        "Invalid",
    )


def _layout(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int
) -> tuple[int, int, int, tuple[int, ...] | None]:
    """Returns the start, the number of bytes, the offset of the first element, and the strides,
    which are None for an array in C order."""
    if 0 in shape:
        return address, 0, 0, None
    ordered, distance = [], itemsize
    for count in reversed(shape):
        ordered.append(distance)
        distance *= count
    in_order = tuple(reversed(ordered))
    if strides is None or all(count == 1 or one == two for count, one, two in zip(shape, strides, in_order)):
        return address, distance, 0, None
    spans = [(count - 1) * stride for count, stride in zip(shape, strides)]
    below = -sum(span for span in spans if span < 0)
    above = sum(span for span in spans if span > 0)
    return address - below, below + above + itemsize, below, strides


def _of_interface(array: Any) -> ArrayMemory:
    return of_description(array, array.__array_interface__)


def of_description(array: Any, described: dict[str, Any]) -> ArrayMemory:
    """Returns the memory that an array interface describes, on any device."""
    data = described.get("data")
    if not isinstance(data, tuple):
        return _of_buffer(array)
    address, readonly = data
    shape, strides, typestr = tuple(described["shape"]), described.get("strides"), described["typestr"]
    units = 4 if typestr[1] == "U" else 1
    # Types of times state their unit too: <M8[ns].
    itemsize = int(typestr[2:].partition("[")[0]) * units
    start, nbytes, first, strides = _layout(address, shape, strides, itemsize)
    return ArrayMemory(start, nbytes, first, shape, strides, typestr, bool(readonly), array)


def _of_dlpack(array: Any) -> ArrayMemory:
    device, number = array.__dlpack_device__()
    if device not in _HOST_DEVICES:
        raise _on_device(f"DLPack device {int(device)}, number {number}")
    return of_capsule(array)


def of_capsule(array: Any, **options: Any) -> ArrayMemory:
    """Returns the memory of an array by ``__dlpack__``, on any device."""
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # version 0 of the protocol
        capsule = array.__dlpack__(**options)
    # Version 0 cannot say that an array is read-only. The kernel still refuses to adopt a read-only
    # mapping for writing.
    readonly = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        pointer = _capsule_pointer(capsule, b"dltensor_versioned")
        managed = ctypes.cast(pointer, ctypes.POINTER(_DLManagedTensorVersioned)).contents
        if managed.major != 1:
            raise ValueError(f"the array uses version {managed.major} of DLPack: expected 0 or 1")
        tensor, readonly = managed.dl_tensor, bool(managed.flags & _READ_ONLY)
    else:
        pointer = _capsule_pointer(capsule, b"dltensor")
        tensor = ctypes.cast(pointer, ctypes.POINTER(_DLTensor)).contents
    itemsize = (tensor.bits * tensor.lanes + 7) // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(stride * itemsize for stride in tensor.strides[: tensor.ndim]) if tensor.strides else None
    kind = _DLPACK_KINDS.get(tensor.code) if tensor.lanes == 1 else None
    typestr = kind and f"{'|' if itemsize == 1 else _ORDER}{kind}{itemsize}"
    address = (tensor.data or 0) + tensor.byte_offset
    start, nbytes, first, strides = _layout(address, shape, strides, itemsize)
    return ArrayMemory(start, nbytes, first, shape, strides, typestr, readonly, (array, capsule))


def _of_buffer(array: Any) -> ArrayMemory:
    # The view keeps the memory in its place.
    view = memoryview(array)
    start, nbytes = _hostbuf.span_of(view)
    kind = _FORMAT_KINDS.get(view.format.lstrip("@=<>!")) if view.format else "u"
    swapped = bool(view.format) and view.format[0] in ("<>!".replace(_ORDER, ""))
    order = "|" if view.itemsize == 1 else _ORDER
    typestr = f"{order}{kind}{view.itemsize}" if kind and not swapped else None
    strides = None if view.c_contiguous else view.strides
    return ArrayMemory(start, nbytes, 0, tuple(view.shape or ()), strides, typestr, view.readonly, view)
