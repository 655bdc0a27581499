"""On a GPU: CuPy and PyTorch take the registered memory as it is. Run by scripts/test-gpu; names
what is missing."""

import pathlib
import statistics
import sys
import tempfile
import time
import unittest
from multiprocessing.shared_memory import SharedMemory

import hostbuf
import numpy as np
from gpu_blocks import GpuBlocks  # noqa: F401 (its tests run here, too)
from gpu_files import GpuFiles  # noqa: F401
from test_safe_open import write as write_tensors

try:
    import cupy
except ImportError:
    cupy = None
try:
    import torch
except ImportError:
    torch = None
try:
    import zarr
    from hostbuf.zarr import FileStore
except ImportError:
    zarr = None  # type: ignore[assignment]

MIB = 1 << 20


class Alone:
    """The methods of a communicator of one rank."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Allgather(self, mine: memoryview, every: memoryview) -> None:
        every[:] = mine

    def Bcast(self, data: memoryview, root: int) -> None:
        pass

    def Split(self, color: int, key: int) -> "Alone":
        return Alone()

    def Free(self) -> None:
        pass

    def Iprobe(self) -> bool:
        return False


class Gpu(unittest.TestCase):
    def setUp(self) -> None:
        self.buffer = hostbuf.allocate(None, 256 * MIB)
        self.addCleanup(self.buffer.close)

    def test_a_registration_has_a_key_until_it_ends(self) -> None:
        with hostbuf.register(self.buffer, "cuda") as pinned:
            self.assertNotEqual(pinned.key.device_address, 0)
            self.assertEqual((pinned.key.local_key, pinned.key.remote_key), (0, 0))
            self.assertEqual(pinned.__cuda_array_interface__["shape"], (self.buffer.size,))
            self.assertTrue(pinned.__cuda_array_interface__["data"][1])
            with self.assertRaisesRegex(hostbuf.Error, "cuda 0"):
                hostbuf.register(self.buffer, "cuda:0")  # no range twice
        with self.assertRaises(hostbuf.UnsupportedError):
            hostbuf.Device("cuda:99")

    @unittest.skipIf(cupy is None, "there is no CuPy")
    def test_cupy_accesses_the_memory_directly(self) -> None:
        table = self.buffer.array(1000, "f8")
        table[:] = np.arange(1000)
        with hostbuf.register(table, "cuda", access="write") as pinned:
            seen = cupy.asarray(pinned).view("f8")
            self.assertEqual(float(seen.sum()), 499500.0)
            seen *= 2
            cupy.cuda.Device().synchronize()
            self.assertEqual(float(table[999]), 1998.0)
            self.assertTrue(np.array_equal(cupy.asnumpy(seen), table))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_torch_recognises_pinned_memory(self) -> None:
        table = self.buffer.initialize(lambda arena: np.arange(MIB, dtype="f8"))
        self.assertFalse(torch.frombuffer(self.buffer, dtype=torch.uint8).is_pinned())
        with hostbuf.register(self.buffer, "cuda"):
            whole = torch.as_tensor(self.buffer.array(dtype="u1"))
            self.assertEqual(whole.data_ptr(), self.buffer.address)
            self.assertTrue(whole.is_pinned())
            there = whole.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(there.cpu(), whole))
            del whole, there
        self.assertEqual(float(torch.tensor(table).sum()), float(table.sum()))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_a_frozen_table_goes_to_the_gpu(self) -> None:
        table = self.buffer.initialize(lambda arena: {"x": np.arange(MIB, dtype="f4")})
        self.assertTrue(self.buffer.freeze(None).sealed)
        with hostbuf.register(self.buffer, "cuda"):
            there = torch.from_dlpack(cupy.asarray(table["x"])) if cupy else torch.tensor(table["x"]).cuda()
            self.assertEqual(float(there.double().sum()), float(table["x"].sum(dtype="f8")))

    def test_an_array_in_shared_memory_has_a_device_address(self) -> None:
        shared = SharedMemory(create=True, size=16 * MIB)
        try:
            frame = np.ndarray((1080, 1920, 4), "u1", shared.buf)
            frame[:] = np.arange(frame.size, dtype="u4").astype("u1").reshape(frame.shape)
            with hostbuf.dma(frame) as adopted:
                self.assertTrue(adopted.direct, adopted.why)
                if cupy:
                    self.assertTrue(np.array_equal(cupy.asnumpy(cupy.asarray(adopted).copy()), frame))
                if torch:
                    pinned = torch.as_tensor(np.asarray(adopted))
                    self.assertTrue(pinned.is_pinned())
                    there = pinned.to("cuda", non_blocking=True)
                    self.assertTrue(np.array_equal(there.cpu().numpy(), frame))
                    del pinned
                    adopted.release_after(torch.cuda.current_stream())
            del frame
        finally:
            # The thread releases the array soon after its stream is done.
            end = time.monotonic() + 10
            while time.monotonic() < end:
                try:
                    shared.close()
                    break
                except BufferError:
                    time.sleep(0.01)
            shared.unlink()

    @unittest.skipIf(cupy is None, "there is no CuPy")
    def test_cupy_writes_and_reads_blocks(self) -> None:
        pool = hostbuf.Pool("test", mode="private")
        with pool.gpu_producer(shape=(1000, 1000), dtype="f4") as producer:
            stream = cupy.cuda.Stream(non_blocking=True)
            for number in range(20):
                with stream, producer.block() as block:
                    array = cupy.asarray(block)
                    array[:] = number
                    del array
                    token = block.publish_after(stream)
                reader = cupy.cuda.Stream(non_blocking=True)
                with reader, pool.acquire_gpu(token) as held:
                    held.wait_ready(reader)
                    total = cupy.asarray(held).sum(dtype="f8")
                    held.release_after(reader)
                    self.assertEqual(float(total), number * 1e6)

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_torch_writes_and_reads_blocks(self) -> None:
        pool = hostbuf.Pool("test", mode="private")
        with pool.gpu_producer(shape=(1000, 1000), dtype="f4") as producer:
            stream = torch.cuda.Stream()
            for number in range(20):
                with torch.cuda.stream(stream), producer.block() as block:
                    tensor = torch.from_dlpack(block) if number % 2 else block.torch()
                    self.assertEqual((tensor.data_ptr(), tensor.device.type), (block.address, "cuda"))
                    tensor.fill_(number)
                    del tensor
                    token = block.publish_after(stream)
                reader = torch.cuda.Stream()
                with torch.cuda.stream(reader), pool.acquire_gpu(token) as held:
                    tensor = held.torch()
                    total = tensor.double().sum()
                    del tensor
                    held.release_after(reader)
                    self.assertEqual(float(total), number * 1e6)
        with self.assertRaises(hostbuf.InvalidError):
            hostbuf.dma(torch.empty(8, device="cuda"))

    def test_a_block_on_the_host_is_pinned_after_dma(self) -> None:
        pool = hostbuf.Pool("test", mode="private")
        frame = np.arange(1000000, dtype="f4").reshape(1000, 1000)
        with pool.producer(shape=frame.shape, dtype="f4") as producer, pool.acquire(producer.publish(frame)) as held:
            if torch:
                # PyTorch asks no driver before.
                torch.cuda.init()
                self.assertFalse(held.torch().is_pinned())
            path = held.dma()
            self.assertTrue(path.direct, path.why)
            self.assertTrue(np.array_equal(np.from_dlpack(held), frame))
            if cupy:
                there = cupy.asarray(held)
                self.assertEqual(there.data.ptr, path.address)
                self.assertTrue(np.array_equal(cupy.asnumpy(there), frame))
                del there
            if torch:
                self.assertTrue(held.torch().is_pinned())
                # PyTorch has no read-only arrays, so it takes none by the CUDA array interface.
                with self.assertRaisesRegex(TypeError, "read only"):
                    torch.as_tensor(held, device="cuda")
                there = held.torch().to("cuda", non_blocking=True)
                held.release_after(torch.cuda.current_stream())
                self.assertTrue(np.array_equal(there.cpu().numpy(), frame))

    def test_files_go_to_arrays_of_other_libraries_and_back(self) -> None:
        numbers = np.random.default_rng(2).random(5 * MIB)
        with tempfile.TemporaryDirectory() as folder:
            with hostbuf.File(f"{folder}/numbers", "w") as file:
                file.write(numbers)
            for library in [cupy, torch]:
                if library is None:
                    continue
                options = {"device": "cuda"} if library is torch else {}
                there = library.zeros(numbers.size, dtype=library.float64, **options)
                with hostbuf.File(f"{folder}/numbers") as file:
                    self.assertEqual(file.pread(there).get(), numbers.nbytes)
                    part = there[1000:2000]
                    file.pread(part, offset=0).get()
                self.assertEqual(there[1000:2000].sum().item(), there[:1000].sum().item())
                # The file gets the result of the kernel, which is not awaited here.
                there *= 2
                with hostbuf.File(f"{folder}/doubled", "w") as file:
                    file.write(there)
                doubled = 2 * numbers
                doubled[1000:2000] = doubled[:1000]
                self.assertTrue(np.array_equal(np.fromfile(f"{folder}/doubled"), doubled))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_files_in_the_order_of_a_stream_of_torch(self) -> None:
        numbers = np.arange(8 * MIB, dtype="f4")
        with tempfile.TemporaryDirectory() as folder:
            numbers.tofile(f"{folder}/numbers")
            stream = torch.cuda.Stream()
            with hostbuf.File(f"{folder}/numbers") as file, hostbuf.File(f"{folder}/copy", "w") as copy:
                with torch.cuda.stream(stream):
                    tensor, other = (torch.zeros(numbers.size, device="cuda") for _ in range(2))
                    transfers = []
                    for _ in range(10):
                        tensor.zero_()
                        transfers.append(file.pread(tensor, stream=stream))
                        tensor += 1
                        transfers.append(copy.pwrite(tensor, stream=stream))
                        tensor.fill_(-1)
                    # The work on this tensor waits for the transfers, and this one for that work.
                    other.fill_(-1)
                    transfers.append(file.pread(other))
                for transfer in transfers:
                    self.assertEqual(transfer.get(), numbers.nbytes)
            self.assertTrue(np.array_equal(other.cpu().numpy(), numbers))
            self.assertTrue(np.array_equal(np.fromfile(f"{folder}/copy", "f4"), numbers + 1))

    @unittest.skipIf(cupy is None, "there is no CuPy")
    def test_files_in_the_order_of_a_stream_of_cupy(self) -> None:
        numbers = np.arange(MIB, dtype="f4")
        with tempfile.TemporaryDirectory() as folder:
            numbers.tofile(f"{folder}/numbers")
            stream = cupy.cuda.Stream(non_blocking=True)
            with hostbuf.File(f"{folder}/numbers") as file, stream:
                array = cupy.zeros(numbers.size, "f4")
                transfer = file.pread(array, stream=stream)
                array += 1
                self.assertTrue(np.array_equal(cupy.asnumpy(array, stream=stream), numbers + 1))
                self.assertEqual(transfer.get(), numbers.nbytes)

    @unittest.skipIf(cupy is None or zarr is None, "there is no CuPy, or no zarr 3")
    def test_chunks_of_zarr_go_to_memory_of_cupy_and_back(self) -> None:
        numbers = np.arange(60000.0).reshape(300, 200)
        with tempfile.TemporaryDirectory() as folder:
            with zarr.config.enable_gpu():
                array = zarr.create_array(FileStore(folder), shape=numbers.shape, chunks=(50, 50), compressors=None, dtype="f8")
                array[:] = cupy.asarray(numbers)
                part = array[33:120, 7:199]
                self.assertIsInstance(part, cupy.ndarray)
                self.assertTrue(np.array_equal(cupy.asnumpy(part), numbers[33:120, 7:199]))
            self.assertTrue(np.array_equal(zarr.open_array(folder, mode="r")[:], numbers))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_files_of_tensors_go_to_the_gpu(self) -> None:
        arrays = {"wide": np.random.default_rng(3).random((300, 5000)), "small": np.arange(7.0), "empty": np.zeros((0, 3))}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.safetensors")
            write_tensors(path, arrays)
            with hostbuf.safe_open(path, framework="pt", device="cuda") as file:
                for name, array in arrays.items():
                    tensor = file.get_tensor(name)
                    self.assertEqual(tensor.device.type, "cuda")
                    self.assertTrue(np.array_equal(tensor.cpu().numpy(), array))
                piece = file.get_slice("wide")[:, 1000:3000]
                self.assertTrue(np.array_equal(piece.cpu().numpy(), arrays["wide"][:, 1000:3000]))
            for comm in [None, Alone()]:
                loaded = hostbuf.load(path, comm, device="cuda:0")
                self.assertEqual(sorted(loaded), sorted(arrays))
                for name, tensor in loaded.items():
                    self.assertEqual(tensor.device.type, "cuda")
                    self.assertTrue(np.array_equal(tensor.cpu().numpy(), arrays[name]))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_the_cache(self) -> None:
        message = np.random.default_rng(1).random(4 * MIB)
        tensor = torch.from_numpy(message)
        with hostbuf.Cache("cuda", monitor="explicit") as cache:
            for _ in range(3):
                with cache.get(message) as lease:
                    self.assertTrue(tensor.is_pinned())
                    self.assertNotEqual(lease.key.device_address, 0)
            stats = cache.stats()
            self.assertEqual((stats["hits"], stats["misses"]), (2, 1))
        self.assertFalse(tensor.is_pinned())

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_as_fast_as_torchs_own_pinned_memory(self) -> None:
        there = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        own = torch.empty(256 * MIB, dtype=torch.uint8, pin_memory=True)
        private = torch.ones(256 * MIB, dtype=torch.uint8)

        def rate(source: "torch.Tensor") -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            there.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            return source.numel() / (time.perf_counter() - start) / 1e9

        shared = torch.frombuffer(self.buffer, dtype=torch.uint8)[: 256 * MIB]
        before = statistics.median(rate(shared) for _ in range(7))
        with hostbuf.register(self.buffer, "cuda"):
            rounds = [(rate(shared), rate(own), rate(private)) for _ in range(15)]
        ours, pinned, paged = (statistics.median(column) for column in zip(*rounds))
        ratio = statistics.median(a / b for a, b, _ in rounds)
        print("\n| to the GPU, GB/s | before registering | registered | torch's pinned | private | registered of torch's |")
        print("| --- | --- | --- | --- | --- | --- |")
        print(f"| 256 MiB | {before:.1f} | {ours:.1f} | {pinned:.1f} | {paged:.1f} | {ratio:.3f} |")
        self.assertGreater(ratio, 0.95)


if __name__ == "__main__":
    ready, why = hostbuf.Device.probe("cuda")
    if not ready:
        sys.exit(f"there is no GPU: {why}")
    unittest.main(verbosity=2)
