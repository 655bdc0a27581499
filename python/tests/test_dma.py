"""Arrays in other libraries' shared memory, adopted with page-locking: the device that is
everywhere. The GPU is in gpu.py."""

import array
import ctypes
import gc
import mmap
import os
import sys
import threading
import types
import unittest
import weakref
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import hostbuf
import numpy as np
from hostbuf import _releases

try:
    import torch
except ImportError:
    torch = None
try:
    import pyarrow
except ImportError:
    pyarrow = None

SIZE = 1 << 16


def locked() -> int:
    """Returns the number of locked bytes of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmLck:"))


class Event:
    """An event as PyTorch has it, which a test completes."""

    def __init__(self) -> None:
        self.complete = False
        self.failed = False

    def query(self) -> bool:
        if self.failed:
            raise RuntimeError("an illegal address")
        return self.complete


class Stream:
    """A stream as PyTorch has it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def query(self) -> bool:
        raise AssertionError("later work would delay the release")

    def record_event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]


class Adopting(unittest.TestCase):
    def setUp(self) -> None:
        self.shared = SharedMemory(create=True, size=SIZE)
        self.addCleanup(self.close)

    def close(self) -> None:
        gc.collect()
        self.shared.close()
        self.shared.unlink()

    def test_a_numpy_array_is_seen_at_the_address(self) -> None:
        numbers = np.ndarray((64, 16), "i4", self.shared.buf, offset=4096)
        numbers[:] = np.arange(1024).reshape(64, 16)
        before = locked()
        with hostbuf.dma(numbers, "mlock") as frame:
            self.assertTrue(frame.direct, frame.why)
            self.assertIsNone(frame.why)
            self.assertEqual(frame.nbytes, 4096)
            self.assertNotEqual(frame.address, numbers.ctypes.data)
            self.assertEqual(ctypes.string_at(frame.address, 4096), numbers.tobytes())
            seen = np.asarray(frame)
            self.assertEqual((seen.ctypes.data, seen.flags.writeable), (frame.address, False))
            self.assertTrue(np.array_equal(seen, numbers))
            numbers[3, 3] = -7  # as the producer would write it
            self.assertEqual(seen[3, 3], -7)
            self.assertEqual(ctypes.string_at(frame.address, 4096), numbers.tobytes())
            # All of the file is locked, once.
            self.assertEqual(locked(), before + SIZE)
            with hostbuf.dma(numbers[1:], "mlock") as part:
                self.assertEqual(part.address, frame.address + 64)
                self.assertEqual(locked(), before + SIZE)
            self.assertFalse(hasattr(frame, "__cuda_array_interface__"))
            self.assertIn("direct", repr(frame))
        with self.assertRaisesRegex(ValueError, "was released"):
            frame.address

    def test_strides_and_the_first_element(self) -> None:
        numbers = np.ndarray(1000, "u2", self.shared.buf)
        numbers[:] = np.arange(1000)
        for one in [numbers[::-1], numbers[10:500:7], numbers.reshape(10, 100).T, numbers.reshape(10, 100)[::-2, 5:9]]:
            with hostbuf.dma(one, "mlock") as frame:
                first = ctypes.c_uint16.from_address(frame.address).value
                self.assertEqual(first, one.flat[0])
                self.assertTrue(np.array_equal(np.asarray(frame), one))
                low, high = np.lib.array_utils.byte_bounds(one) if hasattr(np.lib, "array_utils") else np.byte_bounds(one)
                self.assertEqual(frame.nbytes, high - low)

    def test_the_cuda_array_interface(self) -> None:
        numbers = np.ndarray((10, 10), "f8", self.shared.buf)
        for one, strides in [(numbers, None), (numbers[:, ::2], (80, 16))]:
            with hostbuf.dma(one, "mlock") as frame:
                address = frame.address
                frame.device = "cuda"  # stands in for a GPU, whose address is the same
                described = frame.__cuda_array_interface__
                self.assertEqual(described["data"], (address, True))
                self.assertEqual((described["shape"], described["typestr"]), (one.shape, "<f8"))
                self.assertEqual((described["strides"], described["version"]), (strides, 3))
        with hostbuf.dma(numbers, "mlock", writable=True) as frame:
            frame.device = "cuda"
            self.assertEqual(frame.__cuda_array_interface__["data"], (frame.address, False))

    def test_the_buffer_protocol(self) -> None:
        self.shared.buf[:8] = b"12345678"
        with hostbuf.dma(self.shared.buf, "mlock") as frame:
            self.assertEqual(ctypes.string_at(frame.address, 8), b"12345678")
        with hostbuf.dma(self.shared.buf[4:8].cast("I"), "mlock") as frame:
            self.assertEqual(ctypes.string_at(frame.address, 4), b"5678")
            frame.device = "cuda"
            described = frame.__cuda_array_interface__
            self.assertEqual((described["typestr"][1:], described["shape"]), ("u4", (1,)))
        anonymous = mmap.mmap(-1, SIZE)  # shared, but without a file that could be opened
        with hostbuf.dma(anonymous, "mlock") as frame:
            if not frame.direct:
                self.assertIn("/dev/zero (deleted)", frame.why)
            # It stays where it is while the frame has it.
            with self.assertRaises(BufferError):
                anonymous.close()
        anonymous.close()

    def test_dlpack(self) -> None:
        class Exporter:
            """An array that has only DLPack, as those of pyarrow and PyTorch."""

            def __init__(self, numbers: np.ndarray, device: int = 1, versioned: bool = True) -> None:
                self.numbers, self.device, self.versioned = numbers, device, versioned

            def __dlpack__(self, **version: Any) -> Any:
                if version and not self.versioned:
                    raise TypeError("version 0 has no argument max_version")
                return self.numbers.__dlpack__(**version)

            def __dlpack_device__(self) -> tuple[int, int]:
                return self.device, 0

        numbers = np.ndarray((8, 8), "f4", self.shared.buf)
        numbers[:] = np.arange(64).reshape(8, 8)
        for one, strides, versioned in [(numbers, None, True), (numbers[2:, 1::2], (32, 8), False)]:
            references = sys.getrefcount(numbers)
            with hostbuf.dma(Exporter(one, versioned=versioned), "mlock") as frame:
                self.assertEqual(ctypes.c_float.from_address(frame.address).value, one[0, 0])
                frame.device = "cuda"
                described = frame.__cuda_array_interface__
                self.assertEqual((described["typestr"], described["strides"]), ("<f4", strides))
            self.assertEqual(sys.getrefcount(numbers), references)
        numbers.flags.writeable = False
        if "max_version" in (np.ndarray.__dlpack__.__doc__ or ""):  # numpy 2.1
            with self.assertRaisesRegex(ValueError, "only be read"):
                hostbuf.dma(Exporter(numbers), "mlock", writable=True)
        with self.assertRaisesRegex(ValueError, "memory of a device already"):
            hostbuf.dma(Exporter(numbers, 2), "mlock")

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_a_tensor_of_torch(self) -> None:
        for dtype in [torch.float32, torch.bfloat16]:
            tensor = torch.arange(100).to(dtype).share_memory_()
            with hostbuf.dma(tensor, "mlock") as frame:
                self.assertTrue(frame.direct, frame.why)
                expected = bytes(tensor.view(torch.uint8).tolist())
                self.assertEqual(ctypes.string_at(frame.address, frame.nbytes), expected)

    @unittest.skipIf(pyarrow is None, "there is no pyarrow")
    def test_a_buffer_of_pyarrow(self) -> None:
        self.shared.buf[:4] = b"\1\2\3\4"
        buffer = pyarrow.py_buffer(self.shared.buf)
        with hostbuf.dma(buffer, "mlock") as frame:
            self.assertEqual(ctypes.string_at(frame.address, 4), b"\1\2\3\4")
        del buffer

    def test_other_memory_is_to_be_copied(self) -> None:
        with hostbuf.dma(np.zeros(10), "mlock") as frame:
            self.assertFalse(frame.direct)
            self.assertRegex(frame.why, "private memory of this process.*copy the bytes")
            self.assertIn("copy: ", repr(frame))
            self.assertTrue(np.array_equal(np.asarray(frame), np.zeros(10)))
            with self.assertRaisesRegex(ValueError, "no device address.*private"):
                frame.address
        if not hostbuf.Device.probe("cuda")[0]:
            with hostbuf.dma(self.shared.buf) as frame:
                self.assertFalse(frame.direct)
                self.assertIn("GPU 0", frame.why)
                self.assertFalse(hasattr(frame, "__cuda_array_interface__"))

    def test_invalid_arguments(self) -> None:
        read_only = np.ndarray(4, "u1", self.shared.buf)
        read_only.flags.writeable = False
        for kind, words, call in [
            (TypeError, "int", lambda: hostbuf.dma(5, "mlock")),
            (ValueError, "no bytes", lambda: hostbuf.dma(np.zeros(0), "mlock")),
            (ValueError, "no bytes", lambda: hostbuf.dma(b"", "mlock")),
            (ValueError, "only be read", lambda: hostbuf.dma(read_only, "mlock", writable=True)),
            (ValueError, "only be read", lambda: hostbuf.dma(b"text", "mlock", writable=True)),
            (BufferError, "contiguous", lambda: hostbuf.dma(memoryview(array.array("i", [1, 2, 3]))[::2], "mlock")),
            (hostbuf.InvalidError, "not a device", lambda: hostbuf.dma(read_only, "disk")),
            (TypeError, "a stream or an event", lambda: hostbuf.dma(read_only, "mlock").release_after("7")),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(kind, words):
                call()

    def test_the_array_stays_until_the_operation_is_complete(self) -> None:
        class Array(np.ndarray):
            """An array that can be watched."""

        def adopted() -> "tuple[hostbuf.Dma, weakref.ref[Array], threading.Event]":
            numbers = np.ndarray(100, "u1", self.shared.buf).view(Array)
            gone = threading.Event()
            weakref.finalize(numbers, gone.set)
            return hostbuf.dma(numbers, "mlock"), weakref.ref(numbers), gone

        stream = Stream()
        (first, first_array, first_gone), (second, _, second_gone) = adopted(), adopted()
        first.release_after(stream)
        second.release_after(stream)
        with self.assertRaisesRegex(ValueError, "was released"):
            first.release_after(stream)
        first.release()
        # A long operation does not delay the others.
        stream.events[1].complete = True
        self.assertTrue(second_gone.wait(10))
        self.assertIsNotNone(first_array())
        # A child has releases of its own.
        child = os.fork()
        if child == 0:
            third, _, gone = adopted()
            event = Event()
            third.release_after(event)
            event.complete = True
            os._exit(0 if gone.wait(10) and first_array() is not None else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        stream.events[0].complete = True
        self.assertTrue(first_gone.wait(10))
        # A device that has failed holds nothing, and the failure is logged.
        fourth, _, gone = adopted()
        event = Event()
        event.failed = True
        with self.assertLogs("hostbuf", "ERROR") as logged:
            fourth.release_after(event)
            self.assertTrue(gone.wait(10))
        self.assertIn("an illegal address", logged.output[0])

    def test_a_release_that_fails_delays_no_other(self) -> None:
        def fail() -> None:
            failing.set()
            raise OSError("no release")

        for error, level in [(OSError, "was not released"), (SystemExit, "has failed")]:
            failing, released = threading.Event(), threading.Event()

            def query(error: "type[BaseException]" = error) -> bool:
                if error is SystemExit:
                    raise error
                return True

            with self.assertLogs("hostbuf", "ERROR") as logged:
                _releases.release_after(types.SimpleNamespace(query=query), fail)
                self.assertTrue(failing.wait(10))
                _releases.release_after(types.SimpleNamespace(query=lambda: True), released.set)
                self.assertTrue(released.wait(10))
            self.assertIn(level, logged.output[0])
            self.assertIn("no release", logged.output[-1])

    def test_remapped_files_show_their_own_bytes(self) -> None:
        folder = "/dev/shm"
        files = []
        for number in range(4):
            path = f"{folder}/hostbuf-test-dma-{os.getpid()}-{number}"
            files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(path)
            os.write(files[-1], bytes([number + 1]) * SIZE)
        for round in range(100):
            number = round * 7 % 4
            memory = mmap.mmap(files[number], SIZE)
            with hostbuf.dma(memory, "mlock") as frame:
                self.assertEqual(ctypes.string_at(frame.address, SIZE), bytes([number + 1]) * SIZE)
            memory.close()
        for file in files:
            os.close(file)


if __name__ == "__main__":
    unittest.main()
