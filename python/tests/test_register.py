"""Registration and its cache, with page-locking: the device that is everywhere. With a GPU see
test_cuda.py."""

import gc
import sys
import unittest

import hostbuf
import numpy as np

SIZE = 1 << 16


def locked() -> int:
    """Returns the number of locked bytes of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmLck:"))


class Registering(unittest.TestCase):
    def test_a_buffer_and_parts_of_it(self) -> None:
        before = locked()
        with hostbuf.allocate(None, SIZE, pages="4k") as buffer:
            with hostbuf.register(buffer) as whole:
                self.assertEqual(whole.key, (0, 0, 0))
                self.assertEqual(locked(), before + SIZE)
                self.assertFalse(hasattr(whole, "__cuda_array_interface__"))
            self.assertEqual(locked(), before)
            part = hostbuf.register(buffer.array(1024, "f8", offset=4096), hostbuf.Device("mlock"))
            self.assertEqual(locked(), before + 8192)
        # The memory stays for who registered it.
        self.assertEqual(locked(), before + 8192)
        part.close()
        part.close()
        self.assertEqual(locked(), before)
        with self.assertRaisesRegex(ValueError, "registration is closed"):
            part.key

    def test_a_registration_ends_with_its_object(self) -> None:
        before = locked()
        with hostbuf.allocate(None, SIZE, pages="4k") as buffer:
            held = hostbuf.register(buffer)
            self.assertGreater(locked(), before)
            del held
            gc.collect()
            self.assertEqual(locked(), before)

    def test_invalid_registrations(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            for kind, words, call in [
                (ValueError, "lie in no open buffer; hostbuf.Cache", lambda: hostbuf.register(np.zeros(8))),
                (hostbuf.InvalidError, '"gpu" is not a device', lambda: hostbuf.register(buffer, "gpu")),
                (ValueError, 'access "all"', lambda: hostbuf.register(buffer, access="all")),
                (TypeError, "", lambda: hostbuf.register(5)),
                (hostbuf.InvalidError, "bytes", lambda: hostbuf.register(buffer.array(0))),
                (ValueError, "not contiguous", lambda: hostbuf.register(buffer.array(8)[::2])),
            ]:
                with self.subTest(words=words), self.assertRaisesRegex(kind, words):
                    call()

    def test_a_registration_for_writing_prevents_freezing(self) -> None:
        with hostbuf.allocate(None, SIZE, pages="4k") as buffer:
            buffer.initialize(lambda arena: 1)
            with hostbuf.register(buffer, access="write|remote_read"):
                with self.assertRaises(hostbuf.Error) as caught:
                    buffer.freeze(None)
                self.assertEqual(caught.exception.kind, "Freeze")
            buffer.freeze(None)
            with self.assertRaisesRegex(hostbuf.Error, "frozen"):
                hostbuf.register(buffer, access="write")
            hostbuf.register(buffer).close()

    def test_the_cuda_array_interface(self) -> None:
        class Native:
            """A registration whose key has a device address, as CUDA returns it."""

            def key(self) -> tuple:
                return (0x1234000, 0, 0)

            def close(self) -> None:
                pass

        memory = np.zeros(100, "i4")
        for writable in [False, True]:
            held = hostbuf.Registration(Native(), hostbuf.Device("mlock"), memory, writable)
            interface = held.__cuda_array_interface__
            self.assertEqual((interface["data"], interface["shape"]), ((0x1234000, not writable), (400,)))
        kept = sys.getrefcount(memory)
        held.close()
        self.assertEqual(sys.getrefcount(memory), kept - 1)

    def test_devices(self) -> None:
        self.assertTrue(hostbuf.Device.probe("mlock")[0])
        for name in ["cuda:99", "rdma:none_such"]:
            with self.assertRaises((hostbuf.UnsupportedError, hostbuf.InvalidError)):
                hostbuf.Device(name)
        with self.assertRaises(hostbuf.InvalidError):
            hostbuf.Device.probe("disk")
        self.assertEqual(repr(hostbuf.Device("mlock")), "<hostbuf.Device mlock>")


class Caching(unittest.TestCase):
    def test_hits_and_misses(self) -> None:
        # The monitor refuses what it cannot watch; either way the sums hold.
        with hostbuf.Cache("mlock", registrations=8, bytes=1 << 20) as cache:
            message = np.zeros(1 << 14, "u1")
            for _ in range(10):
                with cache.get(message) as lease:
                    self.assertEqual(lease.key, (0, 0, 0))
            stats = cache.stats()
            self.assertEqual(stats["hits"] + stats["misses"] + stats["coalesced"], 10)
            if not stats["not_kept"]:
                self.assertEqual((stats["hits"], stats["registrations"]), (9, 1))
            cache.invalidate(message)
            cache.flush()
            self.assertEqual(cache.stats()["registrations"], 0)

    def test_the_required_monitor_is_an_error_where_there_is_none(self) -> None:
        works, text = hostbuf.Cache.probe_monitor()
        self.assertTrue(text)
        if works:
            hostbuf.Cache("mlock", monitor="required").close()
        else:
            with self.assertRaises(hostbuf.UnsupportedError):
                hostbuf.Cache("mlock", monitor="required")

    def test_the_limit_is_hard(self) -> None:
        with hostbuf.Cache("mlock", registrations=1, bytes=1 << 20, monitor="explicit") as cache:
            first, second = bytearray(1 << 14), bytearray(1 << 14)
            held = cache.get(first)
            with self.assertRaises(hostbuf.Error) as caught:
                cache.get(second)
            self.assertEqual(caught.exception.kind, "Budget")
            held.close()
            cache.get(second).close()

    def test_a_lease_for_reading_permits_freezing(self) -> None:
        with hostbuf.allocate(None, SIZE, pages="4k") as buffer, hostbuf.Cache("mlock", monitor="explicit") as cache:
            buffer.initialize(lambda arena: 1)
            with cache.get(buffer):
                buffer.freeze(None)
            with self.assertRaises(TypeError):
                cache.get(5)

    def test_a_lease_outlives_the_cache_and_keeps_the_memory(self) -> None:
        before = locked()
        cache = hostbuf.Cache("mlock", monitor="explicit")
        lease = cache.get(np.ones(1 << 14))
        cache.close()
        cache.close()
        with self.assertRaisesRegex(ValueError, "cache is closed"):
            cache.get(bytearray(8))
        self.assertGreater(locked(), before)
        lease.close()
        self.assertEqual(locked(), before)
        with self.assertRaisesRegex(ValueError, "lease is closed"):
            lease.key

    def test_leased_memory_stays_where_it_is(self) -> None:
        with hostbuf.Cache("mlock", monitor="explicit") as cache:
            message = bytearray(8192)
            lease = cache.get(message)
            with self.assertRaises(BufferError):
                message.extend(b"more")
            lease.close()
            message.extend(b"more")
            days = np.array(["2026-11-22"], "M8[D]")
            cache.get(days).close()

    def test_arguments(self) -> None:
        for words, call in [
            ("monitor", lambda: hostbuf.Cache("mlock", monitor="never")),
            ("", lambda: hostbuf.Cache("mlock").get(b"")),
        ]:
            with self.subTest(words=words), self.assertRaisesRegex(hostbuf.InvalidError, words):
                call()


if __name__ == "__main__":
    unittest.main()
