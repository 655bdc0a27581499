"""GPU sections, in a job with the section "table" of 5 MiB on GPUs 0 and 1 and the fake driver
of tests/fixtures, whose memory the CPU reaches."""

import ctypes
import unittest

import hostbuf

MIB = 1 << 20


class Sections(unittest.TestCase):
    def setUp(self) -> None:
        self.buffer = hostbuf.attach()
        self.table = self.buffer.gpu_section("table")
        print(f"the section is at {self.table.address:#x}", flush=True)


class Properties(Sections):
    def test_properties(self) -> None:
        table = self.table
        self.assertIsInstance(table, hostbuf.GpuSection)
        self.assertEqual((table.name, table.nbytes), ("table", 6 * MIB))
        self.assertEqual(table.pieces, [(0, 4 * MIB), (1, 2 * MIB)])
        self.assertFalse(table.frozen)
        self.assertEqual(repr(table), f'<hostbuf.GpuSection "table": {6 * MIB} bytes at {table.address:#x}>')
        wanted = {"version": 3, "shape": (6 * MIB,), "strides": None, "typestr": "|u1", "data": (table.address, False), "stream": None}
        self.assertEqual(table.__cuda_array_interface__, wanted)
        with self.assertRaisesRegex(hostbuf.InvalidError, 'buffer "default" has no GPU section "other": it has table'):
            self.buffer.gpu_section("other")
        for wrong in (lambda: self.buffer.section("table"), lambda: self.buffer.array(section="table")):
            with self.assertRaisesRegex(hostbuf.InvalidError, "is GPU memory: get it by gpu_section"):
                wrong()
        with self.assertRaises(TypeError):
            self.buffer.gpu_section(7)  # type: ignore[arg-type]
        with hostbuf.allocate(None, 4096) as own, self.assertRaisesRegex(hostbuf.InvalidError, "it has none"):
            own.gpu_section("table")
        # The section is still mapped.
        self.buffer.close()
        self.assertFalse(table.frozen)
        with self.assertRaisesRegex(ValueError, "closed"):
            self.buffer.gpu_section("table")


class Frozen(Sections):
    def test_freeze(self) -> None:
        word = ctypes.c_uint64.from_address(self.table.address)
        word.value = 4711
        with self.assertRaises(TypeError):
            self.table.freeze(7)
        proof = self.table.freeze(None)
        self.assertFalse(proof.sealed)
        self.assertIn("GPU memory cannot be sealed", proof.why or "")
        self.assertTrue(self.table.frozen and self.buffer.gpu_section("table").frozen)
        self.assertEqual(self.table.__cuda_array_interface__["data"], (self.table.address, True))
        self.assertEqual(word.value, 4711)


if __name__ == "__main__":
    unittest.main()
