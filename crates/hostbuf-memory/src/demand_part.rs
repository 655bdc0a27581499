//! A part of a file with a placement of its own.

use crate::placement::Placement;

/// A part of a file with a placement of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DemandPart {
    /// The number of bytes.
    pub length: u64,
    /// The placement, `None` for pages on any node.
    pub placement: Option<Placement>,
    /// The name in messages, such as `section "grid"`; empty if there is none.
    pub name: String,
}

impl DemandPart {
    /// Makes a part of `length` bytes without a name.
    #[must_use]
    pub fn new(length: u64, placement: Option<Placement>) -> DemandPart {
        DemandPart { length, placement, name: String::new() }
    }

    /// Sets the name in messages.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> DemandPart {
        self.name = name.into();
        self
    }
}
