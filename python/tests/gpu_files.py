"""Transfers between files and a GPU, with the driver's functions alone: on a GPU (gpu.py), or with
the fake driver of tests/fixtures, whose copies are incomplete while the file FAKE_CUDA_PENDING
exists."""

import asyncio
import ctypes
import gc
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
from gpu_blocks import PENDING, Cuda, driver_is_loaded, eventually, pending

# More than a ring has memory.
NUMBERS = bytes(range(256)) * 4096 * 40


class DeviceArray:
    """Memory of the GPU that describes itself by the CUDA array interface."""

    def __init__(self, cuda: Cuda, size: int, stream: "int | None" = None) -> None:
        address = ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.free = weakref.finalize(self, cuda.call, "cuMemFree_v2", ctypes.c_uint64(address.value))
        self.address, self.size, self.stream = address.value, size, stream
        self.strides: "tuple[int, ...] | None" = None
        self.readonly = False

    @property
    def __cuda_array_interface__(self) -> "dict[str, Any]":
        return {
            "version": 3,
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address, self.readonly),
            "strides": self.strides,
            "stream": self.stream,
        }


def wait_for_copy(array: DeviceArray) -> None:
    """Waits until the fake driver, whose copies show at once, has begun to copy to an array."""
    eventually(lambda: ctypes.string_at(array.address, 2) == NUMBERS[:2])


class GpuFiles(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "numbers"
        self.path.write_bytes(NUMBERS)
        self.cuda = Cuda()
        self.stream = self.cuda.stream()

    def content(self, array: DeviceArray) -> bytes:
        return self.cuda.read(array.address, array.size, self.stream)

    def test_a_file_goes_to_the_gpu_and_back(self) -> None:
        array = DeviceArray(self.cuda, len(NUMBERS), self.stream)
        with hostbuf.File(self.path) as file:
            self.assertEqual(file.pread(array).get(), len(NUMBERS))
            self.assertEqual(self.content(array), NUMBERS)
            small = DeviceArray(self.cuda, 100)
            self.assertEqual(file.read(small, 77, size=50), 50)
            self.assertEqual(self.content(small)[:50], NUMBERS[77:127])
        # The file gets what the stream writes first.
        self.cuda.write(array.address, b"abc", self.stream)
        with hostbuf.File(self.folder / "copy", "w") as file:
            self.assertEqual(file.write(array, 10), len(NUMBERS))
        self.assertEqual((self.folder / "copy").read_bytes(), bytes(10) + b"abc" + NUMBERS[3:])

    def test_a_block_of_a_pool_is_an_array_of_dlpack(self) -> None:
        pool = hostbuf.Pool("test", mode="private")
        with pool.gpu_producer(shape=(1000, 1000), dtype="u1") as producer:
            block = producer.block()
            with hostbuf.File(self.path) as file:
                self.assertEqual(file.read(block), 1000000)
            # The array is released: publishing needs that.
            token = block.publish()
            with pool.acquire_gpu(token) as frame, hostbuf.File(self.folder / "copy", "w") as file:
                self.assertEqual(file.write(frame), 1000000)
        self.assertEqual((self.folder / "copy").read_bytes(), NUMBERS[:1000000])

    def test_invalid_arrays(self) -> None:
        array = DeviceArray(self.cuda, 100)
        with hostbuf.File(self.path) as file:
            array.strides = (2,)
            with self.assertRaisesRegex(hostbuf.InvalidError, "is not contiguous"):
                file.pread(array)
            array.strides, array.readonly = None, True
            with self.assertRaisesRegex(hostbuf.InvalidError, "is read-only"):
                file.pread(array)
            array.readonly = False
            with self.assertRaisesRegex(hostbuf.InvalidError, "invalid size 101: the array has 100 bytes"):
                file.pread(array, size=101)

    def test_a_host_array_loads_no_driver(self) -> None:
        script = f"""
import hostbuf
from gpu_files import driver_is_loaded
with hostbuf.File({str(self.path)!r}) as file:
    file.read(bytearray(100))
assert not driver_is_loaded()
"""
        self.assertEqual(os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", script]), 0)
        self.assertTrue(driver_is_loaded())

    @unittest.skipIf(PENDING is None, "only the fake driver leaves copies incomplete")
    def test_an_array_is_kept_while_the_gpu_copies(self) -> None:
        array = DeviceArray(self.cuda, len(NUMBERS))
        freed = array.free
        with hostbuf.File(self.path) as other:
            with pending():
                file = hostbuf.File(self.path)
                transfer = file.pread(array)
                wait_for_copy(array)
                transfer.cancel()
                self.assertFalse(transfer.done())
                del array, transfer, file
                gc.collect()
                self.assertTrue(freed.alive)

            def is_freed() -> bool:
                other.read(bytearray(1))
                return not freed.alive

            eventually(is_freed)

    @unittest.skipIf(PENDING is None, "only the fake driver leaves copies incomplete")
    def test_ctrl_c_cancels_and_waits_for_the_gpu(self) -> None:
        array = DeviceArray(self.cuda, len(NUMBERS))
        handled: list[int] = []

        def handle(number: int, frame: Any) -> None:
            # Only the wait is interrupted, not this test.
            if frame.f_code is hostbuf.Transfer.get.__code__:
                handled.append(number)
                raise KeyboardInterrupt

        def interrupt_twice() -> None:
            while len(handled) < 2:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.001)

        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, handle))
        thread = threading.Thread(target=interrupt_twice)
        with hostbuf.File(self.path) as file:
            with pending():
                transfer = file.pread(array)
                wait_for_copy(array)
                thread.start()
                # The second signal ends the wait for the GPU, too.
                with self.assertRaises(KeyboardInterrupt):
                    transfer.get()
                thread.join()
                self.assertFalse(transfer.done())
            with self.assertRaises(hostbuf.TransferCancelledError):
                transfer.get()
            self.assertTrue(transfer.done())

    @unittest.skipIf(PENDING is None, "only the fake driver leaves copies incomplete")
    def test_a_cancelled_task_waits_for_the_gpu(self) -> None:
        array = DeviceArray(self.cuda, len(NUMBERS))

        async def main() -> None:
            with hostbuf.File(self.path) as file:
                with pending():
                    transfer = file.pread(array)

                    async def wait() -> None:
                        await transfer

                    wait_for_copy(array)
                    task = asyncio.ensure_future(wait())
                    await asyncio.sleep(0)
                    task.cancel()
                    for _ in range(10):
                        await asyncio.sleep(0)
                    self.assertFalse(task.done())
                with self.assertRaises(asyncio.CancelledError):
                    await asyncio.wait_for(task, 20)
                self.assertTrue(transfer.done())

        asyncio.run(main())


if __name__ == "__main__":
    unittest.main()
