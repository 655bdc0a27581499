"""Files of tensors, loaded once per host."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import _hostbuf
from ._buffer import Buffer, _viewed
from ._dtypes import numpy_dtype, torch_view
from ._error import InvalidError, LoadError, shown_name
from ._file import File
from ._register import register
from ._tensor_rows import copy_rows

_Entry = tuple[str, str, tuple[int, ...], bool, bool, int, int, int]
_Slice = tuple[tuple[int, ...], int, list[tuple[int, int, int, int, int, int]]]


class HostTensors(Mapping[str, Any]):
    """The tensors of files in the buffer of this host, from :func:`load` and :func:`loaded`.

    A value is a numpy array: a read-only view of the buffer, which keeps it mapped. :meth:`torch`
    returns a view as a PyTorch tensor, and :meth:`slice` and :meth:`fused_slice` the part of a rank
    as a copy.
    """

    __slots__ = ("__weakref__", "_entries", "_files", "_memory", "_tensors", "buffer")

    buffer: Buffer
    """The buffer, which all ranks of the host share."""

    def __init__(self, buffer: Buffer, files: list[Any], entries: list[_Entry], tensors: _hostbuf.TensorSlices) -> None:
        self.buffer = buffer
        self._tensors = tensors
        self._memory = _hostbuf.Memory(buffer._handle, True)
        self._files = files
        self._entries = {entry[0]: entry for entry in entries}

    def __repr__(self) -> str:
        return f"<hostbuf.HostTensors: {len(self)} of {len(self._files)} files>"

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Any:
        _, dtype, shape, fortran, big, _, offset, _ = self._entries[name]
        kind = numpy_dtype(dtype)
        return _viewed(self._memory, shape, kind.newbyteorder(">") if big else kind, offset, "F" if fortran else "C")

    @property
    def files(self) -> list[str]:
        """Returns the paths of the files."""
        return [os.fspath(path) for path, _, _ in self._files]

    @property
    def metadata(self) -> dict[str, str]:
        """Returns the texts of the headers of all files. If two files have a text of one name, the
        last one counts."""
        return {key: text for _, _, texts in self._files for key, text in texts}

    def dtype(self, name: str) -> str:
        """Returns the type of a tensor, as safetensors names it: ``BF16``."""
        return self._entries[name][1]

    def torch(self, name: str) -> Any:
        """Returns a tensor as one of PyTorch: a view of the buffer, which keeps it mapped. PyTorch
        has no read-only tensors: do not write to it."""
        torch = importlib.import_module("torch")
        self._check_torch(name)
        _, _, shape, _, _, _, offset, nbytes = self._entries[name]
        if not nbytes:
            return self._as_torch(name, torch.empty(0, dtype=torch.uint8, device="cpu"), shape)
        with warnings.catch_warnings():
            # PyTorch warns of read-only memory.
            warnings.simplefilter("ignore", UserWarning)
            storage = torch.frombuffer(self._memory, dtype=torch.uint8, count=nbytes, offset=offset)
        return self._as_torch(name, storage, shape)

    def _check_torch(self, name: str) -> None:
        """Raises LoadError if PyTorch cannot have a tensor."""
        if self._entries[name][4]:
            raise LoadError(f'tensor "{shown_name(name)}" is big-endian, which PyTorch does not have: use the numpy array', "Unsupported")

    def _as_torch(self, name: str, storage: Any, shape: tuple[int, ...]) -> Any:
        """Returns bytes of a tensor as one of PyTorch."""
        _, dtype, _, fortran, *_ = self._entries[name]
        made = torch_view(storage, dtype, shape[::-1] if fortran else shape)
        return made.permute(*reversed(range(len(shape)))) if fortran else made

    def slice(self, name: str, dim: int, rank: int, ranks: int, *, framework: str = "np") -> Any:
        """Returns the part of a rank along a dimension, as ``torch.chunk`` divides it: all ranks
        get as many elements as the first, except the last ones, which get fewer or none.

        Args:
            name: the tensor.
            dim: the dimension, from 0.
            rank: the rank, from 0.
            ranks: the number of ranks.
            framework: ``np`` for an array of numpy, or ``pt`` for a tensor of PyTorch. It is a copy
                without gaps, which owns its memory.

        Raises:
            LoadError: there is no such dimension or rank.

        >>> import hostbuf, numpy as np, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(pathlib.Path(folder, "table.npy"), np.arange(12).reshape(2, 6))
        ...     tensors = hostbuf.load(folder)
        >>> tensors.slice("table", 1, rank=1, ranks=3).tolist()
        [[2, 3], [8, 9]]
        """
        self._check_slice(name, dim, rank, ranks)
        return self._copied(name, self._tensors.slice(name, dim, rank, ranks), framework)

    def fused_slice(
        self, name: str, dim: int, parts: Iterable[int | tuple[int, int]], rank: int, ranks: int, *, framework: str = "np"
    ) -> Any:
        """Returns the shares of a rank of several parts that are adjacent along a dimension: of a
        fused QKV matrix, or of gate and up projections. The shares are adjacent in the same order.

        Args:
            parts: the number of elements of each part along the dimension, or the pair ``(elements,
                shares)`` if there are fewer shares than ranks, as with KV heads. Adjacent ranks
                then get the same share.
            name, dim, rank, ranks, framework: as for :meth:`slice`.

        Raises:
            LoadError: there is no such dimension or rank, the parts do not fill the dimension, or
                one cannot be divided into equal shares.

        >>> import hostbuf, numpy as np, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(pathlib.Path(folder, "qkv.npy"), np.arange(8))
        ...     tensors = hostbuf.load(folder)
        >>> tensors.fused_slice("qkv", 0, [4, 2, (2, 1)], rank=1, ranks=2).tolist()
        [2, 3, 5, 6, 7]
        """
        self._check_slice(name, dim, rank, ranks)
        listed: list[tuple[int, int | None]] = [part if isinstance(part, tuple) else (part, None) for part in parts]
        return self._copied(name, self._tensors.fused_slice(name, dim, listed, rank, ranks), framework)

    def _check_slice(self, name: str, dim: int, rank: int, ranks: int) -> None:
        """Raises KeyError if there is no such tensor, and LoadError for a negative number."""
        self._entries[name]
        for what, number in (("dimension", dim), ("rank", rank), ("number of ranks", ranks)):
            if number < 0:
                raise LoadError(f"invalid {what} {number}: it is negative", "Argument")

    def _copied(self, name: str, described: _Slice, framework: str) -> Any:
        """Copies a slice."""
        import numpy as np

        shape, nbytes, parts = described
        _, dtype, _, fortran, big, _, offset, tensor_bytes = self._entries[name]
        is_torch = framework in ("pt", "torch", "pytorch")
        if not is_torch and framework not in ("np", "numpy"):
            raise InvalidError(f'invalid framework "{framework}": expected np or pt', "Invalid")
        if is_torch:
            torch = importlib.import_module("torch")
            self._check_torch(name)
            storage = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
            made, into = self._as_torch(name, storage, shape), storage.numpy()
        else:
            kind = numpy_dtype(dtype)
            made = np.empty(shape, kind.newbyteorder(">") if big else kind, "F" if fortran else "C")
            into = made.reshape(-1, order="A").view("u1")
        if parts:
            copy_rows(_viewed(self._memory, (tensor_bytes,), np.dtype("u1"), offset, "C"), parts, into)
        return made


def load(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], comm: Any = None, device: str | int | None = None, *, name: str = "default", backend: str = "auto"
) -> HostTensors | dict[str, Any]:
    """Loads all tensors of files: safetensors, npy, Arrow IPC, and any other file as bytes.

    Args:
        paths: a file, a folder with ``*.safetensors`` and their index, an index, or several of
            these.
        comm: an mpi4py communicator. Its ranks read the files once per host, each rank a part, into
            one buffer that all of them share. Collective. By default this process reads the files.
        device: a GPU (``cuda``, ``cuda:1``, or its number): the tensors are PyTorch tensors on it,
            which own their memory. Without ``comm`` the ring of the GPU reads the files; with it
            the GPU copies from the buffer, which is released then.
        name: the name of the buffer.
        backend: a backend of :class:`File`.

    Returns:
        HostTensors, which are views of the buffer; with ``device`` a dict of tensors on the GPU.

    Raises:
        MissingFileError: a file does not exist. With ``comm``, the other ranks raise LoadError.
        LoadError: a file cannot be loaded. With ``comm``, all ranks raise it.
        NoSpaceError: in all ranks, if a host has too little memory.

    >>> import hostbuf, numpy as np, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(pathlib.Path(folder, "squares.npy"), np.arange(10) ** 2)
    ...     tensors = hostbuf.load(folder)
    >>> tensors["squares"][3], tensors["squares"].flags.writeable
    (np.int64(9), False)
    """
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    place = None if device is None else _gpu(device)
    if place is not None and comm is None:
        return _through_ring(listed, place, backend)
    handle, files, entries, described = _hostbuf.load_files(comm, listed, name, backend)
    tensors = HostTensors(Buffer(handle), files, entries, described)
    if place is None:
        return tensors
    try:
        return _from_buffer(tensors, place)
    finally:
        tensors.buffer.close()


def loaded() -> HostTensors | None:
    """Returns the tensors that ``hostbuf run --load`` has loaded before this program started, or
    ``None`` if it has loaded none. Not collective.

    Raises:
        LoadError: a process has overwritten the description of the tensors.

    >>> import hostbuf
    >>> hostbuf.loaded() is None  # no launcher has started this process
    True
    """
    found = _hostbuf.loaded_files()
    if found is None:
        return None
    handle, files, entries, described = found
    return HostTensors(Buffer(handle), files, entries, described)


def _gpu(device: Any) -> str:
    if isinstance(device, int):
        return f"cuda:{device}"
    name = str(device)
    kind, separator, number = name.partition(":")
    if kind != "cuda" or separator and not number.isdecimal():
        raise InvalidError(f"invalid device {name}: expected a GPU, such as cuda or cuda:1", "Invalid")
    return name


def _through_ring(paths: list[Any], place: str, backend: str) -> dict[str, Any]:
    """Reads files into memory of a GPU by its ring."""
    torch = importlib.import_module("torch")
    files, entries = _hostbuf.read_table(paths, None)
    opened = [File(path, "r", backend) for path, _, _ in files]
    transfers, made = [], {}
    try:
        for name, dtype, shape, fortran, big, file, offset, nbytes in entries:
            _check_layout(name, fortran, big)
            storage = torch.empty(nbytes, dtype=torch.uint8, device=place)
            if nbytes:
                transfers.append(opened[file].pread(storage, offset=offset))
            made[name] = torch_view(storage, dtype, shape)
        for transfer in transfers:
            transfer.get()
    except BaseException:
        for transfer in transfers:
            transfer.cancel()
        raise
    return made


def _check_layout(name: str, fortran: bool, big: bool) -> None:
    if fortran or big:
        layout = "is big-endian" if big else "is in Fortran order"
        raise LoadError(f'tensor "{shown_name(name)}" {layout}: load it into memory of the host, and convert it', "Unsupported")


def _from_buffer(tensors: HostTensors, place: str) -> dict[str, Any]:
    """Copies tensors to a GPU, which reads the buffer itself."""
    torch = importlib.import_module("torch")
    number = torch.device(place).index
    with register(tensors.buffer, "cuda" if number is None else f"cuda:{number}"):
        made = {name: tensors.torch(name).to(place, non_blocking=True) for name in tensors}
        torch.cuda.synchronize(place)
    return made
