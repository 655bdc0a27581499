"""Functions for the tests of pools."""

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import hostbuf

BROKER = pathlib.Path(__file__).resolve().parents[2] / "target/debug/pool_broker"
_names = itertools.count()


def private() -> hostbuf.Pool:
    return hostbuf.Pool("test", mode="private")


def holds(pool: hostbuf.Pool) -> int:
    """Returns the number of blocks that readers hold."""
    return sum(reader["holds"] for segment in pool.status()["segments"] for reader in segment["readers"])


def fork(child: Any) -> int:
    """Runs a function in a forked child, and returns its exit status."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        # Newer versions of Python warn of children of processes with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            child()
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def broker(limit: int = 1 << 26) -> Iterator[str]:
    """Runs a broker, and returns the name of its socket."""
    if not BROKER.exists():
        raise unittest.SkipTest("the broker of pools is missing (scripts/build-programs)")
    name = f"hostbuf-pool-python-{os.getpid()}-{next(_names)}"
    arguments = [str(BROKER), name, str(limit)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == b"listening\n"
        try:
            yield name
        finally:
            process.stdin.close()
