"""One buffer per host, at one address on every host of an MPI job, shared by all its ranks.

A table that every rank reads is stored once per host, and numpy arrays of it are views without a
copy:

>>> import numpy as np, hostbuf
>>> with hostbuf.allocate(None, 1 << 20) as buffer:     # mpi4py's MPI.COMM_WORLD instead of None
...     def fill(arena):                                # runs in one rank only
...         squares = arena.array(1000, "i8")
...         squares[:] = np.arange(1000) ** 2
...         return {"squares": squares, "unit": "m2"}
...     table = buffer.initialize_job(fill, None)       # all ranks get it
...     proof = buffer.freeze(None)                     # read-only from here on
>>> int(table["squares"][31]), table["unit"], proof.sealed
(961, 'm2', True)

Under ``hostbuf run -n 8 --size 2G -- python app.py`` the buffer is mapped before Python starts, and
:func:`attach` returns it.
"""

from ._block import Block, BlockHeader, BlockRef, DmaPath, Token
from ._buffer import (
    Arena,
    Buffer,
    Info,
    NodeBytes,
    Section,
    SectionInfo,
    allocate,
    attach,
    launched,
    stat,
)
from ._dma import Dma, dma
from ._error import (
    AttachError,
    BlockGoneError,
    BlockOnGpuError,
    BlockOnHostError,
    CopyWarning,
    EndOfFileError,
    Error,
    ForkedError,
    FullError,
    GpuError,
    GpuTransferError,
    InvalidError,
    InvalidHeaderError,
    InvalidTokenError,
    JobFailedError,
    LoadError,
    MissingFileError,
    NoBrokerError,
    NoSpaceError,
    NotPublishedError,
    OutOfRangeError,
    PoolError,
    PoolSpaceError,
    PoolTimeoutError,
    ProducerEndedError,
    QuotaError,
    SafetensorError,
    TransferCancelledError,
    TransferError,
    TransferIOError,
    UnsupportedError,
)
from ._file import CachedPages, File, FileBackend, Transfer, drop_page_cache, page_cache
from ._gpu import GpuBlock, GpuBlockRef
from ._gpu_section import GpuSection
from ._hostbuf import __version__
from ._ipc import CudaIpcMemory, open_cuda_ipc
from ._load import HostTensors, load, loaded
from ._pool import GpuProducer, Pool, Producer
from ._proof import Proof
from ._register import Cache, Device, Key, Lease, Registration, register
from ._safe_open import SafeSlice, safe_open

__all__ = [
    "Arena",
    "AttachError",
    "Block",
    "BlockGoneError",
    "BlockHeader",
    "BlockOnGpuError",
    "BlockOnHostError",
    "BlockRef",
    "Buffer",
    "Cache",
    "CachedPages",
    "CopyWarning",
    "CudaIpcMemory",
    "Device",
    "Dma",
    "DmaPath",
    "EndOfFileError",
    "Error",
    "File",
    "FileBackend",
    "ForkedError",
    "FullError",
    "GpuBlock",
    "GpuBlockRef",
    "GpuError",
    "GpuProducer",
    "GpuSection",
    "GpuTransferError",
    "HostTensors",
    "Info",
    "InvalidError",
    "InvalidHeaderError",
    "InvalidTokenError",
    "JobFailedError",
    "Key",
    "Lease",
    "LoadError",
    "MissingFileError",
    "NoBrokerError",
    "NoSpaceError",
    "NodeBytes",
    "NotPublishedError",
    "OutOfRangeError",
    "Pool",
    "PoolError",
    "PoolSpaceError",
    "PoolTimeoutError",
    "Producer",
    "ProducerEndedError",
    "Proof",
    "QuotaError",
    "Registration",
    "SafeSlice",
    "SafetensorError",
    "Section",
    "SectionInfo",
    "Token",
    "Transfer",
    "TransferCancelledError",
    "TransferError",
    "TransferIOError",
    "UnsupportedError",
    "__version__",
    "allocate",
    "attach",
    "dma",
    "drop_page_cache",
    "launched",
    "load",
    "loaded",
    "open_cuda_ipc",
    "page_cache",
    "register",
    "safe_open",
    "stat",
]
