"""Waiting for blocks, errors, forked children, and pools between processes with a broker in a
process of its own."""

import asyncio
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest
import warnings

import hostbuf
import numpy as np
from pools import broker, check_waiting_tasks, fork, holds, private


class Waiting(unittest.TestCase):
    def test_without_a_block(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1)
        block = producer.block()
        other = producer.block()
        self.assertIsNone(producer.try_block())
        for timeout in [0, 0.001, 0.3]:
            with self.assertRaisesRegex(hostbuf.PoolTimeoutError, f"within {timeout} s: of 2 blocks, 2 are being"):
                producer.block(timeout=timeout)
        with self.assertRaises(TimeoutError):
            asyncio.run(producer.block_async(timeout=0.3))
        for wrong in [-1, float("nan")]:
            with self.assertRaisesRegex(ValueError, "invalid timeout"):
                producer.block(timeout=wrong)
        other.close()
        block.close()
        self.assertEqual(producer.block(timeout=0).state, "writing")

    def test_a_waiting_thread_releases_the_interpreter(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1)
        blocks = [producer.block(), producer.block()]
        found: list[hostbuf.Block] = []
        thread = threading.Thread(target=lambda: found.append(producer.block(timeout=20)))
        thread.start()
        blocks.pop().close()
        thread.join()
        self.assertEqual(found[0].state, "writing")

    def test_a_signal_ends_the_wait(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1)
        blocks = [producer.block(), producer.block()]
        old = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with self.assertRaises(KeyboardInterrupt):
                producer.block(timeout=60)
        finally:
            signal.signal(signal.SIGALRM, old)
        del blocks

    def test_tasks_wait_without_blocking_the_loop(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1)
        blocks = [producer.block(), producer.block()]

        async def frames() -> str:
            waiting = asyncio.ensure_future(producer.block_async((4,), "f4"))
            await asyncio.sleep(0)
            blocks.pop().close()
            block = await waiting
            self.assertEqual(block.shape, (4,))
            # A cancelled task takes no block.
            waiting = asyncio.ensure_future(producer.block_async())
            await asyncio.sleep(0)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            return block.state

        self.assertEqual(asyncio.run(frames()), "writing")
        self.assertIsNotNone(producer.try_block())

    def test_waiting_tasks_need_no_thread_of_the_executor(self) -> None:
        check_waiting_tasks(self, private().producer(4096, blocks=2, retain=1))

    def test_a_task_that_waits_too_long_gets_the_limit(self) -> None:
        producer = private().producer(4096, blocks=2, retain=1)
        blocks = [producer.block(), producer.block()]
        for limit, message in [(0.05, "within 0.05 s: of 2 blocks, 2 are being written"), (0.0, "within 0 s")]:
            with self.assertRaisesRegex(hostbuf.PoolTimeoutError, message):
                asyncio.run(producer.block_async(timeout=limit))
        with self.assertRaises(hostbuf.InvalidError):
            asyncio.run(producer.block_async(timeout=-1.0))
        blocks.pop().close()
        self.assertIsNotNone(producer.try_block())


class Errors(unittest.TestCase):
    def test_errors_of_readers(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=4, retain=3, quota=2)
        tokens = [producer.publish(np.full(4096, n, "u1")) for n in range(3)]
        held = [pool.acquire(tokens[0]), pool.acquire(memoryview(tokens[1]))]
        with self.assertRaises(hostbuf.QuotaError) as quota:
            pool.acquire(tokens[2])
        self.assertEqual((quota.exception.quota, quota.exception.kind), (2, "Quota"))
        held.clear()
        late = producer.publish(np.zeros(4096, "u1"))
        pool.skip(late)
        for _ in range(4):
            producer.publish(np.zeros(4096, "u1"))
        for token, kind, parent in [
            (tokens[0], hostbuf.BlockGoneError, LookupError),
            (bytes(48), hostbuf.InvalidTokenError, ValueError),
            (b"abc", hostbuf.InvalidTokenError, ValueError),
            ("no token", hostbuf.InvalidTokenError, ValueError),
            (tokens[0][:30] + b"x" + tokens[0][31:], hostbuf.InvalidTokenError, ValueError),
        ]:
            with self.subTest(token=token), self.assertRaises(kind) as caught:
                pool.acquire(token)
            self.assertIsInstance(caught.exception, (parent, hostbuf.PoolError))
        with self.assertRaises(hostbuf.InvalidTokenError):
            pool.skip(bytes(48))
        with self.assertRaises(TypeError):
            pool.acquire(48)
        with self.assertRaisesRegex(hostbuf.InvalidTokenError, "another pool .* which is private"):
            private().acquire(late)

    def test_invalid_arguments(self) -> None:
        pool = private()
        for words, arguments in [
            ("block size 0", {"block_bytes": 0}),
            ("number of blocks 1", {"block_bytes": 1, "blocks": 1}),
            ("retained blocks 8", {"block_bytes": 1, "retain": 8}),
            ("for one reader 9", {"block_bytes": 1, "quota": 9}),
            ("number of readers 0", {"block_bytes": 1, "readers": 0}),
            ("invalid block_bytes -1: expected a number from 0", {"block_bytes": -1}),
            ("invalid blocks -1", {"block_bytes": 1, "blocks": -1}),
            ("invalid readers 4294967296", {"block_bytes": 1, "readers": 1 << 32}),
            ("invalid quota -2", {"block_bytes": 1, "quota": -2}),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(hostbuf.InvalidError, words):
                pool.producer(**arguments)
        with self.assertRaises(TypeError):
            pool.producer()
        with self.assertRaises(TypeError):
            pool.producer(dtype="f4")
        with pool.producer(4096).block(8) as block:
            with self.assertRaisesRegex(hostbuf.InvalidError, "49 bytes: expected at most 48"):
                block.publish(user_data=bytes(49))
            for length in [4, 4097]:
                with self.assertRaisesRegex(hostbuf.InvalidError, "invalid content"):
                    block.publish(length=length)
            with self.assertRaisesRegex(hostbuf.InvalidError, "invalid frame -1"):
                block.publish(frame=-1)
            self.assertEqual(block.state, "writing")
            block.publish(length=4096)
        with self.assertRaisesRegex(hostbuf.InvalidError, 'invalid pool "no"'):
            hostbuf.Pool("test", mode="no")
        with self.assertRaisesRegex(hostbuf.InvalidError, "invalid timeout -1"):
            hostbuf.Pool("test", mode="private", timeout=-1)
        with self.assertRaisesRegex(hostbuf.NoBrokerError, "@nobody-listens") as caught:
            hostbuf.Pool("test", mode="required", socket="nobody-listens")
        self.assertIsInstance(caught.exception, ConnectionError)
        with self.assertRaisesRegex(hostbuf.NoBrokerError, "/no/such/socket"):
            hostbuf.Pool("test", mode="required", path=pathlib.Path("/no/such/socket"))
        self.assertFalse(hostbuf.Pool("test", mode="optional", socket="nobody-listens").shared)

    def test_a_producer_waits_for_the_readers_that_it_names(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1, wait_for="recorder")
        for _ in range(2):
            producer.publish(np.zeros(4096, "u1"))
        with self.assertRaisesRegex(hostbuf.PoolTimeoutError, "recorder has not attached"):
            producer.block(timeout=0.001)

    def test_a_forked_child_has_no_part_in_the_pool(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1, quota=1)
        token = producer.publish(np.full(4096, 6, "u1"))
        held, block = pool.acquire(token), producer.block()
        array = held.numpy()

        def refused() -> None:
            nonlocal held, block, producer, pool
            for use in [
                lambda: pool.acquire(token),
                pool.status,
                lambda: pool.producer(4096),
                producer.block,
                producer.try_block,
                block.numpy,
                block.publish,
                held.numpy,
                lambda: held.__dlpack__(max_version=(1, 0)),
                lambda: memoryview(held),
            ]:
                with self.assertRaises((hostbuf.ForkedError, BufferError)):
                    use()
            with private() as own:
                own.acquire(own.producer(4096).publish(np.ones(8))).close()
            held.close()
            block.close()
            del held, block, producer, pool
            gc.collect()

        self.assertEqual(fork(refused), 0)
        self.assertEqual(holds(pool), 1)
        self.assertIsNone(producer.try_block())
        self.assertEqual(int(array.sum()), 6 * 4096)
        del array
        held.close()
        block.close()
        self.assertEqual(pool.producer(4096).blocks, 8)


READER = """
import sys, hostbuf
pool = hostbuf.Pool("viewer", mode="required", socket=sys.argv[1])
for line in sys.stdin:
    with pool.acquire(line.strip()) as frame:
        array = frame.numpy()
        print(frame.header.frame, array.shape, array.min(), array.max(), flush=True)
"""


class Processes(unittest.TestCase):
    def test_tokens_go_through_a_pipe(self) -> None:
        with broker() as name, hostbuf.Pool("camera", mode="required", socket=name) as pool:
            self.assertTrue(pool.shared)
            arguments = [sys.executable, "-c", READER, name]
            with (
                pool.producer(shape=(64, 100), dtype="f4", wait_for=["viewer"]) as producer,
                subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader,
            ):
                assert reader.stdin and reader.stdout
                for frame in range(50):
                    with producer.block(timeout=20) as block:
                        block.numpy()[:] = frame
                        token = block.publish(frame=frame)
                    reader.stdin.write(token.hex() + "\n")
                    reader.stdin.flush()
                    self.assertEqual(reader.stdout.readline(), f"{frame} (64, 100) {frame}.0 {frame}.0\n")
                segment = pool.status()["segments"][0]
                self.assertEqual((segment["frames"], segment["readers"][0]["name"]), (50, "viewer"))
                reader.stdin.close()
                self.assertEqual(reader.wait(20), 0)

    def test_the_limit_of_the_broker(self) -> None:
        with broker(1 << 20) as name, hostbuf.Pool("camera", mode="required", socket=name) as pool:
            with self.assertRaises(hostbuf.PoolSpaceError) as caught:
                pool.producer(1 << 20, blocks=4)
            error = caught.exception
            self.assertIsInstance(error, (MemoryError, hostbuf.NoSpaceError))
            self.assertGreaterEqual(error.requested, 4 << 20)
            self.assertLessEqual(error.available, 1 << 20)
            self.assertEqual(error.kind, "NoSpace")

    def test_a_reader_that_is_killed_holds_nothing(self) -> None:
        script = READER.replace("print(", "kept = frame.numpy(); print(", 1) + "\n"
        with broker() as name, hostbuf.Pool("camera", mode="required", socket=name) as pool:
            producer = pool.producer(4096, blocks=2, retain=1, quota=2)
            arguments = [sys.executable, "-c", script, name]
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
                assert reader.stdin and reader.stdout
                reader.stdin.write(producer.publish(np.zeros(8)).hex() + "\n")
                reader.stdin.flush()
                reader.stdout.readline()
                producer.publish(np.ones(8))
                self.assertIsNone(producer.try_block())
                reader.kill()
            self.assertEqual(producer.block(timeout=20).state, "writing")

    def test_a_forked_child_does_not_end_the_holds_of_its_parent(self) -> None:
        with broker() as name, hostbuf.Pool("both", mode="required", socket=name) as pool:
            producer = pool.producer(4096, blocks=2, retain=1, quota=2)
            held = pool.acquire(producer.publish(np.full(4096, 4, "u1")))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                del held, producer, pool
                gc.collect()
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(holds(pool), 1)
            producer.publish(np.zeros(4096, "u1"))
            self.assertIsNone(producer.try_block())
            self.assertEqual(int(held.numpy().sum()), 4 * 4096)
            held.close()
            self.assertEqual(producer.block(timeout=20).state, "writing")


if __name__ == "__main__":
    unittest.main()
