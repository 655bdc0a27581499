"""Proofs that no process can write to frozen memory."""

from __future__ import annotations

from typing import NamedTuple


class Proof(NamedTuple):
    """The proof that no process of this host can write to a frozen buffer or section."""

    sealed: bool
    """True if the kernel has sealed the memory, which it does only while no writable mapping of it
    exists anywhere."""
    why: str | None
    """The reason why the memory is not sealed: the process that may have a writable mapping."""
