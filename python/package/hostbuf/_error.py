"""Exceptions and warnings."""

from __future__ import annotations


class Error(RuntimeError):
    """A failed call: its message, one line, and the kind of the error, as in the Rust library.

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
    """There is no buffer to attach to."""


class JobFailedError(AttachError):
    """The job has failed, so no process can attach. The message is that of the job's error."""


class CopyWarning(UserWarning):
    """Each rank keeps a private copy of data that a fill function has returned, instead of sharing
    it.

    ``warnings.simplefilter("error", hostbuf.CopyWarning)`` makes it an error in all ranks, before
    the buffer counts as filled.
    """


class FullError(Error, MemoryError):
    """The arena has no room."""


class InvalidError(Error, ValueError):
    """An argument is invalid."""


class NoSpaceError(Error, MemoryError):
    """The host does not have enough memory. The check precedes every change."""


class UnsupportedError(Error):
    """This host or this build does not support the request."""


_CLASSES: dict[str, type[Error]] = {
    "Attach": AttachError,
    "Full": FullError,
    "Invalid": InvalidError,
    "JobFailed": JobFailedError,
    "NoSpace": NoSpaceError,
    "OtherCopy": UnsupportedError,
    "Unsupported": UnsupportedError,
}


def of(kind: str, message: str) -> Error:
    """Returns the exception for a kind; the native part raises it."""
    return _CLASSES.get(kind, Error)(message, kind)
