"""Files and transfers on the host. Those of a GPU are in gpu_files.py."""

import array
import asyncio
import ctypes
import errno
import functools
import gc
import io
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import unittest
import weakref
from typing import Any

import hostbuf
import hostbuf._waits
import numpy as np
from pools import fork

try:
    import torch
except ImportError:
    torch = None

LIMIT = 60.0
LARGE = 256 << 20


class Dlpack:
    """An array that has DLPack as its only protocol."""

    def __init__(self, numbers: "np.ndarray[Any, Any]") -> None:
        self.numbers = numbers

    def __dlpack__(self, **options: Any) -> Any:
        return self.numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> "tuple[int, int]":
        return self.numbers.__dlpack_device__()


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "numbers"
        self.numbers = np.arange(100000, dtype="i8")
        self.numbers.tofile(self.path)

    def large(self) -> pathlib.Path:
        """Returns a file whose bytes take some time to read, though the disk has none of them."""
        path = self.folder / "large"
        with open(path, "wb") as file:
            file.truncate(LARGE)
        return path

    def test_arrays_of_every_protocol(self) -> None:
        expected = self.numbers[10:20].tobytes()
        with hostbuf.File(self.path) as file:
            self.assertEqual((file.size, file.name, file.mode), (800000, str(self.path), "r"))
            for backing in [np.zeros(10, "i8"), bytearray(80), array.array("q", bytes(80)), (ctypes.c_int64 * 10)()]:
                self.assertEqual(file.read(backing, offset=80), 80)
                self.assertEqual(bytes(backing), expected)
            by_dlpack = np.zeros(10, "i8")
            self.assertEqual(file.pread(Dlpack(by_dlpack), offset=80).get(), 80)
            self.assertEqual(by_dlpack.tobytes(), expected)
            whole = np.zeros((10, 10), "i8")
            self.assertEqual(file.read(whole[2:3], offset=80), 80)
            self.assertEqual(whole[2].tobytes(), expected)
            self.assertEqual(whole.sum(), self.numbers[10:20].sum())
            columns = np.zeros((2, 5), "i8", order="F")
            file.read(columns, offset=80)
            self.assertEqual(columns.tobytes("A"), expected)
            times = np.zeros(10, "M8[s]")
            file.read(times, offset=80)
            self.assertEqual(times.tobytes(), expected)
            part = bytearray(100)
            self.assertEqual(file.read(part, offset=80, size=8), 8)
            self.assertEqual(part, expected[:8] + bytes(92))
            self.assertEqual(file.read(bytearray(), offset=10**6), 0)

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_tensors(self) -> None:
        with hostbuf.File(self.path) as file:
            tensor = torch.zeros(100000, dtype=torch.int64)
            file.read(tensor)
            self.assertEqual(tensor.numpy().tobytes(), self.numbers.tobytes())
            halves = torch.zeros(40, dtype=torch.bfloat16)
            self.assertEqual(file.read(halves, offset=80), 80)
            with self.assertRaisesRegex(hostbuf.InvalidError, "is not contiguous"):
                file.pread(torch.zeros(4, 4)[:, 1])

    def test_writing_and_reading_back(self) -> None:
        path = self.folder / "new"
        for backend in ["posix", "auto"]:
            with hostbuf.File(path, "w", backend) as file:
                transfers = [file.pwrite(self.numbers[i : i + 10000], offset=8 * i) for i in range(0, 100000, 10000)]
                self.assertEqual([one.get() for one in transfers], [80000] * 10)
                file.write(b"abc", offset=800000)
                frozen = self.numbers.copy()
                frozen.flags.writeable = False
                file.write(frozen, offset=800003)
                file.sync()
            self.assertEqual(path.read_bytes(), self.numbers.tobytes() + b"abc" + self.numbers.tobytes())
        with hostbuf.File(path, "r+") as file:
            file.write(b"xy", offset=1)
            got = bytearray(4)
            file.read(got)
            self.assertEqual(got, self.numbers.tobytes()[:1] + b"xy" + self.numbers.tobytes()[3:4])
        with hostbuf.File(path, "w") as file:
            self.assertEqual(file.size, 0)

    def test_an_invalid_argument_leaves_the_file_alone(self) -> None:
        path = self.folder / "kept"
        path.write_bytes(b"precious")
        for name, backend in ((str(path), "nonsense"), (os.fsencode(path), "auto")):
            with self.assertRaises((hostbuf.InvalidError, TypeError)):
                hostbuf.File(name, "w", backend)  # type: ignore[arg-type]
            self.assertEqual(path.read_bytes(), b"precious")
        hostbuf.File(path, "w").close()
        self.assertEqual(path.read_bytes(), b"")

    def test_a_fifo_is_refused_without_a_wait(self) -> None:
        path = self.folder / "fifo"
        os.mkfifo(path)
        for mode in ("r", "w"):
            with self.assertRaisesRegex(OSError, "it is a FIFO") as raised:
                hostbuf.File(path, mode)
            self.assertEqual((raised.exception.errno, raised.exception.filename), (errno.EINVAL, str(path)))
        for call in (hostbuf.page_cache, hostbuf.drop_page_cache):
            with self.assertRaisesRegex(OSError, "it is a FIFO"):
                call(path)

    def test_a_folder_is_refused(self) -> None:
        for mode in ("r", "r+", "w"):
            with self.assertRaises(IsADirectoryError) as raised:
                hostbuf.File(self.folder, mode)
            self.assertEqual((raised.exception.errno, raised.exception.filename), (errno.EISDIR, str(self.folder)))

    def test_errors_are_those_of_python(self) -> None:
        missing = self.folder / "none"
        with self.assertRaises(FileNotFoundError) as expected:
            open(missing)
        handle = functools.partial(hostbuf._hostbuf.FileHandle, write=False, backend="auto")
        for call in (hostbuf.File, hostbuf.page_cache, hostbuf.drop_page_cache, handle):
            with self.assertRaises(FileNotFoundError) as raised:
                call(missing)
            self.assertEqual((raised.exception.args, raised.exception.filename), (expected.exception.args, str(missing)))
            self.assertEqual(str(raised.exception), str(expected.exception))
        # A backend that the file cannot have is an error without a number in the kernel.
        with self.assertRaises(OSError) as refused:
            hostbuf.File(self.path, backend="mmap")
            self.skipTest(f"{self.path} is on tmpfs")
        error = refused.exception
        self.assertEqual((error.errno, error.filename), (errno.EOPNOTSUPP, str(self.path)))
        self.assertIn("only files on tmpfs are mapped", error.strerror)

    def test_backends(self) -> None:
        with hostbuf.File(self.path, backend="posix") as file:
            self.assertEqual(file.backend, ("posix", "as requested"))
            self.assertEqual(file.backend.name, "posix")
        with hostbuf.File(self.path) as file:
            self.assertTrue(file.backend.why)
            self.assertIn(file.backend.name, repr(file))
        with self.assertRaisesRegex(hostbuf.InvalidError, 'invalid backend "gds": expected auto'):
            hostbuf.File(self.path, backend="gds")
        with self.assertRaisesRegex(hostbuf.InvalidError, "only through the Rust type CuFile; expected auto"):
            hostbuf.File(self.path, backend="cufile")
        try:
            file = hostbuf.File(self.path, backend="direct")
        except OSError as error:
            self.skipTest(f"O_DIRECT: {error}")
        with file:
            got = np.zeros(99990, "i8")
            file.read(got, offset=80)
            self.assertTrue(np.array_equal(got, self.numbers[10:]))

    def test_invalid_arrays_and_files(self) -> None:
        with hostbuf.File(self.path) as file:
            frozen = np.zeros(10)
            frozen.flags.writeable = False
            for out, message in [
                (np.zeros(20)[::2], "of shape .10,. and strides .16,. is not contiguous"),
                (np.zeros(20)[::-1], "is not contiguous"),
                (np.zeros((4, 4))[:, :2], "is not contiguous"),
                (frozen, "is read-only"),
                (b"12345678", "is read-only"),
            ]:
                with self.assertRaisesRegex(hostbuf.InvalidError, message):
                    file.pread(out)
            with self.assertRaises(TypeError):
                file.pread([1, 2])
            of_jax = type("Array", (Dlpack,), {"__module__": "jaxlib.xla_extension"})
            with self.assertRaisesRegex(hostbuf.InvalidError, "one of JAX, which are immutable"):
                file.pread(of_jax(np.zeros(10)))
            with self.assertRaisesRegex(hostbuf.InvalidError, "invalid size 81: the array has 80 bytes"):
                file.pread(np.zeros(10), size=81)
            with self.assertRaisesRegex(hostbuf.InvalidError, "invalid offset -1"):
                file.pread(np.zeros(10), offset=-1)
            with self.assertRaisesRegex(hostbuf.InvalidError, "ends before 2\\^63"):
                file.pread(np.zeros(10), offset=(1 << 63) - 1).get()
            with self.assertRaisesRegex(io.UnsupportedOperation, "not writable"):
                file.pwrite(b"abc")
        with self.assertRaisesRegex(ValueError, "the file is closed"):
            file.pread(bytearray(3))
        with self.assertRaisesRegex(ValueError, "the file is closed"):
            _ = file.size
        self.assertEqual(repr(file), f"<hostbuf.File {str(self.path)!r}, closed>")
        file.close()
        with self.assertRaises(FileNotFoundError) as raised:
            hostbuf.File(self.folder / "none" / "file", "w")
        self.assertEqual(raised.exception.filename, str(self.folder / "none" / "file"))
        with self.assertRaises(FileNotFoundError):
            hostbuf.File(self.folder / "none", "r+")
        with self.assertRaisesRegex(hostbuf.InvalidError, 'invalid mode "a": expected r, r\\+, w'):
            hostbuf.File(self.path, "a")

    def test_arguments_after_the_array_have_names(self) -> None:
        # KvikIO has the size before the offset.
        with hostbuf.File(self.path, "r+") as file:
            for call in (file.pread, file.pwrite, file.read, file.write):
                with self.assertRaisesRegex(TypeError, "positional argument"):
                    call(bytearray(80), 8, 80)  # type: ignore[misc]
                with self.assertRaisesRegex(TypeError, "positional argument"):
                    call(bytearray(80), 8)  # type: ignore[misc]

    def test_errors_of_transfers(self) -> None:
        with hostbuf.File(self.path) as file:
            transfer = file.pread(np.zeros(20), offset=8 * 99990)
            for _ in range(2):
                with self.assertRaisesRegex(hostbuf.EndOfFileError, "before the end of the requested range") as ended:
                    transfer.get()
            self.assertIsInstance(ended.exception, EOFError)
            self.assertIsInstance(ended.exception, hostbuf.TransferError)
            self.assertLessEqual(ended.exception.landed, 80)
            self.assertTrue(transfer.done())
        # Nothing is mapped at the first bytes of an address space.
        with hostbuf.File("/proc/self/mem") as memory, self.assertRaises(hostbuf.TransferIOError) as io_error:
            memory.read(np.zeros(20))
        self.assertIsInstance(io_error.exception, OSError)
        error = io_error.exception
        self.assertEqual((error.errno, error.strerror, error.filename), (errno.EIO, os.strerror(errno.EIO), "/proc/self/mem"))
        self.assertTrue(str(error).endswith("0 bytes have landed"), error)

    def test_closing_waits_and_reports_errors_that_nobody_asked_for(self) -> None:
        out = np.ones(LARGE, "u1")
        with hostbuf.File(self.large()) as file:
            file.pread(out)
        self.assertFalse(out.any())
        file = hostbuf.File(self.path)
        file.pread(np.zeros(20), offset=8 * 99990)
        with self.assertRaises(hostbuf.EndOfFileError):
            file.close()
        self.assertTrue(file.closed)
        file.close()
        with hostbuf.File(self.path) as file:
            known = file.pread(np.zeros(20), offset=8 * 99990)
        with self.assertRaises(hostbuf.EndOfFileError):
            known.get()
        # The exception of the block is the one that counts.
        with self.assertRaises(ZeroDivisionError), hostbuf.File(self.path) as file:
            file.pread(np.zeros(20), offset=8 * 99990)
            raise ZeroDivisionError

    def test_an_array_is_kept_as_long_as_its_transfer(self) -> None:
        file = hostbuf.File(self.path)
        out = np.zeros(100000, "i8")
        gone = weakref.ref(out)
        transfer = file.pread(out)
        del out
        self.assertIsNotNone(gone())
        transfer.get()
        self.assertIsNone(gone())
        # A bytearray cannot change its size meanwhile, and can afterwards.
        grown = bytearray(LARGE)
        transfer = hostbuf.File(self.large()).pread(grown)
        if not transfer.done():
            with self.assertRaises(BufferError):
                grown.append(1)
        del file
        transfer.get()
        grown.append(1)

    def test_a_dropped_transfer_goes_on_and_releases_its_array(self) -> None:
        out = np.ones(LARGE, "u1")
        gone = weakref.ref(out)
        file = hostbuf.File(self.large())
        file.pread(out)
        del out, file
        gc.collect()
        end = time.monotonic() + LIMIT
        # The next transfers release it.
        with hostbuf.File(self.path) as other:
            while gone() is not None:
                self.assertLess(time.monotonic(), end)
                other.read(bytearray(8))

    def test_cancelling(self) -> None:
        out = np.ones(LARGE, "u1")
        with hostbuf.File(self.large()) as file:
            transfer = file.pread(out)
            transfer.cancel()
            try:
                # It may have ended before.
                self.assertEqual(transfer.get(), LARGE)
            except hostbuf.TransferCancelledError as error:
                self.assertEqual(error.landed, transfer.landed)
                self.assertFalse(out[: error.landed].any())
            self.assertTrue(transfer.done())
            transfer.cancel()
        # Closing the file reports no transfer that the program has cancelled.
        with hostbuf.File(self.folder / "large") as file:
            for _ in range(10):
                file.pread(out).cancel()

    def test_ctrl_c_ends_waits(self) -> None:
        out = np.ones(LARGE, "u1")
        transfers: list[hostbuf.Transfer] = []

        def interrupt() -> None:
            while not transfers or not transfers[-1].landed:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        end = time.monotonic() + LIMIT
        with hostbuf.File(self.large()) as file, self.assertRaises(KeyboardInterrupt):
            thread.start()
            while time.monotonic() < end:
                transfers.append(file.pread(out))
                transfers[-1].get()
        thread.join()

    def test_threads_wait_for_the_same_transfers(self) -> None:
        outs = [np.zeros(1000, "i8") for _ in range(100)]
        results: list[int] = []
        with hostbuf.File(self.path) as file:
            transfers = [file.pread(out, offset=8 * number) for number, out in enumerate(outs)]
            threads = [threading.Thread(target=lambda: results.extend(one.get() for one in transfers)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(results, [8000] * 400)
        self.assertTrue(all(np.array_equal(out, self.numbers[number : number + 1000]) for number, out in enumerate(outs)))

    def test_tasks_wait_without_a_thread_each(self) -> None:
        count = 5000
        outs = np.zeros((count, 10), "i8")

        async def main() -> None:
            with hostbuf.File(self.path) as file:
                transfers = [file.pread(outs[number], offset=8 * number) for number in range(count)]
                self.assertLess(len(os.listdir("/proc/self/task")), 64)
                results = await asyncio.wait_for(asyncio.gather(*transfers), LIMIT)
                self.assertEqual(results, [80] * count)
                with self.assertRaises(hostbuf.EndOfFileError):
                    await file.pread(bytearray(80), offset=8 * 99999)
                # Several tasks may wait for one transfer.
                shared = file.pread(bytearray(80), offset=80)

                async def wait() -> int:
                    return await shared

                self.assertEqual(await asyncio.gather(wait(), wait()), [80, 80])

        asyncio.run(main())
        self.assertTrue(np.array_equal(outs[7], self.numbers[7:17]))
        self.assertTrue(np.array_equal(outs[:, 9], self.numbers[9 : count + 9]))
        self.assertEqual(len(hostbuf._waits._waits), 0)

    def test_a_task_that_is_cancelled_cancels_its_transfer(self) -> None:
        out = np.ones(LARGE, "u1")

        async def main() -> None:
            with hostbuf.File(self.large()) as file:
                transfers = [file.pread(out) for _ in range(4)]

                async def wait() -> None:
                    for transfer in transfers:
                        await transfer

                task = asyncio.ensure_future(wait())
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await asyncio.wait_for(task, LIMIT)
                # Nothing accesses the array any more.
                self.assertTrue(transfers[0].done())

        asyncio.run(main())
        self.assertEqual(len(hostbuf._waits._waits), 0)

    def test_a_forked_child_has_transfers_of_its_own(self) -> None:
        file = hostbuf.File(self.path)
        transfer = file.pread(np.zeros(100000, "i8"))

        def child() -> None:
            for call in [transfer.get, transfer.done]:
                with self.assertRaises(hostbuf.ForkedError):
                    call()
            transfer.cancel()
            out = np.zeros(1000, "i8")
            self.assertEqual(file.pread(out, offset=80).get(), 8000)
            self.assertTrue(np.array_equal(out, self.numbers[10:1010]))
            file.close()

        self.assertEqual(fork(child), 0)
        self.assertEqual(transfer.get(), 800000)
        file.close()

    def test_memory_of_a_buffer(self) -> None:
        with hostbuf.allocate(None, 1 << 20) as buffer:

            def build(arena: hostbuf.Arena) -> Any:
                table = arena.array(100000, "i8")
                with hostbuf.File(self.path) as file:
                    file.read(table)
                return table

            table = buffer.initialize(build)
            self.assertTrue(np.array_equal(table, self.numbers))
            self.assertTrue(buffer.freeze(None).sealed)
            with hostbuf.File(self.folder / "copy", "w") as file:
                self.assertEqual(file.write(table), 800000)
            with hostbuf.File(self.path) as file, self.assertRaisesRegex(hostbuf.InvalidError, "read-only"):
                file.pread(table)
        self.assertEqual((self.folder / "copy").read_bytes(), self.numbers.tobytes())

    def test_the_page_cache(self) -> None:
        try:
            pages = hostbuf.page_cache(self.path)
        except OSError as error:
            self.skipTest(f"cachestat: {error}")
        self.assertEqual(pages.pages, -(-800000 // os.sysconf("SC_PAGE_SIZE")))
        self.assertEqual(pages.cached, pages.pages)
        hostbuf.drop_page_cache(self.path)
        # A file in memory has no other place.
        self.assertIn(hostbuf.page_cache(self.path).cached, (0, pages.pages))
        self.assertEqual(hostbuf.page_cache(self.path).dirty % pages.pages, 0)

    def test_the_interpreter_ends_with_transfers_in_flight(self) -> None:
        script = f"""
import hostbuf, numpy as np
out = np.ones({LARGE}, "u1")
file = hostbuf.File({str(self.large())!r})
kept = [file.pread(out) for _ in range(8)]
file.pread(out)
"""
        status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-X", "dev", "-c", script])
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
