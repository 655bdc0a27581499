//! The sections of a buffer: from its options and the plan of its pages, and as its users find
//! them.

use crate::error::{Error, Result};
use crate::segment::handle::HostBuffer;
use crate::segment::options::BufferOptions;
use crate::segment::section::Section;
use crate::segment::section_identity::{NodeBytes, SectionIdentity};
use hostbuf_memory::placement::{FilePlan, PlannedRange};
use hostbuf_os::NodeId;
use hostbuf_register::Span;

/// Returns the sections of the buffer with this index, whose pages are not allocated yet. The
/// ranges of `plan` are its sections, and the rest of the buffer if there is one.
pub(super) fn planned(buffer: usize, options: &BufferOptions, plan: &FilePlan) -> Vec<SectionIdentity> {
    let count = options.listed_ranges();
    let named = options.host_sections().map(Some).chain(std::iter::repeat(None));
    let ranges = plan.ranges().iter().take(count).zip(named);
    let section = |(range, section): (&PlannedRange, Option<&Section>)| {
        let copies = range.nodes_of_copies().iter().map(|&node| (node, range.length));
        let nodes = plan.bytes(range).into_iter().chain(copies);
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
    /// Returns the sections of the buffer, from its beginning on, with the bytes that each node has
    /// now. A part in no section has an empty name; it is listed if the buffer has sections or a
    /// placement.
    pub fn sections(&self) -> impl Iterator<Item = SectionIdentity> {
        let copied = self.segment.copies[self.index].get().map(|copies| copies.nodes).unwrap_or_default();
        self.section_identities().map(move |section| section.clone().with_copies(&copied))
    }

    pub(crate) fn section_identities(&self) -> impl Iterator<Item = &SectionIdentity> {
        self.segment.identity.sections.iter().filter(|section| section.buffer == self.index)
    }

    fn named_sections(&self) -> impl Iterator<Item = &SectionIdentity> {
        self.section_identities().filter(|section| !section.name.is_empty())
    }

    /// Returns the offset of the first byte behind all sections that have a name: the program fills
    /// these itself, so the arena begins there.
    pub(crate) fn arena_start(&self) -> u64 {
        self.named_sections().map(|section| section.offset + section.length).max().unwrap_or(0)
    }

    /// Returns whether a byte is in a section that has a name.
    pub(crate) fn is_in_section(&self, at: *const u8) -> bool {
        self.contains(at, 1) && (at as u64) < self.as_ptr().as_ptr() as u64 + self.arena_start()
    }

    /// Returns the address range of the section named `name`: the same address in every rank of
    /// every host.
    ///
    /// ```
    /// use hostbuf::{BufferOptions, HostBuffer, Section, job::Solo};
    ///
    /// let options = BufferOptions::new(0)
    ///     .section(Section::new("grid", 4096).numa("0".parse()?))
    ///     .section(Section::new("halo", 100).numa("interleave".parse()?));
    /// let buffer = HostBuffer::allocate(&Solo, options)?;
    /// assert_eq!(buffer.section("halo")?.start(), buffer.section("grid")?.end());
    ///
    /// // The section is memory that all ranks of the host share, zeroed at first.
    /// let cells = buffer.section("grid")?.start() as *mut f64;
    /// // SAFETY: inside the section and aligned, and no other rank uses these bytes now.
    /// let cells = unsafe { std::slice::from_raw_parts_mut(cells, 4096 / size_of::<f64>()) };
    /// cells.fill(1.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the buffer has no section of this name, or if it is GPU memory.
    pub fn section(&self, name: &str) -> Result<Span> {
        let Some(section) = self.named_sections().find(|section| section.name == name) else {
            let names: Vec<String> =
                self.named_sections().map(|section| format!("\"{}\"", section.name)).collect();
            let its = match names.join(", ") {
                none if none.is_empty() => "it has no sections".to_owned(),
                names => format!("its sections are {names}"),
            };
            let buffer = self.name();
            let mut on_gpus = self.segment.identity.gpu_sections(self.index);
            if on_gpus.any(|pieces| pieces[0].section == name) {
                return Err(Error::invalid(format!(
                    "section \"{name}\" of buffer \"{buffer}\" is GPU memory: get it by gpu_section (in C and Fortran \
                     hostbuf_gpu_section)"
                )));
            }
            return Err(Error::invalid(format!(
                "buffer \"{buffer}\" has no section \"{name}\": {its}; request it with the buffer (--section name={name},size=2G, or in \
                 the options of allocate)"
            )));
        };
        let start = self.as_ptr().as_ptr() as usize + section.offset as usize;
        Ok(Span::new(start, section.length as usize)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Solo;
    use crate::segment::section::Section;
    use crate::{List, Pages};

    #[test]
    fn the_arena_is_behind_the_sections() {
        let options = BufferOptions::new(5 << 12).pages(Pages::Small);
        let options = options.section(Section::new("grid", 4096)).section(Section::new("halo", 5000));
        let buffer = HostBuffer::allocate(&Solo, options).expect("there is memory");
        let halo = buffer.section("halo").expect("a section");
        // A second attempt begins behind the blocks of the first.
        let failed = buffer.initialize(|arena| {
            arena.place(7u8)?;
            Err::<crate::Placed<'_, u8>, Error>(Error::invalid("no"))
        });
        assert!(failed.is_err());
        let list = buffer
            .initialize(|arena| {
                let mut list = List::new_in(arena);
                list.extend(0u64..100);
                arena.place(list)
            })
            .expect("there is room for it");
        assert!(list.as_ptr() as usize > halo.end());
        let used = buffer.high_water().expect("it is intact");
        assert!((3 * 4096 + 800..4 * 4096).contains(&used), "{used}");
        let none = buffer.section("rays").expect_err("no section").to_string();
        assert!(none.contains("its sections are \"grid\", \"halo\"; request it"), "{none}");
    }

    #[test]
    fn a_buffer_of_sections_alone_has_no_arena() {
        let options = BufferOptions::new(0).section(Section::new("grid", 4096));
        let buffer = HostBuffer::allocate(&Solo, options).expect("there is memory");
        let full = buffer.initialize(|arena| arena.place(7u8)).expect_err("no byte is left");
        assert!(matches!(full, Error::Full { left: 0, .. }), "{full}");
    }
}
