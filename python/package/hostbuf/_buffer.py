"""Buffers."""

from __future__ import annotations

import gc
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _hostbuf, _object
from ._gpu import check_support
from ._gpu_section import GpuSection
from ._proof import Proof

if TYPE_CHECKING:
    import numpy as np

_open: weakref.WeakSet[Buffer] = weakref.WeakSet()


class Info(NamedTuple):
    """The properties and the state of a buffer. Sizes are in bytes."""

    name: str
    address: int
    """The address of the first byte, the same in every rank of every host."""
    size: int
    pages: str
    """The pages of the buffer on this host: ``4k``, ``thp``, ``2m`` or ``1g``."""
    huge_bytes: int
    """The number of bytes on huge pages."""
    state: str
    """``empty``, ``filling``, ``filled`` or ``frozen``."""
    generation: int
    """The number of times that filling has begun on this host."""
    used: int
    """The number of bytes from the beginning that the arena has allocated."""
    host: int
    """The number of this host in the job, from 0."""
    hosts: int
    """The number of hosts of the job; 0 if the hosts do not know each other."""
    read_node: int | None = None
    """The NUMA node from whose memory this process reads the sections with ``numa="copies"``;
    ``None`` if the buffer has no such section, or if this process has not frozen it."""
    read_is_local: bool = False
    """True if that node had all cores on which this process could run when it froze the buffer."""


class Section(NamedTuple):
    """A section of a new buffer, for :func:`allocate`."""

    size: int | str
    """The usable size in bytes, which is rounded up to whole pages: a number or text (``"4G"``)."""
    numa: int | str | None = None
    """The NUMA nodes of its pages, ``None`` for those of the buffer."""


class NodeBytes(NamedTuple):
    """The bytes of a section on one NUMA node."""

    node: int
    requested: int
    """The number of bytes that the placement requests on the node."""
    obtained: int
    """The number of bytes that were verified to be on the node."""


class SectionInfo(NamedTuple):
    """The properties of a section. Sizes are in bytes."""

    name: str
    """The name, empty for the part of a buffer that is in no section."""
    address: int
    """The address of the first byte, the same in every rank of every host."""
    offset: int
    """The offset from the beginning of the buffer."""
    size: int
    """The usable size: the requested one, rounded up to whole pages."""
    numa: str | None
    """The requested placement."""
    nodes: tuple[NodeBytes, ...]
    """The nodes of its pages, none without a placement."""


class Arena:
    """The memory of a buffer while it is being filled. The fill function may use it until it
    returns."""

    __slots__ = ("_handle", "_native", "_taken")

    def __init__(self, native: _hostbuf.Arena, handle: _hostbuf.Handle) -> None:
        self._native = native
        self._handle = handle
        self._taken: list[tuple[int, int]] = []

    @property
    def left(self) -> int:
        """Returns the number of free bytes."""
        return self._native.left()

    def array(self, shape: int | tuple[int, ...], dtype: Any = "f8", order: Any = "C") -> np.ndarray[Any, Any]:
        """Allocates a numpy array of zeros in the buffer.

        If the fill function returns the array, or an object that contains it, all ranks share it
        without a copy. ``dtype`` may be any type of a fixed size except Python objects.

        Raises:
            FullError: the arena has no room for the array.
        """
        kind, shape, size = _shaped(shape, dtype)
        at = self._native.take(size, max(64, kind.alignment))
        self._taken.append((at, size))
        return _viewed(_hostbuf.Memory(self._handle, False), shape, kind, at - self._handle.address(), order)


class Buffer(_hostbuf.Memory):
    """A host's shared memory, at one address in every rank of every host. :func:`attach` and
    :func:`allocate` return it.

    It supports the buffer protocol: ``memoryview(buffer)`` and ``numpy.frombuffer(buffer)`` are
    views without a copy, which are read-only after the buffer is frozen. Leaving its ``with`` block
    closes it. Its memory stays mapped as long as this object, a view or a registration exists.
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
        """Closes the buffer, so that no more views are made. Existing views stay valid, and the
        memory is unmapped with the last of them and this object. Closing it again does nothing."""
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
        """Returns true after :meth:`close`."""
        return self._handle.closed

    @property
    def name(self) -> str:
        """Returns the name of the buffer, ``default`` unless another name was requested."""
        return self.stat().name

    @property
    def address(self) -> int:
        """Returns the address of the first byte, the same in every rank of every host."""
        return self._handle.address()

    @property
    def size(self) -> int:
        """Returns the usable size in bytes."""
        return self._handle.size()

    @property
    def frozen(self) -> bool:
        """Returns whether the buffer is permanently read-only."""
        return self._handle.frozen()

    def stat(self) -> Info:
        """Returns the properties and the state of the buffer.

        >>> import hostbuf
        >>> with hostbuf.allocate(None, 4096, name="small", pages="4k") as buffer:
        ...     info = buffer.stat()
        >>> info.name, info.size, info.pages, info.state, info.used
        ('small', 4096, '4k', 'empty', 0)
        """
        return Info(*self._handle.info())

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Returns the whole buffer as bytes, for libraries that use numpy's array interface."""
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, self.frozen)}

    @property
    def sections(self) -> tuple[SectionInfo, ...]:
        """Returns the sections of the buffer, from its beginning on. If the buffer has sections or
        a placement, the rest of its memory, if any, is a last section with an empty name.

        >>> import hostbuf
        >>> parts = {"grid": ("64K", 0), "halo": 4096}
        >>> with hostbuf.allocate(None, pages="4k", sections=parts) as buffer:
        ...     for section in buffer.sections:
        ...         print(section.name, section.offset, section.size, section.nodes)
        grid 0 65536 (NodeBytes(node=0, requested=65536, obtained=65536),)
        halo 65536 4096 ()
        """
        start = self.address
        return tuple(
            SectionInfo(name, start + offset, offset, size, numa, tuple(NodeBytes(*node) for node in nodes))
            for name, offset, size, numa, nodes in self._handle.sections()
        )

    def section(self, name: str) -> memoryview:
        """Returns the bytes of a section, without a copy. They have the same address in every rank
        of every host. :meth:`array` returns a section as an array.

        The view is writable until the buffer is frozen. Freezing fails while such a view exists.

        >>> import hostbuf
        >>> with hostbuf.allocate(None, sections={"grid": 4096}) as buffer:
        ...     buffer.section("grid")[:3] = b"abc"
        ...     bytes(buffer.section("grid")[:3])
        b'abc'

        Raises:
            InvalidError: the buffer has no section of this name.
        """
        offset, size = self._handle.section(name)
        return memoryview(self)[offset : offset + size]

    def gpu_section(self, name: str) -> GpuSection:
        """Returns a GPU section, which ``hostbuf run --section name=table,size=4G,gpu=0`` has
        mapped in this process.

        Raises:
            InvalidError: the buffer has no GPU section of this name.
            UnsupportedError: this process did not map it before `main`.
        """
        check_support()
        return GpuSection(_hostbuf.gpu_section(self._handle, name))

    def array(
        self,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = "u1",
        offset: int = 0,
        order: Any = "C",
        section: str | None = None,
    ) -> np.ndarray[Any, Any]:
        """Returns a part of the buffer, or of one of its sections, as a numpy array, without a
        copy. ``offset`` is in bytes. Without a shape, the array extends to the end of the buffer or
        the section.

        The array is writable until the buffer is frozen. Freezing fails while such an array exists.

        >>> import hostbuf
        >>> with hostbuf.allocate(None, 1 << 16) as buffer:
        ...     buffer.array((2, 3), "i4")[1] = 7
        ...     print(buffer.array(6, "i4"))
        [0 0 0 7 7 7]

        Raises:
            ValueError: the array would extend beyond the buffer or the section, or there is no such
                section.
        """
        start, whole = (0, self.size) if section is None else self._handle.section(section)
        part = "buffer" if section is None else f'section "{section}"'
        if not 0 <= offset <= whole:
            raise ValueError(f"invalid offset {offset}: the {part} has {whole} bytes")
        if shape is None:
            import numpy as np

            shape = (whole - offset) // max(1, np.dtype(dtype).itemsize)
        kind, shape, size = _shaped(shape, dtype)
        if size > whole - offset:
            raise ValueError(f"{size} bytes from offset {offset} exceed the {part} of {whole} bytes")
        return _viewed(self, shape, kind, start + offset, order)

    def initialize(self, fill: Callable[[Arena], Any]) -> Any:
        """Fills the buffer by ``fill(arena)`` in the first rank of this host that calls; the other
        ranks wait. All ranks get the object that ``fill`` returned.

        ``fill`` may return any object that pickle can write, nested to any depth. All ranks of the
        host share the arrays in it (of numpy, pandas and all libraries that support pickle's
        protocol 5), and the arrays are read-only. Arrays from ``arena.array`` are not copied; other
        arrays are copied into the buffer once. Strings and numbers are private to each rank. A
        :class:`CopyWarning` names every other object of which each rank has a copy: arrays of
        Python objects, and objects that copy their arrays.

        If the process that fills dies, a waiting rank calls ``fill``. So ``fill`` may run in
        several processes one after another. An exception of ``fill`` is raised in the rank that ran
        it.

        >>> import numpy as np, hostbuf
        >>> with hostbuf.allocate(None, 1 << 16) as buffer:
        ...     primes = buffer.initialize(lambda arena: np.array([2, 3, 5, 7, 11]))
        >>> primes.flags.writeable, int(primes.sum())
        (False, 28)
        """
        return self._filled(fill, lambda native: _hostbuf.initialize(self._handle, native))

    def initialize_job(self, fill: Callable[[Arena], Any], comm: Any) -> Any:
        """Fills the buffer as :meth:`initialize` in rank 0 of ``comm`` and sends it to all hosts of
        ``comm``, so that the job builds it once. Collective.

        Raises:
            Error: in all ranks if one rank fails, or if the buffer is filled already; :meth:`root`
                then returns its object.
        """
        return self._filled(fill, lambda native: _hostbuf.initialize_job(self._handle, comm, native))

    def _filled(self, fill: Callable[[Arena], Any], run: Callable[[Callable[[_hostbuf.Arena], int]], int]) -> Any:
        handle = self._handle
        written: list[tuple[int, Any]] = []

        def native(arena: _hostbuf.Arena) -> int:
            given = Arena(arena, handle)
            # The program fills sections itself.
            sections = [(section.address, section.size) for section in self.sections if section.name]
            written[:] = [_object.write(fill(given), arena, handle, given._taken + sections)]
            return written[0][0]

        root = run(native)
        return written[0][1] if written else _object.read(handle, root)

    def root(self) -> Any:
        """Returns the object that fills the buffer, or ``None`` while the buffer is not filled.

        Raises:
            Error: a program in another language has filled the buffer; see :attr:`root_address`.
        """
        at = self.root_address
        return None if at is None else _object.read(self._handle, at)

    @property
    def root_address(self) -> int | None:
        """Returns the address of the root object, which a program in C, C++, Fortran or Python has
        made, or ``None`` while the buffer is not filled."""
        return _hostbuf.root(self._handle)

    def replicate(self, comm: Any, root: int = 0) -> None:
        """Sends the filled buffer of the host of rank ``root`` to all other hosts of ``comm``,
        where it must be empty. Collective."""
        self._handle.replicate(comm, root)

    def freeze(self, comm: Any) -> Proof:
        """Makes the buffer permanently read-only in all ranks. A later write to it kills the
        process. Collective.

        Raises:
            Error: in all ranks, if one rank has a writable array or view of the buffer, since a
                write through it would kill the process. Arrays of
                ``numpy.ndarray(..., buffer=buffer)`` and of the array interface are not detected,
                nor are tensors of ``torch.frombuffer(buffer)``.
        """
        if not self.closed and self._handle.writers():
            # Unreachable views that wait for the garbage collector are not in use.
            gc.collect()
        why = self._handle.freeze(comm)
        return Proof(why is None, why)


def _shaped(shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, tuple[int, ...], int]:
    """Returns the type, the shape and the number of bytes of an array."""
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind}: Python objects cannot be shared between processes")
    # Converts numpy's integers, whose product could overflow.
    lengths = shape if isinstance(shape, Iterable) else (shape,)
    shape = tuple(operator.index(length) for length in lengths)
    if any(length < 0 for length in shape):
        raise ValueError(f"shape {shape} has a negative length")
    return kind, shape, math.prod(shape) * kind.itemsize


def _viewed(memory: _hostbuf.Memory, shape: tuple[int, ...], kind: Any, offset: int, order: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    # frombuffer holds a view as long as the array lives; an array that is made from an object holds
    # only the object.
    held = np.frombuffer(memoryview(memory), "u1")
    made: np.ndarray[Any, Any] = np.ndarray(shape, kind, buffer=held, offset=offset, order=order)
    return made


def launched() -> bool:
    """Returns whether ``hostbuf run`` or ``hostbuf exec`` has started this process, so that there
    is a buffer to attach to.

    The result is the same in all ranks of a job. Use it to decide between :func:`attach` and
    :func:`allocate`, since :func:`attach` may fail in one rank only.
    """
    return _hostbuf.launched()


def attach(name: str | None = None) -> Buffer:
    """Attaches to the buffer that ``hostbuf run`` or ``hostbuf exec`` mapped in this process;
    without a name, to the first one.

    Raises:
        AttachError: this process has no such buffer.
    """
    return Buffer(_hostbuf.attach(name))


def allocate(
    comm: Any,
    size: int | str | None = None,
    *,
    name: str = "default",
    pages: str = "auto",
    lazy: bool = False,
    dump: bool = False,
    numa: int | str | None = None,
    sections: Mapping[str, int | str | tuple[int | str] | tuple[int | str, int | str | None]] | None = None,
) -> Buffer:
    """Allocates a buffer without a launcher, on all hosts of ``comm`` at one address. Collective.

    Args:
        comm: an mpi4py communicator, or ``None`` for this process alone.
        size: the usable size in bytes, which is rounded up to whole pages: a number, or text as for
            ``hostbuf run --size`` (``"2G"``). Without it the buffer has the size of its sections.
        name: at most 31 letters, digits, ``_``, ``-`` and ``.``.
        pages: ``auto`` (the largest available), ``4k``, ``thp``, ``2m`` or ``1g``.
        lazy: allocate each page at its first access, without a check that there is enough memory.
        dump: include the contents in core files.
        numa: the NUMA nodes of the pages: one node (``0`` or ``"0"``); several nodes (``"0,2-3"``),
            each of which is used when the memory of those before it is used up; nodes in turn
            (``"interleave"``, ``"interleave:0,1"``, with weights ``"interleave:0,1/3,1"``), or a
            copy on the node of each process, made by :meth:`Buffer.freeze` (``"copies"``). By
            default each page is on the node of the thread that allocates it.
        sections: named parts of the buffer, from its beginning on, each on whole pages and at the
            same address on every host: a size, or a :class:`Section`, which may have NUMA nodes of
            its own. A tuple ``(size, numa)`` is a :class:`Section`, too.

    >>> import hostbuf
    >>> with hostbuf.allocate(None, "1.5M", pages="4k") as buffer:
    ...     len(buffer)
    1572864
    >>> parts = {"grid": hostbuf.Section("1M", numa="interleave"), "halo": "64K"}
    >>> with hostbuf.allocate(None, pages="4k", numa=0, sections=parts) as buffer:
    ...     buffer.array((256, 512), "f8", section="grid")[3] = 1
    ...     len(buffer)
    1114112

    Raises:
        InvalidError: an argument is invalid.
        UnsupportedError: in all ranks, if a host has no such NUMA node.
        NoSpaceError: in all ranks, if a host has too little memory. Nothing is allocated.
        Error: the ranks found no common address, or requested different buffers.
    """
    return Buffer(_hostbuf.allocate(comm, size, name, pages, lazy, dump, numa, sections))


def stat() -> list[Info]:
    """Returns the buffers of this process: the launcher's, and the allocated ones that are not
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
