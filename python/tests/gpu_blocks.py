"""Blocks on a GPU, with the driver's functions alone: on a GPU (gpu.py), or with the fake driver of
tests/fixtures, whose events are incomplete while the file FAKE_CUDA_PENDING exists."""

import asyncio
import contextlib
import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import time
import types
import unittest
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import hostbuf
from hostbuf._array_memory import _capsule_pointer, _DLManagedTensorVersioned
from pools import broker, check_waiting_tasks, fork, holds, private

LIMIT = 20.0
PENDING = os.environ.get("FAKE_CUDA_PENDING")
FRAME = bytes(range(24))


class Cuda:
    """The driver, with the primary context of GPU 0 current in this thread."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        assert made.value
        return made.value

    def write(self, address: int, data: bytes, stream: int) -> None:
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), ctypes.c_void_p(stream))

    def export(self, size: int) -> "tuple[int, bytes]":
        """Allocates memory, and returns its address and its legacy handle."""
        address, handle = ctypes.c_uint64(), ctypes.create_string_buffer(64)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.call("cuIpcGetMemHandle", handle, address)
        return address.value, handle.raw

    def read(self, address: int, size: int, stream: int) -> bytes:
        to = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_void_p(stream))
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))
        return to.raw


def driver_is_loaded() -> bool:
    # The file of the fake driver has a name of its own.
    maps = pathlib.Path("/proc/self/maps").read_text()
    return "libcuda" in maps or "fake_cuda" in maps


def eventually(condition: Any) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.001)


@contextlib.contextmanager
def pending() -> Iterator[None]:
    """Leaves all events incomplete."""
    assert PENDING
    path = pathlib.Path(PENDING)
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def other(role: str, *words: str) -> "subprocess.Popen[str]":
    """Starts this file as another process."""
    command = [sys.executable, *(["-X", "dev"] if sys.flags.dev_mode else []), __file__, role, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_elsewhere(socket: str, token: str) -> None:
    """Reads a block in another process."""
    pool = hostbuf.Pool("viewer", "required", socket=socket)
    try:
        pool.acquire(token)
    except hostbuf.BlockOnGpuError as error:
        assert "Pool.acquire_gpu()" in str(error), error
    else:
        raise AssertionError("it lies on a GPU")
    assert not driver_is_loaded()
    block = pool.acquire_gpu(token)
    assert driver_is_loaded()
    cuda = Cuda()
    stream = cuda.stream()
    block.wait_ready(stream)
    assert cuda.read(block.address, len(FRAME), stream) == FRAME
    assert (block.shape, block.dtype, block.header.frame) == ((4, 3), "uint16", 7)
    copy = block.__cuda_array_interface__
    assert copy["data"] == (block.address, True)
    block.release_after(stream)
    assert block.closed
    print("read", flush=True)
    # The array interface has a hold of its own.
    assert holds(pool) >= 1
    del block
    eventually(lambda: holds(pool) == 0)
    print("released", flush=True)


def produce_elsewhere(socket: str) -> None:
    """Publishes a block in another process, which is killed."""
    pool = hostbuf.Pool("camera", "required", socket=socket)
    producer = pool.gpu_producer(4096, blocks=2)
    block = producer.block()
    print(block.publish_after(0).hex(), flush=True)
    sys.stdin.read()


def export_elsewhere() -> None:
    """Exports memory of another process by a legacy handle, until the importer has read it."""
    cuda = Cuda()
    address, handle = cuda.export(4096)
    stream = cuda.stream()
    cuda.write(address, FRAME, stream)
    cuda.call("cuStreamSynchronize", ctypes.c_void_p(stream))
    print(handle.hex(), flush=True)
    sys.stdin.read()


class GpuBlocks(unittest.TestCase):
    def setUp(self) -> None:
        self.cuda = Cuda()
        self.stream = self.cuda.stream()

    def publish(self, producer: hostbuf.GpuProducer, data: bytes = FRAME) -> bytes:
        with producer.block(timeout=LIMIT) as block:
            self.cuda.write(block.address, data, self.stream)
            return block.publish_after(self.stream, frame=7)

    def test_another_process_reads_what_the_gpu_has_written(self) -> None:
        with broker() as socket:
            pool = hostbuf.Pool("camera", "required", socket=socket)
            with pool.gpu_producer(shape=(4, 3), dtype="u2", blocks=3) as producer:
                self.assertEqual((producer.blocks, producer.block_bytes, producer.device), (3, 4096, 0))
                token = self.publish(producer)
                with other("reader", socket, token.hex()) as reader:
                    assert reader.stdin and reader.stdout
                    self.assertEqual(reader.stdout.read(), "read\nreleased\n")
                self.assertEqual(reader.returncode, 0)
            pool.close()

    def test_one_process_reads_its_own_blocks(self) -> None:
        pool = private()
        with pool.gpu_producer(shape=(4, 3), dtype="u2", blocks=3) as producer:
            for number in range(10):
                data = bytes([number]) * 24
                with pool.acquire_gpu(self.publish(producer, data)) as block:
                    block.wait_ready(self.stream)
                    self.assertTrue(block.is_ready())
                    self.assertEqual(self.cuda.read(block.address, 24, self.stream), data)
                    self.assertEqual((block.device, block.header.sequence), (0, number))
                self.assertEqual(holds(pool), 0)

    def test_libraries_get_the_memory_itself(self) -> None:
        pool = private()
        producer = pool.gpu_producer(shape=(4, 3), dtype="f4", blocks=4)
        block = producer.block()
        shown = block.__cuda_array_interface__
        self.assertEqual(shown["data"], (block.address, False))
        self.assertEqual((shown["shape"], shown["strides"], shown["typestr"]), ((4, 3), (12, 4), "<f4"))
        self.assertEqual((shown["version"], shown["stream"]), (3, None))
        self.assertEqual(block.__dlpack_device__(), (2, 0))
        capsule = block.__dlpack__(stream=1, max_version=(1, 0))
        self.check_capsule(capsule, block.address, read_only=False)
        # The capsule may still be used for writing.
        with self.assertRaisesRegex(BufferError, "1 arrays or tensors"):
            block.publish_after(self.stream)
        self.assertEqual(block.state, "writing")
        del capsule
        gc.collect()
        token = block.publish_after(self.stream)
        with self.assertRaisesRegex(ValueError, "is published"):
            block.__cuda_array_interface__
        held = pool.acquire_gpu(token)
        shown = held.__cuda_array_interface__
        self.assertEqual((shown["data"], shown["stream"]), ((held.address, True), None))
        capsule = held.__dlpack__(stream=self.stream, max_version=(1, 0))
        self.check_capsule(capsule, held.address, read_only=True)
        for arguments, words in [
            ({}, "DLPack states only from version 1 on"),
            ({"max_version": (1, 0), "stream": 0}, "no stream 0"),
            ({"max_version": (1, 0), "dl_device": (1, 0)}, "lies on GPU 0"),
            ({"max_version": (1, 0), "copy": True}, "is not copied"),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(BufferError, words):
                held.__dlpack__(**arguments)
        for stream in [None, -1, 1, 2]:
            held.__dlpack__(stream=stream, max_version=(1, 0))
        held.close()
        held.close()
        # The array and the tensor keep the block.
        self.assertEqual(holds(pool), 1)
        del held
        gc.collect()
        self.assertEqual(holds(pool), 1)
        del capsule
        gc.collect()
        self.assertEqual(holds(pool), 0)
        with producer.block(2, "bfloat16") as block:
            self.assertFalse(hasattr(block, "__cuda_array_interface__"))
        with producer.block() as block:
            self.assertEqual(block.dtype, "float32")

    def check_capsule(self, capsule: Any, address: int, read_only: bool) -> None:
        pointer = _capsule_pointer(capsule, b"dltensor_versioned")
        managed = ctypes.cast(pointer, ctypes.POINTER(_DLManagedTensorVersioned)).contents
        tensor = managed.dl_tensor
        self.assertEqual((tensor.data, tensor.device_type, tensor.device_id), (address, 2, 0))
        self.assertEqual((tensor.shape[:2], tensor.strides[:2], tensor.bits), ([4, 3], [3, 1], 32))
        self.assertEqual(managed.flags & 1, int(read_only))

    def test_streams_of_all_libraries(self) -> None:
        pool = private()
        producer = pool.gpu_producer(4096, blocks=8)
        method = type("Stream", (), {"__cuda_stream__": lambda _: (0, self.stream)})()
        for stream in [
            self.stream,
            0,
            1,
            2,
            types.SimpleNamespace(cuda_stream=self.stream),
            types.SimpleNamespace(ptr=self.stream),
            types.SimpleNamespace(ptr=self.stream, done=True, wait_event=print),
            types.SimpleNamespace(__cuda_stream__=(0, self.stream)),
            method,
        ]:
            with self.subTest(stream=stream):
                held = pool.acquire_gpu(producer.block(timeout=LIMIT).publish_after(stream))
                held.wait_ready(stream)
                self.assertTrue(held.is_ready() or not PENDING)
                held.release_after(stream)
                self.assertTrue(held.closed)
                eventually(lambda: holds(pool) == 0)
        block = producer.block()
        token = producer.block().publish_after(0)
        held = pool.acquire_gpu(token)
        events = [types.SimpleNamespace(cuda_event=1), types.SimpleNamespace(done=True, ptr=1)]
        for wrong, words in [(True, "not bool"), (None, "not NoneType"), ("x", "not str"), *((one, "not the event") for one in events)]:
            for call in [block.publish_after, held.wait_ready]:
                with self.assertRaisesRegex(TypeError, words):
                    call(wrong)
        for call in [block.publish_after, held.wait_ready, held.release_after]:
            with self.assertRaisesRegex(hostbuf.InvalidError, "invalid stream -1"):
                call(-1)
        with self.assertRaisesRegex(TypeError, "a stream or an event"):
            held.release_after("x")
        self.assertEqual((block.state, held.closed, holds(pool)), ("writing", False, 1))
        # An event of a library ends a hold.
        event = types.SimpleNamespace(query=lambda: True, cuda_event=1)
        held.release_after(event)
        self.assertTrue(held.closed)
        eventually(lambda: holds(pool) == 0)

    def test_handles_end_holds_of_blocks_on_the_host_too(self) -> None:
        pool = private()
        token = pool.producer(4096).block().publish()
        held = pool.acquire(token)
        with self.assertRaisesRegex(hostbuf.GpuError, "GPU 99"):
            held.release_after(self.stream, device=99)
        self.assertEqual(holds(pool), 1)
        held.release_after(self.stream)
        self.assertTrue(held.closed)
        eventually(lambda: holds(pool) == 0)
        shared = SharedMemory(create=True, size=4096)
        try:
            frame = hostbuf.dma(shared.buf, "mlock")
            frame.release_after(types.SimpleNamespace(ptr=self.stream))
            with self.assertRaisesRegex(ValueError, "was released"):
                frame.address

            def is_closed() -> bool:
                with contextlib.suppress(BufferError):
                    shared.close()
                    return True
                return False

            eventually(is_closed)
        finally:
            shared.unlink()

    def test_an_array_on_a_gpu_is_not_adopted(self) -> None:
        with private().gpu_producer(4096).block() as block:
            only_interface = types.SimpleNamespace(__cuda_array_interface__=block.__cuda_array_interface__)
            for array in [block, only_interface]:
                with self.assertRaisesRegex(hostbuf.InvalidError, r"in memory of a device already .*Pool.gpu_producer\(\)"):
                    hostbuf.dma(array)

    def test_wrong_calls_have_errors_of_their_own(self) -> None:
        pool, another = private(), private()
        producer = pool.gpu_producer(4096, blocks=4, quota=1)
        token = producer.block().publish()
        with self.assertRaisesRegex(hostbuf.BlockOnGpuError, r"GPU-.*Pool.acquire_gpu\(\)"):
            pool.acquire(token)
        host = pool.producer(4096).block().publish()
        with self.assertRaisesRegex(hostbuf.BlockOnHostError, r"Pool.acquire\(\)"):
            pool.acquire_gpu(host)
        with self.assertRaisesRegex(hostbuf.InvalidTokenError, "another pool"):
            another.acquire_gpu(token)
        with self.assertRaises(hostbuf.InvalidTokenError):
            pool.acquire_gpu(token[:-1] + bytes([token[-1] ^ 1]))
        held = pool.acquire_gpu(token)
        with self.assertRaises(hostbuf.QuotaError) as caught:
            pool.acquire_gpu(producer.block().publish())
        self.assertEqual(caught.exception.quota, 1)
        held.release_after(self.stream)
        for call in [held.is_ready, lambda: held.wait_ready(0), lambda: held.release_after(0), lambda: held.address]:
            with self.assertRaisesRegex(ValueError, "is released"):
                call()
        held.close()
        with self.assertRaisesRegex(hostbuf.GpuError, "GPU 99"):
            pool.gpu_producer(4096, device=99)
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid device -1"):
            pool.gpu_producer(4096, device=-1)
        with self.assertRaisesRegex(TypeError, "block_bytes or shape"):
            pool.gpu_producer()
        block = producer.block()
        with self.assertRaisesRegex(hostbuf.InvalidError, "user_data of 49 bytes"):
            block.publish_after(0, user_data=bytes(49))
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid content"):
            block.publish_after(0, length=1 << 20)
        block.publish_after(0)
        with self.assertRaisesRegex(ValueError, "is published"):
            block.publish_after(0)
        producer.close()
        with self.assertRaisesRegex(ValueError, "producer is closed"):
            producer.block()

    def test_waiting_tasks_need_no_thread_of_the_executor(self) -> None:
        check_waiting_tasks(self, private().gpu_producer(4096, blocks=2, retain=1))

    def test_a_block_on_the_host_has_an_address_on_the_gpu(self) -> None:
        pool = private()
        producer = pool.producer(shape=24, dtype="u1", blocks=3)
        with producer.block() as block:
            with memoryview(block) as view:
                view[:] = FRAME
            held = pool.acquire(block.publish())
        pinned = {"max_version": (1, 0), "dl_device": (3, 0)}
        self.assertTrue(held.dma("mlock").direct)
        with self.assertRaisesRegex(AttributeError, "no address on a GPU: call dma"):
            held.__cuda_array_interface__
        with self.assertRaisesRegex(BufferError, "not registered with a GPU: call dma"):
            held.__dlpack__(**pinned)
        path = held.dma()
        self.assertTrue(path.direct, path.why)
        assert path.address
        self.assertEqual(self.cuda.read(path.address, 24, self.stream), FRAME)
        shown = held.__cuda_array_interface__
        wanted = {"version": 3, "shape": (24,), "strides": (1,), "typestr": "|u1", "data": (path.address, True), "stream": None}
        self.assertEqual(shown, wanted)
        # PyTorch knows pinned memory by its address, and accepts no kind but kDLCPU.
        self.assertEqual(held.__dlpack_device__(), (1, 0))
        address = held.__array_interface__["data"][0]
        for request, kind in [({"max_version": (1, 0)}, 1), (pinned, 3)]:
            capsule = held.__dlpack__(**request)
            pointer = _capsule_pointer(capsule, b"dltensor_versioned")
            tensor = ctypes.cast(pointer, ctypes.POINTER(_DLManagedTensorVersioned)).contents.dl_tensor
            self.assertEqual((tensor.device_type, tensor.device_id, tensor.data), (kind, 0, address))
        with self.assertRaisesRegex(BufferError, "a copy of the block is not in pinned memory"):
            held.__dlpack__(copy=True, **pinned)
        # The array interfaces keep the block as long as the object.
        del capsule, tensor
        held.close()
        self.assertEqual(holds(pool), 1)
        with self.assertRaisesRegex(ValueError, "the block is released"):
            held.__cuda_array_interface__
        del held
        gc.collect()
        self.assertEqual(holds(pool), 0)

    def test_memory_of_other_programs(self) -> None:
        with other("exporter") as exporter:
            assert exporter.stdin and exporter.stdout
            handle = bytes.fromhex(exporter.stdout.readline())
            for length in [0, 1 << 30]:
                with self.assertRaisesRegex(hostbuf.InvalidError, f"invalid length {length}: the allocation has "):
                    hostbuf.open_cuda_ipc(handle, length)
            with hostbuf.open_cuda_ipc(handle, len(FRAME)) as memory:
                self.assertEqual(self.cuda.read(memory.address, len(FRAME), self.stream), FRAME)
                shown = memory.__cuda_array_interface__
                self.assertEqual((shown["shape"], shown["typestr"], shown["data"]), ((24,), "|u1", (memory.address, False)))
                self.assertEqual((memory.nbytes, memory.device, memory.closed), (24, 0, False))
            self.assertTrue(memory.closed)
            memory.close()
            with self.assertRaisesRegex(ValueError, "the memory is closed"):
                memory.address
            # It may be opened again, as a whole.
            with hostbuf.open_cuda_ipc(bytearray(handle)) as memory:
                self.assertGreaterEqual(memory.nbytes, 4096)
            exporter.stdin.close()
        self.assertEqual(exporter.returncode, 0)
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid handle of 3 bytes"):
            hostbuf.open_cuda_ipc(b"abc")
        with self.assertRaisesRegex(hostbuf.GpuError, "cuIpcOpenMemHandle"):
            hostbuf.open_cuda_ipc(self.cuda.export(4096)[1])
        with self.assertRaisesRegex(hostbuf.GpuError, "99"):
            hostbuf.open_cuda_ipc(handle, gpu=99)
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid gpu -1"):
            hostbuf.open_cuda_ipc(handle, gpu=-1)

    def test_blocks_run_out_and_come_back(self) -> None:
        producer = private().gpu_producer(4096, blocks=2, retain=1)
        first, second = producer.block(), producer.block()
        self.assertIsNone(producer.try_block())
        with self.assertRaises(hostbuf.PoolTimeoutError):
            producer.block(timeout=0.0)
        first.close()
        self.assertEqual((first.state, second.state), ("freed", "writing"))
        with asyncio.run(producer.block_async(timeout=LIMIT)) as again:
            # Another library may have its address until the object is gone.
            again.__cuda_array_interface__
        self.assertIsNone(producer.try_block())
        del again
        gc.collect()
        self.assertIsNotNone(producer.try_block())

    def test_a_forked_child_has_no_part_in_the_blocks(self) -> None:
        pool = private()
        producer = pool.gpu_producer(4096)
        block = producer.block()
        held = pool.acquire_gpu(producer.block().publish())

        def child() -> None:
            for call in [producer.block, block.publish, held.is_ready, lambda: held.address, lambda: held.release_after(0)]:
                try:
                    call()
                except hostbuf.ForkedError:
                    continue
                raise AssertionError("no error")

        self.assertEqual(fork(child), 0)
        self.assertTrue(held.is_ready())

    def test_a_tensor_of_torch(self) -> None:
        pool = private()
        producer = pool.gpu_producer(4096)
        stream = types.SimpleNamespace(cuda_stream=self.stream)
        fake = types.SimpleNamespace(
            cuda=types.SimpleNamespace(current_stream=lambda device: stream),
            utils=types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=lambda capsule: capsule)),
        )
        was = sys.modules.get("torch")
        sys.modules["torch"] = fake  # type: ignore[assignment]
        try:
            block = producer.block()
            tensor = block.torch()
            self.assertIn('"dltensor"', repr(tensor))
            with self.assertRaises(BufferError):
                block.publish()
            del tensor
            held = pool.acquire_gpu(block.publish_after(stream))
            tensor = held.torch()
            held.close()
            self.assertEqual(holds(pool), 1)
            del tensor
            self.assertEqual(holds(pool), 0)
        finally:
            del sys.modules["torch"]
            if was is not None:
                sys.modules["torch"] = was

    @unittest.skipIf(PENDING is None, "only the fake driver leaves events incomplete")
    def test_content_that_is_not_complete(self) -> None:
        pool = private()
        producer = pool.gpu_producer(4096, blocks=3)
        with pending():
            held = pool.acquire_gpu(self.publish(producer))
            self.assertFalse(held.is_ready())
            # A library waits for the default stream, which waits for the content.
            self.assertEqual(held.__cuda_array_interface__["stream"], 1)
            held.wait_ready(self.stream)
            self.assertEqual(held.__cuda_array_interface__["stream"], self.stream)
            held.release_after(self.stream)
            del held
            gc.collect()
            self.assertEqual(holds(pool), 1)
        eventually(lambda: holds(pool) == 0)

    @unittest.skipIf(PENDING is None, "only the fake driver leaves events incomplete")
    def test_a_producer_that_dies_before_its_content_is_complete(self) -> None:
        with broker() as socket, pending():
            pool = hostbuf.Pool("viewer", "required", socket=socket)
            with other("producer", socket) as producer:
                assert producer.stdin and producer.stdout
                held = pool.acquire_gpu(producer.stdout.readline().strip())
                held.wait_ready(self.stream)
                self.assertFalse(held.is_ready())
                producer.kill()

            def has_ended() -> bool:
                try:
                    return held.is_ready()
                except hostbuf.ProducerEndedError:
                    return True

            eventually(has_ended)
            with self.assertRaisesRegex(hostbuf.ProducerEndedError, "has ended"):
                held.wait_ready(self.stream)
            held.close()
            self.assertEqual(holds(pool), 0)
            pool.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["reader"]:
        read_elsewhere(*sys.argv[2:])
    elif sys.argv[1:2] == ["producer"]:
        produce_elsewhere(*sys.argv[2:])
    elif sys.argv[1:2] == ["exporter"]:
        export_elsewhere()
    else:
        unittest.main(verbosity=2)
