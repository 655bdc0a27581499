//! The kinds of programs of simulated jobs, and the sizes that their layouts use.

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const TIB: u64 = 1 << 40;
pub(crate) const TOP: u64 = 0x7fff_ffff_f000;

/// The kind of the processes of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    Plain,
    /// At a fixed address, not position-independent.
    Fixed,
    /// `ulimit -s unlimited`, on kernels that then grow down, and on those that grow up.
    UnlimitedStack,
    Legacy,
    Asan,
    Tsan,
    Msan,
    /// Java with ZGC.
    Zgc,
    /// V8 places its code and heaps at random addresses of 46 bits.
    Node,
    Go,
    /// A CUDA program: the driver's own ranges.
    Cuda,
}

/// The kinds, each with its share in percent.
pub(crate) const PROGRAMS: [(ProgramKind, u64); 11] = [
    (ProgramKind::Plain, 50),
    (ProgramKind::Fixed, 8),
    (ProgramKind::UnlimitedStack, 7),
    (ProgramKind::Legacy, 7),
    (ProgramKind::Asan, 4),
    (ProgramKind::Tsan, 3),
    (ProgramKind::Msan, 3),
    (ProgramKind::Zgc, 5),
    (ProgramKind::Node, 4),
    (ProgramKind::Go, 4),
    (ProgramKind::Cuda, 5),
];
