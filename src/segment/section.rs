//! The request for a section: a part of a buffer with a placement of its own.

use std::fmt;

use crate::error::{Bytes, Error, Result};
use crate::segment::name;
use hostbuf_memory::placement::Placement;

/// A section of a buffer: a named part whose pages are on NUMA nodes of their own. The sections of
/// a buffer are contiguous from its beginning, each on whole pages. A section begins at the same
/// address on every host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The name: at most 31 bytes of letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The number of usable bytes, rounded up to whole pages.
    pub size: u64,
    /// The placement of the pages, `None` for that of the buffer.
    pub numa: Option<Placement>,
}

impl Section {
    /// Makes a section of `size` bytes with the placement of its buffer.
    #[must_use]
    pub fn new(name: impl Into<String>, size: u64) -> Section {
        Section { name: name.into(), size, numa: None }
    }

    /// Sets the NUMA nodes of the pages.
    #[must_use]
    pub fn numa(mut self, placement: Placement) -> Section {
        self.numa = Some(placement);
        self
    }

    /// Checks the options of the section.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0 or an invalid name.
    pub(super) fn check(&self) -> Result<()> {
        name::check(&self.name)?;
        if self.size == 0 {
            let name = &self.name;
            return Err(Error::invalid(format!(
                "section \"{name}\" has size 0: a section has at least one byte"
            )));
        }
        Ok(())
    }
}

/// A section with the name of its buffer, as command lines contain it:
/// `buffer=default,name=grid,size=4G,numa=0`.
#[derive(Clone, Debug, PartialEq, Eq)]
// Exhaustive: the two parts of the text.
pub struct SectionArgument {
    /// The name of the buffer.
    pub buffer: String,
    /// The section.
    pub section: Section,
}

impl fmt::Display for SectionArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SectionArgument { buffer, section } = self;
        write!(f, "buffer={buffer},name={},size={}", section.name, section.size)?;
        section.numa.iter().try_for_each(|placement| write!(f, ",numa={placement}"))
    }
}

/// Formats a length for messages about sections.
pub(super) fn bytes(length: u64) -> String {
    format!("{} ({length} bytes)", Bytes(length))
}
