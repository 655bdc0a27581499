//! Watched memory, the reasons why memory is not watched, and the receivers of changes.

use super::descriptor_set::DescriptorSet;
use crate::span::Span;

/// Watched memory, with all earlier changes applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// The mappings that contain the memory, unless pages of them have been discarded before.
    pub(crate) around: Option<Span>,
    /// The descriptors that watch the memory.
    pub(crate) descriptors: DescriptorSet,
}

/// The reason why memory is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwatched {
    /// It is a file, shared memory or not mapped, so the kernel does not report all changes.
    Memory,
    /// There is no working monitor, its descriptor is unsound, or the calling thread lacks the
    /// descriptor.
    Unproven,
    /// There is no room to watch another mapping.
    Full,
    /// Memory of this program changes without a pause, or pages of the range are being discarded.
    Busy,
}

/// A receiver of changes. The monitor's thread calls it, and so do requests that stop watching. It
/// must neither allocate nor free memory, nor take a lock under which another thread does.
pub(crate) trait Watcher: Send + Sync {
    /// Handles that the pages of `span` are gone, or are about to go.
    fn changed(&self, span: Span);
}
