#!/usr/bin/env python3
"""Compares hostbuf with other loaders: a file of safetensors to a GPU, and memory of a GPU to a
file.

    rivals.py read FILE [--rounds N] [--markdown FILE]
    rivals.py write FILE [--rounds N] [--markdown FILE]
    rivals.py slices FILE [--processes N] [--rounds N] [--markdown FILE]

`read` loads FILE, which should be in the page cache or on tmpfs, with hostbuf, KvikIO,
InstantTensor, fastsafetensors, Run:ai Model Streamer and safetensors, as far as they are installed.
`write` writes 4 GiB to FILE, which it creates, with hostbuf and KvikIO. `slices` loads FILE with N
processes (8) at once: each loads its part of the first dimension of every tensor, and the time is
that from the start to the end of the last process. Without a way to load a part, a process loads
all tensors.

Each way runs in a process of its own that stays, so that its threads, buffers and allocator are
warm. A sweep measures each rival with several settings first. Then all ways, each rival with its
defaults and with its best settings, are measured in turn for N rounds (7), in another order each
round. The results are medians. The reference is the rate of copies of 64 MiB from page-locked
memory (`cuMemHostAlloc`) in the same rounds. After each load the sum of all words on the GPU is
compared with that of the file.

`make FILE [GIB]` makes a file of 64 equal tensors of random numbers, 4 GiB by default.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import rival_ways
from rival_ways import WRITTEN_BYTES, body, settings_of

SWEEP_ROUNDS = 3
TENSORS = 64
# Libraries print lines of their own.
ANSWER = "rivals: "


def serve(kind: str, way: str, path: str) -> None:
    """Measures each time that a line comes in: writes the time of the end, processor seconds, and
    the sum of the words."""
    import torch

    torch.cuda.init()
    load = getattr(rival_ways, f"{kind}_{way.replace('-', '_')}")(path)
    sys.stdout.write(f"{ANSWER}ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        torch.cuda.synchronize()
        used = processor_seconds()
        tensors = load()
        torch.cuda.synchronize()
        # The clock is that of the machine.
        ended, used = time.monotonic(), processor_seconds() - used
        words = sum(int(tensor.reshape(-1).view(torch.int64).sum()) for tensor in tensors) % (1 << 64)
        del tensors
        sys.stdout.write(f"{ANSWER}{json.dumps([ended, used, words])}\n")
        sys.stdout.flush()


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Worker:
    """The processes that measure one way with one setting."""

    def __init__(self, kind: str, way: str, environment: dict[str, str], path: str, processes: int) -> None:
        self.way, self.environment = way, environment
        self.samples: list[tuple[float, float]] = []
        command = [sys.executable, os.path.abspath(__file__), "serve", kind, way, path]
        pipe, self.errors = subprocess.PIPE, tempfile.TemporaryFile("w+")
        # The reference is one process in any case.
        size = 1 if way == "reference" else processes
        variables = os.environ | environment | {"RIVALS_SIZE": str(size)}
        self.processes = [
            subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=self.errors,
                text=True,
                env=variables | {"RIVALS_RANK": str(rank)},
            )
            for rank in range(size)
        ]

    def answers(self) -> list[str]:
        """Returns the next answer of each process."""
        return [self.answer(process) for process in self.processes]

    def answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout
        for line in process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER)
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines()
        raise RuntimeError(f"{self.way} {self.environment}: {said[-1] if said else 'it has ended'}")

    def measure(self, keep: bool = True) -> int:
        begun = time.monotonic()
        for process in self.processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        ended, used, words = zip(*(json.loads(answer) for answer in self.answers()))
        if keep:
            self.samples.append((max(ended) - begun, sum(used)))
        return sum(words) % (1 << 64)

    def median(self) -> tuple[float, float]:
        seconds, used = zip(*self.samples)
        return statistics.median(seconds), statistics.median(used)

    def end(self) -> None:
        for process in self.processes:
            assert process.stdin and process.stdout
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass  # It has ended.
            process.stdout.close()
            process.wait()
        self.errors.close()


def words_of(path: str) -> int:
    import numpy

    words = numpy.memmap(path, dtype=numpy.uint8, mode="r")[body(path) :].view(numpy.int64)
    return int(words.sum()) % (1 << 64)


def sweep(kind: str, way: str, path: str, processes: int, expected: int | None) -> list[dict[str, str]]:
    """Returns the default setting and the best one, if that is another."""
    medians = []
    # They start at once, and are measured one after the other.
    for worker in [Worker(kind, way, environment, path, processes) for environment in settings_of(kind)[way]]:
        try:
            worker.answers()
            for round in range(SWEEP_ROUNDS + 1):
                fill_page_cache(path)
                check(worker, worker.measure(keep=round > 0), expected)
            medians.append((worker.median()[0], worker.environment))
            print(f"sweep: {way} {worker.environment}: {medians[-1][0]:.3f} s", file=sys.stderr)
        except (RuntimeError, BrokenPipeError) as error:
            print(f"left out: {error}", file=sys.stderr)
        finally:
            worker.end()
    if not medians:
        return []
    best = min(medians, key=lambda item: item[0])[1]
    return [environment for _, environment in medians if environment in ({}, best)]


def fill_page_cache(path: str) -> None:
    """Reads a file, unless it is in the page cache: some ways drop it."""
    import hostbuf

    try:
        cached = hostbuf.page_cache(path)
    except OSError:
        return  # The kernel does not tell, or the file has no page cache.
    if cached.cached < cached.pages:
        with open(path, "rb") as file:
            while file.read(64 << 20):
                pass


def check(worker: Worker, words: int, expected: int | None) -> None:
    if expected is not None and worker.way != "reference" and words != expected:
        sys.exit(f"{worker.way} {worker.environment} has loaded other bytes than those of the file")


def compare(kind: str, path: str, processes: int, rounds: int) -> list[str]:
    expected = None if kind == "write" else words_of(path)
    size = os.path.getsize(path)
    chosen = [(way, setting) for way in settings_of(kind) for setting in sweep(kind, way, path, processes, expected)]
    workers = [Worker(kind, way, setting, path, processes) for way, setting in chosen]
    for worker in workers:
        worker.answers()
        worker.measure(keep=False)
    for round in range(rounds):
        first = round % len(workers)
        for worker in workers[first:] + workers[:first]:
            fill_page_cache(path)
            check(worker, worker.measure(), expected)
    if kind == "write":
        check_written(path)
    reference = next(worker for worker in workers if worker.way == "reference").median()[0]
    rows = ["| way | settings | GB/s | of the reference | CPU s a GiB |", "| --- | --- | --- | --- | --- |"]
    for worker in workers:
        seconds, used = worker.median()
        settings = ", ".join(f"{name}={value}" for name, value in worker.environment.items()) or "defaults"
        rate, cpu = size / seconds / 1e9, used / (size / (1 << 30))
        rows.append(f"| {worker.way} | {settings} | {rate:.1f} | {reference / seconds:.2f} | {cpu:.3f} |")
        worker.end()
    return rows


def check_written(path: str) -> None:
    import numpy

    words = numpy.memmap(path, dtype=numpy.int64, mode="r")
    assert (words == numpy.arange(WRITTEN_BYTES // 8)).all(), "the file has other bytes than the memory of the GPU"


def make(path: str, gib: int) -> None:
    import numpy
    from safetensors.numpy import save_file

    random, shape = numpy.random.default_rng(1), (1024, (gib << 30) // TENSORS // 2 // 1024)
    tensors = {
        f"layer.{n}.weight": random.integers(0, 1 << 16, shape, dtype=numpy.uint16).view(numpy.float16)
        for n in range(TENSORS)
    }
    save_file(tensors, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["read", "write", "slices", "make", "serve"])
    parser.add_argument("arguments", nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--markdown")
    given = parser.parse_args()
    if given.command == "serve":
        return serve(*given.arguments)
    path = given.arguments[0]
    if given.command == "make":
        return make(path, int(given.arguments[1]) if len(given.arguments) > 1 else 4)
    if given.command == "write":
        with open(path, "wb") as file:
            file.truncate(WRITTEN_BYTES)
    rows = "\n".join(compare(given.command, path, given.processes if given.command == "slices" else 1, given.rounds))
    print(rows)
    if given.markdown:
        with open(given.markdown, "a") as file:
            file.write(rows + "\n")


if __name__ == "__main__":
    main()
