"""Exceptions and warnings."""

from __future__ import annotations


class Error(RuntimeError):
    """A call that failed: one line for people, and the kind of what went wrong, as the Rust library
    names it.

    >>> import hostbuf
    >>> try:
    ...     hostbuf.attach()
    ... except hostbuf.Error as error:
    ...     print(type(error).__name__, error.kind)
    AttachError Attach
    """

    kind: str

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class AttachError(Error):
    """There is nothing to attach to."""


class CopyWarning(UserWarning):
    """Each rank keeps a private copy of data that a fill function has returned, instead of sharing
    it.

    ``warnings.simplefilter("error", hostbuf.CopyWarning)`` makes it an error in all ranks, before
    the buffer counts as filled.
    """


class FullError(Error, MemoryError):
    """The arena has no room."""


class InvalidError(Error, ValueError):
    """An argument makes no sense."""


class NoSpaceError(Error, MemoryError):
    """Not enough memory, found out before anything was touched."""


class UnsupportedError(Error):
    """This host, or this build, cannot do it."""


_CLASSES: dict[str, type[Error]] = {
    "Attach": AttachError,
    "Full": FullError,
    "Invalid": InvalidError,
    "NoSpace": NoSpaceError,
    "Unsupported": UnsupportedError,
}


def of(kind: str, message: str) -> Error:
    """The exception for a kind; the native part raises it."""
    return _CLASSES.get(kind, Error)(message, kind)
