"""Devices, registrations, and the registration cache."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, NamedTuple

from . import _hostbuf
from ._buffer import Buffer, _open


class Key(NamedTuple):
    """The key of registered memory, for requests to the device."""

    device_address: int
    """The GPU's address of the first byte (CUDA); otherwise 0."""
    local_key: int
    """The lkey, for requests of this process (RDMA); otherwise 0."""
    remote_key: int
    """The rkey, for requests of peers (RDMA); otherwise 0."""


class Device:
    """A device for the registration of memory: ``mlock`` (page-locking), ``cuda``, ``cuda:1``,
    ``rdma``, ``rdma:mlx5_0``.

    >>> import hostbuf
    >>> hostbuf.Device("mlock").name
    'mlock'

    Raises:
        UnsupportedError: this host has no such device.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, name: str) -> None:
        self._native = _hostbuf.Device(name)

    @property
    def name(self) -> str:
        """Returns the name for messages, such as ``cuda 0``."""
        return self._native.name

    def __repr__(self) -> str:
        return f"<hostbuf.Device {self.name}>"

    @staticmethod
    def probe(name: str) -> tuple[bool, str]:
        """Checks whether this process can use the device, without opening it. Returns the result
        and the description of the device or the reason.

        >>> import hostbuf
        >>> hostbuf.Device.probe("mlock")[0]
        True
        """
        return _hostbuf.probe(name)


_devices: weakref.WeakValueDictionary[str, Device] = weakref.WeakValueDictionary()


def _device(which: Device | str) -> Device:
    """Returns the device with that name. It is opened once and shared by its users."""
    if isinstance(which, Device):
        return which
    device = _devices.get(which)
    if device is None:
        device = _devices[which] = Device(which)
    return device


class _Held:
    """A registration or a lease, until it is closed."""

    __slots__ = ("_device", "_memory", "_native", "_writable")

    _native: _hostbuf.Registration | _hostbuf.Lease

    def __init__(self, native: _hostbuf.Registration | _hostbuf.Lease, device: Device, memory: Any, writable: bool) -> None:
        self._native = native
        self._device = device
        self._memory = memory
        self._writable = writable

    @property
    def key(self) -> Key:
        """Returns the key for requests to the device.

        Raises:
            ValueError: the registration or lease is closed.
        """
        key = self._native.key()
        if key is None:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        return Key(*key)

    def close(self) -> None:
        """Ends the registration or lease. Closing it again does nothing."""
        self._native.close()
        self._memory = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Returns the registered bytes at the GPU's address, for CuPy and other libraries: a view
        without a copy. It is valid until this is closed."""
        address = self.key.device_address
        if not address:
            # Libraries expect AttributeError from objects without the interface.
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
    """A registration of a part of a buffer with a device, from :func:`register`. It ends with its
    ``with`` block, or with the object."""

    __slots__ = ()

    def __enter__(self) -> Registration:
        return self


class Lease(_Held):
    """A lease of a registration in a cache, which also keeps the memory alive. It ends with its
    ``with`` block, or with the object."""

    __slots__ = ()

    def __enter__(self) -> Lease:
        return self


def register(memory: Any, device: Device | str = "mlock", access: str = "read") -> Registration:
    """Registers a buffer or a part of one: any object in it with the buffer protocol, such as a
    numpy array.

    Args:
        memory: a :class:`Buffer`, or an array or a view in one that is not closed.
        device: a :class:`Device`, or its name.
        access: ``read``, ``write``, ``remote_read``, ``remote_write`` or ``remote_atomic``, or
            several of them separated by ``|``. Freezing fails while a device has write access.

    >>> import hostbuf
    >>> with hostbuf.allocate(None, 1 << 16) as buffer, hostbuf.register(buffer, "mlock") as pinned:
    ...     pinned.key
    Key(device_address=0, local_key=0, remote_key=0)

    Raises:
        ValueError: the memory lies in no buffer; a :class:`Cache` registers memory of any kind.
        UnsupportedError: this host has no such device.
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
    """Returns a view, which prevents an object such as a bytearray from moving its memory. A buffer
    does not move, so it is returned itself and counts no writable view."""
    if isinstance(memory, Buffer):
        return memory
    try:
        return memoryview(memory)
    except (BufferError, TypeError, ValueError):  # a type without a format code, such as numpy's dates
        return memory


def _writes(access: str) -> bool:
    return "write" in access or "atomic" in access


class Cache:
    """A registration cache, which registers memory once for many transfers, within a hard limit.

    The kernel (``strict``) or the program (``explicit``, by :meth:`invalidate`) reports changed
    mappings to it. ``required`` is ``strict``, but an error where the kernel cannot report
    (:meth:`probe_monitor`). The defaults of the arguments are the values of
    ``HOSTBUF_CACHE_REGISTRATIONS``, ``HOSTBUF_CACHE_BYTES`` and ``HOSTBUF_CACHE_MONITOR``.

    >>> import hostbuf
    >>> message = bytearray(8192)
    >>> with hostbuf.Cache("mlock", registrations=16, bytes=1 << 20) as cache:
    ...     for _ in range(3):
    ...         with cache.get(message) as lease:
    ...             pass    # send it, by lease.key
    ...     stats = cache.stats()
    >>> stats["hits"] + stats["misses"] + stats["coalesced"]
    3
    """

    __slots__ = ("_device", "_native")

    def __init__(
        self,
        device: Device | str,
        registrations: int | None = None,
        bytes: int | None = None,
        monitor: str | None = None,
    ) -> None:
        self._device = _device(device)
        self._native = _hostbuf.Cache(self._device._native, registrations, bytes, monitor)

    @staticmethod
    def probe_monitor() -> tuple[bool, str]:
        """Returns whether the kernel can report changed mappings to caches of this process, and a
        text for the user: the properties of the monitor, or the reason why there is none.

        >>> import hostbuf
        >>> works, text = hostbuf.Cache.probe_monitor()
        """
        return _hostbuf.monitor()

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def get(self, memory: Any, access: str = "read") -> Lease:
        """Returns a lease of a registration of an object's bytes. It registers them if the cache
        has no such registration.

        Raises:
            Error: the open leases exhaust the limit, or the device refuses.
        """
        # The view comes first, so that the memory does not move.
        held = _held(memory)
        start, length = _hostbuf.span_of(held)
        return Lease(self._native.get(start, length, access), self._device, held, _writes(access))

    def invalidate(self, memory: Any) -> None:
        """Ends the registrations of memory whose mapping has changed or will change. A later lease
        never uses a registration from before."""
        self._native.invalidate(*_hostbuf.span_of(memory))

    def flush(self) -> None:
        """Ends all registrations."""
        self._native.flush()

    def stats(self) -> dict[str, int]:
        """Returns the statistics: hits, misses, evictions and more, with the current registrations
        and bytes."""
        return dict(self._native.stats())

    def close(self) -> None:
        """Closes the cache. Its registrations end with the last lease. Closing it again does
        nothing."""
        self._native.close()
