"""The ways to read an object of a server into memory of the host, and their settings."""

import os
import time
from collections.abc import Callable
from typing import Any

# The words of which the checksum has one sum.
SUMMED_WORDS = 8192
MIB = 1 << 20
# The best numbers of threads and reactors depend on the cores, which the server shares.
LARGE_HOST = (os.cpu_count() or 1) >= 16
THREADS = (4, 8, 16) if LARGE_HOST else (2, 4, 8)
REACTORS = (1, 2, 4) if LARGE_HOST else (1, 2)


def easy(threads: int, task: int) -> dict[str, str]:
    return {
        "KVIKIO_REMOTE_IO_BACKEND": "EASY_THREADPOOL",
        "KVIKIO_NTHREADS": str(threads),
        "KVIKIO_TASK_SIZE": str(task * MIB),
    }


def multi_poll(reactors: int, task: int, requests: int) -> dict[str, str]:
    return {
        "KVIKIO_REMOTE_IO_BACKEND": "MULTI_POLL",
        "KVIKIO_REMOTE_IO_NUM_REACTORS": str(reactors),
        "KVIKIO_TASK_SIZE": str(task * MIB),
        "KVIKIO_REMOTE_IO_MAX_CONCURRENT_REQUESTS": str(requests),
    }


# The settings of KvikIO are variables of the environment. The first ones are the defaults.
KVIKIO: dict[str, list[dict[str, str]]] = {
    "kvikio-easy": [{}, *(easy(threads, task) for threads in THREADS for task in (1, 4, 16))],
    "kvikio-multi": [
        {"KVIKIO_REMOTE_IO_BACKEND": "MULTI_POLL"},
        *(multi_poll(reactors, task, n) for reactors in REACTORS for task in (1, 4, 16) for n in (4, 16)),
    ],
}
# Those of hostbuf are arguments.
HOSTBUF: dict[str, list[list[str]]] = {
    "hostbuf-easy": [
        [],
        *(["--workers", str(n), "--piece", str(piece)] for n in THREADS for piece in (1, 4, 16)),
    ],
    "hostbuf-reactors": [
        ["--reactors", "1x16"],
        *(
            ["--reactors", reactors, "--workers", str(n), "--piece", str(piece)]
            for reactors in ("1x4", *(f"{n}x{requests}" for n in REACTORS[1:] for requests in (4, 16)))
            for n, piece in ((2, 1), (2, 4), (4, 16))
        ),
    ],
}


def read_kvikio(kind: str, url: str) -> tuple[Callable[[], None], Any]:
    """Returns a function that reads the object once, and the memory that it reads into."""
    import kvikio
    import numpy

    match kind:
        case "s3" | "s3-nginx":
            # The endpoint, the region and the keys are in the environment.
            bucket, key = url.removeprefix("s3://").split("/", 1)
            file = kvikio.RemoteFile.open_s3(bucket, key)
        case _:
            file = kvikio.RemoteFile.open_http(url)
    memory = numpy.zeros(file.nbytes(), dtype=numpy.uint8)

    def read() -> None:
        count = file.pread(memory).get()
        assert count == memory.nbytes, count

    return read, memory


def checksum(memory: Any) -> int:
    """Returns the sum of the words of each part times its number, which differs if parts have
    changed places."""
    import numpy

    sums = memory.view(numpy.uint64).reshape(-1, SUMMED_WORDS).sum(axis=1, dtype=numpy.uint64)
    numbers = numpy.arange(1, len(sums) + 1, dtype=numpy.uint64)
    return int((sums * numbers).sum(dtype=numpy.uint64))


def timed(read: Callable[[], None], processor_seconds: Callable[[], float]) -> list[float]:
    """Returns the seconds and the CPU seconds of a read."""
    used, begun = processor_seconds(), time.monotonic()
    read()
    return [time.monotonic() - begun, processor_seconds() - used]
