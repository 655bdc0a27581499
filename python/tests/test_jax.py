"""Tensors and files in JAX, on the CPU."""

import gc
import pathlib
import tempfile
import unittest

import hostbuf
import numpy as np
from test_safe_open import write

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None


@unittest.skipIf(jax is None or ml_dtypes is None, "tensors in JAX: there is no JAX")
class Jax(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "model.safetensors"
        numbers = np.arange(24, dtype="f4").reshape(6, 4)
        self.arrays = {
            "single": numbers,
            "brain": numbers.astype(ml_dtypes.bfloat16),
            "eight": numbers.astype(ml_dtypes.float8_e4m3fn),
            "empty": np.zeros((0, 3), "f4"),
        }
        write(self.path, self.arrays, brain="BF16", eight="F8_E4M3")

    def assert_equal(self, got: object, array: "np.ndarray") -> None:
        self.assertIsInstance(got, jax.Array)
        self.assertEqual((got.dtype, got.shape), (array.dtype, array.shape))
        self.assertTrue(np.array_equal(np.asarray(got).astype("f4"), array.astype("f4")))

    def test_views_of_a_buffer_become_arrays_that_keep_it(self) -> None:
        for is_frozen in (False, True):
            tensors = hostbuf.load(self.path)
            if is_frozen:
                tensors.buffer.freeze(None)
            made = {name: jnp.asarray(tensors[name]) for name in tensors}
            tensors.buffer.close()
            del tensors
            gc.collect()
            for name, array in self.arrays.items():
                self.assert_equal(made[name], array)
            self.assertEqual(float(jax.jit(lambda value: (2 * value).sum())(made["single"])), 552)

    @unittest.skipIf(torch is None, "tensors of PyTorch in JAX: there is no PyTorch")
    def test_an_aligned_tensor_is_shared_by_dlpack(self) -> None:
        np.save(self.folder / "long.npy", np.arange(100_000, dtype="f4"))
        tensors = hostbuf.load(self.folder / "long.npy")
        tensors.buffer.freeze(None)
        view = tensors["long"]
        shared = jax.dlpack.from_dlpack(tensors.torch("long"))
        self.assertEqual(shared.unsafe_buffer_pointer(), view.ctypes.data)
        # A donated array is not written to.
        donated = jax.dlpack.from_dlpack(tensors.torch("long"))
        self.assertEqual(float(jax.jit(lambda value: value + 1, donate_argnums=0)(donated)[5]), 6)
        self.assertEqual(view[5], 5)
        tensors.buffer.close()
        del tensors, view, donated
        gc.collect()
        self.assertEqual(float(shared[99_999]), 99_999)

    def test_safe_open_returns_arrays(self) -> None:
        for framework in ("jax", "flax"):
            with hostbuf.safe_open(self.path, framework) as file:
                for name, array in self.arrays.items():
                    self.assert_equal(file.get_tensor(name), array)
                piece = file.get_slice("brain")
                self.assert_equal(piece[1:3], self.arrays["brain"][1:3])
                self.assert_equal(piece[:, 1:2], self.arrays["brain"][:, 1:2])

    def test_an_array_is_written_but_not_read_into(self) -> None:
        path = self.folder / "out"
        with hostbuf.File(path, "w") as file:
            written = file.write(jnp.arange(8, dtype=jnp.bfloat16)), file.write(jnp.arange(3.0), offset=16)
            self.assertEqual(written, (16, 12))
        with hostbuf.File(path) as file:
            with self.assertRaisesRegex(hostbuf.InvalidError, "one of JAX, which are immutable"):
                file.pread(jnp.zeros(4))
            numbers = np.zeros(8, ml_dtypes.bfloat16)
            file.read(numbers)
        self.assert_equal(jnp.asarray(numbers), np.arange(8).astype(ml_dtypes.bfloat16))

    def test_a_block_becomes_an_array(self) -> None:
        pool = hostbuf.Pool("jax", "private")
        with pool.producer(shape=(4, 4), dtype="float32") as producer:
            with producer.block() as block:
                block.numpy()[:] = 7
                token = block.publish()
            with pool.acquire(token) as frame:
                made = jnp.array(frame.numpy())
                # JAX knows DLPack only without a flag for read-only arrays.
                with self.assertRaisesRegex(BufferError, "read-only"):
                    jax.dlpack.from_dlpack(frame)
        self.assertEqual(float(made.sum()), 112)


if __name__ == "__main__":
    unittest.main()
