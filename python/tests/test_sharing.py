"""Tests of the data that all ranks share, the data that each rank copies, and the warnings about
copies."""

import array
import collections
import datetime
import importlib
import pickle
import sys
import tempfile
import unittest
import warnings
from typing import Any

import hostbuf
import numpy as np
import pandas as pd

SIZE = 1 << 16
Point = collections.namedtuple("Point", "name place")


def lies_in(buffer: hostbuf.Buffer, one: np.ndarray) -> bool:
    """Returns whether an array is a read-only view of a buffer."""
    at = one.__array_interface__["data"][0]
    return not one.flags.writeable and buffer.address <= at and at + one.nbytes <= buffer.address + len(buffer)


class Results(unittest.TestCase):
    """Base class of tests that examine the loaded result of a fill function."""

    def filled(self, value: object, size: int = SIZE) -> Any:
        """Returns the object that all ranks get."""
        self.buffer = hostbuf.allocate(None, size)
        self.addCleanup(self.buffer.close)
        found = self.buffer.initialize(lambda arena: value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # there is one warning, in the rank that fills
            again = self.buffer.root()
        self.assertEqual(pickle.dumps(found), pickle.dumps(again))
        return found

    def shared(self, value: object, size: int = SIZE) -> Any:
        """Returns the object that all ranks get, and fails on a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return self.filled(value, size)

    def warned(self, value: object, size: int = SIZE) -> str:
        """Returns the text of the single warning."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.filled(value, size)
        self.assertEqual([(one.category, one.filename) for one in caught], [(hostbuf.CopyWarning, __file__)], caught)
        words = str(caught[0].message)
        self.assertNotIn("\n", words)
        return words


class Arrays(Results):
    def test_arrays_of_all_kinds(self) -> None:
        for value in [
            np.arange(12).reshape(3, 4),
            np.asfortranarray(np.arange(12.0).reshape(3, 4)),
            np.arange(20)[::3],
            np.zeros((0, 4)),
            np.array(5),
            np.array(["a", "bc"]),
            np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
            np.arange(3, dtype=">i4"),
            np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
            np.broadcast_to(np.arange(3), (4, 3)),
            np.zeros(3, "S0"),
        ]:
            found = self.shared(value)
            self.assertEqual((found.dtype, found.shape), (value.dtype, value.shape))
            self.assertTrue(np.array_equal(found, value))

    def test_arrays_in_pieces_are_shared(self) -> None:
        for value in [np.arange(30)[::3], np.zeros((4, 5, 6))[:, ::2], np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)]:
            found = self.shared({"a": value})["a"]
            self.assertTrue(lies_in(self.buffer, found))
            self.assertEqual(found.tolist(), value.tolist())

    def test_dates_and_times_are_shared(self) -> None:
        days = np.arange("2020-01-01", "2020-03-01", dtype="M8[D]")
        records = np.zeros(4, [("when", "M8[s]"), ("much", "f4"), ("long", "m8[ms]")])
        records["when"], records["much"] = days[:4], [1, 2, 3, 4]
        for value in [
            days,
            days - days[3],
            days.astype("M8[ns]").astype(">M8[ns]"),
            np.asfortranarray(days.reshape(4, 15)),
            days[::3],
            days[5:9],
            np.array(days[0]),
            np.array(["NaT", "2020-01-01"], "M8[us]"),
            days[:0],
            records,
            records["when"],
        ]:
            found = self.shared({"a": value})["a"]
            self.assertEqual((found.dtype, found.shape), (value.dtype, value.shape))
            self.assertTrue(np.array_equal(found.astype("V8") if value.dtype.kind in "mM" else found, value.astype("V8") if value.dtype.kind in "mM" else value))
            self.assertTrue(lies_in(self.buffer, found) or value.size == 0)
            self.assertTrue(self.buffer.freeze(None).sealed)
            self.assertFalse(found.flags.writeable)
        masked = self.shared(np.ma.MaskedArray(days, mask=days > days[5]))
        self.assertEqual((int(masked.count()), masked.dtype), (6, days.dtype))
        self.assertTrue(lies_in(self.buffer, masked.data) and lies_in(self.buffer, masked.mask))
        named = self.shared(records.view(np.recarray))
        self.assertIs(type(named), np.recarray)
        self.assertTrue(lies_in(self.buffer, named) and named.when.tolist() == records["when"].tolist())

    def test_dates_of_the_arena_are_not_copied(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            given: list[int] = []

            def fill(arena: hostbuf.Arena) -> np.ndarray:
                made = arena.array((2, 3), "M8[ns]", order="F")
                made[:] = np.datetime64("2020-02-29")
                given.append(made.__array_interface__["data"][0])
                return made

            found = buffer.initialize(fill)
            self.assertEqual(found.__array_interface__["data"], (given[0], True))
            self.assertEqual(set(found.ravel().astype("M8[D]").astype(str)), {"2020-02-29"})

    def test_arrays_are_not_copied(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            given: list[int] = []

            def fill(arena: hostbuf.Arena) -> dict:
                before = arena.left
                inside = arena.array((2, 3), "i8", order="F")
                self.assertLess(arena.left, before)
                self.assertEqual(inside.__array_interface__["data"][0] % 64, 0)
                inside[:] = 4
                given.append(inside.__array_interface__["data"][0])
                return {"inside": inside, "part": inside[:, 1], "outside": np.arange(3), "twice": inside}

            found = buffer.initialize(fill)
            places = {name: one.__array_interface__["data"] for name, one in found.items()}
            self.assertEqual(places["inside"], (given[0], True))
            self.assertIs(found["inside"], found["twice"])
            self.assertEqual(places["part"], (given[0] + 16, True))
            self.assertTrue(buffer.address <= places["outside"][0] < buffer.address + SIZE)
            self.assertEqual(found["part"].tolist(), [4, 4])

    def test_arrays_outside_of_the_arena_are_copied(self) -> None:
        for view in [lambda buffer: buffer.array(1000, "i8"), lambda buffer: np.frombuffer(buffer, "i8")[1000:2000]]:
            with hostbuf.allocate(None, SIZE) as buffer:

                def fill(arena: hostbuf.Arena) -> dict:
                    outside = view(buffer)
                    outside[:] = np.arange(1000)
                    inside = arena.array(3, "i8")
                    inside[:] = 7
                    wanted.append(outside.copy())
                    return {"outside": outside, "inside": inside, "other": np.ones(100), "part": inside[1:]}

                wanted: list[np.ndarray] = []
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    found = buffer.initialize(fill)
                self.assertEqual(found["other"].sum(), 100)
                self.assertEqual((found["part"].tolist(), found["inside"].tolist()), ([7, 7], [7, 7, 7]))
                self.assertEqual(found["outside"].tolist(), wanted[0].tolist())
                used = buffer.stat().used
                for array_ in found.values():
                    at = array_.__array_interface__["data"][0] - buffer.address
                    self.assertTrue(0 <= at and at + array_.nbytes <= used, "it would not be sent to other hosts")

    def test_numpys_own_subclasses_are_shared(self) -> None:
        with tempfile.NamedTemporaryFile() as file, hostbuf.allocate(None, 1 << 20) as buffer:
            np.save(file, np.arange(5000))
            file.flush()
            mapped = np.load(file.name, mmap_mode="r")
            records = np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
            masked = np.ma.MaskedArray(np.arange(4), mask=[0, 1, 0, 1], fill_value=9, hard_mask=True)
            found = buffer.initialize(lambda arena: [mapped, records, masked, np.ma.MaskedArray([1.5])])
            self.assertEqual([(one.hardmask, one.mask is np.ma.nomask) for one in found[2:]], [(True, False), (False, True)])
            self.assertIs(type(found[0]), np.ndarray)
            self.assertEqual(int(found[0].sum()), 12497500)
            self.assertEqual((found[1].a.tolist(), found[1].b.tolist()), ([1, 3], [2.5, 4.5]))
            self.assertEqual((found[2].filled().tolist(), found[3].tolist()), ([0, 9, 2, 9], [1.5]))
            for one in found[:2] + [found[2].data]:
                at = one.__array_interface__["data"][0]
                self.assertTrue(buffer.address <= at < buffer.address + buffer.size and not one.flags.writeable)


class Frames(Results):
    def test_columns_of_numbers_and_dates_are_shared(self) -> None:
        days = pd.date_range("2020-01-01", periods=100)
        frame = pd.DataFrame(
            {
                "when": days,
                "zone": days.tz_localize("UTC"),
                "long": days - days[0],
                "month": days.to_period("M"),
                "x": np.arange(100.0),
                "n": np.arange(100),
                "kind": pd.Categorical(["a", "b"] * 50),
                "maybe": pd.array([1, None] * 50, dtype="Int64"),
            }
        ).set_index("when", drop=False)
        found = self.shared({"frame": frame, "series": frame["long"]}, 1 << 20)
        pd.testing.assert_frame_equal(found["frame"], frame)
        pd.testing.assert_series_equal(found["series"], frame["long"])
        table = found["frame"]
        for column in ["when", "long", "x", "n"]:
            self.assertTrue(lies_in(self.buffer, table[column].to_numpy(copy=False)), column)
        for column, part in [("zone", "_ndarray"), ("month", "_ndarray"), ("kind", "_ndarray"), ("maybe", "_data"), ("maybe", "_mask")]:
            self.assertTrue(lies_in(self.buffer, getattr(table[column].array, part)), column)
        self.assertTrue(lies_in(self.buffer, table.index.values) and lies_in(self.buffer, found["series"].to_numpy(copy=False)))
        self.assertTrue(self.buffer.freeze(None).sealed)
        with self.assertRaisesRegex(ValueError, "read-only"):
            table["when"].to_numpy(copy=False)[0] = np.datetime64("1999-01-01")

    def test_columns_of_objects_are_named(self) -> None:
        frame = pd.DataFrame({"x": np.arange(3.0), "free": pd.Series([{}, [], None], dtype=object), "name": pd.Series(["a", "b", "c"], dtype=object)})
        words = self.warned([frame])
        self.assertIn("its own copy of 1 object", words)
        self.assertRegex(words, r"result\[0\] \(pandas\.([a-z.]*\.)?DataFrame, columns 'free', 'name', [0-9]+ bytes\)")


class Grown:
    """A class whose instances copy the arrays that they are loaded from, as scikit-learn's trees
    do."""

    def __init__(self, nodes: np.ndarray) -> None:
        self._hidden = [nodes.copy()]

    def __reduce__(self) -> Any:
        return Grown, (np.zeros(0),), {"count": len(self._hidden[0]), "nodes": self._hidden[0]}

    def __setstate__(self, state: Any) -> None:
        self._hidden = [state["nodes"].copy()]


class Own(np.ndarray):
    """A program's own kind of array."""


class Packed:
    """A class that pickles its data as bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def __reduce__(self) -> Any:
        return Packed, (bytes(self._data),)


class Holder:
    """A plain class."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("table",)


class Warned(Results):
    def test_each_kind_of_copy_is_named_at_any_size(self) -> None:
        slots = Slots()
        slots.table = np.array([None])
        for value, name, size in [
            ({"a": Grown(np.arange(2))}, r"result\['a'\] \(test_sharing\.Grown", 16),
            (Holder(trees=[Holder(n=1), Holder(inner=Grown(np.arange(3)))]), r"result\.trees\[1\]\.inner \(test_sharing\.Grown", 24),
            ({7: np.arange(1).view(Own)}, r"result\[7\] \(test_sharing\.Own of dtype int64", 8),
            ((array.array("i", [1]),), r"result\[0\] \(array\.array", 4),
            (Packed(b"x" * 100), r"result \(test_sharing\.Packed", 100),
            (Point("p", np.array([7], object)), r"result\.place \(numpy\.ndarray of dtype object", 8 + sys.getsizeof(7)),
            (slots, r"result\.table \(numpy\.ndarray of dtype object", 8 + sys.getsizeof(None)),
            ([{"x": np.zeros(1, [("o", "O"), ("i", "i4")])}], r"result\[0\]\['x'\] \(numpy\.ndarray of dtype \[\('o', 'O'\), .*\]", None),
        ]:
            words = self.warned(value)
            self.assertIn("every rank keeps its own copy of 1 object, which hostbuf cannot share: ", words)
            self.assertRegex(words, f": {name}, {'[0-9]+' if size is None else size} bytes\\)\\.")

    def test_many_are_counted(self) -> None:
        words = self.warned({"forest": [Grown(np.arange(number + 1)) for number in range(20)], "x": np.arange(3)})
        self.assertIn("its own copy of 20 objects", words)
        self.assertIn(": result['forest'][19] (test_sharing.Grown, 160 bytes), result['forest'][18] (", words)
        self.assertIn(" and 12 more", words)

    def test_values_are_no_reason_to_warn(self) -> None:
        self.shared(
            [
                {number: number for number in range(1000)},
                {"unit": "m2", "day": datetime.datetime.now(), "raw": b"x" * 100, "list": bytearray(100), 1.5: np.float64(2), "void": np.void(b"1" * 16)},
                Point("p", Holder(a=1, b="x", c=np.arange(3), d=np.array([], object))),
                pd.DataFrame({"x": [1.5]}, index=["a label"]),
                pd.Timestamp("2020-01-01"),
            ]
        )

    def test_many_values_are_a_reason_to_warn(self) -> None:
        with self.assertWarnsRegex(hostbuf.CopyWarning, "every rank gets 2097161 bytes as a copy of its own"):
            self.filled("x" * (2 << 20), 8 << 20)
        self.shared(np.zeros(2 << 20, "u1"), 8 << 20)
        words = self.warned({"few": [1, 2], "many": list(range(1 << 20))}, 32 << 20)
        self.assertIn("The largest: result['many'] (list, ", words)
        words = self.warned(pd.Series(np.arange(1 << 17), index=[f"label {number}" for number in range(1 << 17)]), 32 << 20)
        self.assertIn("The largest: result (pandas.", words)

    def test_copies_by_pickle_are_reported_once(self) -> None:
        words = self.warned([np.zeros(2 << 20, "u1").view(Own)], 8 << 20)
        self.assertIn("result[0] (test_sharing.Own of dtype uint8, 2097152 bytes)", words)

    def test_a_warning_that_is_an_error_comes_before_the_buffer_counts_as_filled(self) -> None:
        with hostbuf.allocate(None, SIZE) as buffer:
            for value in [Grown(np.arange(2)), np.arange(2).view(Own)]:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", hostbuf.CopyWarning)
                    with self.assertRaises(hostbuf.CopyWarning):
                        buffer.initialize_job(lambda arena: value, None)
            self.assertEqual(buffer.stat().state, "empty")
            self.assertEqual(buffer.initialize_job(lambda arena: 3, None), 3)

    def test_trees_of_scikit_learn_are_named(self) -> None:
        try:
            ensemble = importlib.import_module("sklearn.ensemble")
        except ImportError:
            self.skipTest("warnings for scikit-learn's own trees: it is not in target/python (pip install scikit-learn)")
        table = np.random.default_rng(1).random((200, 4))
        model = ensemble.RandomForestRegressor(3).fit(table, table.sum(1))
        words = self.warned({"model": model}, 1 << 22)
        self.assertIn("its own copy of 3 objects", words)
        for number in range(3):
            self.assertRegex(words, rf"result\['model'\]\.estimators_\[{number}\]\.tree_ \(sklearn\.tree\._tree\.Tree, [0-9]+ bytes\)")


if __name__ == "__main__":
    sys.exit(unittest.main())
