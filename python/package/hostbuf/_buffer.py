"""Buffers."""

from __future__ import annotations

import gc
import math
import operator
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _hostbuf, _object

if TYPE_CHECKING:
    import numpy as np

_open: weakref.WeakSet[Buffer] = weakref.WeakSet()


class Info(NamedTuple):
    """What is known of a buffer; sizes in bytes."""

    name: str
    address: int
    """The same in every rank of every host."""
    size: int
    pages: str
    """What was obtained on this host: ``4k``, ``thp``, ``2m`` or ``1g``."""
    huge_bytes: int
    """How many stand on huge pages."""
    state: str
    """``empty``, ``filling``, ``filled`` or ``frozen``."""
    generation: int
    """How many times filling has begun on this host."""
    used: int
    """Bytes from the beginning that the arena has given out."""
    host: int
    """Which host of the job this is, and of how many: 0 of 0 where the hosts do not know each
    other."""
    hosts: int


class Proof(NamedTuple):
    """How sure it is that nobody on this host can write into a frozen buffer."""

    sealed: bool
    """The kernel is the proof: it seals memory only while no writable mapping of it exists
    anywhere."""
    why: str | None
    """Who may still have a writable mapping from before, where it is not."""


class Arena:
    """The buffer's memory while it is being filled: for the function that fills, until it
    returns."""

    __slots__ = ("_handle", "_native", "_taken")

    def __init__(self, native: _hostbuf.Arena, handle: _hostbuf.Handle) -> None:
        self._native = native
        self._handle = handle
        self._taken: list[tuple[int, int]] = []

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return self._native.left()

    def array(self, shape: int | tuple[int, ...], dtype: Any = "f8", order: Any = "C") -> np.ndarray[Any, Any]:
        """A numpy array of zeros in the buffer.

        What returns it, or an object that has it, shares it: nothing is copied. ``dtype`` may be
        anything of a fixed size, but no Python objects.

        Raises:
            FullError: the arena has no room for it.
        """
        kind, shape, size = _shaped(shape, dtype)
        at = self._native.take(size, max(64, kind.alignment))
        self._taken.append((at, size))
        return _viewed(_hostbuf.Memory(self._handle, False), shape, kind, at - self._handle.address(), order)


class Buffer(_hostbuf.Memory):
    """A host's shared memory, at one address in every rank of every host: of :func:`attach` or
    :func:`allocate`.

    It has the buffer protocol, ``memoryview(buffer)``, ``numpy.frombuffer(buffer)``: views without
    a copy, read-only once it is frozen. Leaving its ``with`` block closes it: its memory stays
    mapped for as long as there is this object, a view, or a registration.
    """

    __slots__ = ("__weakref__", "_handle")

    _handle: _hostbuf.Handle

    def __new__(cls, handle: _hostbuf.Handle) -> Buffer:
        self = super().__new__(cls, handle, False)
        self._handle = handle
        _open.add(self)
        return self

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends its use; no more views are made. Those that there are stay good, and the memory goes
        with the last of them and this object. Again: nothing."""
        _open.discard(self)
        self._handle.close()
        _hostbuf.close(self)

    def __repr__(self) -> str:
        if self.closed:
            return "<hostbuf.Buffer, closed>"
        info = self.stat()
        return f'<hostbuf.Buffer "{info.name}": {info.size} bytes at {info.address:#x}, {info.state}>'

    def __len__(self) -> int:
        return self.size

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return self._handle.closed

    @property
    def name(self) -> str:
        """``default`` unless another was given."""
        return self.stat().name

    @property
    def address(self) -> int:
        """Of the first byte, the same in every rank of every host."""
        return self._handle.address()

    @property
    def size(self) -> int:
        """Bytes that can be used."""
        return self._handle.size()

    @property
    def frozen(self) -> bool:
        """Whether it is read-only for good."""
        return self._handle.frozen()

    def stat(self) -> Info:
        """What is known of it.

        >>> import hostbuf
        >>> with hostbuf.allocate(None, 4096, name="small", pages="4k") as buffer:
        ...     info = buffer.stat()
        >>> info.name, info.size, info.pages, info.state, info.used
        ('small', 4096, '4k', 'empty', 0)
        """
        return Info(*self._handle.info())

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """All of it as bytes, for libraries that take numpy's array interface."""
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, self.frozen)}

    def array(
        self, shape: int | tuple[int, ...] | None = None, dtype: Any = "u1", offset: int = 0, order: Any = "C"
    ) -> np.ndarray[Any, Any]:
        """A part of it as a numpy array, without a copy: all from ``offset`` (bytes) on without a
        shape.

        It can be written through until the buffer is frozen; freezing is refused while such an
        array exists.

        >>> import hostbuf
        >>> with hostbuf.allocate(None, 1 << 16) as buffer:
        ...     buffer.array((2, 3), "i4")[1] = 7
        ...     print(buffer.array(6, "i4"))
        [0 0 0 7 7 7]

        Raises:
            ValueError: it would not lie inside.
        """
        if not 0 <= offset <= self.size:
            raise ValueError(f"offset = {offset} in a buffer of {self.size} bytes")
        if shape is None:
            import numpy as np

            shape = (self.size - offset) // max(1, np.dtype(dtype).itemsize)
        kind, shape, size = _shaped(shape, dtype)
        if size > self.size - offset:
            raise ValueError(f"{size} bytes from {offset} in a buffer of {self.size} bytes")
        return _viewed(self, shape, kind, offset, order)

    def initialize(self, fill: Callable[[Arena], Any]) -> Any:
        """Fills it by ``fill(arena)`` in one rank of this host, whichever comes first; the others
        wait. All get what it returned.

        Any object that pickle can write may be returned, of whichever depth: arrays in it (numpy's,
        pandas', and all others that know pickle's protocol 5) are shared by all ranks of the host
        and read-only. Those that ``arena.array`` gave are not copied; others are copied into the
        buffer, once. Names and numbers are private to each rank. A :class:`CopyWarning` names every
        other object of which each rank has a copy: arrays of Python objects, and objects that copy
        their arrays.

        When the process dies that fills, one of those who wait takes over, so ``fill`` may run in
        several processes one after another. What it raises is raised in the rank that ran it.

        >>> import numpy as np, hostbuf
        >>> with hostbuf.allocate(None, 1 << 16) as buffer:
        ...     primes = buffer.initialize(lambda arena: np.array([2, 3, 5, 7, 11]))
        >>> primes.flags.writeable, int(primes.sum())
        (False, 28)
        """
        return self._filled(fill, lambda native: _hostbuf.initialize(self._handle, native))

    def initialize_job(self, fill: Callable[[Arena], Any], comm: Any) -> Any:
        """The same in rank 0 of ``comm``, and then to all its hosts: one build for the whole job.
        Collective.

        Raises:
            Error: in all ranks, what went wrong in one; it is filled already: :meth:`root` gives
            what fills it.
        """
        return self._filled(fill, lambda native: _hostbuf.initialize_job(self._handle, comm, native))

    def _filled(self, fill: Callable[[Arena], Any], run: Callable[[Callable[[_hostbuf.Arena], int]], int]) -> Any:
        handle = self._handle
        written: list[tuple[int, Any]] = []

        def native(arena: _hostbuf.Arena) -> int:
            given = Arena(arena, handle)
            written[:] = [_object.write(fill(given), arena, handle, given._taken)]
            return written[0][0]

        root = run(native)
        return written[0][1] if written else _object.read(handle, root)

    def root(self) -> Any:
        """What filled it; ``None`` while nothing has.

        Raises:
            Error: it was filled by a program in another language; see :attr:`root_address`.
        """
        at = self.root_address
        return None if at is None else _object.read(self._handle, at)

    @property
    def root_address(self) -> int | None:
        """Where the object lies that filled it, by a program in C, C++, Fortran or Python; ``None``
        while nothing has."""
        return _hostbuf.root(self._handle)

    def replicate(self, comm: Any, root: int = 0) -> None:
        """Sends the filled buffer of rank ``root``'s host to all other hosts of ``comm``, where it
        must be empty. Collective."""
        self._handle.replicate(comm, root)

    def freeze(self, comm: Any) -> Proof:
        """Makes it read-only for good, in all ranks; a stray write ends its process from then on.
        Collective.

        Raises:
            Error: in all ranks, when one still has an array or a view by which it could write: the
            write would end it. Arrays
                that were made by ``numpy.ndarray(..., buffer=buffer)`` or of the array interface
                are not seen, nor are PyTorch's of ``torch.frombuffer(buffer)``.
        """
        if not self.closed and self._handle.writers():
            # What is only waiting for the collector is not in use.
            gc.collect()
        why = self._handle.freeze(comm)
        return Proof(why is None, why)


def _shaped(shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, tuple[int, ...], int]:
    """An array's type, shape and bytes."""
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind}: Python objects cannot be shared between processes")
    # Also numpy's own integers, which would overflow.
    lengths = shape if isinstance(shape, Iterable) else (shape,)
    shape = tuple(operator.index(length) for length in lengths)
    if any(length < 0 for length in shape):
        raise ValueError(f"shape {shape} has a negative length")
    return kind, shape, math.prod(shape) * kind.itemsize


def _viewed(memory: _hostbuf.Memory, shape: tuple[int, ...], kind: Any, offset: int, order: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    # By frombuffer, which holds a view for as long as it lives; an array that is made of an object
    # holds only the object.
    held = np.frombuffer(memoryview(memory), "u1")
    made: np.ndarray[Any, Any] = np.ndarray(shape, kind, buffer=held, offset=offset, order=order)
    return made


def launched() -> bool:
    """Whether ``hostbuf run`` or ``hostbuf exec`` has started this process, so that there is
    something to attach to.

    All ranks of a job have the same answer: who attaches or else allocates decides by this, and not
    by a failure of :func:`attach`, which may be one rank's alone.
    """
    return _hostbuf.launched()


def attach(name: str | None = None) -> Buffer:
    """The buffer that ``hostbuf run`` or ``hostbuf exec`` gave this process; without a name the
    first one.

    Raises:
        AttachError: this process has none.
    """
    return Buffer(_hostbuf.attach(name))


def allocate(
    comm: Any, size: int | str, *, name: str = "default", pages: str = "auto", lazy: bool = False, dump: bool = False
) -> Buffer:
    """Makes a buffer without a launcher, on all hosts of ``comm`` at one address. Collective.

    Args:
        comm: mpi4py's communicator; ``None`` for this process alone. size: the usable size in
        bytes, rounded up to whole pages: a number, or text as for ``hostbuf run --size``
        (``"2G"``). name: at most 31 letters, digits, ``_``, ``-`` and ``.``. pages: ``auto`` (the
        best that is there), ``4k``, ``thp``, ``2m`` or ``1g``. lazy: take pages at the first touch,
        with no check that they are there. dump: let the contents go into core files.

    >>> import hostbuf
    >>> with hostbuf.allocate(None, "1.5M", pages="4k") as buffer:
    ...     len(buffer)
    1572864

    Raises:
        InvalidError: an argument is invalid.
        NoSpaceError: on all ranks, before anything was touched.
        Error: the ranks found no common address, or asked for different things.
    """
    return Buffer(_hostbuf.allocate(comm, size, name, pages, lazy, dump))


def stat() -> list[Info]:
    """The buffers of this process: those of the launcher, and those that were allocated and are not
    closed.

    >>> import hostbuf
    >>> with hostbuf.allocate(None, 1 << 16, name="energies"):
    ...     print([info.name for info in hostbuf.stat()])
    ['energies']
    """
    found = {}
    for handle in [*_hostbuf.given(), *(buffer._handle for buffer in list(_open))]:
        try:
            info = Info(*handle.info())
        except ValueError:
            if handle.closed:  # by another thread, just now
                continue
            raise
        found[info.address] = info
    return [found[address] for address in sorted(found)]
