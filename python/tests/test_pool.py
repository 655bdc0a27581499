"""The arrays of a private pool: their types, their views, and how they keep their blocks."""

import ctypes
import gc
import hashlib
import io
import threading
import time
import unittest
from typing import Any

import hostbuf
import numpy as np
from pools import holds, private


class Arrays(unittest.TestCase):
    def test_a_reader_sees_what_a_producer_has_written(self) -> None:
        pool = private()
        self.assertFalse(pool.shared)
        with pool.producer(shape=(3, 4), dtype="u2", blocks=4, stream="camera") as producer:
            self.assertEqual((producer.block_bytes, producer.blocks), (4096, 4))
            for frame in range(10):
                with producer.block() as block:
                    self.assertEqual((block.shape, block.dtype, block.state), ((3, 4), "uint16", "writing"))
                    block.numpy()[:] = np.arange(12).reshape(3, 4) + frame
                    token = block.publish(frame=frame, captured_ns=5, user_data=b"gain 2")
                    self.assertEqual(block.state, "published")
                with pool.acquire(token) as held:
                    array = held.numpy()
                    np.testing.assert_array_equal(array, np.arange(12).reshape(3, 4) + frame)
                    self.assertFalse(array.flags.writeable)
                    self.assertEqual((held.shape, held.dtype), ((3, 4), "uint16"))
                    header = held.header
                self.assertEqual((header.frame, header.sequence, header.captured_ns), (frame, frame, 5))
                self.assertEqual((header.strides, header.length), ((8, 2), 24))
                self.assertEqual(header.user_data, b"gain 2".ljust(48, b"\0"))
                self.assertLess(time.monotonic_ns() - header.published_ns, 20 * 10**9)
        fields = hostbuf.Token.parse(token)
        self.assertEqual((fields.pool, fields.length), (pool.id, 24))
        self.assertEqual(hostbuf.Token.parse(token.hex()), fields)

    def test_all_types_of_elements(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        names = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
        names += ["float16", "float32", "float64", "complex64", "complex128"]
        for name in names:
            with self.subTest(name=name):
                wanted = np.arange(6).reshape(2, 3).astype(name)
                token = producer.publish(wanted)
                with pool.acquire(token) as held:
                    self.assertEqual(held.dtype, name)
                    for array in [
                        held.numpy(),
                        np.asarray(held),
                        np.asarray(memoryview(held)),
                        np.from_dlpack(held),
                        np.asarray(type("Other", (), {"__array_interface__": held.__array_interface__})()),
                    ]:
                        self.assertEqual(array.dtype, wanted.dtype)
                        np.testing.assert_array_equal(array, wanted)
                        self.assertFalse(array.flags.writeable)
                        with self.assertRaises(ValueError):
                            array[0, 0] = 1
        for dtype in ["f4", "<f4", np.float32, np.dtype("f4"), type("Fake", (), {"__str__": lambda self: "torch.float32"})()]:
            self.assertEqual(producer.block(2, dtype).dtype, "float32")
        for wrong in [">f4", "U4", "no such type", np.dtype([("a", "i4"), ("b", "i8")]), object, "M8[ns]"]:
            with self.subTest(wrong=wrong), self.assertRaisesRegex(hostbuf.InvalidError, "invalid dtype"):
                producer.block(2, wrong)

    def test_types_that_numpy_does_not_have(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        with producer.block(4, "bfloat16") as block:
            self.assertEqual(block.dtype, "bfloat16")
            token = block.publish()
        with pool.acquire(token) as held:
            self.assertEqual((held.dtype, len(held.content())), ("bfloat16", 8))
            with self.assertRaisesRegex(BufferError, "no format for bfloat16"):
                memoryview(held)
            self.assertFalse(hasattr(held, "__array_interface__"))
            self.assertEqual(len(bytes(held.content())), 8)
            try:
                import ml_dtypes  # noqa: F401
            except ImportError:
                with self.assertRaisesRegex(TypeError, "install ml_dtypes, or use torch"):
                    held.numpy()

    def test_bytes_without_a_type(self) -> None:
        pool = private()
        producer = pool.producer(5000)
        with producer.block() as block:
            self.assertEqual((block.shape, block.dtype), ((8192,), "void8"))
            io.BytesIO(b"an image").readinto(block)  # type: ignore[arg-type]
            token = block.publish(length=8)
        with pool.acquire(token) as held:
            self.assertEqual((held.dtype, held.header.length, held.shape), ("void8", 8, (8,)))
            self.assertEqual(bytes(held), b"an image")
            self.assertEqual(hashlib.sha256(held).digest(), hashlib.sha256(b"an image").digest())  # type: ignore[arg-type]
            self.assertEqual(held.numpy().dtype, np.uint8)
            self.assertEqual(np.from_dlpack(held).dtype, np.uint8)
            self.assertEqual(memoryview(held).format, "B")

    def test_padded_rows_and_other_orders(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        with producer.block((3, 5), "u1", strides=(8, 1)) as block:
            block.numpy()[:] = np.arange(15).reshape(3, 5)
            padded = block.publish(length=24)
        with producer.block((2, 3), "i4", strides=(4, 8)) as block:
            block.numpy()[:] = [[1, 2, 3], [4, 5, 6]]
            fortran = block.publish()
        with pool.acquire(padded) as held:
            view = memoryview(held)
            self.assertEqual((view.shape, view.strides, view.nbytes, view.contiguous), ((3, 5), (8, 1), 15, False))
            for array in [held.numpy(), np.asarray(held), np.from_dlpack(held)]:
                np.testing.assert_array_equal(array, np.arange(15).reshape(3, 5))
                self.assertEqual(array.strides, (8, 1))
            self.assertEqual(len(held.content()), 24)
            with self.assertRaisesRegex(BufferError, "not contiguous"):
                hashlib.sha256(held)  # type: ignore[arg-type]
        with pool.acquire(fortran) as held:
            view = memoryview(held)
            self.assertEqual((view.f_contiguous, view.c_contiguous), (True, False))
            np.testing.assert_array_equal(np.asarray(held), [[1, 2, 3], [4, 5, 6]])
            np.testing.assert_array_equal(np.from_dlpack(held), [[1, 2, 3], [4, 5, 6]])
        for shape, strides, words in [
            ((2, 3), (4, -8), "negative|stride"),
            ((2, 3), (0, 4), "overlap|stride"),
            ((2, 3), (4,), "stride"),
            ((1 << 62, 8), None, "invalid array"),
            ((1025,), None, "invalid array"),
            ((1,) * 9, None, "dimension"),
            ((-1,), None, "negative"),
        ]:
            with self.subTest(shape=shape), self.assertRaisesRegex(hostbuf.InvalidError, words):
                producer.block(shape, "i4", strides=strides)

    def test_empty_arrays_and_single_elements(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        for shape in [(), (0, 3), (1, 1), (3, 0)]:
            with self.subTest(shape=shape):
                token = producer.publish(np.full(shape, 3.5, "f8"))
                with pool.acquire(token) as held:
                    for array in [held.numpy(), np.asarray(held), np.from_dlpack(held)]:
                        np.testing.assert_array_equal(array, np.full(shape, 3.5))
                        self.assertEqual(array.shape, shape)


class Views(unittest.TestCase):
    """Arrays keep their blocks."""

    def test_a_view_keeps_the_block_after_the_hold_is_released(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=4, retain=1, quota=4)
        makers = {
            "numpy": lambda held: held.numpy(),
            "asarray": np.asarray,
            "slice": lambda held: np.asarray(held)[10:20],
            "memoryview": memoryview,
            "content": lambda held: held.content(),
            "frombuffer": lambda held: np.frombuffer(held, "u1"),
            "buffer": lambda held: np.ndarray(4096, "u1", buffer=held),
            "dlpack": np.from_dlpack,
            "capsule": lambda held: held.__dlpack__(max_version=(1, 0)),
            "view of a view": lambda held: memoryview(memoryview(held))[5:],
        }
        for name, make in makers.items():
            with self.subTest(name=name):
                token = producer.publish(np.full(4096, 7, "u1"))
                with pool.acquire(token) as held:
                    view = make(held)
                del held
                self.assertEqual(holds(pool), 1)
                for _ in range(10):
                    producer.publish(np.full(4096, 9, "u1"))
                if name != "capsule":
                    self.assertEqual(set(bytes(view)), {7})
                with self.assertRaises(hostbuf.BlockGoneError):
                    pool.acquire(token)
                del view
                gc.collect()
                self.assertEqual(holds(pool), 0)

    def test_the_hold_ends_with_the_with_block_if_no_view_is_left(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        token = producer.publish(np.ones(4096, "u1"))
        with pool.acquire(token) as held:
            self.assertEqual(holds(pool), 1)
            self.assertEqual(int(np.asarray(held).sum()) + int(held.numpy().sum()) + sum(held.content()), 3 * 4096)
        self.assertTrue(held.closed)
        self.assertEqual(holds(pool), 0)
        held.close()
        for use in [held.numpy, held.content, lambda: memoryview(held), lambda: held.__dlpack__(max_version=(1, 0))]:
            with self.assertRaisesRegex(ValueError, "released"):
                use()
        self.assertEqual(held.header.length, 4096)
        # The array interface has an address only, so the object itself keeps the block.
        with pool.acquire(token) as held:
            self.assertEqual(held.__array_interface__["data"][1], True)
        self.assertEqual(holds(pool), 1)
        del held
        self.assertEqual(holds(pool), 0)

    def test_exceptions_and_the_garbage_collector_release(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=4, retain=2)
        token = producer.publish(np.ones(4096, "u1"))
        with self.assertRaisesRegex(RuntimeError, "mine"), pool.acquire(token) as held:
            held.numpy()
            raise RuntimeError("mine")
        self.assertEqual(holds(pool), 0)
        cycle: list[Any] = [pool.acquire(token)]
        cycle.append(cycle[0].numpy())
        cycle.append(cycle)
        self.assertEqual(holds(pool), 1)
        del cycle
        gc.collect()
        self.assertEqual(holds(pool), 0)
        # More than there are blocks, so each is freed again.
        for _ in range(10):
            with self.assertRaisesRegex(RuntimeError, "mine"), producer.block(timeout=5) as block:
                block.numpy()[0] = 1
                raise RuntimeError("mine")
            self.assertEqual(block.state, "freed")
            producer.block(timeout=5)

    def test_blocks_outlive_the_pool(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        held = pool.acquire(producer.publish(np.full(4096, 3, "u1")))
        block = producer.block()
        array = held.numpy()
        producer.close()
        pool.close()
        pool.close()
        self.assertTrue(pool.closed)
        for use in [pool.status, lambda: pool.acquire(bytes(48)), producer.block, lambda: pool.producer(1)]:
            with self.assertRaisesRegex(ValueError, "is closed"):
                use()
        held.close()
        self.assertEqual(int(array.sum()), 3 * 4096)
        block.numpy()[:] = 1
        self.assertEqual(len(block.publish()), 48)


class Devices(unittest.TestCase):
    def test_a_device_reads_the_block_itself(self) -> None:
        pool = private()
        token = pool.producer(4096).publish(np.full(4096, 9, "u1"))
        with pool.acquire(token) as held:
            path = held.dma("mlock")
            self.assertTrue(path.direct)
            self.assertEqual(path.address, held.numpy().ctypes.data)
            none = held.dma("cuda:4711")
            self.assertFalse(none.direct)
            self.assertTrue(none.why)
            with self.assertRaises(hostbuf.InvalidError):
                held.dma("no such device")
        with self.assertRaisesRegex(ValueError, "released"):
            held.dma("mlock")

    def test_a_hold_ends_after_the_work_of_a_stream(self) -> None:
        class Event:
            complete = threading.Event()

            def query(self) -> bool:
                return self.complete.is_set()

        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1)
        held = pool.acquire(producer.publish(np.ones(4096, "u1")))
        producer.publish(np.ones(4096, "u1"))
        with self.assertRaises(TypeError):
            held.release_after("no stream")
        self.assertFalse(held.closed)
        held.release_after(Event())
        self.assertTrue(held.closed)
        with self.assertRaisesRegex(ValueError, "released"):
            held.release_after(Event())
        self.assertIsNone(producer.try_block())
        Event.complete.set()
        self.assertEqual(producer.block(timeout=20).state, "writing")


class Writing(unittest.TestCase):
    def test_a_block_with_writable_views_is_not_published(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        makers: dict[str, Any] = {
            "numpy": lambda block: block.numpy(),
            "slice": lambda block: block.numpy()[3:5],
            "asarray": np.asarray,
            "memoryview": memoryview,
            "frombuffer": np.frombuffer,
            "dlpack": np.from_dlpack,
            "capsule": lambda block: block.__dlpack__(),
            "ctypes": lambda block: (ctypes.c_char * 8).from_buffer(block),
        }
        for name, make in makers.items():
            with self.subTest(name=name), producer.block(4096) as block:
                view = make(block)
                with self.assertRaisesRegex(BufferError, "1 arrays or views of it exist"):
                    block.publish()
                self.assertEqual(block.state, "writing")
                del view
                gc.collect()
                token = block.publish()
                for use in [block.numpy, lambda: memoryview(block), lambda: block.__dlpack__(), block.publish]:
                    with self.assertRaisesRegex(ValueError, "the block is published"):
                        use()
                block.close()
                self.assertEqual(block.state, "published")
                pool.acquire(token).close()
        with producer.block(4096) as block:
            with self.assertRaisesRegex(BufferError, "use numpy"):
                np.ndarray(4096, "u1", buffer=block)
            view = memoryview(block)
            view[0] = 1
            view.release()
            block.publish()

    def test_a_freed_block_is_reused_after_its_last_view(self) -> None:
        pool = private()
        producer = pool.producer(4096, blocks=2, retain=1)
        producer.publish(np.zeros(4096, "u1"))
        with producer.block(4096) as block:
            array = block.numpy()
        with self.assertRaisesRegex(ValueError, "the block is freed"):
            block.numpy()
        self.assertIsNone(producer.try_block())
        array[:] = 5
        del array
        self.assertIsNotNone(producer.try_block())

    def test_numpy_writes_by_dlpack(self) -> None:
        pool = private()
        producer = pool.producer(4096)
        with producer.block((2, 3), "f4") as block:
            self.assertEqual(block.__dlpack_device__(), (1, 0))
            array = np.from_dlpack(block)
            if array.flags.writeable:  # numpy 2 and later
                array[:] = 2.5
            else:
                block.numpy()[:] = 2.5
            del array
            token = block.publish()
        with pool.acquire(token) as held:
            self.assertEqual(held.numpy().tolist(), [[2.5] * 3] * 2)

    def test_dlpack_states_that_a_published_block_is_read_only(self) -> None:
        pool = private()
        token = pool.producer(4096).publish(np.arange(6, dtype="i2"))
        with pool.acquire(token) as held:
            self.assertEqual(held.__dlpack_device__(), (1, 0))
            with self.assertRaisesRegex(BufferError, "read-only"):
                held.__dlpack__()
            self.assertIn('"dltensor_versioned"', repr(held.__dlpack__(max_version=(1, 0))))
            copied = held.__dlpack__(copy=True)
            self.assertIn('"dltensor"', repr(copied))
            for arguments in [{"stream": 1}, {"dl_device": (2, 0)}]:
                with self.assertRaises(BufferError):
                    held.__dlpack__(max_version=(1, 0), **arguments)
            held.__dlpack__(max_version=(1, 1), dl_device=(1, 0))
            del copied
            gc.collect()

            class Copied:
                """Passes a copy on to numpy."""

                def __dlpack__(self, **arguments: Any) -> Any:
                    return held.__dlpack__(**{**arguments, "copy": True})

                def __dlpack_device__(self) -> tuple[int, int]:
                    return (1, 0)

            array = np.from_dlpack(Copied())
        self.assertEqual(holds(pool), 0)
        self.assertEqual(array.tolist(), [0, 1, 2, 3, 4, 5])

    def test_torch(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        pool = private()
        producer = pool.producer(4096, blocks=4, retain=1)
        for dtype in [torch.float32, torch.bfloat16, torch.uint8]:
            with producer.block((2, 3), dtype) as block:
                tensor = block.torch()
                tensor[:] = 7
                with self.assertRaises(BufferError):
                    block.publish()
                del tensor
                token = block.publish()
            with pool.acquire(token) as held:
                tensor = held.torch()
            self.assertEqual(tensor.dtype, dtype)
            self.assertEqual(tensor.float().sum().item(), 42)
            self.assertEqual(holds(pool), 1)
            del tensor
            self.assertEqual(holds(pool), 0)


if __name__ == "__main__":
    unittest.main()
