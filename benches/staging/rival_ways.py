"""The ways to load a file of safetensors into a GPU, and to write memory of a GPU to a file.

Each function prepares one way with one file in this process, and returns a function that goes it
once, and returns the tensors.
"""

import json
import os
from collections.abc import Callable
from typing import Any

WRITTEN_BYTES = 4 << 30

# The environment of each setting. An empty one has the defaults.
THREADS_AND_TASKS = [
    {"KVIKIO_NTHREADS": str(threads), "KVIKIO_TASK_SIZE": str(task << 20), "KVIKIO_BOUNCE_BUFFER_SIZE": str(task << 20)}
    for threads in (8, 16)
    for task in (1, 4, 16)
]
SETTINGS: dict[str, list[dict[str, str]]] = {
    "hostbuf": [{}],
    "hostbuf-load": [{}],
    "hostbuf-mmap": [{}],
    "kvikio": [{}, *THREADS_AND_TASKS],
    "instanttensor": [
        {},
        *({"INSTANTTENSOR_BACKEND": backend} for backend in ("MMAP", "URING_BUFFERED", "AIO_BUFFERED")),
        *(
            {"INSTANTTENSOR_BACKEND": "MMAP", "INSTANTTENSOR_CONCURRENCY": "16", "INSTANTTENSOR_CHUNK_SIZE": str(n << 20)}
            for n in (1, 4, 16)
        ),
    ],
    "fastsafetensors": [{}, *({"RIVALS_THREADS": str(n), "RIVALS_BLOCK": str(b)} for n in (8, 16) for b in (16384, 65536))],
    "runai": [
        {},
        *({"RUNAI_STREAMER_CONCURRENCY": str(n)} for n in (8, 16, 32)),
        {"RUNAI_STREAMER_CONCURRENCY": "16", "RUNAI_STREAMER_CHUNK_BYTESIZE": str(16 << 20)},
    ],
    "safetensors": [{}],
    "reference": [{}],
}
# Bypassing the page cache.
COLD: dict[str, list[dict[str, str]]] = SETTINGS | {
    "kvikio": [{}, *(setting | {"KVIKIO_AUTO_DIRECT_IO_READ": "on"} for setting in THREADS_AND_TASKS)],
    "instanttensor": [{}, *({"INSTANTTENSOR_BACKEND": backend} for backend in ("URING", "AIO", "URING_BUFFERED"))],
}
# Eight processes on a host have fewer threads each.
SLICES: dict[str, list[dict[str, str]]] = {
    "hostbuf": [{}],
    "kvikio": [{}, *({"KVIKIO_NTHREADS": str(n)} for n in (2, 4, 8))],
    "instanttensor": [{}, {"INSTANTTENSOR_BACKEND": "URING_BUFFERED"}],
    "fastsafetensors": [{}, {"RIVALS_THREADS": "4", "RIVALS_BLOCK": "16384"}],
    "runai": [{}, {"RUNAI_STREAMER_CONCURRENCY": "4"}],
    "safetensors": [{}],
    "reference": [{}],
}
READERS = ("hostbuf", "hostbuf-load", "kvikio", "instanttensor", "fastsafetensors", "runai", "safetensors", "reference")
WRITERS = ("hostbuf", "hostbuf-mmap", "kvikio", "reference")


def settings_of(kind: str, is_cold: bool) -> dict[str, list[dict[str, str]]]:
    """Returns the settings of each way of a kind; for a cold read, those that bypass the page
    cache."""
    if kind == "slices":
        return SLICES
    ways = WRITERS if kind == "write" else READERS
    return {way: (COLD if is_cold else SETTINGS)[way] for way in ways}


def read_hostbuf(path: str) -> Callable[[], list[Any]]:
    import hostbuf
    import torch

    size = os.path.getsize(path)
    memory = torch.empty(size, dtype=torch.uint8, device="cuda")
    begin = body(path)

    def load() -> list[Any]:
        with hostbuf.File(path) as file:
            file.read(memory)
        return [memory[begin:]]

    return load


def read_hostbuf_load(path: str) -> Callable[[], list[Any]]:
    import hostbuf

    return lambda: list(hostbuf.load(path, device="cuda:0").values())


def read_kvikio(path: str) -> Callable[[], list[Any]]:
    import cupy
    import kvikio
    import torch

    memory = torch.empty(os.path.getsize(path), dtype=torch.uint8, device="cuda")
    array, begin = cupy.asarray(memory), body(path)

    def load() -> list[Any]:
        with kvikio.CuFile(path, "r") as file:
            read = file.pread(array).get()
        assert read == array.nbytes, read
        return [memory[begin:]]

    return load


def read_instanttensor(path: str) -> Callable[[], list[Any]]:
    from instanttensor import safe_open

    def load() -> list[Any]:
        with safe_open(path, framework="pt", device=0) as file:
            return [tensor for _, tensor in file.tensors()]

    return load


def read_fastsafetensors(path: str) -> Callable[[], list[Any]]:
    from fastsafetensors import SafeTensorsFileLoader

    options: dict[str, Any] = {}
    if "RIVALS_THREADS" in os.environ:
        # By default it drops the file from the page cache.
        options = {
            "max_threads": int(os.environ["RIVALS_THREADS"]),
            "bbuf_size_kb": int(os.environ["RIVALS_BLOCK"]),
            "disable_cache": False,
        }
    buffers: list[Any] = []

    def load() -> list[Any]:
        # The memory of the load before.
        while buffers:
            buffers.pop().close()
        loader = SafeTensorsFileLoader(None, "cuda:0", nogds=True, **options)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        buffers.append(buffer)
        tensors = [buffer.get_tensor(name) for name in loader.get_keys()]
        loader.close()
        return tensors

    return load


def read_runai(path: str) -> Callable[[], list[Any]]:
    from runai_model_streamer import SafetensorsStreamer

    def load() -> list[Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return [tensor.to("cuda:0", non_blocking=True) for _, tensor in streamer.get_tensors()]

    return load


def read_safetensors(path: str) -> Callable[[], list[Any]]:
    from safetensors.torch import load_file

    return lambda: list(load_file(path, device="cuda:0").values())


def copy_of(path: str, to_gpu: bool) -> Callable[[], list[Any]]:
    import torch

    host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    memory = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    copies = os.path.getsize(path) // host.numel()
    to, source = (memory, host) if to_gpu else (host, memory)

    def load() -> list[Any]:
        for _ in range(copies):
            to.copy_(source, non_blocking=True)
        return []

    return load


def read_reference(path: str) -> Callable[[], list[Any]]:
    return copy_of(path, to_gpu=True)


def own_ranges(path: str) -> list[tuple[int, int]]:
    """Returns offset and length of this process's part of each tensor, in the order of the file."""
    rank, size = int(os.environ["RIVALS_RANK"]), int(os.environ["RIVALS_SIZE"])
    begin = body(path)
    with open(path, "rb") as file:
        header = json.loads(file.read(begin)[8:])
    header.pop("__metadata__", None)
    places = sorted(tensor["data_offsets"] for tensor in header.values())
    return [(begin + first + (end - first) * rank // size, (end - first) // size) for first, end in places]


def slices_hostbuf(path: str) -> Callable[[], list[Any]]:
    import hostbuf
    import torch

    ranges = own_ranges(path)
    memory = [torch.empty(length, dtype=torch.uint8, device="cuda") for _, length in ranges]

    def load() -> list[Any]:
        with hostbuf.File(path) as file:
            for transfer in [file.pread(part, offset=offset) for part, (offset, _) in zip(memory, ranges)]:
                transfer.get()
        return memory

    return load


def slices_kvikio(path: str) -> Callable[[], list[Any]]:
    import cupy
    import kvikio
    import torch

    ranges = own_ranges(path)
    memory = [torch.empty(length, dtype=torch.uint8, device="cuda") for _, length in ranges]
    arrays = [cupy.asarray(part) for part in memory]

    def load() -> list[Any]:
        with kvikio.CuFile(path, "r") as file:
            reads = [file.pread(array, length, offset) for array, (offset, length) in zip(arrays, ranges)]
            assert sum(read.get() for read in reads) == sum(length for _, length in ranges)
        return memory

    return load


def slices_safetensors(path: str) -> Callable[[], list[Any]]:
    from safetensors import safe_open

    rank, size = int(os.environ["RIVALS_RANK"]), int(os.environ["RIVALS_SIZE"])

    def load() -> list[Any]:
        made = []
        with safe_open(path, framework="pt", device="cuda:0") as file:
            for name in file.keys():
                tensor = file.get_slice(name)
                rows = tensor.get_shape()[0] // size
                made.append(tensor[rank * rows : (rank + 1) * rows])
        return made

    return load


def own_part(load: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Loads all tensors, and keeps this process's part of each."""
    rank, size = int(os.environ["RIVALS_RANK"]), int(os.environ["RIVALS_SIZE"])
    return lambda: [tensor.chunk(size)[rank].clone() for tensor in load()]


def slices_fastsafetensors(path: str) -> Callable[[], list[Any]]:
    return own_part(read_fastsafetensors(path))


def slices_runai(path: str) -> Callable[[], list[Any]]:
    return own_part(read_runai(path))


def slices_instanttensor(path: str) -> Callable[[], list[Any]]:
    return own_part(read_instanttensor(path))


def slices_reference(path: str) -> Callable[[], list[Any]]:
    return copy_of(path, to_gpu=True)


def written_memory() -> Any:
    import torch

    return torch.arange(WRITTEN_BYTES // 8, dtype=torch.int64, device="cuda")


def write_hostbuf(path: str, backend: str = "auto") -> Callable[[], list[Any]]:
    import hostbuf

    memory = written_memory()

    def store() -> list[Any]:
        with hostbuf.File(path, "r+", backend) as file:
            file.write(memory)
        return []

    return store


def write_hostbuf_mmap(path: str) -> Callable[[], list[Any]]:
    return write_hostbuf(path, "mmap")


def write_kvikio(path: str) -> Callable[[], list[Any]]:
    import cupy
    import kvikio

    memory = written_memory()
    array = cupy.asarray(memory)

    def store() -> list[Any]:
        with kvikio.CuFile(path, "r+") as file:
            assert file.pwrite(array).get() == array.nbytes
        return []

    return store


def write_reference(path: str) -> Callable[[], list[Any]]:
    return copy_of(path, to_gpu=False)


def body(path: str) -> int:
    """Returns the offset of the first tensor in a file of safetensors."""
    with open(path, "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
