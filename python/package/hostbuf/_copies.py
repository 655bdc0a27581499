"""Names the data that each rank copies instead of sharing it.

Pickle does not report the path of an object, so a trace records how the pickler decomposes objects.
The names are derived from the trace only if there is something to warn of.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ._error import CopyWarning

# Bytes objects up to this length in the pickle of an object are a number (a date, a numpy scalar),
# not an array.
_NUMBER = 64
# Strings, numbers and containers are private to each rank. From this number of bytes on they cause
# a warning.
_MANY = 1 << 20
# The largest number of objects that a warning names.
_NAMED = 8
_LARGEST = 3
_TEXT = (bytes, bytearray, str)
_NUMBERS = frozenset((int, float, complex, bool, type(None)))
_ATOMS = _NUMBERS.union(_TEXT)
_CONTAINERS = (dict, list, tuple, set, frozenset)
# The largest number of objects examined for names; others are reported without a name. A warning
# must not take longer than the work itself.
_EXAMINED = 100_000


class _Place(NamedTuple):
    """An object and the path by which it was reached."""

    value: Any
    parent: _Place | None
    step: str | None
    """The attribute or index of the parent that leads here, in Python's syntax; ``None`` if there
    is none."""
    is_label: bool
    """True for a part of a pandas index: names of rows and columns."""

    def owner(self) -> _Place:
        """Returns the nearest object that has a name."""
        at = self
        while at.step is None and at.parent is not None:
            at = at.parent
        return at

    def path(self) -> str:
        """Returns a Python expression that reaches the object from the ``result`` of the fill
        function."""
        steps = []
        at: _Place | None = self
        while at is not None:
            steps.append(at.step or "")
            at = at.parent
        return "result" + "".join(reversed(steps))


class Trace:
    """Records how a pickler decomposes an object, and the parts that it writes as copies."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # The objects themselves are kept too, since an id is valid only while its object lives.
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

        ``pickled`` is the number of pickled bytes outside of arrays; ``dropped`` contains the
        arrays in the buffer that the loaded object does not keep, since its class has copied them.
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
        # Objects that the walk has not reached.
        lines += [f"an object inside the result ({size} bytes)" for size in (written | copied).values()]
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
        """Yields each object that the pickler has seen once, in breadth-first order."""
        queue = deque([_Place(self._root, None, None, False)])
        seen: set[int] = set()
        while queue and len(seen) < _EXAMINED:
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
        # A step has a name only if the steps before it have one. The storage of a pandas table is
        # internal, so it has none.
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
        # The state of a class with __slots__ is a pair: its __dict__ and its slots.
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
    """Returns the largest objects after adding one more, without duplicates."""
    others = [one for one in large if one[1].value is not place.value]
    size = max([size, *(one[0] for one in large if one[1].value is place.value)])
    return sorted([*others, (size, place)], key=lambda one: -one[0])[:_LARGEST]


def _is_small(value: Any) -> bool:
    """Returns true for a number or a short string, which contains no array."""
    kind = type(value)
    return kind in _NUMBERS or kind in _TEXT and len(value) <= _NUMBER


def _is_atom(value: Any, reduced: Any) -> bool:
    """Returns true for a number, a date and the like, of which there may be millions, and which
    have no parts to name."""
    np = sys.modules.get("numpy")
    if np is not None and isinstance(value, np.generic):
        return True
    parts = reduced[1:]
    return len(parts) == 1 and all(type(part) in _ATOMS and not _is_data(part, _NUMBER) for part in parts[0])


def _state_of(reduced: Any) -> tuple[tuple[Any, ...], Any]:
    """Returns the arguments and the state from the reduced form of an object."""
    return reduced[1], reduced[2] if len(reduced) > 2 else None


def _copied(value: Any, reduced: Any) -> int:
    """Returns the number of an object's bytes of which each rank gets a copy: those in its reduced
    form."""
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
    """Returns whether ``child`` is an attribute, without calling a property."""
    attributes = getattr(value, "__dict__", {})
    if isinstance(attributes, dict) and name in attributes:
        return attributes[name] is child
    slots = {slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())}
    return name in slots and getattr(value, name, None) is child


def _described(place: _Place) -> str:
    """Returns the path and the type of an object, as the beginning of its description."""
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
    """Returns whether a pandas column is an array of Python objects, such as strings without
    pyarrow."""
    return dtype.kind == "O" and dtype.name != "category" and getattr(dtype, "storage", "python") == "python"


def _short(key: Any) -> str:
    words = repr(key)
    return words if len(words) <= 40 else f"{words[:37]}..."


def _warn(message: str) -> None:
    """Issues a warning for the line that called this package."""
    own, level = os.path.dirname(__file__), 2
    frame = sys._getframe(1)
    while os.path.dirname(frame.f_code.co_filename) == own and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CopyWarning, stacklevel=level)
