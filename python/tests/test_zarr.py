"""A store of zarr with the files of hostbuf. The test with memory of a GPU is in gpu_files.py."""

import asyncio
import concurrent.futures
import importlib.util
import os
import pathlib
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import hostbuf
import numpy as np

try:
    import zarr
    from hostbuf.zarr import FileStore
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.codecs import BloscCodec, ShardingCodec
    from zarr.core.buffer import BufferPrototype, cpu, default_buffer_prototype
    from zarr.storage import LocalStore
except ImportError:
    zarr = None  # type: ignore[assignment]

LIMIT = 60.0
NUMBERS = np.random.default_rng(7).standard_normal((300, 200))
# Without compression a wrong byte would be a wrong number.
LAYOUTS: "list[dict[str, Any]]" = [
    {"compressors": None},
    {"compressors": "auto"},
    {"compressors": None, "shards": (100, 100)},
    {"compressors": "auto", "shards": (300, 200)},
    {"compressors": "auto", "zarr_format": 2},
]


class Counted(hostbuf.File):
    """A file whose reads are counted."""

    reads: "list[tuple[str, int, int]]" = []

    def pread(self, out: Any, *, offset: int = 0, size: "int | None" = None, stream: Any = None) -> hostbuf.Transfer:
        transfer = super().pread(out, offset=offset, size=size, stream=stream)
        self.reads.append((os.path.basename(self.name), offset, transfer.nbytes))
        return transfer


class Shrinking(hostbuf.File):
    """A file that loses half of its bytes between the question for its size and the read."""

    @property
    def size(self) -> int:
        size = super().size
        os.truncate(self.name, size // 2)
        return size


def content(folder: pathlib.Path) -> "dict[str, bytes]":
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def buffer(data: bytes) -> Any:
    return cpu.Buffer.from_bytes(data)


class WithoutZarr(unittest.TestCase):
    def test_the_error_names_the_package(self) -> None:
        script = "import sys; sys.modules['zarr'] = sys.modules['zarr.abc'] = None; import hostbuf.zarr"
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stderr
        self.assertRegex(said.splitlines()[-1], r"^ImportError: hostbuf\.zarr needs zarr 3\.1 or later \(pip install zarr\): ")


@unittest.skipIf(zarr is None, "a store of zarr: there is no zarr 3")
class Stores(unittest.TestCase):
    # No request is shorter, so all are transfers.
    short = -1

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        short = mock.patch("hostbuf.zarr._SHORT", self.short)
        short.start()
        self.addCleanup(short.stop)

    def written(self, store: Any, layout: "dict[str, Any]", name: str = "a") -> Any:
        array = zarr.create_array(store, name=name, shape=NUMBERS.shape, chunks=(50, 50), dtype="f8", **layout)
        array[:] = NUMBERS
        return array

    @unittest.skipIf(importlib.util.find_spec("pytest_asyncio") is None, "zarr's tests of stores: there is no pytest-asyncio")
    def test_its_own_tests_of_stores_pass(self) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "zarr_store.py"]
        ran = subprocess.run(command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        passed = re.search(r"^(\d+) passed in ", ran.stdout, re.MULTILINE)
        self.assertTrue(passed and int(passed[1]) > 120, ran.stdout)

    def test_files_are_those_of_local_store(self) -> None:
        for number, layout in enumerate(LAYOUTS):
            with self.subTest(layout):
                theirs, own = self.folder / f"{number}-local", self.folder / f"{number}-own"
                self.written(LocalStore(theirs), layout)
                self.written(FileStore(own), layout)
                self.assertEqual(content(own), content(theirs))
                for store in [FileStore(theirs, read_only=True), LocalStore(own, read_only=True)]:
                    read = zarr.open_array(store, path="a", mode="r")
                    np.testing.assert_array_equal(read[:], NUMBERS)
                    np.testing.assert_array_equal(read[33:120, 7:199], NUMBERS[33:120, 7:199])

    def test_groups_and_parts_that_are_written(self) -> None:
        store = FileStore(self.folder)
        root = zarr.create_group(store, attributes={"unit": "m"})
        array = self.written(store, LAYOUTS[2], "deep/array")
        array[120:130, 60:70] = 5
        expected = NUMBERS.copy()
        expected[120:130, 60:70] = 5
        for one in [FileStore(self.folder), LocalStore(self.folder)]:
            group = zarr.open_group(one, mode="r")
            self.assertEqual(group.attrs["unit"], "m")
            np.testing.assert_array_equal(group["deep/array"][:], expected)
        self.assertEqual(sorted(root.array_keys()) + sorted(root.group_keys()), ["deep"])
        self.assertFalse([name for name in content(self.folder) if "partial" in name])

    def test_parts_of_a_shard_are_read_alone(self) -> None:
        self.written(LocalStore(self.folder), {"compressors": None, "shards": (300, 200)})
        with mock.patch("hostbuf.zarr.File", Counted), mock.patch.object(Counted, "reads", []) as reads:
            read = zarr.open_array(FileStore(self.folder), path="a", mode="r")
            np.testing.assert_array_equal(read[60:70, 60:120], NUMBERS[60:70, 60:120])
        # The index at the end of the file has two numbers for each of 24 chunks, and a checksum.
        # Two chunks have the selection; zarr 3.4 reads them and those between at once.
        index, *chunks = reads
        size = (self.folder / "a/c/0/0").stat().st_size
        self.assertEqual(index, ("0", size - 388, 388))
        lengths = [nbytes for _, _, nbytes in chunks]
        self.assertIn(lengths, ([50 * 50 * 8] * 2, [7 * 50 * 50 * 8]))

    def test_metadata_takes_the_way_of_local_store(self) -> None:
        with mock.patch("hostbuf.zarr.File", Counted), mock.patch.object(Counted, "reads", []) as reads:
            self.written(FileStore(self.folder), {"compressors": None})
            zarr.open_array(FileStore(self.folder), path="a", mode="r")
            self.assertEqual(reads, [])
            zarr.open_array(FileStore(self.folder), path="a", mode="r")[:]
            self.assertEqual(len(reads), 24)

    def test_missing_chunks_are_the_fill_value(self) -> None:
        for shards in [None, (100, 100)]:
            array = zarr.create_array(
                FileStore(self.folder), name=f"a{bool(shards)}", shape=(300, 200), chunks=(50, 50), shards=shards, dtype="i4", fill_value=-9
            )
            array[0:50, 50:100] = 3
            expected = np.full((300, 200), -9, "i4")
            expected[0:50, 50:100] = 3
            np.testing.assert_array_equal(array[:], expected)

        async def get(key: str) -> Any:
            return await FileStore(self.folder).get(key, default_buffer_prototype())

        (self.folder / "folder").mkdir()
        (self.folder / "value").write_bytes(b"v")
        for key in ["none", "none/none", "folder", "value/none"]:
            self.assertIsNone(asyncio.run(get(key)))
            self.assertIsNone(FileStore(self.folder).get_sync(key))

    def test_ranges(self) -> None:
        data = os.urandom(3000000)
        (self.folder / "value").write_bytes(data)
        store = FileStore(self.folder)
        expected = [
            (None, data),
            (RangeByteRequest(5, 2000005), data[5:2000005]),
            (RangeByteRequest(2999990, 4000000), data[2999990:]),
            (RangeByteRequest(3000000, 4000000), b""),
            (RangeByteRequest(4000000, 5000000), b""),
            (OffsetByteRequest(2000000), data[2000000:]),
            (OffsetByteRequest(4000000), b""),
            (SuffixByteRequest(10), data[-10:]),
            (SuffixByteRequest(4000000), data),
            (SuffixByteRequest(0), b""),
        ]

        async def values() -> Any:
            return await store.get_partial_values(default_buffer_prototype(), [("value", part) for part, _ in expected])

        for (part, wanted), got in zip(expected, asyncio.run(values())):
            self.assertEqual(got.to_bytes(), wanted, part)
            self.assertEqual(store.get_sync("value", byte_range=part).to_bytes(), wanted, part)

    def test_concurrent_reads_take_no_thread_each(self) -> None:
        count = 1000
        data = np.arange(count * 1000, dtype="u4")
        data.tofile(self.folder / "value")

        async def main() -> Any:
            store = await FileStore.open(self.folder)
            parts = [("value", RangeByteRequest(4000 * number, 4000 * number + 4000)) for number in range(count)]
            reading = asyncio.ensure_future(store.get_partial_values(default_buffer_prototype(), parts))
            threads = 0
            while not reading.done():
                threads = max(threads, len(os.listdir("/proc/self/task")))
                await asyncio.sleep(0)
            # Those of the ring and of asyncio's pool are among them, a few for each core.
            self.assertLess(threads, count // 2)
            return await reading

        got = asyncio.run(main())
        for number, one in enumerate(got):
            np.testing.assert_array_equal(one.as_numpy_array().view("u4"), data[1000 * number : 1000 * number + 1000])
        array = self.written(FileStore(self.folder), LAYOUTS[3])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for read in pool.map(lambda row: (row, array[row]), range(0, 300, 7)):
                np.testing.assert_array_equal(read[1], NUMBERS[read[0]])

    def test_a_file_that_is_cut_short_is_an_error(self) -> None:
        for number, layout in enumerate(LAYOUTS):
            with self.subTest(layout):
                name = f"a{number}"
                self.written(FileStore(self.folder), layout, name)
                chunks = [path for path in (self.folder / name).rglob("*") if path.is_file() and not path.name.endswith((".json", ".zarray", ".zattrs"))]
                for path in chunks:
                    os.truncate(path, path.stat().st_size * 2 // 3)
                read = zarr.open_array(FileStore(self.folder), path=name, mode="r")
                # The codecs of zarr miss the bytes, each with an error of its own.
                with self.assertRaises((ValueError, RuntimeError)):
                    read[:]

    def test_a_file_that_is_cut_short_during_a_read_is_an_error(self) -> None:
        store = FileStore(self.folder)
        array = self.written(store, {"compressors": None})
        with mock.patch("hostbuf.zarr.File", Shrinking):
            with self.assertRaisesRegex(hostbuf.EndOfFileError, re.escape(str(self.folder / "a/c/0/0"))):
                array[:50, :50]
            with self.assertRaises(hostbuf.EndOfFileError):
                store.get_sync("a/c/1/1")

    def test_a_write_that_fails_keeps_the_value(self) -> None:
        store = FileStore(self.folder)
        asyncio.run(store.set("value", buffer(b"old")))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, before[1]))
        try:
            with self.assertRaisesRegex(hostbuf.TransferIOError, "File too large"):
                asyncio.run(store.set("value", buffer(bytes(3000000))))
            with self.assertRaises(hostbuf.TransferIOError):
                store.set_sync("value", buffer(bytes(3000000)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual(content(self.folder), {"value": b"old"})
        for value in [b"", b"new"]:
            store.set_sync("value", buffer(value))
            self.assertEqual(content(self.folder), {"value": value})
        for key in ["value", "other"]:
            asyncio.run(store.set_if_not_exists(key, buffer(b"first")))
        self.assertEqual(content(self.folder), {"value": b"new", "other": b"first"})
        with self.assertRaises(TypeError):
            asyncio.run(store.set("value", b"bytes"))  # type: ignore[arg-type]

    def test_a_write_that_is_cancelled_leaves_nothing(self) -> None:
        value = buffer(bytes(16 << 20))

        def sizes() -> "list[int]":
            return [path.stat().st_size for path in self.folder.glob("*.partial")]

        async def cancel_when(begun: Any) -> None:
            store = await FileStore.open(self.folder)
            task = asyncio.ensure_future(store.set("value", value))
            while not task.done() and not begun():
                await asyncio.sleep(0)
            if task.cancel():
                with self.assertRaises(asyncio.CancelledError):
                    await asyncio.wait_for(task, LIMIT)

        for begun in [lambda: True, sizes, lambda: any(sizes())]:
            asyncio.run(cancel_when(begun))
            # It may have ended before.
            self.assertIn(list(content(self.folder)), [[], ["value"]])

    def test_options_are_kept(self) -> None:
        store = FileStore(self.folder, backend="posix")
        for copy in [store.with_read_only(True), pickle.loads(pickle.dumps(store)), asyncio.run(FileStore.open(self.folder, backend="posix"))]:
            self.assertEqual((copy.backend, copy), ("posix", store))
        with mock.patch("hostbuf.zarr.File", side_effect=hostbuf.File) as opened:
            self.written(store, {"compressors": None})[:50, :50]
        self.assertEqual(len(opened.call_args_list), 25)
        for call in opened.call_args_list:
            self.assertIn("posix", [*call.args, *call.kwargs.values()])
        with self.assertRaisesRegex(hostbuf.InvalidError, 'invalid backend "gds"'):
            FileStore(self.folder, backend="gds")
        with self.assertRaisesRegex(hostbuf.InvalidError, 'invalid backend "gds"'):
            asyncio.run(FileStore.open(self.folder / "none", backend="gds"))
        self.assertFalse((self.folder / "none").exists())
        with self.assertRaises(FileNotFoundError):
            asyncio.run(FileStore.open(self.folder / "none", mode="r+"))

    def test_values_lie_in_the_memory_of_the_prototype(self) -> None:
        class Memory:
            """An array with DLPack as its only protocol."""

            def __init__(self, numbers: Any) -> None:
                self.numbers, self.ndim, self.dtype, self.size = numbers, 1, numbers.dtype, numbers.size

            def __dlpack__(self, **options: Any) -> Any:
                return self.numbers.__dlpack__(**options)

            def __dlpack_device__(self) -> Any:
                return self.numbers.__dlpack_device__()

        class OwnArrays(cpu.NDBuffer):
            @classmethod
            def empty(cls, shape: Any, dtype: Any, order: Any = "C") -> Any:
                return cls(Memory(np.empty(shape, dtype)))

        class OwnBuffer(cpu.Buffer):
            pass

        prototype = BufferPrototype(OwnBuffer, OwnArrays)
        store = FileStore(self.folder)
        value = OwnBuffer(Memory(np.arange(100, dtype="u1")))
        store.set_sync("value", value)
        self.assertEqual((self.folder / "value").read_bytes(), bytes(range(100)))
        got = [store.get_sync("value", prototype=prototype), asyncio.run(store.get("value", prototype, OffsetByteRequest(10)))]
        for one, start in zip(got, [0, 10]):
            self.assertIs(type(one), OwnBuffer)
            self.assertIs(type(one.as_array_like()), Memory)
            self.assertEqual(one.as_array_like().numbers.tobytes(), bytes(range(start, 100)))


@unittest.skipIf(zarr is None, "a store of zarr: there is no zarr 3")
class ShortRequests(unittest.TestCase):
    def test_values_of_few_bytes_need_no_transfer(self) -> None:
        with tempfile.TemporaryDirectory() as name, mock.patch("hostbuf.zarr.File", side_effect=hostbuf.File) as opened:
            store, folder = FileStore(name), pathlib.Path(name)

            async def copy(value: bytes) -> Any:
                await store.set("value", buffer(value))
                return [await store.get("value", None, part) for part in (None, RangeByteRequest(7, 5000), SuffixByteRequest(9))]

            for size, files in [(256 << 10, 0), ((256 << 10) + 1, 2)]:
                data = os.urandom(size)
                got = [one.to_bytes() for one in asyncio.run(copy(data))]
                self.assertEqual(got, [data, data[7:5000], data[-9:]])
                self.assertEqual(opened.call_count, files)
                self.assertEqual(content(folder), {"value": data})
            array = zarr.create_array(store, name="a", shape=NUMBERS.shape, chunks=(50, 50), shards=(100, 100), dtype="f8")
            array[:] = NUMBERS
            np.testing.assert_array_equal(zarr.open_array(LocalStore(folder), path="a", mode="r")[:], NUMBERS)
            np.testing.assert_array_equal(array[:], NUMBERS)

    def test_a_file_that_is_cut_short_during_a_read_is_an_error(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name, "value")
            path.write_bytes(bytes(1000))
            status = os.stat(path)

            def shrink(_: int) -> os.stat_result:
                os.truncate(path, 500)
                return status

            with mock.patch("os.fstat", shrink), self.assertRaisesRegex(hostbuf.EndOfFileError, f"1000 bytes at offset 0 of {path}") as ended:
                FileStore(name).get_sync("value")
            self.assertEqual(ended.exception.landed, 500)


if __name__ == "__main__":
    unittest.main()
