"""Files of safetensors and loading, with numpy. PyTorch, where it is installed, gets the same
files; those of a GPU are in gpu_files.py."""

import errno
import gc
import itertools
import json
import math
import pathlib
import struct
import sys
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import hostbuf
import numpy as np

try:
    import torch
except ImportError:
    torch = None

NAMES = {"float32": "F32", "float64": "F64", "int64": "I64", "int8": "I8", "uint16": "U16", "bool": "BOOL", "complex64": "C64"}
Arrays = "dict[str, np.ndarray[Any, Any]]"


def write(path: pathlib.Path, arrays: "Arrays", metadata: "dict[str, str] | None" = None, **types: str) -> None:
    """Writes a file of safetensors; ``types`` has names of types that numpy does not have."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": types.get(name) or NAMES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "model.safetensors"
        generator = np.random.default_rng(1)
        self.arrays = {
            "weights": generator.random((40, 30)).astype("f4"),
            "cube": generator.integers(0, 100, (6, 5, 7)),
            "mask": generator.random(9) > 0.5,
            "wide": generator.random((12, 5000)),
            "scalar": np.array(7.5),
            "empty": np.zeros((0, 3), "f4"),
            "complex": (generator.random(3) + 1j).astype("c8"),
            "bytes": np.arange(-5, 5, dtype="i1"),
        }
        write(self.path, self.arrays, {"format": "pt"})


class SafeOpen(Files):
    def test_the_methods_of_safetensors(self) -> None:
        with hostbuf.safe_open(self.path, framework="np") as file:
            self.assertEqual(file.keys(), sorted(self.arrays))
            # Those without bytes come first at their offset.
            expected = list(self.arrays)
            position = expected.index("empty")
            expected[position : position + 2] = ["empty", "complex"]
            self.assertEqual(file.offset_keys(), expected)
            self.assertEqual(file.metadata(), {"format": "pt"})
            for name, array in self.arrays.items():
                got = file.get_tensor(name)
                self.assertEqual((got.dtype, got.shape), (array.dtype, array.shape))
                self.assertTrue(np.array_equal(got, array) and got.flags.writeable, name)
            everything = file.get_tensors()
            self.assertEqual(list(everything), expected)
            piece = file.get_slice("weights")
            self.assertEqual((piece.get_shape(), piece.get_dtype()), ([40, 30], "F32"))
            with self.assertRaisesRegex(hostbuf.SafetensorError, "File does not contain tensor none"):
                file.get_tensor("none")
        # A slice keeps the file, and tensors own their memory.
        self.assertEqual(piece[3, 4], self.arrays["weights"][3, 4])
        with self.assertRaisesRegex(hostbuf.SafetensorError, "File is closed"):
            file.keys()
        # The name of the file does not matter.
        other = self.folder / "weights"
        write(other, {"x": np.zeros(3)})
        with hostbuf.safe_open(str(other), "numpy", device=None) as file:
            self.assertEqual((file.metadata(), file.keys()), (None, ["x"]))

    def test_all_slices(self) -> None:
        keys = [0, -1, slice(None), slice(1, 3), slice(2, 2), slice(1, None), slice(None, 4), slice(None, None, 2), slice(-2, None)]
        with hostbuf.safe_open(self.path, framework="np") as file:
            for name, dimensions in [("cube", 3), ("wide", 2), ("weights", 2), ("bytes", 1)]:
                piece, array = file.get_slice(name), self.arrays[name]
                self.assertTrue(np.array_equal(piece[()], array))
                self.assertTrue(np.array_equal(piece[[]], array[[]]))
                for count in range(1, dimensions + 1):
                    for key in itertools.product(keys, repeat=count):
                        got, expected = piece[key], array[key]
                        self.assertEqual(got.shape, expected.shape, (name, key))
                        self.assertTrue(np.array_equal(got, expected), (name, key))
            self.assertTrue(np.array_equal(file.get_slice("cube")[..., 1], self.arrays["cube"][..., 1]))
            self.assertEqual(file.get_slice("scalar")[()], 7.5)

    def test_slices_that_do_not_exist(self) -> None:
        with hostbuf.safe_open(self.path, framework="np") as file:
            piece = file.get_slice("weights")
            for key, message in [
                ((slice(2, None), -31), "Invalid index -31 for dimension 1 of size 30"),
                ([0, 1], "Non empty lists are not implemented"),
                (
                    (slice(2, None), 30),
                    r"Error during slicing \[2:, 30\] with shape \[40, 30\]: index 30 out of bounds for tensor dimension #1 of size 30",
                ),
                (slice(None, 50), r"\[:50\] with shape \[40, 30\]: index 49 out of bounds for tensor dimension #0 of size 40"),
            ]:
                with self.assertRaisesRegex(hostbuf.SafetensorError, message):
                    piece[key]

    def test_damaged_files_and_invalid_arguments(self) -> None:
        whole = self.path.read_bytes()
        for content in [b"", whole[:5], whole[:100], whole[:-1], whole + b"x", struct.pack("<Q", 1 << 62) + whole[8:]]:
            self.path.write_bytes(content)
            with self.assertRaisesRegex(hostbuf.SafetensorError, "Error while deserializing header: "):
                hostbuf.safe_open(self.path, framework="np")
        for arguments, message in [
            (("caffe",), "framework caffe is invalid"),
            (("np", "cuda"), "Device cuda is not supported for framework numpy"),
            (("np", "x:y"), "device x:y is invalid"),
        ]:
            with self.assertRaisesRegex(hostbuf.SafetensorError, message):
                hostbuf.safe_open(self.path, *arguments)
        with self.assertRaisesRegex(hostbuf.SafetensorError, "backend 'gds' is invalid"):
            hostbuf.safe_open(self.path, "np", backend="gds")
        missing = self.folder / "none"
        with self.assertRaises(FileNotFoundError) as raised:
            hostbuf.safe_open(missing, "np")
        error = raised.exception
        self.assertEqual(str(error), f"No such file or directory: {missing}")
        self.assertEqual((error.errno, error.filename), (errno.ENOENT, str(missing)))

    def test_errors_are_also_those_of_the_package_safetensors(self) -> None:
        if "safetensors" in sys.modules:
            self.skipTest("safetensors is imported already")
        package = types.ModuleType("safetensors")
        package.SafetensorError = type("SafetensorError", (Exception,), {})  # type: ignore[attr-defined]
        sys.modules["safetensors"] = package
        self.addCleanup(sys.modules.pop, "safetensors")
        with hostbuf.safe_open(self.path, "np") as file:
            for _ in range(2):
                with self.assertRaises(package.SafetensorError) as raised:
                    file.get_slice("none")
                self.assertIsInstance(raised.exception, hostbuf.SafetensorError)

    def test_types_that_numpy_does_not_have(self) -> None:
        write(self.path, {"half": np.zeros((4, 3), "u2")}, half="BF16")
        with hostbuf.safe_open(self.path, "np") as file:
            self.assertEqual(file.get_slice("half").get_dtype(), "BF16")
            try:
                import ml_dtypes  # noqa: F401
            except ImportError:
                with self.assertRaisesRegex(hostbuf.SafetensorError, "numpy has no type for BF16: install the package ml_dtypes"):
                    file.get_tensor("half")
            else:
                self.assertEqual(file.get_tensor("half").shape, (4, 3))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_tensors_of_torch(self) -> None:
        del self.arrays["empty"]
        with hostbuf.safe_open(self.path, framework="pt") as file:
            for name, array in self.arrays.items():
                if array.dtype != np.uint16:
                    self.assertTrue(torch.equal(file.get_tensor(name), torch.from_numpy(array)), name)
            piece, array = file.get_slice("wide"), self.arrays["wide"]
            for key in [0, slice(2, 5), (slice(None), slice(100, 3000)), (..., 7), (slice(None), slice(None, None, 3)), (2, -1)]:
                self.assertEqual(piece[key].numpy().tobytes(), np.ascontiguousarray(array[key]).tobytes(), key)
        write(self.path, {"half": np.arange(12, dtype="u2").reshape(4, 3)}, half="BF16")
        with hostbuf.safe_open(self.path, framework="pt") as file:
            half = file.get_tensor("half")
            self.assertEqual((half.dtype, tuple(half.shape)), (torch.bfloat16, (4, 3)))
            self.assertEqual(half.view(torch.int16)[1, 1].item(), 4)


class Load(Files):
    def check(self, tensors: Any) -> None:
        self.assertEqual(sorted(tensors), sorted(self.arrays))
        self.assertEqual(len(tensors), len(self.arrays))
        for name, array in tensors.items():
            self.assertTrue(np.array_equal(array, self.arrays[name]), name)
            self.assertEqual((array.dtype, array.shape), (self.arrays[name].dtype, self.arrays[name].shape))

    def test_a_file_a_list_and_a_folder(self) -> None:
        for paths in [self.path, str(self.path), [self.path], self.folder]:
            tensors = hostbuf.load(paths)
            self.check(tensors)
            self.assertEqual(tensors.metadata, {"format": "pt"})
            self.assertEqual(tensors.files, [str(self.path)])
            self.assertEqual(tensors.dtype("weights"), "F32")
            self.assertIn("weights", tensors)
            with self.assertRaises(KeyError):
                tensors["none"]

    def test_a_folder_with_an_index(self) -> None:
        names = list(self.arrays)
        shards = {"a-00001.safetensors": names[:4], "a-00002.safetensors": names[4:]}
        self.path.unlink()
        for shard, held in shards.items():
            write(self.folder / shard, {name: self.arrays[name] for name in held})
        index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self.check(hostbuf.load(self.folder))
        self.check(hostbuf.load([self.folder / "model.safetensors.index.json"]))
        (self.folder / "a-00002.safetensors").unlink()
        with self.assertRaisesRegex(hostbuf.LoadError, "does not exist") as raised:
            hostbuf.load(self.folder)
        self.assertEqual(raised.exception.kind, "Missing")

    def test_other_formats(self) -> None:
        orders = {"c": np.arange(12.0).reshape(3, 4), "f": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "big": np.arange(5, dtype=">i4")}
        for name, array in orders.items():
            np.save(self.folder / f"{name}.npy", array)
        (self.folder / "raw.bin").write_bytes(b"abc")
        tensors = hostbuf.load([self.folder / f"{name}.npy" for name in orders] + [self.folder / "raw.bin"])
        for name, array in orders.items():
            self.assertTrue(np.array_equal(tensors[name], array) and tensors[name].dtype == array.dtype, name)
        self.assertTrue(tensors["f"].flags.f_contiguous)
        self.assertEqual(tensors["raw.bin"].tobytes(), b"abc")

    def test_views_keep_the_buffer(self) -> None:
        tensors = hostbuf.load(self.path)
        array = tensors["wide"]
        self.assertFalse(array.flags.writeable)
        with self.assertRaises(ValueError):
            array[0, 0] = 1
        start = tensors.buffer.address
        self.assertTrue(start <= array.ctypes.data < start + tensors.buffer.size)
        tensors.buffer.close()
        del tensors
        gc.collect()
        self.assertTrue(np.array_equal(array, self.arrays["wide"]))

    def test_a_loaded_buffer_is_frozen_on_request(self) -> None:
        tensors = hostbuf.load(self.path)
        array = tensors["wide"]
        self.assertTrue(tensors.buffer.freeze(None).sealed)
        self.assertTrue(np.array_equal(array, self.arrays["wide"]))
        self.check(tensors)

    def test_errors(self) -> None:
        self.path.write_bytes(b"\xff" * 100)
        with self.assertRaises(hostbuf.LoadError) as raised:
            hostbuf.load(self.path)
        self.assertEqual(raised.exception.kind, "Damaged")
        with self.assertRaisesRegex(hostbuf.LoadError, "No such file") as raised:
            hostbuf.load(self.folder / "none")
        self.assertEqual(raised.exception.kind, "Io")
        with self.assertRaisesRegex(hostbuf.LoadError, "name at least one file") as raised:
            hostbuf.load([])
        self.assertEqual(raised.exception.kind, "Argument")
        with self.assertRaises(FileNotFoundError) as missing:
            hostbuf.load(self.folder / "none")
        self.assertIsInstance(missing.exception, hostbuf.MissingFileError)
        error = missing.exception
        self.assertEqual((error.errno, error.filename), (errno.ENOENT, str(self.folder / "none")))
        self.assertRegex(str(error), "^opening .*/none: No such file")
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"x": "shard.safetensors"}}))
        with self.assertRaisesRegex(FileNotFoundError, "names it as a shard") as missing:
            hostbuf.load(index)
        self.assertEqual((missing.exception.errno, missing.exception.filename), (errno.ENOENT, str(self.folder / "shard.safetensors")))
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid device cpu: expected a GPU"):
            hostbuf.load(self.path, device="cpu")
        with self.assertRaises(TypeError):
            hostbuf.load(self.path, comm=3)
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid backend"):
            hostbuf.load(self.path, backend="gds")

    @mock.patch.dict(sys.modules, {"torch": types.ModuleType("torch")})
    def test_names_in_messages_are_printable(self) -> None:
        name = "a\x1b[2J\n" + "x" * 220
        path = self.folder / f"{name}.npy"
        np.save(path, np.arange(5, dtype=">i4"))
        with self.assertRaisesRegex(hostbuf.LoadError, r'tensor "a\\x1b\[2J\\nx{194}…" is big-endian'):
            hostbuf.load(path).torch(name)

    def naive_slice(self, array: "np.ndarray[Any, Any]", dim: int, rank: int, ranks: int) -> "np.ndarray[Any, Any]":
        length = -(-array.shape[dim] // ranks)
        return np.take(array, range(min(rank * length, array.shape[dim]), min((rank + 1) * length, array.shape[dim])), dim)

    def test_slices_of_all_ranks(self) -> None:
        fortran = np.asfortranarray(np.arange(60.0).reshape(3, 4, 5))
        np.save(self.folder / "fortran.npy", fortran)
        np.save(self.folder / "big.npy", np.arange(12, dtype=">i4").reshape(3, 4))
        tensors = hostbuf.load([self.path, self.folder / "fortran.npy", self.folder / "big.npy"])
        arrays = {**self.arrays, "fortran": fortran, "big": np.arange(12, dtype=">i4").reshape(3, 4)}
        for name, array in arrays.items():
            for dim, ranks in itertools.product(range(array.ndim), [1, 2, 3, 7, 50]):
                for rank in range(ranks):
                    found = tensors.slice(name, dim, rank, ranks)
                    self.assertTrue(np.array_equal(found, self.naive_slice(array, dim, rank, ranks)), (name, dim, rank, ranks))
                    self.assertEqual((found.dtype, found.flags.writeable), (array.dtype, True))
        self.assertTrue(tensors.slice("fortran", 1, 0, 2).flags.f_contiguous)
        # They are copies that stay, and nothing of the buffer is written.
        part = tensors.slice("cube", 1, 0, 2)
        part[:] = 0
        self.check({name: tensors[name] for name in self.arrays})
        for dim, rank, ranks in [(-1, 0, 2), (0, -1, 2), (0, 0, -2), (9, 0, 2), (0, 2, 2), (0, 0, 0)]:
            with self.assertRaises(hostbuf.LoadError):
                tensors.slice("cube", dim, rank, ranks)

    def test_fused_slices_of_all_ranks(self) -> None:
        tensors = hostbuf.load(self.path)
        # Queries, and keys and values of which two ranks use one share.
        for name, dim, sizes in [("weights", 0, [24, 8, 8]), ("wide", 1, [4000, 800, 200])]:
            parts = np.split(self.arrays[name], np.cumsum(sizes)[:-1], dim)
            for rank in range(4):
                shares = [np.split(part, count, dim)[rank * count // 4] for part, count in zip(parts, [4, 2, 2])]
                expected = np.concatenate(shares, dim)
                fused: list[int | tuple[int, int]] = [sizes[0], (sizes[1], 2), (sizes[2], 2)]
                found = tensors.fused_slice(name, dim, fused, rank, 4)
                self.assertTrue(np.array_equal(found, expected) and found.dtype == expected.dtype, (name, rank))

    def test_slices_by_rank_that_do_not_exist(self) -> None:
        tensors = hostbuf.load(self.path)
        for why, made in [
            ("invalid dimension 2", lambda: tensors.slice("weights", 2, 0, 1)),
            ("invalid rank 3", lambda: tensors.slice("weights", 0, 3, 3)),
            ("the parts have 30 elements together, and dimension 0 has 40", lambda: tensors.fused_slice("weights", 0, [20, 10], 0, 2)),
            ("part 1 of 10 elements cannot be divided into 4 equal shares", lambda: tensors.fused_slice("weights", 0, [20, 10, 10], 0, 4)),
        ]:
            with self.assertRaisesRegex(hostbuf.LoadError, why) as raised:
                made()
            self.assertEqual(raised.exception.kind, "Argument")
        for call in [lambda: tensors.slice("none", 0, 0, 1), lambda: tensors.fused_slice("none", 0, [1], 0, 1)]:
            with self.assertRaises(KeyError):
                call()
        with self.assertRaisesRegex(hostbuf.InvalidError, 'invalid framework "jax": expected np or pt'):
            tensors.slice("weights", 0, 0, 1, framework="jax")

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_slices_of_torch(self) -> None:
        np.save(self.folder / "f.npy", np.asfortranarray(np.arange(12.0).reshape(3, 4)))
        tensors = hostbuf.load([self.path, self.folder / "f.npy"])
        for name, dim in [("weights", 1), ("wide", 0), ("f", 0), ("empty", 1)]:
            found = tensors.slice(name, dim, 1, 2, framework="pt")
            self.assertTrue(torch.equal(found, tensors.torch(name).chunk(2, dim)[1]), name)

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_views_of_torch(self) -> None:
        np.save(self.folder / "f.npy", np.asfortranarray(np.arange(12.0).reshape(3, 4)))
        tensors = hostbuf.load([self.path, self.folder / "f.npy"])
        for name in self.arrays:
            tensor = tensors.torch(name)
            self.assertEqual(tuple(tensor.shape), self.arrays[name].shape)
            self.assertTrue(np.array_equal(tensor.numpy(), self.arrays[name]), name)
            if math.prod(tensor.shape):
                self.assertEqual(tensor.data_ptr(), tensors[name].ctypes.data)
        self.assertEqual(tensors.torch("f")[1, 2].item(), 6)


if __name__ == "__main__":
    unittest.main()
