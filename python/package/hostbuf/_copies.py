"""Names for the data that each rank copies instead of sharing it.

Pickle tells nothing about where an object stands, so a trace records how the pickler takes objects apart. Names are made from it
only when there is something to warn of.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ._error import CopyWarning

# Bytes up to this length that an object is pickled by are a number (a date, a numpy scalar), not an array.
_NUMBER = 64
# Strings, numbers and containers are each rank's own by nature; from here on there are so many that a warning is due.
_MANY = 1 << 20
# A warning names so many objects.
_NAMED = 8
_LARGEST = 3
_TEXT = (bytes, bytearray, str)
_NUMBERS = frozenset((int, float, complex, bool, type(None)))
_ATOMS = _NUMBERS.union(_TEXT)
_CONTAINERS = (dict, list, tuple, set, frozenset)
# So many objects are looked at for names. Others are warned of without one: a warning must not take longer than the work.
_PATIENCE = 100_000


class _Place(NamedTuple):
    """An object, and how it was reached."""

    value: Any
    parent: _Place | None
    step: str | None
    """What leads here from the parent in Python's syntax; ``None`` when no attribute or index of the parent does."""
    is_label: bool
    """Whether it belongs to an index of pandas: names of rows and columns."""

    def owner(self) -> _Place:
        """Returns the nearest object that has a name."""
        at = self
        while at.step is None and at.parent is not None:
            at = at.parent
        return at

    def path(self) -> str:
        """Returns a Python expression that reaches the object from the ``result`` of the fill function."""
        steps = []
        at: _Place | None = self
        while at is not None:
            steps.append(at.step or "")
            at = at.parent
        return "result" + "".join(reversed(steps))


class Trace:
    """Records how a pickler takes an object apart, and which parts it writes as copies."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # Both halves are kept: an id says something only while its object lives.
        self._parts: dict[int, tuple[Any, Any]] = {}
        self._private: list[tuple[Any, int]] = []

    def add(self, value: Any, reduced: Any) -> None:
        """Records that ``value`` is pickled by ``reduced``, as ``__reduce_ex__`` returns it."""
        if isinstance(reduced, str) or _is_atom(value, reduced):
            return
        self._parts[id(value)] = (value, reduced)
        if size := _copied(value, reduced):
            self._private.append((value, size))

    def warn(self, pickled: int, dropped: Iterable[Any]) -> None:
        """Warns of everything that each rank copies.

        ``pickled`` is the number of bytes that are no array; ``dropped`` has the arrays that lie in the buffer, but of which the
        loaded object keeps nothing, since its class has copied them.
        """
        written = {id(value): size for value, size in self._private}
        copied = {id(value): memoryview(value).nbytes for value in dropped}
        if not written and not copied and pickled <= _MANY:
            return
        rest = pickled
        sizes: defaultdict[int, int] = defaultdict(int)
        owners: dict[int, _Place] = {}
        large: list[tuple[int, _Place]] = []
        for place in self._walk():
            inside, outside = written.pop(id(place.value), 0), copied.pop(id(place.value), 0)
            if outside or inside and not place.is_label:
                owner = place.owner()
                owners[id(owner.value)] = owner
                sizes[id(owner.value)] += inside + outside
                rest -= inside
            elif pickled > _MANY and (inside or isinstance(place.value, (*_TEXT, *_CONTAINERS))):
                size = inside or sys.getsizeof(place.value)
                if len(large) < _LARGEST or size > large[-1][0]:
                    large = _with(large, size, place.owner())
        lines = [f"{_described(owners[at])}, {sizes[at]} bytes)" for at in sorted(owners, key=lambda at: -sizes[at])]
        # Not found by any way that is known here.
        lines += [f"an object inside of the result ({size} bytes)" for size in (written | copied).values()]
        if lines:
            more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
            count = f"{len(lines)} objects" if len(lines) > 1 else "1 object"
            _warn(
                f"every rank keeps its own copy of {count}, which hostbuf cannot share: {', '.join(lines[:_NAMED])}{more}. Return "
                "numpy arrays without Python objects instead; docs/python.md says what is shared"
            )
        if rest > _MANY:
            names = ", ".join(f"{_described(place)}, {size} bytes)" for size, place in large)
            _warn(
                f"every rank gets {rest} bytes as a copy of its own: text, numbers and containers, which hostbuf cannot share. The "
                f"largest: {names}. Return numpy arrays instead; docs/python.md says what is shared"
            )

    def _walk(self) -> Iterator[_Place]:
        """Yields all that the pickler has seen, each object once, the nearest to the root first."""
        queue = deque([_Place(self._root, None, None, False)])
        seen: set[int] = set()
        while queue and len(seen) < _PATIENCE:
            place = queue.popleft()
            if id(place.value) in seen:
                continue
            seen.add(id(place.value))
            yield place
            queue.extend(self._inside(place))

    def _inside(self, place: _Place) -> Iterator[_Place]:
        value = place.value
        pandas = sys.modules.get("pandas")
        is_label = place.is_label or pandas is not None and isinstance(value, pandas.Index)
        # A step says something only behind steps that do; and how pandas stores a table is its own affair.
        is_named = (place.parent is None or place.step is not None) and not (
            pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series, pandas.Index))
        )
        for child, step in self._children(value):
            yield _Place(child, place, step if is_named else None, is_label)

    def _children(self, value: Any) -> Iterator[tuple[Any, str | None]]:
        if isinstance(value, dict):
            for key, child in value.items():
                if not _is_small(child):
                    yield child, f"[{_short(key)}]"
        elif isinstance(value, (list, tuple)):
            names = getattr(value, "_fields", None)  # a named tuple's
            for number, child in enumerate(value):
                if not _is_small(child):
                    yield child, f".{names[number]}" if names else f"[{number}]"
        elif isinstance(value, (set, frozenset)):
            for child in value:
                if not _is_small(child):
                    yield child, None
        _, reduced = self._parts.get(id(value), (None, ()))
        if not reduced:
            return
        arguments, state = _state_of(reduced)
        # The state of a class with __slots__ is a pair: what it has in its __dict__, and in its slots.
        states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        for part in states:
            attributes = part.items() if isinstance(part, dict) else ()
            for name, child in attributes:
                if not _is_small(child):
                    yield child, f".{name}" if _has(value, name, child) else None
        for part in (*arguments, *states):
            if not _is_small(part):
                yield part, None


def _with(large: list[tuple[int, _Place]], size: int, place: _Place) -> list[tuple[int, _Place]]:
    """Returns the largest objects with one more among them, each once."""
    others = [one for one in large if one[1].value is not place.value]
    size = max([size, *(one[0] for one in large if one[1].value is place.value)])
    return sorted([*others, (size, place)], key=lambda one: -one[0])[:_LARGEST]


def _is_small(value: Any) -> bool:
    """Whether it is neither an array, nor large, nor an object that may contain such."""
    kind = type(value)
    return kind in _NUMBERS or kind in _TEXT and len(value) <= _NUMBER


def _is_atom(value: Any, reduced: Any) -> bool:
    """Whether it is a number, a date or the like, of which there may be millions: they have no parts to be named."""
    np = sys.modules.get("numpy")
    if np is not None and isinstance(value, np.generic):
        return True
    parts = reduced[1:]
    return len(parts) == 1 and all(type(part) in _ATOMS and not _is_data(part, _NUMBER) for part in parts[0])


def _state_of(reduced: Any) -> tuple[tuple[Any, ...], Any]:
    """Returns the arguments and the state in what an object is pickled by."""
    return reduced[1], reduced[2] if len(reduced) > 2 else None


def _copied(value: Any, reduced: Any) -> int:
    """Returns how many bytes of an object's memory each rank gets as its own: those that stand in what it is pickled by."""
    np, arrays = sys.modules.get("numpy"), sys.modules.get("array")
    if arrays is not None and isinstance(value, arrays.array):
        return int(value.itemsize) * len(value)
    is_array = np is not None and isinstance(value, np.ndarray)
    if is_array and value.dtype.hasobject:
        return int(value.nbytes) + sum(map(sys.getsizeof, value.flat))
    arguments, state = _state_of(reduced)
    parts = [*arguments, *(state if isinstance(state, tuple) else (state,))]
    if isinstance(state, dict):
        # Attributes are objects themselves.
        parts += [child for name, child in state.items() if not _has(value, name, child)]
    return sum(len(part) for part in parts if _is_data(part, 1 if is_array else _NUMBER))


def _is_data(part: Any, more_than: int) -> bool:
    return isinstance(part, (bytes, bytearray)) and len(part) > more_than


def _has(value: Any, name: Any, child: Any) -> bool:
    """Whether ``child`` is an attribute, found without calling a property."""
    attributes = getattr(value, "__dict__", {})
    if isinstance(attributes, dict) and name in attributes:
        return attributes[name] is child
    slots = {slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())}
    return name in slots and getattr(value, name, None) is child


def _described(place: _Place) -> str:
    """A name and a type, up to the size."""
    kind = type(place.value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    words = f"{place.path()} ({module}{kind.__qualname__}"
    np, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if np is not None and isinstance(place.value, np.ndarray):
        words += f" of dtype {place.value.dtype}"
    if pandas is not None and isinstance(place.value, pandas.DataFrame):
        columns = [_short(label) for label, dtype in place.value.dtypes.items() if _is_of_objects(dtype)]
        more = ", ..." if len(columns) > _NAMED else ""
        words += f", columns {', '.join(columns[:_NAMED])}{more}" if columns else ""
    return words


def _is_of_objects(dtype: Any) -> bool:
    """Whether a column of pandas is an array of Python objects: strings without pyarrow, and whatever is of no type."""
    return dtype.kind == "O" and dtype.name != "category" and getattr(dtype, "storage", "python") == "python"


def _short(key: Any) -> str:
    words = repr(key)
    return words if len(words) <= 40 else f"{words[:37]}..."


def _warn(message: str) -> None:
    """Warns at the line that called this package."""
    own, level = os.path.dirname(__file__), 2
    frame = sys._getframe(1)
    while os.path.dirname(frame.f_code.co_filename) == own and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CopyWarning, stacklevel=level)
