"""A node of a dora dataflow that is the broker of its pool:

    - id: broker
      path: python
      args: -m hostbuf.dora_broker --limit 1G
      inputs:
        viewer: viewer/done

The arguments are those of ``hostbuf broker``. If ``HOSTBUF_POOL`` is ``@NAME`` or ``/PATH``, as for
the other nodes, the broker listens there.

dora starts a dataflow when all of its nodes have connected to it, which ``hostbuf broker`` never
does. This node starts the broker, waits until it listens, and connects then. So other nodes find
the broker if they connect to the pool after ``dora.Node()``. The node ends the broker when dora
stops the dataflow, or when its inputs have ended. If the broker ends before, the node fails, and a
restart policy starts both again.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1


def _end_with(parent: int) -> None:
    """Makes this process get SIGTERM when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def with_address(arguments: list[str], pool: str) -> list[str]:
    """Returns the arguments with the address in ``HOSTBUF_POOL``, unless they state one."""
    if any(argument.partition("=")[0] in ("--name", "--path") for argument in arguments):
        return arguments
    if pool.startswith("@"):
        return [*arguments, "--name", pool[1:]]
    return [*arguments, "--path", pool] if pool.startswith("/") else arguments


class BrokerProcess:
    """A process ``hostbuf broker``, which listens. It ends with this process."""

    def __init__(self, arguments: list[str]) -> None:
        command = os.environ.get("HOSTBUF_COMMAND") or "hostbuf"
        parent = os.getpid()
        try:
            # Its messages about failures are those of the node.
            self._process = subprocess.Popen(
                [command, "broker", *arguments], stdout=subprocess.PIPE, preexec_fn=lambda: _end_with(parent)
            )
        except OSError as error:
            sys.exit(f"hostbuf.dora_broker: cannot start {command}: {error}: set HOSTBUF_COMMAND to its path")
        output = self._process.stdout
        assert output is not None
        # The broker prints it when its sockets listen.
        line = output.readline()
        if not line:
            sys.exit(self._process.wait() or 1)
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        self._output = output
        self._is_stopped = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        shutil.copyfileobj(self._output, sys.stdout.buffer)
        status = self._process.wait()
        if not self._is_stopped:
            print(f"hostbuf.dora_broker: the broker has ended, status {status}", file=sys.stderr, flush=True)
            # The main thread waits for events.
            os._exit(1)

    def stop(self) -> int:
        """Ends the broker, and returns its exit status."""
        self._is_stopped = True
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait()


def _wait_for_end(node: Any) -> None:
    """Waits until dora stops the node, or all of its inputs have ended."""
    for event in node:
        if event["type"] == "STOP":
            return


def main(arguments: list[str]) -> int:
    """Runs the node, and returns the exit status of the broker."""
    from dora import Node  # type: ignore[import-not-found]

    broker = BrokerProcess(with_address(arguments, os.environ.get("HOSTBUF_POOL", "")))
    try:
        _wait_for_end(Node())
    finally:
        status = broker.stop()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
