"""Transfers between files and a GPU, with the driver's functions alone: on a GPU (gpu.py), or with
the fake driver of tests/fixtures, whose copies are incomplete while the file FAKE_CUDA_PENDING
exists."""

import asyncio
import contextlib
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
from collections.abc import Iterator
from typing import Any

import hostbuf
from gpu_blocks import PENDING, Cuda, driver_is_loaded, eventually, pending
from hostbuf._array_memory import _DLManagedTensorVersioned

try:
    import numpy as np
    from hostbuf.zarr import FileStore
    from zarr.abc.store import OffsetByteRequest
    from zarr.core.buffer import BufferPrototype, cpu
except ImportError:
    FileStore = None  # type: ignore[assignment,misc]

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
# A capsule keeps the pointer.
_CAPSULE_NAME = b"dltensor_versioned"
# More than a ring has memory.
NUMBERS = bytes(range(256)) * 4096 * 64


class DeviceArray:
    """Memory of the GPU that describes itself by the CUDA array interface."""

    def __init__(self, cuda: Cuda, size: int, stream: "int | None" = None) -> None:
        address = ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.free = weakref.finalize(self, cuda.call, "cuMemFree_v2", ctypes.c_uint64(address.value))
        self.address, self.size, self.stream = address.value, size, stream
        self.strides: "tuple[int, ...] | None" = None
        self.readonly = False
        self.described: list[Any] = []

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


class DlpackArray:
    """Memory of the GPU that describes itself by DLPack, of a library that works on one stream."""

    def __init__(self, cuda: Cuda, array: DeviceArray, stream: int) -> None:
        self.cuda, self.array, self.stream = cuda, array, stream
        self.asked: list[int] = []

    def __dlpack_device__(self) -> "tuple[int, int]":
        return 2, 0

    def __dlpack__(self, *, stream: int) -> Any:
        """Lets ``stream`` wait for the library's work, as the protocol demands."""
        self.asked.append(stream)
        event = ctypes.c_void_p()
        self.cuda.call("cuEventCreate", ctypes.byref(event), 2)
        self.cuda.call("cuEventRecord", event, ctypes.c_void_p(self.stream))
        self.cuda.call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        self.cuda.call("cuEventDestroy_v2", event)
        return capsule(self.array)


def capsule(array: DeviceArray) -> Any:
    """Makes a capsule of DLPack that keeps nothing: its array lives longer."""
    tensor = _DLManagedTensorVersioned()
    shape = (ctypes.c_int64 * 1)(array.size)
    tensor.major, tensor.minor = 1, 0
    tensor.dl_tensor.data, tensor.dl_tensor.device_type, tensor.dl_tensor.ndim = array.address, 2, 1
    tensor.dl_tensor.code, tensor.dl_tensor.bits, tensor.dl_tensor.lanes = 1, 8, 1
    tensor.dl_tensor.shape = shape
    array.described.append((tensor, shape))
    return _new_capsule(ctypes.addressof(tensor), _CAPSULE_NAME, None)


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
            self.assertEqual(file.read(small, offset=77, size=50), 50)
            self.assertEqual(self.content(small)[:50], NUMBERS[77:127])
        # The file gets what the stream writes first.
        self.cuda.write(array.address, b"abc", self.stream)
        with hostbuf.File(self.folder / "copy", "w") as file:
            self.assertEqual(file.write(array, offset=10), len(NUMBERS))
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

    @unittest.skipIf(FileStore is None, "a store of zarr: there is no zarr 3")
    def test_a_store_of_zarr_reads_into_the_gpu_and_writes_from_there(self) -> None:
        class Chunk(DeviceArray):
            ndim, dtype = 1, np.dtype("B")

        class GpuArrays(cpu.NDBuffer):
            @classmethod
            def empty(cls, shape: Any, dtype: Any, order: Any = "C") -> Any:
                return cls(Chunk(cuda, *shape))

        cuda = self.cuda
        prototype = BufferPrototype(cpu.Buffer, GpuArrays)

        async def copy() -> Any:
            store = await FileStore.open(self.folder)
            value = await store.get("numbers", prototype, OffsetByteRequest(77))
            await store.set("c/0", value)
            return value

        value = asyncio.run(copy())
        self.assertEqual(self.content(value.as_array_like()), NUMBERS[77:])
        self.assertEqual((self.folder / "c/0").read_bytes(), NUMBERS[77:])

    def test_a_stream_waits_for_a_transfer_and_a_transfer_for_its_stream(self) -> None:
        class Stream:
            def __init__(self, name: str, handle: int) -> None:
                if name == "__cuda_stream__":
                    self.__cuda_stream__ = lambda: (0, handle)
                else:
                    setattr(self, name, handle)

        first, second = DeviceArray(self.cuda, len(NUMBERS)), DeviceArray(self.cuda, len(NUMBERS), self.stream)
        streams = [self.stream, *(Stream(name, self.stream) for name in ("__cuda_stream__", "cuda_stream", "ptr"))]
        for stream in streams:
            with hostbuf.File(self.path) as file, hostbuf.File(self.folder / "copy", "w") as copy:
                read = file.pread(first, stream=stream)
                # This copy is work of the stream, which the caller need not order.
                self.assertEqual(self.content(first), NUMBERS)
                self.cuda.write(second.address, NUMBERS[::-1], self.stream)
                written = copy.pwrite(second, stream=stream)
                # The stream changes the array when it has been written.
                self.cuda.write(second.address, bytes(len(NUMBERS)), self.stream)
                self.assertEqual((read.get(), written.get()), (len(NUMBERS), len(NUMBERS)))
            self.assertEqual((self.folder / "copy").read_bytes(), NUMBERS[::-1])
            self.cuda.write(first.address, bytes(len(NUMBERS)), self.stream)

    def test_a_stream_goes_on_after_a_transfer_that_fails(self) -> None:
        array = DeviceArray(self.cuda, len(NUMBERS) + 1)
        with hostbuf.File(self.path) as file:
            transfer = file.pread(array, stream=self.stream)
            # Parts of the array have indeterminate contents.
            self.content(array)
            with self.assertRaises(hostbuf.EndOfFileError):
                transfer.get()

    def test_a_library_lets_the_given_stream_wait(self) -> None:
        other = self.cuda.stream()
        array = DlpackArray(self.cuda, DeviceArray(self.cuda, len(NUMBERS)), other)
        with hostbuf.File(self.path) as file:
            transfer = file.pread(array, stream=self.stream)
            self.assertEqual(self.content(array.array), NUMBERS)
            self.assertEqual(transfer.get(), len(NUMBERS))
            file.read(array)
            file.pread(array, stream=0).get()
        # Handle 0 has another name in DLPack.
        self.assertEqual((array.asked[0], array.asked[2]), (self.stream, 1))
        self.assertNotIn(array.asked[1], (0, 1, self.stream, other))

    def test_a_stream_orders_no_transfer_of_the_host(self) -> None:
        with hostbuf.File(self.path) as file:
            with self.assertRaisesRegex(hostbuf.InvalidError, "memory of the host, and a stream orders"):
                file.pread(bytearray(10), stream=self.stream)
            for stream in ("7", object()):
                with self.assertRaises(TypeError):
                    file.pread(DeviceArray(self.cuda, 10), stream=stream)

    @contextlib.contextmanager
    def held_stream(self) -> Iterator[None]:
        """Holds the stream of the test at a word, which lies in the memory of the fake driver."""
        word = ctypes.c_uint32()
        address = ctypes.c_uint64(ctypes.addressof(word))
        self.cuda.call("cuStreamWaitValue32_v2", ctypes.c_void_p(self.stream), address, 1, 0)
        try:
            yield
        finally:
            word.value = 1
            self.cuda.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    @unittest.skipIf(PENDING is None, "only the fake driver can wait for a word in memory of the host")
    def test_work_on_an_array_may_wait_for_an_earlier_transfer(self) -> None:
        first, second = (DeviceArray(self.cuda, len(NUMBERS)) for _ in range(2))
        by_dlpack = DlpackArray(self.cuda, second, self.stream)
        second.stream = self.stream
        with hostbuf.File(self.path) as file:
            for array in (second, by_dlpack):
                with self.held_stream():
                    transfers = [file.pread(first, stream=self.stream), file.pread(array)]
                    self.assertEqual([transfer.done() for transfer in transfers], [False, False])
                for transfer in transfers:
                    self.assertEqual(transfer.get(), len(NUMBERS))
                self.assertEqual((self.content(first), self.content(second)), (NUMBERS, NUMBERS))
                for written in (first, second):
                    self.cuda.write(written.address, bytes(len(NUMBERS)), self.stream)

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
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
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
