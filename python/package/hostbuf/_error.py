"""Exceptions and warnings."""

from __future__ import annotations

import errno
import os


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


class PoolError(Error):
    """A failed call of a pool: the base class of its errors."""


class BlockGoneError(PoolError, LookupError):
    """The content of a token is gone: its producer has reused the block, or has ended."""


class NotPublishedError(PoolError, LookupError):
    """The producer has not published the content of a token."""


class OutOfRangeError(PoolError, LookupError):
    """A token names a block or a length that its producer does not have."""


class InvalidTokenError(PoolError, ValueError):
    """The bytes are no token, or a damaged one."""


class InvalidHeaderError(PoolError):
    """The description of a block is damaged."""


class QuotaError(PoolError):
    """This process holds as many blocks of a producer as it may."""

    quota: int
    """The number of blocks that it may hold."""


class PoolTimeoutError(PoolError, TimeoutError):
    """No block became free in time, or the broker has not answered."""


class NoBrokerError(PoolError, ConnectionError):
    """There is no broker, or it has ended."""


class PoolSpaceError(PoolError, NoSpaceError):
    """The memory of a producer would exceed a limit of the broker, or the host's memory."""

    requested: int
    """The number of requested bytes."""
    available: int
    """The number of free bytes."""


class BlockOnGpuError(PoolError):
    """A token names a block on a GPU: :meth:`Pool.acquire_gpu` acquires it."""


class BlockOnHostError(PoolError):
    """A token names a block on the host: :meth:`Pool.acquire` acquires it."""


class GpuError(PoolError):
    """There is no driver, or this process does not see the GPU, or the driver refused a request."""


class ProducerEndedError(PoolError, LookupError):
    """The producer ended before the GPU had written the block: it has no valid content."""


class ForkedError(PoolError):
    """A forked child used the pool or a transfer of its parent."""


class TransferError(Error):
    """A transfer between a file and an array has failed."""

    landed: int
    """The number of bytes at the beginning of the transfer that have landed."""


class TransferIOError(TransferError, OSError):
    """The file could not be read or written: ``errno`` and ``strerror`` are the reason, and
    ``filename`` is the path."""

    def __str__(self) -> str:
        return str(self.args[0])


class EndOfFileError(TransferError, EOFError):
    """The file ends before the end of the transfer."""


class TransferCancelledError(TransferError):
    """The transfer was cancelled, or the memory of its ring was frozen."""


class GpuTransferError(TransferError):
    """The GPU has failed, or its context was lost."""


class LoadError(Error):
    """Files of tensors cannot be loaded: ``kind`` is ``Io``, ``Damaged``, ``Unsupported``,
    ``Duplicate``, ``Missing``, ``Changed``, ``Memory``, ``Argument`` or ``Job``."""


class MissingFileError(LoadError, FileNotFoundError):
    """A file of tensors does not exist: ``filename`` is its path."""

    def __str__(self) -> str:
        return str(self.args[0])


class SafetensorError(LoadError):
    """A file of safetensors is damaged, has no such tensor or slice, or is closed. If the package
    safetensors is imported, it is also its ``SafetensorError``."""


_CLASSES: dict[str, type[Error]] = {
    "Attach": AttachError,
    "Full": FullError,
    "Invalid": InvalidError,
    "JobFailed": JobFailedError,
    "NoSpace": NoSpaceError,
    "OtherCopy": UnsupportedError,
    "Unsupported": UnsupportedError,
}


def shown_name(name: str) -> str:
    """Returns a name from a file for a message: its first 200 characters, all printable."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name[:200])
    return shown + "…" if len(name) > 200 else shown


def of(kind: str, message: str) -> Error:
    """Returns the exception for a kind; the native part raises it."""
    return _CLASSES.get(kind, Error)(message, kind)


_POOL_CLASSES: dict[str, type[PoolError]] = {
    "BrokerGone": NoBrokerError,
    "Forked": ForkedError,
    "Gone": BlockGoneError,
    "Gpu": GpuError,
    "InvalidHeader": InvalidHeaderError,
    "InvalidToken": InvalidTokenError,
    "NoBroker": NoBrokerError,
    "NoSpace": PoolSpaceError,
    "NotPublished": NotPublishedError,
    "OnGpu": BlockOnGpuError,
    "OnHost": BlockOnHostError,
    "OutOfRange": OutOfRangeError,
    "ProducerEnded": ProducerEndedError,
    "Quota": QuotaError,
    "Timeout": PoolTimeoutError,
}


def of_pool(kind: str, message: str, attributes: list[tuple[str, int]]) -> PoolError:
    """Returns the exception of a pool for a kind; the native part raises it."""
    error = _POOL_CLASSES.get(kind, PoolError)(message, kind)
    for name, value in attributes:
        setattr(error, name, value)
    return error


_TRANSFER_CLASSES: dict[str, type[TransferError]] = {
    "Cancelled": TransferCancelledError,
    "Device": GpuTransferError,
    "Io": TransferIOError,
    "UnexpectedEnd": EndOfFileError,
}


def of_transfer(kind: str, message: str, landed: int, fields: _OsFields | None) -> TransferError:
    """Returns the exception of a transfer for a kind; the native part raises it."""
    error = _TRANSFER_CLASSES.get(kind, TransferError)(message, kind)
    error.landed = landed
    if isinstance(error, OSError) and fields:
        error.errno, error.strerror, error.filename = _os_arguments(fields)
    return error


def of_load(kind: str, message: str, missing: _OsFields | None) -> LoadError:
    """Returns the exception of a load for a kind; the native part raises it."""
    if missing is None:
        return LoadError(message, kind)
    error = MissingFileError(message, kind)
    error.errno, error.strerror, error.filename = _os_arguments(missing)
    return error


# The kind of an error in Rust, the kernel's number or 0, the reason without a number, the path.
_OsFields = tuple[str, int, str, str]
_NUMBERS = {"InvalidInput": errno.EINVAL, "NotFound": errno.ENOENT, "Unsupported": errno.EOPNOTSUPP}


def _os_arguments(fields: _OsFields) -> tuple[int, str, str]:
    """Returns the number, the description and the path of an error."""
    kind, number, why, path = fields
    own = _NUMBERS.get(kind, errno.EIO)
    described = os.strerror(number or own) if number or kind == "NotFound" else why
    return number or own, described, path


def of_os(fields: _OsFields) -> OSError:
    """Returns the exception of a file, of the class for its number; the native part raises it."""
    return OSError(*_os_arguments(fields))
