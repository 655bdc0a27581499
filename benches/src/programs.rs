//! The kinds of programs of simulated jobs, and the sizes that their layouts use.

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const TIB: u64 = 1 << 40;
pub(crate) const TOP: u64 = 0x7fff_ffff_f000;

/// The kind of the processes of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
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
pub(crate) const PROGRAMS: [(Program, u64); 11] = [
    (Program::Plain, 50),
    (Program::Fixed, 8),
    (Program::UnlimitedStack, 7),
    (Program::Legacy, 7),
    (Program::Asan, 4),
    (Program::Tsan, 3),
    (Program::Msan, 3),
    (Program::Zgc, 5),
    (Program::Node, 4),
    (Program::Go, 4),
    (Program::Cuda, 5),
];
