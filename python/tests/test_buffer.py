"""Buffers in one process; tests/languages runs the example with several ranks."""

import collections
import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import unittest
import warnings

import hostbuf
import numpy as np

SIZE = 1 << 16
Point = collections.namedtuple("Point", "name place")


def mappings() -> int:
    """Returns the number of mappings of buffers."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:" in line for line in maps)


class Views(unittest.TestCase):
    def test_all_kinds_see_the_same_bytes(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            buffer.array(3, "i4", offset=8)[:] = [1, 2, 3]
            seen = memoryview(buffer)
            self.assertEqual((seen.format, seen.nbytes, seen.readonly, len(buffer)), ("B", SIZE, False, SIZE))
            self.assertEqual(seen[8:20].cast("i").tolist(), [1, 2, 3])
            self.assertEqual(np.frombuffer(buffer, "i4")[2:5].tolist(), [1, 2, 3])
            self.assertEqual(np.asarray(buffer).__array_interface__["data"], (buffer.address, False))
            interface = buffer.__array_interface__
            self.assertEqual((interface["data"], interface["shape"]), ((buffer.address, False), (SIZE,)))

    def test_shapes_and_orders(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            self.assertEqual(buffer.array(dtype="f8").shape, (SIZE // 8,))
            self.assertEqual(buffer.array(offset=SIZE).shape, (0,))
            self.assertTrue(buffer.array((4, 5), "f4", order="F").flags.f_contiguous)
            structured = buffer.array(2, [("a", "i4"), ("b", "f8")])
            structured["b"] = 1.5
            self.assertEqual(buffer.array(2, [("a", "i4"), ("b", "f8")])["b"].tolist(), [1.5, 1.5])
            for wrong in [
                lambda: buffer.array(SIZE + 1),
                lambda: buffer.array(1, offset=SIZE),
                lambda: buffer.array(1, offset=-1),
                lambda: buffer.array(-1),
                lambda: buffer.array((1 << 62, 1 << 62), "f8"),
            ]:
                with self.assertRaises(ValueError):
                    wrong()
            with self.assertRaisesRegex(TypeError, "Python objects cannot be shared"):
                buffer.array(1, object)

    def test_nothing_writes_after_freezing(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            table = buffer.initialize(lambda arena: np.arange(5))
            proof = buffer.freeze(None)
            self.assertEqual(proof, (True, None))
            self.assertTrue(buffer.frozen)
            self.assertEqual(buffer.stat().state, "frozen")
            for view in [table, buffer.array(4), np.frombuffer(buffer, "u1")]:
                with self.assertRaisesRegex(ValueError, "read-only"):
                    view[0] = 1
            with self.assertRaisesRegex(TypeError, "read-only"):
                memoryview(buffer)[0] = 1
            with self.assertRaises((BufferError, TypeError)):  # which asks for a writable view
                os.readv(os.open(os.devnull, os.O_RDONLY), [buffer])
            self.assertTrue(buffer.__array_interface__["data"][1])

    def test_freezing_fails_while_writable_views_exist(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            buffer.initialize(lambda arena: None)
            writer, other = buffer.array(3), memoryview(buffer)
            part = writer[1:]
            with self.assertRaisesRegex(hostbuf.Error, "2 writable arrays or views") as caught:
                buffer.freeze(None)
            self.assertEqual(caught.exception.kind, "Freeze")
            other.release()
            del writer
            with self.assertRaisesRegex(hostbuf.Error, "1 writable arrays or views"):
                buffer.freeze(None)  # `part` has the memory
            part[0] = 1
            del part
            # In a circle, which only the collector finds.
            circle: list = [buffer.array(3)]
            circle.append(circle)
            del circle
            self.assertTrue(buffer.freeze(None).sealed)

    def test_views_made_during_a_freeze_are_read_only_or_counted(self) -> None:
        for _ in range(100):
            buffer = hostbuf.allocate(None, SIZE)
            buffer.initialize(lambda arena: None)
            written: list[int] = []

            def write() -> None:
                while True:
                    view = buffer.array(100)
                    if not view.flags.writeable:
                        return
                    view[0] = 1
                    written.append(1)
                    del view
                    time.sleep(0)  # lets the other thread run

            writer = threading.Thread(target=write)
            writer.start()
            while not buffer.frozen:
                with contextlib.suppress(hostbuf.Error):  # the thread has a view at this moment
                    buffer.freeze(None)
            writer.join()
            buffer.close()

    def test_views_outlive_the_buffer(self) -> None:
        before = mappings()
        with hostbuf.allocate(None, SIZE) as buffer:
            table = buffer.initialize(lambda arena: {"x": np.arange(1000)})
            late = memoryview(buffer)
            self.assertGreater(mappings(), before)
        self.assertTrue(buffer.closed)
        self.assertEqual(repr(buffer), "<hostbuf.Buffer, closed>")
        self.assertEqual((int(table["x"].sum()), late[8]), (499500, 1))
        for use in [
            lambda: memoryview(buffer),
            lambda: buffer.address,
            lambda: buffer.stat(),
            lambda: buffer.array(1),
            lambda: buffer.freeze(None),
            lambda: buffer.initialize(lambda arena: 1),
            lambda: buffer.root(),
        ]:
            with self.assertRaisesRegex(ValueError, "closed"):
                use()
        buffer.close()
        late.release()
        del table, buffer
        gc.collect()
        self.assertEqual(mappings(), before)

    def test_users_of_the_address_keep_the_memory(self) -> None:
        buffer = hostbuf.allocate(None, SIZE)
        buffer.array(1)[0] = 7

        class Other:
            """An object that a library makes from the interface: it holds the owner and reads the
            memory at the given address."""

            def __init__(self, owner: hostbuf.Buffer) -> None:
                self.owner, self.__array_interface__ = owner, owner.__array_interface__

        seen = np.asarray(Other(buffer))
        buffer.close()
        self.assertEqual(int(seen[0]), 7)

    def test_no_memory_remains_mapped(self) -> None:
        def once() -> None:
            with hostbuf.allocate(None, SIZE) as buffer:
                buffer.initialize(lambda arena: [arena.array(10), np.ones(3)])
                buffer.freeze(None)

        once()
        gc.collect()
        maps, files = mappings(), len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            once()
        gc.collect()
        self.assertEqual((mappings(), len(os.listdir("/proc/self/fd"))), (maps, files))


class Filling(unittest.TestCase):
    def filled(self, value: object, size: int = SIZE) -> object:
        """Returns the object that all ranks get after one rank has returned `value`."""
        buffer = hostbuf.allocate(None, size)
        found = buffer.initialize(lambda arena: value)
        again = buffer.root()
        self.assertEqual(pickle.dumps(found), pickle.dumps(again))
        return found

    def test_objects_of_all_kinds(self) -> None:
        for value in [None, 3, "text", [1, {"a": (2.5, b"bytes")}], Point("p", (1, 2)), {1, 2}]:
            self.assertEqual(self.filled(value), value)

    def test_arrays_of_the_arena_are_aligned(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:

            def fill(arena: hostbuf.Arena) -> list:
                made = [arena.array(np.int64(length), "u1") for length in (1, 3, 100)]
                made.append(arena.array((np.int32(2), 3), np.dtype("c16")))
                return [one.__array_interface__["data"][0] % 64 for one in made]

            self.assertEqual(buffer.initialize(fill), [0, 0, 0, 0])
            with self.assertRaises(TypeError):
                buffer.array(2.5)

    def test_a_full_arena(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            with self.assertRaisesRegex(hostbuf.FullError, "65536 bytes|64 KiB") as caught:
                buffer.initialize(lambda arena: arena.array(SIZE + 1, "u1"))
            self.assertIsInstance(caught.exception, MemoryError)
            for make in [lambda arena: np.zeros(SIZE), lambda arena: arena.array((1 << 40, 1 << 40))]:
                with self.assertRaises(hostbuf.FullError):
                    buffer.initialize(make)
            self.assertEqual(buffer.initialize(lambda arena: 5), 5)

    def test_many_arrays(self) -> None:
        with hostbuf.allocate(None, 1 << 24) as buffer:

            def fill(arena: hostbuf.Arena) -> list:
                made = [arena.array(3, "i4") for _ in range(20000)]
                for number, one in enumerate(made):
                    one[:] = number
                return made

            found = buffer.initialize(fill)
            self.assertEqual([int(found[at].sum()) for at in (0, 9999, 19999)], [0, 3 * 9999, 3 * 19999])
            self.assertLess(buffer.stat().used, 64 * 20000 + (1 << 22))

    def test_a_forked_child_cannot_complete_the_fill(self) -> None:
        for how in ["returns", "raises"]:
            with hostbuf.allocate(None, SIZE) as buffer:
                child = 0

                def fill(arena: hostbuf.Arena) -> np.ndarray:
                    nonlocal child
                    table = arena.array(10, "i8")
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DeprecationWarning)
                        child = os.fork()
                    if child == 0:
                        if how == "raises":
                            raise KeyError("in the child")
                        return table
                    os.waitpid(child, 0)
                    self.assertEqual(buffer.stat().state, "filling")
                    table[:] = arena.array(10, "i8") + 5
                    return table

                try:
                    found = buffer.initialize(fill)
                except (hostbuf.Error, KeyError) as error:
                    if child != 0:
                        raise
                    os._exit(0 if how == "raises" or "only its parent can" in str(error) else 1)
                if child == 0:
                    os._exit(2)
                self.assertEqual((found.tolist(), buffer.stat().state), ([5] * 10, "filled"))

    def test_exceptions_of_the_fill_function_are_raised(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            def fails(arena: hostbuf.Arena) -> object:
                raise KeyError("no such table")

            for fill in [lambda: buffer.initialize(fails), lambda: buffer.initialize_job(fails, None)]:
                with self.assertRaisesRegex(KeyError, "no such table"):
                    fill()
            with self.assertRaises((pickle.PicklingError, AttributeError, TypeError)):
                buffer.initialize(lambda arena: lambda: 1)
            self.assertIsNone(buffer.root())
            self.assertIsNone(buffer.root_address)
            self.assertEqual(buffer.initialize(lambda arena: "now"), "now")
            self.assertEqual(buffer.initialize(fails), "now")

    def test_the_arena_is_unusable_after_the_fill_function(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            kept: list[hostbuf.Arena] = []
            buffer.initialize(lambda arena: kept.append(arena))
            with self.assertRaisesRegex(ValueError, "after the fill function has returned"):
                kept[0].array(3)

    def test_one_thread_fills(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            ran: list[int] = []
            found: list[np.ndarray] = []

            def fill(arena: hostbuf.Arena) -> np.ndarray:
                ran.append(threading.get_ident())
                return np.arange(100)

            threads = [threading.Thread(target=lambda: found.append(buffer.initialize(fill))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((len(ran), len(found)), (1, 8))
            self.assertEqual(len({one.__array_interface__["data"] for one in found}), 1)

    def test_a_forked_child_reads_the_buffer(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            table = buffer.initialize(lambda arena: np.arange(10))
            with warnings.catch_warnings():
                # Newer Pythons warn of any thread there was.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                os._exit(int(table.sum()) if buffer.root()[9] == 9 else 1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 45)


class Refused(unittest.TestCase):
    def test_another_interpreter(self) -> None:
        script = """
import sys
try:
    import _interpreters as sub
    outcome = sub.exec(sub.create("legacy"), "import hostbuf")
    failed = outcome is not None and "main interpreter" in str(outcome.msg)
except ModuleNotFoundError:
    import _xxsubinterpreters as sub
    own = sub.create(**({"isolated": False} if sys.version_info >= (3, 10) else {}))
    try:
        sub.run_string(own, "import hostbuf")
        failed = False
    except sub.RunFailedError as error:
        failed = "main interpreter" in str(error)
import hostbuf
try:
    hostbuf.attach()
except hostbuf.AttachError:
    print("refused there, and works here" if failed else "not refused")
"""
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        self.assertEqual((ended.returncode, ended.stdout), (0, "refused there, and works here\n"), ended.stderr)

    def test_arguments(self) -> None:
        for kind, words, call in [
            (hostbuf.InvalidError, "pages", lambda: hostbuf.allocate(None, SIZE, pages="3m")),
            (hostbuf.InvalidError, "name", lambda: hostbuf.allocate(None, SIZE, name="a b")),
            (hostbuf.InvalidError, "size 0", lambda: hostbuf.allocate(None, 0)),
            (hostbuf.NoSpaceError, "available", lambda: hostbuf.allocate(None, 1 << 46)),
            (MemoryError, "available", lambda: hostbuf.allocate(None, 1 << 46)),
            (hostbuf.InvalidError, "size = -1 is out of range", lambda: hostbuf.allocate(None, -1)),
            (hostbuf.InvalidError, "size = 1180591620717411303424 is", lambda: hostbuf.allocate(None, 1 << 70)),
            (hostbuf.InvalidError, "size .*space", lambda: hostbuf.allocate(None, 1 << 63)),
            (hostbuf.InvalidError, 'invalid size "2X": unknown unit X: expected K', lambda: hostbuf.allocate(None, "2X")),
            (hostbuf.InvalidError, 'invalid size "-1": expected a size', lambda: hostbuf.allocate(None, "-1")),
            (hostbuf.InvalidError, 'invalid size "": expected a size', lambda: hostbuf.allocate(None, "")),
            (hostbuf.InvalidError, "size 0", lambda: hostbuf.allocate(None, "0G")),
            (TypeError, "size", lambda: hostbuf.allocate(None, 2.5)),
            (TypeError, "size", lambda: hostbuf.allocate(None, None)),
            (TypeError, "mpi4py communicator", lambda: hostbuf.allocate(5, SIZE)),
            (hostbuf.AttachError, "", hostbuf.attach),
            (hostbuf.AttachError, "HOSTBUF_JOB is not set", lambda: hostbuf.attach("none_such")),
            (TypeError, "", lambda: hostbuf.Buffer(3)),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(kind, words) as caught:
                call()
            self.assertNotIn("\n", str(caught.exception))

    def test_sizes_are_numbers_or_text(self) -> None:
        for size, wanted in [(SIZE, SIZE), (np.int64(SIZE), SIZE), ("64K", SIZE), ("1.5M", 3 << 19), ("65536", SIZE)]:
            with hostbuf.allocate(None, size, pages="4k") as buffer:
                self.assertEqual(len(buffer), wanted)

    def test_a_communicator_that_fails(self) -> None:
        class Comm:
            """One rank, of which a function fails."""

            broken = ""

            def Get_rank(self) -> int:
                return 0

            def Get_size(self) -> int:
                return 1

            def Allgather(self, mine: memoryview, everybody: memoryview) -> None:
                if self.broken == "Allgather":
                    raise OSError("the network is down")
                everybody[:] = mine

            def Bcast(self, data: memoryview, root: int) -> None:
                assert (root, data.readonly) == (0, False)

            def Split(self, color: int, key: int) -> "Comm":
                return self

            def Iprobe(self) -> bool:
                return False

            def Free(self) -> None:
                pass

        comm = Comm()
        with hostbuf.allocate(comm, SIZE) as buffer:
            self.assertEqual(buffer.initialize_job(lambda arena: 3, comm), 3)
            with self.assertRaisesRegex(ValueError, "invalid root 1: expected a rank of comm, 0 to 0"):
                buffer.replicate(comm, 1)
            comm.broken = "Allgather"
            with self.assertRaisesRegex(hostbuf.Error, "the network is down") as caught:
                buffer.freeze(comm)
            self.assertEqual(caught.exception.kind, "Collective")
            comm.broken = ""
            self.assertTrue(buffer.freeze(comm).sealed)

    def test_objects_that_are_no_communicator(self) -> None:
        class Comm:
            """Says what it is told to say."""

            Allgather = Bcast = Split = Iprobe = None
            inter = False

            def __init__(self, rank: int, size: int) -> None:
                self.Get_rank, self.Get_size = lambda: rank, lambda: size

            def Is_inter(self) -> bool:
                return self.inter

        for rank, size in [(0, 0), (2, 2), (0, 1 << 40), (1 << 62, 1 << 62)]:
            with self.assertRaisesRegex(ValueError, f"rank {rank} of {size}"):
                hostbuf.allocate(Comm(rank, size), SIZE)
        comm = Comm(0, 1)
        comm.inter = True
        with self.assertRaisesRegex(ValueError, "intercommunicator"):
            hostbuf.allocate(comm, SIZE)

    def test_exceptions_and_references_of_a_communicator(self) -> None:
        kept: list[memoryview] = []

        class Comm:
            """One rank, who is interrupted."""

            raised: BaseException = KeyboardInterrupt("now")

            def Get_rank(self) -> int:
                return 0

            def Get_size(self) -> int:
                return 1

            def Allgather(self, mine: memoryview, everybody: memoryview) -> None:
                kept.append(everybody)
                raise self.raised

            Bcast = Split = Iprobe = None

        comm = Comm()
        with self.assertRaisesRegex(KeyboardInterrupt, "now"):
            hostbuf.allocate(comm, SIZE)
        comm.raised = SystemExit(3)
        with self.assertRaises(SystemExit):
            hostbuf.allocate(comm, SIZE)
        with self.assertRaisesRegex(ValueError, "released"):
            kept[0][0]

    def test_a_root_of_another_language(self) -> None:
        from hostbuf import _hostbuf

        with hostbuf.allocate(None, SIZE) as buffer:
            address = _hostbuf.initialize(buffer._handle, lambda arena: arena.take(64, 64))
            self.assertEqual(buffer.root_address, address)
            with self.assertRaisesRegex(hostbuf.Error, f"{address:#x}"):
                buffer.root()
        with hostbuf.allocate(None, SIZE) as buffer:
            with self.assertRaisesRegex(hostbuf.Error, "not in the buffer"):
                _hostbuf.initialize(buffer._handle, lambda arena: 4096)


class Stat(unittest.TestCase):
    def test_stat_of_an_open_buffer(self) -> None:
        self.assertEqual(hostbuf.stat(), [])
        with hostbuf.allocate(None, SIZE, name="a", pages="4k") as a, hostbuf.allocate(None, 2 * SIZE, name="b") as b:
            self.assertEqual({info.name: info.size for info in hostbuf.stat()}, {"a": SIZE, "b": b.size})
            self.assertEqual(a.stat()._replace(used=0), a.stat())
            self.assertIn('"a": 65536 bytes at 0x', repr(a))
        self.assertEqual(hostbuf.stat(), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
