#!/usr/bin/env python3
"""Compares hostbuf with KvikIO: an object of a server on this machine to memory of the host.

    remote_rivals.py [--mib N] [--rounds N] [--sweep-rounds N] [--kinds http,https,s3-nginx,s3]
                     [--markdown FILE]

The object has N MiB (1024). nginx serves it without and with TLS, with two processes, and s3s-fs,
or rclone if that is not installed, serves it by S3. nginx also answers requests of S3 (s3-nginx):
it checks no signature, and does not bound the rate as those servers do. `hostbuf-bench-staging` of
target/release, with the feature `remote`, reads the object by requests of the threads of a ring,
and by reactors; KvikIO by its backends EASY_THREADPOOL and MULTI_POLL.

Each way runs in a process of its own that stays, so that its threads, connections and memory are
warm. A sweep measures each way with several settings first. Then all ways, each with its defaults
and with its best settings, are measured in turn for N rounds (7), in another order each round. The
results are medians. The CPU time is that of the process that reads, in the program and in the
kernel; that of the server is a column of its own. The bytes of each way are compared with those of
the object by a checksum before the first round and after the last one.

target/rivals gets an environment with KvikIO and numpy. On a machine without a CUDA driver KvikIO
reads no object at all: without_gpu.c, a library that knows no memory of a GPU, then stands in for
the driver.
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import remote_ways
from remote_servers import KEYS, ROOT, Server, start_nginx, start_s3

PROGRAM = ROOT / "target/release/hostbuf-bench-staging"
VENV = ROOT / "target/rivals"
# Of what KvikIO depends on, reads into memory of the host use these only.
PACKAGES = [
    *("kvikio-cu12 ==26.10.*", "libkvikio-cu12 ==26.10.*", "rapids-logger ==0.3.*", "nvidia-cufile-cu12"),
    *("cuda-pathfinder", "numpy <3", "packaging"),
]
# Libraries print lines of their own.
ANSWER = "rivals: "


def install() -> None:
    if not (VENV / "complete").exists():
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--no-deps"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (VENV / "complete").touch()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        library = VENV / "without-gpu/libcuda.so.1"
        library.parent.mkdir(exist_ok=True)
        source = Path(__file__).with_name("without_gpu.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        os.environ["LD_LIBRARY_PATH"] = str(library.parent)
        print("no CUDA driver: a library that knows no memory of a GPU stands in for it", file=sys.stderr)
    if Path(sys.prefix) != VENV:
        os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve(kind: str, url: str) -> None:
    """Reads by KvikIO for each line, as `hostbuf-bench-staging remote` does."""

    def answer(text: str) -> None:
        print(f"{ANSWER}{text}", flush=True)

    read, memory = remote_ways.read_kvikio(kind, url)
    answer("ready")
    for line in sys.stdin:
        if line.strip() == "check":
            memory[:] = 0
            read()
            answer(str(remote_ways.checksum(memory)))
        else:
            answer(json.dumps(remote_ways.timed(read, processor_seconds)))


class Reader:
    """The process of one way with one setting."""

    def __init__(self, way: str, setting: list[str] | dict[str, str], kind: str, url: str, variables: dict[str, str]) -> None:
        self.way, self.setting = way, setting
        self.samples: list[tuple[float, float, float]] = []
        environment = os.environ | variables
        if isinstance(setting, dict):
            environment |= setting
            command = [sys.executable, __file__, "serve", kind, url]
        else:
            authority = variables.get("CURL_CA_BUNDLE")
            command = [str(PROGRAM), "remote", *setting, *(["--certificates", authority] if authority else []), url]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.answer()

    def name(self) -> str:
        setting = self.setting
        if isinstance(setting, dict):
            shown = [f"{name.removeprefix('KVIKIO_')}={value}" for name, value in setting.items()]
            return ", ".join(shown) or "defaults"
        return " ".join(setting) or "defaults"

    def answer(self) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER)
        raise RuntimeError(f"{self.way}, {self.name()}: it has ended")

    def ask(self, line: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def measure(self, server: Server) -> None:
        before = server.processor_seconds()
        seconds, used = json.loads(self.ask("read"))
        self.samples.append((seconds, used, server.processor_seconds() - before))

    def check(self, expected: int) -> None:
        if int(self.ask("check")) != expected:
            sys.exit(f"{self.way}, {self.name()} has read other bytes than those of the object")

    def medians(self) -> list[float]:
        return [statistics.median(values) for values in zip(*self.samples)]

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def chosen(way: str, settings: list, target: tuple, server: Server, expected: int, rounds: int) -> list:
    """Returns the default setting and the best one, if that is another."""
    medians = []
    for setting in settings:
        reader = Reader(way, setting, *target)
        reader.check(expected)
        for _ in range(rounds):
            reader.measure(server)
        medians.append(reader.medians()[0])
        print(f"sweep: {target[0]} {way} {reader.name()}: {medians[-1]:.3f} s", file=sys.stderr)
        reader.end()
    best = settings[medians.index(min(medians))]
    return [settings[0]] if best == settings[0] else [settings[0], best]


def compare(target: tuple, server: Server, expected: int, size: int, given: argparse.Namespace) -> list[str]:
    ways = {**remote_ways.HOSTBUF, **remote_ways.KVIKIO}
    readers = [
        Reader(way, setting, *target)
        for way, settings in ways.items()
        for setting in chosen(way, settings, target, server, expected, given.sweep_rounds)
    ]
    for reader in readers:
        reader.check(expected)
    for round in range(given.rounds):
        first = round % len(readers)
        for reader in readers[first:] + readers[:first]:
            reader.measure(server)
    for reader in readers:
        reader.check(expected)
        reader.end()
    rival = min((reader for reader in readers if reader.way in remote_ways.KVIKIO), key=lambda reader: reader.medians()[0])
    rows = []
    for reader in readers:
        seconds, used, served = reader.medians()
        gib = size / (1 << 30)
        rate, of_rival = size / seconds / 1e9, rival.medians()[0] / seconds
        cpu = f"{used / gib:.3f} | {used / rival.medians()[1]:.2f} | {served / gib:.3f}"
        rows.append(f"| {target[0]} | {server.name} | {reader.way} | {reader.name()} | {rate:.2f} | {of_rival:.2f} | {cpu} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sweep-rounds", type=int, default=2)
    parser.add_argument("--kinds", default="http,https,s3-nginx,s3")
    parser.add_argument("--markdown")
    given = parser.parse_args()
    if given.command:
        return serve(*given.command[1:])
    install()
    import numpy

    content = numpy.random.default_rng(1).integers(0, 1 << 64, given.mib << 17, dtype=numpy.uint64)
    expected = remote_ways.checksum(content)
    heads = ["kind", "server", "way", "settings", "GB/s", "of KvikIO's best", "CPU s a GiB", "of KvikIO's best", "server's CPU s a GiB"]
    rows = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    # The object is in the page cache.
    with tempfile.TemporaryDirectory(prefix="hostbuf-remote-") as name:
        folder = Path(name)
        (folder / "files").mkdir()
        content.tofile(folder / "files/data")
        nginx, plain, tls = start_nginx(folder)
        s3 = start_s3(folder)
        region = KEYS | {"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1"}

        def s3_target(kind: str, port: int) -> tuple:
            return kind, "s3://files/data", region | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}

        targets = [
            (nginx, ("http", f"http://127.0.0.1:{plain}/data", {})),
            (nginx, ("https", f"https://localhost:{tls}/data", {"CURL_CA_BUNDLE": str(folder / "ca.pem")})),
            (nginx, s3_target("s3-nginx", plain)),
            *([(s3[0], s3_target("s3", s3[1]))] if s3 else []),
        ]
        for server, target in targets:
            if target[0] in given.kinds.split(","):
                rows += compare(target, server, expected, given.mib << 20, given)
        for server in {server for server, _ in targets}:
            server.end()
    print("\n".join(rows))
    if given.markdown:
        with open(given.markdown, "a") as file:
            file.write("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
