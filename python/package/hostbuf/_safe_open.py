"""Files of safetensors, with the interface of the package safetensors."""

from __future__ import annotations

import importlib
import math
import os
import sys
from types import TracebackType
from typing import Any

from . import _hostbuf
from ._dtypes import numpy_dtype, torch_view
from ._error import LoadError, SafetensorError, UnsupportedError
from ._file import File
from ._tensor_slices import InvalidSliceError, TensorSlice, parsed

_FRAMEWORKS = {
    **dict.fromkeys(("pt", "torch", "pytorch"), "pytorch"),
    **dict.fromkeys(("np", "numpy"), "numpy"),
    **dict.fromkeys(("tf", "tensorflow"), "tensorflow"),
    **dict.fromkeys(("jax", "flax"), "flax"),
    "mlx": "mlx",
    "paddle": "paddle",
}
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C128": 128}


def _bits(dtype: str) -> int:
    """Returns the length of an element in bits."""
    digits = "".join(digit for digit in dtype.partition("_")[0] if digit.isdigit())
    return _BITS.get(dtype) or (8 if dtype == "BOOL" else int(digits))


def _error(message: str) -> SafetensorError:
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    return (_both(theirs) if isinstance(theirs, type) else SafetensorError)(message, "Safetensors")


def _both(theirs: type[BaseException]) -> type[SafetensorError]:
    """Returns the class of errors that are those of both packages."""
    if theirs not in _classes:
        name = SafetensorError.__name__
        _classes[theirs] = type(name, (SafetensorError, theirs), {"__module__": __name__, "__doc__": SafetensorError.__doc__})
    return _classes[theirs]


_classes: dict[type[BaseException], type[SafetensorError]] = {}


class _NotFoundError(FileNotFoundError):
    """A missing file, with the message of the package safetensors."""

    def __str__(self) -> str:
        return f"{self.strerror}: {self.filename}"


class _Tensor:
    """The place of a tensor in its file."""

    __slots__ = ("dtype", "nbytes", "offset", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], offset: int, nbytes: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.offset = offset
        self.nbytes = nbytes


class _OpenFile:
    """A file of safetensors, and the framework and the device of its tensors."""

    def __init__(self, path: str, framework: str, device: str, backend: str) -> None:
        try:
            self.file = File(path, "r", backend)
        except FileNotFoundError as error:
            raise _NotFoundError(error.errno, error.strerror, path) from None
        try:
            (header,), entries = _hostbuf.read_table([path], "safetensors")
        except LoadError as error:
            self.file.close()
            raise _error(f"Error while deserializing header: {error}") from error
        self.framework = framework
        self.device = device
        self.metadata = dict(header[2])
        self.tensors = {
            name: _Tensor(dtype, shape, offset, nbytes) for name, dtype, shape, _, _, _, offset, nbytes in entries
        }
        # A missing framework is an error now, and not at the first tensor.
        importlib.import_module({"pytorch": "torch", "paddle": "paddle"}.get(framework, "numpy"))

    def tensor(self, name: str) -> _Tensor:
        found = self.tensors.get(name)
        if found is None:
            raise _error(f"File does not contain tensor {name}")
        return found

    def whole(self, tensor: _Tensor) -> Any:
        """Returns all of a tensor."""
        return self.read(tensor, tensor.shape, [(0, tensor.nbytes)])

    def read(self, tensor: _Tensor, shape: tuple[int, ...], runs: Any) -> Any:
        """Returns the ranges of a tensor as one of a shape."""
        nbytes = math.prod(shape) * _bits(tensor.dtype) // 8
        try:
            if self.framework == "pytorch":
                return self._read_torch(tensor, shape, nbytes, runs)
            import numpy as np

            array = np.empty(shape, numpy_dtype(tensor.dtype))
            self._fill(array.reshape(-1).view("u1"), tensor, runs)
        except UnsupportedError as error:
            raise _error(f"Dtype not understood: {error}") from error
        return _converted(array, self.framework, self.device)

    def _read_torch(self, tensor: _Tensor, shape: tuple[int, ...], nbytes: int, runs: Any) -> Any:
        torch = importlib.import_module("torch")
        # Only these have memory that hostbuf reads into.
        direct = self.device == "cpu" or self.device.startswith("cuda")
        storage = torch.empty(nbytes, dtype=torch.uint8, device=self.device if direct else "cpu")
        self._fill(storage, tensor, runs)
        made = torch_view(storage, tensor.dtype, shape)
        return made if direct else made.to(self.device)

    def _fill(self, storage: Any, tensor: _Tensor, runs: Any) -> None:
        """Reads ranges of a tensor into bytes, one after the other."""
        transfers, at = [], 0
        for start, length in runs:
            if length:
                transfers.append(self.file.pread(storage[at : at + length], offset=tensor.offset + start))
            at += length
        for transfer in transfers:
            transfer.get()


def _converted(array: Any, framework: str, device: str) -> Any:
    """Returns an array of numpy as one of another framework."""
    if framework == "tensorflow":
        return importlib.import_module("tensorflow").convert_to_tensor(array)
    if framework == "flax":
        return importlib.import_module("jax.numpy").asarray(array)
    if framework == "mlx":
        return importlib.import_module("mlx.core").array(array)
    if framework == "paddle":
        place = device.replace("cuda", "gpu")
        return importlib.import_module("paddle").to_tensor(array, place=place)
    return array


class SafeSlice:
    """A tensor of a file, which is read as far as it is sliced, from
    :meth:`safe_open.get_slice`."""

    __slots__ = ("_open", "_tensor")

    def __init__(self, file: _OpenFile, tensor: _Tensor) -> None:
        self._open = file
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Returns the shape of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Returns the type of the tensor, as safetensors names it: ``F32``."""
        return self._tensor.dtype

    def __getitem__(self, key: Any) -> Any:
        """Reads a slice. With integers and ranges without a step only its bytes are read, if they
        are not scattered in short pieces, and otherwise the rows of its first dimension, or the
        whole tensor."""
        tensor, file = self._tensor, self._open
        try:
            wanted = parsed(key, tensor.shape)
        except InvalidSliceError as error:
            # PyTorch has rules of its own, as with the package safetensors.
            if file.framework == "pytorch":
                return file.whole(tensor)[key]
            raise _error(str(error)) from None
        bits = _bits(tensor.dtype)
        if wanted is None or bits % 8:
            return file.whole(tensor)[key]
        runs = wanted.runs(tensor.shape, bits // 8)
        if runs is not None:
            return file.read(tensor, wanted.shape, runs)
        return self._rows(wanted, bits // 8)

    def _rows(self, wanted: TensorSlice, itemsize: int) -> Any:
        """Reads the rows of the first dimension, and takes a slice of them."""
        tensor = self._tensor
        first, count = wanted.bounds[0]
        row = math.prod(tensor.shape[1:]) * itemsize
        rows = self._open.read(tensor, (count, *tensor.shape[1:]), [(first * row, count * row)])
        rest = (
            start if index else slice(start, start + length)
            for (start, length), index in zip(wanted.bounds[1:], wanted.is_index[1:])
        )
        return rows[(0 if wanted.is_index[0] else slice(None), *rest)]


class safe_open:  # noqa: N801 (the name of the package safetensors)
    """A file of safetensors, with the methods of ``safetensors.safe_open``.

    Tensors are read by transfers of :class:`File`, with several threads, into memory of the host or
    of a GPU. They are copies that own their memory. The package safetensors is not needed.

    >>> import hostbuf, json, pathlib, tempfile
    >>> entry = {"dtype": "I32", "shape": [2, 3], "data_offsets": [0, 24]}
    >>> header = json.dumps({"w": entry}).encode()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.safetensors")
    ...     size = path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(24)))
    ...     with hostbuf.safe_open(path, framework="np") as file:
    ...         file.keys(), file.get_slice("w")[1, 1:].tolist()
    (['w'], [319951120, 387323156])

    Args:
        filename: the path.
        framework: ``pt``, ``np``, ``tf``, ``flax``, ``mlx`` or ``paddle``.
        device: with ``pt`` any device of PyTorch, as a text or a number. Tensors go to a GPU by the
            ring of that GPU.
        backend: a backend of :class:`File`. ``mmap`` and ``pread``, those of safetensors, mean
            ``auto``.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: the file is damaged, or an argument is invalid.
    """

    __slots__ = ("__weakref__", "_inner")

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: str | int | None = "cpu",
        *,
        backend: str = "auto",
    ) -> None:
        known = _FRAMEWORKS.get(framework)
        if known is None:
            raise _error(f"framework {framework} is invalid")
        place = _device_name(device)
        if place != "cpu" and known not in ("pytorch", "paddle"):
            raise _error(f"Device {place} is not supported for framework {known}")
        if backend in ("mmap", "pread"):
            backend = "auto"
        try:
            self._inner: _OpenFile | None = _OpenFile(os.fspath(filename), known, place, backend)
        except ValueError as error:
            raise _error(f"backend {backend!r} is invalid: {error}") from error

    def _open(self) -> _OpenFile:
        if self._inner is None:
            raise _error("File is closed")
        return self._inner

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Slices keep the file, as they do with the package safetensors.
        self._inner = None

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return sorted(self._open().tensors)

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors in the order of their offsets in the file."""
        tensors = self._open().tensors
        return sorted(tensors, key=lambda name: (tensors[name].offset, tensors[name].nbytes, name))

    def metadata(self) -> dict[str, str] | None:
        """Returns the texts of the header, or None if it has none."""
        return self._open().metadata or None

    def get_tensor(self, name: str) -> Any:
        """Returns a tensor."""
        file = self._open()
        return file.whole(file.tensor(name))

    def get_tensors(self) -> dict[str, Any]:
        """Returns all tensors by their names, in the order of their offsets."""
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> SafeSlice:
        """Returns an object whose slices are read on request."""
        file = self._open()
        return SafeSlice(file, file.tensor(name))


def _device_name(device: Any) -> str:
    if device is None:
        return "cpu"
    if isinstance(device, int) and not isinstance(device, bool):
        return f"cuda:{device}"
    name = str(device)
    kind, separator, number = name.partition(":")
    if not kind.isalpha() or separator and not number.isdecimal():
        raise _error(f"device {name} is invalid")
    return name
