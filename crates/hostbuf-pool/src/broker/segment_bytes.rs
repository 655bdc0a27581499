//! The number of bytes of a segment, in each kind of memory.

/// The number of bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentBytes {
    /// The bytes of all memory files.
    pub(super) host: u64,
    /// The bytes of the memory of a GPU.
    pub(super) gpu: u64,
}

/// The kinds of memory with a limit of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// Memory of the host.
    Host,
    /// GPU memory, of all together.
    Gpu,
}

impl SegmentBytes {
    /// Returns the bytes of one kind of memory.
    pub(super) fn of(self, kind: MemoryKind) -> u64 {
        match kind {
            MemoryKind::Host => self.host,
            MemoryKind::Gpu => self.gpu,
        }
    }
}

impl MemoryKind {
    /// Returns the options of the limit of the pool and of the limit of one client.
    pub(super) fn options(self) -> (&'static str, &'static str) {
        match self {
            MemoryKind::Host => ("--limit", "--per-client"),
            MemoryKind::Gpu => ("--gpu-limit", "--gpu-per-client"),
        }
    }
}
