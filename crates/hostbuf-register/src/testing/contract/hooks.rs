//! The knowledge that only the author of a registrar has.

use crate::memory::Memory;

/// A count that a device reports.
pub(super) type Count<R> = Box<dyn Fn(&R) -> usize>;

/// The additions of the author of a registrar to the suite.
pub(super) struct Hooks<R> {
    /// The function that returns the number of live registrations.
    pub(super) live: Option<Count<R>>,
    /// The function that returns the number of pinned bytes.
    pub(super) pinned: Option<Count<R>>,
    /// Memory of other kinds, which the registrar registers.
    pub(super) samples: Vec<Box<dyn Fn() -> Memory>>,
    /// True if the registrar accepts host memory that is not mapped.
    pub(super) ignores_mappings: bool,
}
