"""Devices, registrations, and the cache of them."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, NamedTuple

from . import _hostbuf
from ._buffer import Buffer, _open


class Key(NamedTuple):
    """What requests about registered memory are made with."""

    device_address: int
    """CUDA: where the GPU sees the first byte; else 0."""
    local_key: int
    """RDMA: for requests of this process; else 0."""
    remote_key: int
    """RDMA: for peers; else 0."""


class Device:
    """A device that memory is registered with: ``mlock`` (page-locking), ``cuda``, ``cuda:1``,
    ``rdma``, ``rdma:mlx5_0``.

    >>> import hostbuf
    >>> hostbuf.Device("mlock").name
    'mlock'

    Raises:
        UnsupportedError: there is none here.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, name: str) -> None:
        self._native = _hostbuf.Device(name)

    @property
    def name(self) -> str:
        """For messages: ``cuda 0``."""
        return self._native.name

    def __repr__(self) -> str:
        return f"<hostbuf.Device {self.name}>"

    @staticmethod
    def probe(name: str) -> tuple[bool, str]:
        """Whether such a device can be used here, and with what or why not. It is not opened.

        >>> import hostbuf
        >>> hostbuf.Device.probe("mlock")[0]
        True
        """
        return _hostbuf.probe(name)


_devices: weakref.WeakValueDictionary[str, Device] = weakref.WeakValueDictionary()


def _device(which: Device | str) -> Device:
    """The one of that name: opened once, and kept by those who use it."""
    if isinstance(which, Device):
        return which
    device = _devices.get(which)
    if device is None:
        device = _devices[which] = Device(which)
    return device


class _Held:
    """Something of a device, until it is closed."""

    __slots__ = ("_device", "_memory", "_native", "_writable")

    _native: _hostbuf.Registration | _hostbuf.Lease

    def __init__(self, native: _hostbuf.Registration | _hostbuf.Lease, device: Device, memory: Any, writable: bool) -> None:
        self._native = native
        self._device = device
        self._memory = memory
        self._writable = writable

    @property
    def key(self) -> Key:
        """What requests are made with.

        Raises:
            ValueError: it is closed.
        """
        key = self._native.key()
        if key is None:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        return Key(*key)

    def close(self) -> None:
        """Ends it. Again: nothing."""
        self._native.close()
        self._memory = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The registered bytes where the GPU sees them, for CuPy and others: a view without a copy.
        It is good until this is closed."""
        address = self.key.device_address
        if not address:
            # As any object without it.
            raise AttributeError(f"{self._device.name} is no GPU")
        _, length = _hostbuf.span_of(self._memory)
        return {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, not self._writable),
            "strides": None,
            "stream": None,
        }


class Registration(_Held):
    """Proof that a device knows a part of a buffer, of :func:`register`. It ends with its ``with``
    block, or with the object."""

    __slots__ = ()

    def __enter__(self) -> Registration:
        return self


class Lease(_Held):
    """A hold on a registration of a cache, and on the memory. It ends with its ``with`` block, or
    with the object."""

    __slots__ = ()

    def __enter__(self) -> Lease:
        return self


def register(memory: Any, device: Device | str = "mlock", access: str = "read") -> Registration:
    """Registers a buffer, or a part of one: anything that lies in it and has the buffer protocol,
    such as a numpy array.

    Args:
        memory: a :class:`Buffer`, or an array or a view in one that is not closed. device: one, or
        its name. access: what the device may do: ``read``, ``write``, ``remote_read``,
        ``remote_write``, ``remote_atomic``, several with
            ``|`` between. A registration by which a device could write makes freezing fail.

    >>> import hostbuf
    >>> with hostbuf.allocate(None, 1 << 16) as buffer, hostbuf.register(buffer, "mlock") as pinned:
    ...     pinned.key
    Key(device_address=0, local_key=0, remote_key=0)

    Raises:
        ValueError: it lies in no buffer; a :class:`Cache` registers memory of any kind.
        UnsupportedError: there is no such device.
        Error: the device refuses.
    """
    start, length = _hostbuf.span_of(memory)
    candidates = [memory] if isinstance(memory, Buffer) else list(_open)
    for buffer in candidates:
        offset = start - buffer.address
        if 0 <= offset and offset + length <= buffer.size:
            opened = _device(device)
            native = _hostbuf.Registration(buffer._handle, opened._native, offset, length, access)
            return Registration(native, opened, memory, _writes(access))
    raise ValueError(f"{length} bytes at {start:#x} lie in no open buffer; hostbuf.Cache registers memory of any kind")


def _held(memory: Any) -> Any:
    """A view, which keeps an object's memory where it is: a bytearray could move else. A buffer
    stays, and is not written by this."""
    if isinstance(memory, Buffer):
        return memory
    try:
        return memoryview(memory)
    except (BufferError, TypeError, ValueError):  # of a type that it has no name for: numpy's dates
        return memory


def _writes(access: str) -> bool:
    return "write" in access or "atomic" in access


class Cache:
    """A registration cache: memory that is sent again and again is registered once, within a hard
    limit.

    It hears of memory that is freed or changed from the kernel (``strict``) or from the program
    (``explicit``, by :meth:`invalidate`). What is not given is as ``HOSTBUF_CACHE_REGIONS``,
    ``HOSTBUF_CACHE_BYTES`` and ``HOSTBUF_CACHE_MONITOR`` say, or as by default.

    >>> import hostbuf
    >>> message = bytearray(8192)
    >>> with hostbuf.Cache("mlock", regions=16, bytes=1 << 20) as cache:
    ...     for _ in range(3):
    ...         with cache.get(message) as lease:
    ...             pass    # send it, by lease.key
    ...     stats = cache.stats()
    >>> stats["hits"] + stats["misses"] + stats["coalesced"]
    3
    """

    __slots__ = ("_device", "_native")

    def __init__(
        self, device: Device | str, regions: int | None = None, bytes: int | None = None, monitor: str | None = None
    ) -> None:
        self._device = _device(device)
        self._native = _hostbuf.Cache(self._device._native, regions, bytes, monitor)

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def get(self, memory: Any, access: str = "read") -> Lease:
        """A hold on a registration of an object's bytes, made now if there is none.

        Raises:
            Error: the limit is reached by leases that are held, or the device refuses.
        """
        # Held first: so it stays where it is.
        held = _held(memory)
        start, length = _hostbuf.span_of(held)
        return Lease(self._native.get(start, length, access), self._device, held, _writes(access))

    def invalidate(self, memory: Any) -> None:
        """The memory has changed or is about to: no lease taken afterwards is of a registration
        made before."""
        self._native.invalidate(*_hostbuf.span_of(memory))

    def flush(self) -> None:
        """Invalidates everything."""
        self._native.flush()

    def stats(self) -> dict[str, int]:
        """What it has done so far: hits, misses, evictions, and more, with the registrations and
        bytes that it has now."""
        return dict(self._native.stats())

    def close(self) -> None:
        """Ends it; its registrations go when the last lease does. Again: nothing."""
        self._native.close()
