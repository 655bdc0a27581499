//! The sections of a buffer: from its options and the plan of its pages, and as its users find
//! them.

use crate::error::{Error, Result};
use crate::segment::handle::HostBuffer;
use crate::segment::options::BufferOptions;
use crate::segment::section_identity::{NodeBytes, SectionIdentity};
use hostbuf_memory::placement::{FilePlan, PlannedRange};
use hostbuf_os::NodeId;
use hostbuf_register::Span;

/// Returns the sections of the buffer with this index, whose pages are not allocated yet. The
/// ranges of `plan` are its sections, and the rest of the buffer if there is one.
pub(super) fn planned(buffer: usize, options: &BufferOptions, plan: &FilePlan) -> Vec<SectionIdentity> {
    let count = options.listed_ranges();
    let ranges = plan.ranges().iter().take(count).enumerate();
    let section = |(i, range): (usize, &PlannedRange)| {
        let section = options.sections.get(i);
        let nodes = plan.bytes(range).into_iter();
        SectionIdentity {
            buffer,
            name: section.map(|section| section.name.clone()).unwrap_or_default(),
            offset: range.offset,
            length: range.length,
            placement: section.and_then(|section| section.numa.clone()).or_else(|| options.numa.clone()),
            nodes: nodes.map(|(node, requested)| NodeBytes { node, requested, obtained: 0 }).collect(),
        }
    };
    ranges.map(section).collect()
}

/// Records the bytes that were verified on each node of a section.
pub(super) fn set_obtained(section: &mut SectionIdentity, bytes: &[(NodeId, u64)]) {
    for (node, obtained) in bytes {
        match section.nodes.iter_mut().find(|on| on.node == *node) {
            Some(on) => on.obtained += obtained,
            None => section.nodes.push(NodeBytes { node: *node, requested: 0, obtained: *obtained }),
        }
    }
}

impl HostBuffer {
    /// Returns the sections of the buffer, from its beginning on. A part in no section has an empty
    /// name; it is listed if the buffer has sections or a placement.
    pub fn sections(&self) -> impl Iterator<Item = &SectionIdentity> {
        self.segment.identity.sections.iter().filter(|section| section.buffer == self.index)
    }

    /// Returns the address range of the section named `name`: the same address in every rank of
    /// every host.
    ///
    /// ```
    /// use hostbuf::{BufferOptions, HostBuffer, Section, job::Solo};
    ///
    /// let options = BufferOptions::new(0).section(Section::new("grid", 4096)).section(Section::new("halo", 100));
    /// let buffer = HostBuffer::allocate(&Solo, options)?;
    /// assert_eq!(buffer.section("halo")?.start(), buffer.section("grid")?.end());
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the buffer has no section of this name.
    pub fn section(&self, name: &str) -> Result<Span> {
        let Some(section) = self.sections().find(|section| section.name == name) else {
            let names: Vec<&str> = self.sections().map(|section| section.name.as_str()).collect();
            return Err(Error::invalid(format!(
                "buffer \"{}\" has no section \"{name}\": its sections are \"{}\"",
                self.name(),
                names.join("\", \"")
            )));
        };
        let start = self.as_ptr().as_ptr() as usize + section.offset as usize;
        Ok(Span::new(start, section.length as usize)?)
    }
}
