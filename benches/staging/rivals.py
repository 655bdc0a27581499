#!/usr/bin/env python3
"""Compares hostbuf with other loaders: a file of safetensors to a GPU, and memory of a GPU to a
file.

    rivals.py read FILE [--cold] [--rounds N] [--ways NAME,...] [--markdown FILE]
    rivals.py write FILE [--rounds N] [--ways NAME,...] [--markdown FILE]
    rivals.py slices FILE [--processes N] [--rounds N] [--ways NAME,...] [--markdown FILE]

`read` loads FILE, which should be in the page cache or on tmpfs, with hostbuf, KvikIO,
InstantTensor, fastsafetensors, Run:ai Model Streamer and safetensors, as far as they are installed.
With --cold the page cache is dropped before each load. `write` writes 4 GiB to FILE, which it
creates, with hostbuf and KvikIO. `slices` loads FILE with N processes (8) at once: each loads its
part of the first dimension of every tensor, and the time is that from the start to the end of the
last process. Without a way to load a part, a process loads all tensors. --ways leaves out the
others.

Each way runs in a process of its own that stays, so that its threads, buffers and allocator are
warm. A sweep measures each rival with several settings first. Then all ways, each rival with its
defaults and with its best settings, are measured in turn for N rounds (7), in another order each
round. The results are medians. The reference is the rate of copies of 64 MiB from page-locked
memory (`cuMemHostAlloc`) in the same rounds. After each load the sum of all words on the GPU is
compared with that of the file.

`make FILE [GIB]` makes a file of 64 equal tensors of random numbers, 4 GiB by default. The name of
FILE must end with .safetensors, by which hostbuf.load recognises the format, but for `write`.
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
from collections.abc import Callable

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


def drop_page_cache(path: str) -> None:
    import hostbuf

    hostbuf.drop_page_cache(path)


class Comparison:
    """Ways that load or write one file, each with its settings."""

    def __init__(self, kind: str, path: str, processes: int, prepare: Callable[[str], None]) -> None:
        self.kind, self.path, self.processes, self.prepare = kind, path, processes, prepare
        self.expected = None if kind == "write" else words_of(path)

    def worker(self, way: str, setting: dict[str, str]) -> Worker:
        return Worker(self.kind, way, setting, self.path, self.processes)

    def measure(self, worker: Worker, keep: bool) -> None:
        self.prepare(self.path)
        words = worker.measure(keep)
        if self.expected is not None and worker.way != "reference" and words != self.expected:
            sys.exit(f"{worker.way} {worker.environment} has loaded other bytes than those of the file")

    def warm(self, worker: Worker) -> bool:
        """Returns whether a way has gone once."""
        try:
            worker.answers()
            self.measure(worker, keep=False)
            return True
        except (RuntimeError, BrokenPipeError) as error:
            print(f"left out: {error}", file=sys.stderr)
            worker.end()
            return False

    def sweep(self, way: str, settings: list[dict[str, str]]) -> list[dict[str, str]]:
        """Returns the default setting and the best one, if that is another."""
        if len(settings) == 1:
            return settings
        medians = []
        # They start at once, and are measured one after the other.
        for worker in [self.worker(way, setting) for setting in settings]:
            if not self.warm(worker):
                continue
            for _ in range(SWEEP_ROUNDS):
                self.measure(worker, keep=True)
            medians.append((worker.median()[0], worker.environment))
            print(f"sweep: {way} {worker.environment}: {medians[-1][0]:.3f} s", file=sys.stderr)
            worker.end()
        if not medians:
            return []
        best = min(medians, key=lambda item: item[0])[1]
        return [environment for _, environment in medians if environment in ({}, best)]

    def compare(self, ways: dict[str, list[dict[str, str]]], rounds: int) -> list[str]:
        """Returns the rows of a table."""
        chosen = [(way, setting) for way, settings in ways.items() for setting in self.sweep(way, settings)]
        workers = [worker for worker in [self.worker(*one) for one in chosen] if self.warm(worker)]
        for round in range(rounds):
            first = round % len(workers)
            for worker in workers[first:] + workers[:first]:
                self.measure(worker, keep=True)
        if self.kind == "write":
            check_written(self.path)
        size = os.path.getsize(self.path)
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
    parser.add_argument("--ways")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--markdown")
    given = parser.parse_args()
    if given.command == "serve":
        return serve(*given.arguments)
    path = given.arguments[0]
    if given.command != "write" and not path.endswith(".safetensors"):
        parser.error(f"{path} does not end with .safetensors: hostbuf.load would not take it for safetensors")
    if given.command == "make":
        return make(path, int(given.arguments[1]) if len(given.arguments) > 1 else 4)
    if given.command == "write":
        with open(path, "wb") as file:
            file.truncate(WRITTEN_BYTES)
    known = settings_of(given.command, given.cold)
    names = given.ways.split(",") if given.ways else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown ways {', '.join(unknown)}: expected {', '.join(known)}")
    # Each row has the ratio to the reference.
    ways = {name: known[name] for name in [*names, "reference"]}
    processes = given.processes if given.command == "slices" else 1
    prepare = drop_page_cache if given.cold else fill_page_cache
    rows = "\n".join(Comparison(given.command, path, processes, prepare).compare(ways, given.rounds))
    print(rows)
    if given.markdown:
        with open(given.markdown, "a") as file:
            file.write(rows + "\n")


if __name__ == "__main__":
    main()
