//! The kernel's mark of changes in progress, as one userfaultfd reports it.

/// The state of the changes that a userfaultfd reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeState {
    /// No change is in progress, and every event has been read.
    Quiet,
    /// A change is in progress, or its event has not been read.
    Changing,
    /// The descriptor does not refer to this userfaultfd in the calling thread.
    Unknown,
}

/// The kernel's mark of changes in progress (`mmap_changing`).
pub(super) trait ChangeMark {
    /// Returns the state of the mark, as the calling thread sees it.
    fn state(&self) -> ChangeState;
}
