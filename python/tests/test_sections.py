"""Sections and NUMA nodes of buffers in one process. The tests need NUMA node 0 only."""

import collections
import gc
import unittest

import hostbuf
import numpy as np

PARTS = {"grid": hostbuf.Section("10000", numa="interleave"), "halo": ("4K", 0), "rows": 1}


class Sections(unittest.TestCase):
    def test_sections_lie_one_behind_another(self) -> None:
        with hostbuf.allocate(None, pages="4k", sections=PARTS) as buffer:
            self.assertEqual(len(buffer), 12288 + 4096 + 4096)
            grid, halo, rows = buffer.sections
            self.assertEqual(grid, ("grid", buffer.address, 0, 12288, "interleave", ((0, 12288, 12288),)))
            self.assertEqual(halo, ("halo", buffer.address + 12288, 12288, 4096, "0", ((0, 4096, 4096),)))
            self.assertEqual(rows, ("rows", buffer.address + 16384, 16384, 4096, None, ()))
            self.assertEqual((halo.nodes[0].node, halo.nodes[0].requested, halo.nodes[0].obtained), (0, 4096, 4096))

    def test_a_section_has_the_memory_of_the_buffer(self) -> None:
        with hostbuf.allocate(None, pages="4k", sections=PARTS) as buffer:
            view = buffer.section("halo")
            self.assertEqual((view.format, view.nbytes, view.readonly), ("B", 4096, False))
            view[4095] = 7
            self.assertEqual(memoryview(buffer)[16383], 7)
            array = buffer.array((2, 256), "f8", section="halo")
            self.assertEqual(array.__array_interface__["data"], (buffer.sections[1].address, False))
            self.assertEqual(np.frombuffer(view).ctypes.data, array.ctypes.data)
            self.assertEqual(buffer.array(dtype="f8", section="halo").shape, (512,))
            self.assertEqual(buffer.array(offset=4000, section="halo")[95], 7)
            self.assertEqual(buffer.array(offset=4096, section="halo").shape, (0,))
            for words, wrong in [
                ('invalid offset 4097: the section "halo" has 4096 bytes', lambda: buffer.array(offset=4097, section="halo")),
                ('exceed the section "halo" of 4096 bytes', lambda: buffer.array(4097, section="halo")),
                ('exceed the section "halo" of 4096 bytes', lambda: buffer.array(1, offset=4096, section="halo")),
                ('has no section "mesh": its sections are "grid", "halo", "rows"', lambda: buffer.array(section="mesh")),
                ('has no section "mesh"', lambda: buffer.section("mesh")),
            ]:
                with self.subTest(words=words), self.assertRaisesRegex(ValueError, words):
                    wrong()
        for use in [lambda: buffer.sections, lambda: buffer.section("halo"), lambda: buffer.array(section="halo")]:
            with self.assertRaisesRegex(ValueError, "closed"):
                use()

    def test_views_of_sections_count_as_views_of_the_buffer(self) -> None:
        with hostbuf.allocate(None, 1 << 17, sections={"grid": 1 << 16}) as buffer:
            buffer.initialize(lambda arena: None)
            view = buffer.section("grid")
            with self.assertRaisesRegex(hostbuf.Error, "1 writable arrays or views"):
                buffer.freeze(None)
            del view
            gc.collect()
            self.assertTrue(buffer.freeze(None).sealed)
            self.assertTrue(buffer.section("grid").readonly)
            self.assertFalse(buffer.array(section="grid").flags.writeable)

    def test_the_arena_is_behind_the_sections(self) -> None:
        parts = {"grid": (1 << 16, 0), "halo": 4096}
        with hostbuf.allocate(None, 1 << 17, pages="4k", sections=parts) as buffer:

            def fill(arena: hostbuf.Arena) -> dict:
                taken = arena.array(1, "u1")
                self.assertEqual(taken.ctypes.data, buffer.address + buffer.sections[-1].offset)
                grid = buffer.array((128, 64), "f8", section="grid")
                grid[:] = 3
                return {"grid": grid}

            table = buffer.initialize_job(fill, None)
            self.assertEqual(table["grid"].ctypes.data, buffer.sections[0].address)
            self.assertTrue(buffer.freeze(None).sealed)
            self.assertEqual(float(buffer.array((128, 64), "f8", section="grid").sum()), 3 * 128 * 64)
            self.assertGreater(buffer.stat().used, buffer.sections[-1].offset)

    def test_a_section_can_be_registered(self) -> None:
        with hostbuf.allocate(None, pages="4k", sections=PARTS) as buffer:
            with hostbuf.register(buffer.section("halo"), "mlock") as pinned:
                self.assertEqual(pinned.key, (0, 0, 0))

    def test_a_buffer_has_a_placement(self) -> None:
        for numa in [0, np.int64(0), "0"]:
            with hostbuf.allocate(None, 1 << 16, pages="4k", numa=numa) as buffer:
                (rest,) = buffer.sections
                self.assertEqual(rest, ("", buffer.address, 0, 1 << 16, "0", ((0, 1 << 16, 1 << 16),)))
        with hostbuf.allocate(None, 1 << 16) as buffer:
            self.assertEqual(buffer.sections, ())
        with hostbuf.allocate(None, 32768, pages="4k", numa=0, sections={"rows": 1}) as buffer:
            self.assertEqual([(s.name, s.size, s.numa) for s in buffer.sections], [("rows", 4096, "0"), ("", 28672, "0")])

    def test_copies_are_made_by_a_freeze(self) -> None:
        with hostbuf.allocate(None, 1 << 16, pages="4k", numa="copies") as buffer:
            (rest,) = buffer.sections
            self.assertEqual((rest.numa, rest.nodes[0].obtained), ("copies", 1 << 16))
            buffer.initialize(lambda arena: np.arange(100))
            self.assertEqual(buffer.stat()[-2:], (None, False))
            self.assertTrue(buffer.freeze(None).sealed)
            nodes = [node.node for node in rest.nodes]
            # This process may run on cores of all nodes.
            self.assertIn(buffer.stat().read_node, nodes)
            self.assertEqual(buffer.stat().read_is_local, len(nodes) == 1)

    def test_any_mapping_has_sections(self) -> None:
        for parts in [collections.OrderedDict(a=1, b=(2,)), collections.ChainMap({"a": 1, "b": (2, None)})]:
            with hostbuf.allocate(None, pages="4k", sections=parts) as buffer:
                self.assertEqual(sorted(section.name for section in buffer.sections), ["a", "b"])


class Refused(unittest.TestCase):
    def refused(self, kind: type, words: str, *arguments: object, **options: object) -> None:
        with self.subTest(arguments=arguments, options=options), self.assertRaisesRegex(kind, words):
            hostbuf.allocate(None, *arguments, pages="4k", **options)

    def test_placements(self) -> None:
        nodes = "cannot place memory on node 63: .*hostbuf topology"
        self.refused(hostbuf.UnsupportedError, nodes, 4096, numa=63)
        self.refused(hostbuf.UnsupportedError, nodes, 4096, numa="0,63")
        section = 'cannot place section "grid" on node 63: '
        self.refused(hostbuf.UnsupportedError, section, sections={"grid": (4096, 63)})
        self.refused(hostbuf.InvalidError, 'invalid placement "": expected NUMA nodes such as 0', 4096, numa="")
        self.refused(hostbuf.InvalidError, 'invalid placement "near"', sections={"grid": (4096, "near")})
        self.refused(hostbuf.InvalidError, "numa = -1 is out of range", 4096, numa=-1)
        self.refused(hostbuf.InvalidError, "is lazy and has a placement", 4096, numa=0, lazy=True)
        for wrong in [True, 0.5, [0, 1], b"0"]:
            self.refused(TypeError, "numa: ", 4096, numa=wrong)
        self.refused(TypeError, r'sections\["grid"\]: ', sections={"grid": (4096, [0])})

    def test_sections(self) -> None:
        self.refused(TypeError, "size: ")
        self.refused(hostbuf.InvalidError, "size 0", sections={})
        self.refused(hostbuf.InvalidError, "need 8 KiB .* in whole pages of 4 KiB, and its size is 4 KiB", 1, sections={"grid": 8000})
        self.refused(hostbuf.InvalidError, 'section "grid" has size 0', sections={"grid": 0})
        self.refused(hostbuf.InvalidError, r'sections\["grid"\] = -1 is out of range', sections={"grid": -1})
        self.refused(hostbuf.InvalidError, r'invalid sections\["grid"\] "2X": unknown unit X', sections={"grid": "2X"})
        self.refused(hostbuf.InvalidError, "no/such", sections={"no/such": 1})
        for wrong in [(), (1, 0, 2)]:
            self.refused(hostbuf.InvalidError, f"NUMA nodes, found a tuple of {len(wrong)}", sections={"grid": wrong})
        self.refused(TypeError, "sections: ", sections=[("grid", 1)])
        self.refused(TypeError, "a name in sections: ", sections={1: 1})
        self.refused(TypeError, r'sections\["grid"\]: ', sections={"grid": None})


if __name__ == "__main__":
    unittest.main()
