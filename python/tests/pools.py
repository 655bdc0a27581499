"""Functions for the tests of pools."""

import asyncio
import gc
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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hostbuf
import hostbuf._waits

BROKER = pathlib.Path(__file__).resolve().parents[2] / "target/debug/pool_broker"
_names = itertools.count()


def private() -> hostbuf.Pool:
    return hostbuf.Pool("test", mode="private")


def holds(pool: hostbuf.Pool) -> int:
    """Returns the number of blocks that readers hold."""
    return sum(reader["holds"] for segment in pool.status()["segments"] for reader in segment["readers"])


def check_closed_loop(test: unittest.TestCase, producer: Any, limit: float = 20.0) -> None:
    """Closes a loop with a task that waits for one of the two blocks of a producer."""
    held = [producer.block(), producer.block()]
    loop = asyncio.new_event_loop()
    task = loop.create_task(producer.block_async())
    loop.run_until_complete(asyncio.sleep(0))
    test.assertFalse(task.done())
    loop.close()
    # It reports the task that nobody has waited for.
    with test.assertLogs("asyncio", "ERROR"):
        del task, loop
        gc.collect()
    for block in held:
        block.close()
    for block in [producer.block(timeout=limit), producer.block(timeout=limit)]:
        block.close()


def check_waiting_tasks(test: unittest.TestCase, producer: Any, count: int = 200, limit: float = 20.0) -> None:
    """Lets tasks wait for one of the two blocks of a producer, in a loop whose executor has one
    thread."""
    check_closed_loop(test, producer, limit)
    held = [producer.block(), producer.block()]
    order: list[int] = []

    async def use_block(number: int) -> None:
        with await producer.block_async():
            order.append(number)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        tasks = [asyncio.ensure_future(use_block(number)) for number in range(count)]
        # Each task runs until it waits.
        await asyncio.sleep(0)
        test.assertEqual(await asyncio.wait_for(loop.run_in_executor(None, int, "7"), limit), 7)
        test.assertEqual(order, [])
        for task in tasks[::2]:
            task.cancel()
        held.pop().close()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), limit)
        test.assertTrue(all(isinstance(result, asyncio.CancelledError) for result in results[::2]))
        test.assertEqual(results[1::2], [None] * (count // 2))
        # The others have waited in their order.
        test.assertEqual(order, list(range(1, count, 2)))
        # A task that waits for a producer gets an error when it is closed.
        again = producer.block()
        waiting = asyncio.ensure_future(producer.block_async())
        await asyncio.sleep(0)
        producer.close()
        with test.assertRaisesRegex(ValueError, "the producer is closed"):
            await asyncio.wait_for(waiting, limit)
        again.close()

    asyncio.run(main())
    test.assertEqual(len(hostbuf._waits._waits), 0)


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
