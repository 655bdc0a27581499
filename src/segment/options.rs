//! The options of a buffer.

use crate::error::{Bytes, Error, Result};
use crate::segment::name;
use crate::segment::section::{self, Section};
use crate::segment::section_identity::PLACEMENT_MAX;
use hostbuf_memory::placement::Placement;
use hostbuf_memory::{Demand, DemandPart, Pages};

/// The name of a buffer if none is requested.
pub const DEFAULT_NAME: &str = "default";

/// The options of one buffer, for [`HostBuffer::allocate`](crate::HostBuffer::allocate) and
/// `hostbuf run`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferOptions {
    /// The number of usable bytes, rounded up to whole pages of the obtained size. With 0 it is the
    /// sum of the sections.
    pub size: u64,
    /// The kind of pages.
    pub pages: Pages,
    /// Allocate pages at the first touch. There is then no check that the memory is available, and
    /// a process is killed, by SIGBUS or otherwise, if it is not. By default all pages are
    /// allocated at creation.
    pub lazy: bool,
    /// Include the contents in core files.
    pub dump: bool,
    /// The name: at most 31 bytes of letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Flags passed to `mmap` in addition to `MAP_SHARED | MAP_FIXED`: `MAP_LOCKED`,
    /// `MAP_POPULATE`, `MAP_NONBLOCK`.
    pub mmap_flags: i32,
    /// The NUMA nodes of the pages outside of sections, and in sections without a placement of
    /// their own. `None` leaves each page on the node of the thread that allocates it.
    pub numa: Option<Placement>,
    /// The sections, from the beginning of the buffer on.
    pub sections: Vec<Section>,
}

impl BufferOptions {
    /// Makes the options of a buffer of `size` bytes, with defaults for all others.
    #[must_use]
    pub fn new(size: u64) -> BufferOptions {
        BufferOptions {
            size,
            pages: Pages::Auto,
            lazy: false,
            dump: false,
            name: DEFAULT_NAME.into(),
            mmap_flags: 0,
            numa: None,
            sections: Vec::new(),
        }
    }

    /// Sets the kind of pages.
    #[must_use]
    pub fn pages(mut self, pages: Pages) -> BufferOptions {
        self.pages = pages;
        self
    }

    /// Leaves the allocation of the pages to the first touch.
    #[must_use]
    pub fn lazy(mut self) -> BufferOptions {
        self.lazy = true;
        self
    }

    /// Includes the contents in core files.
    #[must_use]
    pub fn dump(mut self) -> BufferOptions {
        self.dump = true;
        self
    }

    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> BufferOptions {
        self.name = name.into();
        self
    }

    /// Sets additional flags for `mmap`.
    #[must_use]
    pub fn mmap_flags(mut self, flags: i32) -> BufferOptions {
        self.mmap_flags = flags;
        self
    }

    /// Sets the NUMA nodes of the pages.
    #[must_use]
    pub fn numa(mut self, placement: Placement) -> BufferOptions {
        self.numa = Some(placement);
        self
    }

    /// Adds a section behind the others.
    #[must_use]
    pub fn section(mut self, section: Section) -> BufferOptions {
        self.sections.push(section);
        self
    }

    /// Returns the number of bytes of which the offset and the length of every section are
    /// multiples. It depends on the options alone, and not on the pages that a host provides.
    fn unit(&self) -> u64 {
        // The sum in whole small pages: if it reaches a huge page, the sections consist of those.
        let small = Pages::Small.size();
        let whole =
            self.host_sections().map(|section| section.size.min(MAX_SIZE + 1).next_multiple_of(small));
        self.pages.unit(self.size.max(whole.fold(0, u64::saturating_add)))
    }

    /// Returns the sections of host memory.
    pub(super) fn host_sections(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| !section.is_on_gpus())
    }

    /// Returns the number of bytes of each section of host memory, rounded up to whole pages.
    pub(super) fn section_lengths(&self) -> impl Iterator<Item = u64> {
        let unit = self.unit();
        self.host_sections().map(move |section| section.size.min(MAX_SIZE + 1).next_multiple_of(unit))
    }

    /// Returns the number of usable bytes before rounding them up to whole pages: the requested
    /// size, or the sum of the sections of host memory. A buffer that only has GPU sections has
    /// one small page.
    #[must_use]
    pub fn requested(&self) -> u64 {
        if self.size > 0 {
            return self.size;
        }
        match self.section_lengths().fold(0, u64::saturating_add) {
            0 if !self.sections.is_empty() => Pages::Small.size(),
            sum => sum,
        }
    }

    /// Returns the kind of pages of the buffer's memory file: the requested one. A buffer that only
    /// has GPU sections takes no huge page for the small one that it has.
    pub(super) fn file_pages(&self) -> Pages {
        let is_on_gpus = !self.sections.is_empty() && self.host_sections().next().is_none();
        if self.size == 0 && is_on_gpus { Pages::Small } else { self.pages }
    }

    /// Returns the number of ranges of the buffer that `hostbuf stat` and
    /// [`HostBuffer::sections`](crate::HostBuffer::sections) list: the sections, and the rest of a
    /// buffer that has a placement.
    pub(super) fn listed_ranges(&self) -> usize {
        let listed = self.host_sections().count();
        if self.numa.is_none() && listed == 0 {
            return 0;
        }
        let sections: u64 = self.section_lengths().sum();
        listed + usize::from(sections < self.file_pages().round_up(self.requested()))
    }

    /// Returns the memory that the buffer needs.
    #[must_use]
    pub fn demand(&self) -> Demand {
        let demand = Demand::new(self.requested(), self.file_pages()).lazy(self.lazy);
        let buffer =
            if self.name == DEFAULT_NAME { String::new() } else { format!("buffer \"{}\"", self.name) };
        let part = |(length, section): (u64, &Section)| {
            let of = if buffer.is_empty() { String::new() } else { format!(" of {buffer}") };
            let placement = section.numa.clone().or_else(|| self.numa.clone());
            DemandPart::new(length, placement).named(format!("section \"{}\"{of}", section.name))
        };
        let mut parts: Vec<_> = self.section_lengths().zip(self.host_sections()).map(part).collect();
        let rest = demand.length().saturating_sub(parts.iter().map(|part| part.length).sum());
        if rest > 0 {
            parts.push(DemandPart::new(rest, self.numa.clone()).named(buffer));
        }
        demand.parts(parts)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0 or one beyond any address space, an invalid name, a flag
    /// that would undo the sharing or the address, sections that do not fit, or a lazy buffer with
    /// a placement.
    pub fn check(&self) -> Result<()> {
        if self.size == 0 && self.sections.is_empty() {
            let name = &self.name;
            return Err(Error::invalid(format!("size 0: buffer \"{name}\" has neither size= nor sections")));
        }
        let most = Bytes(MAX_SIZE);
        if let Some(Section { name, size, .. }) = self.sections.iter().find(|section| section.size > MAX_SIZE)
        {
            let size = section::bytes(*size);
            return Err(Error::invalid(format!(
                "section \"{name}\" has size {size}: the address space holds at most {most}"
            )));
        }
        if self.requested() > MAX_SIZE {
            let size = section::bytes(self.requested());
            return Err(Error::invalid(format!("size {size}: the address space holds at most {most}")));
        }
        name::check(&self.name)?;
        self.check_sections()?;
        let allowed = libc::MAP_LOCKED | libc::MAP_POPULATE | libc::MAP_NONBLOCK;
        if self.mmap_flags & !allowed != 0 {
            return Err(Error::invalid(format!(
                "invalid mmap flags {:#x}: expected MAP_LOCKED, MAP_POPULATE or MAP_NONBLOCK",
                self.mmap_flags
            )));
        }
        Ok(())
    }
}

impl BufferOptions {
    /// Checks the sections and the placements.
    fn check_sections(&self) -> Result<()> {
        let buffer = &self.name;
        for (i, section) in self.sections.iter().enumerate() {
            section.check()?;
            if self.sections[..i].iter().any(|other| other.name == section.name) {
                let name = &section.name;
                return Err(Error::invalid(format!(
                    "two sections of buffer \"{buffer}\" are named \"{name}\""
                )));
            }
        }
        let (sections, size) = (self.section_lengths().sum(), self.file_pages().round_up(self.requested()));
        if sections > size {
            let smaller = if self.unit() > Pages::Small.size() {
                "raise it, or use smaller pages (--pages 4k)"
            } else {
                "or raise it"
            };
            return Err(Error::invalid(format!(
                "the sections of buffer \"{buffer}\" need {} in whole pages of {}, and its size is {}: leave out the size of \
                 the buffer, {smaller}",
                section::bytes(sections),
                Bytes(self.unit()),
                section::bytes(size)
            )));
        }
        let placements = self.sections.iter().filter_map(|section| section.numa.as_ref()).chain(&self.numa);
        for placement in placements.map(ToString::to_string) {
            if placement.len() > PLACEMENT_MAX {
                return Err(Error::invalid(format!(
                    "the placement {placement} has {} characters: expected at most {PLACEMENT_MAX}; write ranges such as 0-7",
                    placement.len()
                )));
            }
        }
        let placed = self.numa.is_some() || self.sections.iter().any(|section| section.numa.is_some());
        if self.lazy && placed {
            return Err(Error::invalid(format!(
                "buffer \"{buffer}\" is lazy and has a placement: pages are placed when the buffer is allocated, and those of \
                 a lazy buffer are not allocated then; leave out lazy or the placement"
            )));
        }
        Ok(())
    }
}

/// The maximum sum of all buffers: the largest range that can be free in user space, between the
/// mappings at fixed addresses.
pub const MAX_SIZE: u64 = 100 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: BufferOptions) -> String {
        options.check().unwrap_err().to_string()
    }

    #[test]
    fn sections_that_do_not_fit_are_rejected_with_the_reason() {
        let with = |size, sections: &[(&str, u64)]| {
            let options = BufferOptions::new(size).pages(Pages::Small);
            sections.iter().fold(options, |options, (name, size)| options.section(Section::new(*name, *size)))
        };
        assert!(with(0, &[("a", 1), ("b", 5000)]).check().is_ok());
        assert!(with(12288, &[("a", 1), ("b", 5000)]).check().is_ok());
        let long = refused(with(8192, &[("a", 1), ("b", 5000)]));
        assert!(long.contains("need 12 KiB (12288 bytes)") && long.contains("its size is 8 KiB"), "{long}");
        assert!(refused(with(0, &[("a", 1), ("a", 1)])).contains("two sections of buffer \"default\""));
        assert!(refused(with(0, &[("a", 0)])).contains("section \"a\" has size 0"));
        for (size, sections) in [(0, &[("a", u64::MAX)][..]), (u64::MAX, &[])] {
            let long = refused(with(size, sections));
            assert!(long.contains("(18446744073709551615 bytes): the address space holds"), "{long}");
        }
        assert!(refused(with(0, &[])).contains("neither size= nor sections"));
        let turns: Vec<String> = (0..60).map(|_| "100".to_owned()).collect();
        let long = format!("interleave:0-59/{}", turns.join(",")).parse().unwrap();
        assert!(refused(with(4096, &[]).numa(long)).contains("expected at most 104"));
        assert!(refused(with(0, &[("a", 1)]).numa("0".parse().unwrap()).lazy()).contains("leave out lazy"));
    }

    #[test]
    fn sections_lie_on_whole_pages_that_suit_every_host() {
        let options = |pages, sizes: &[u64]| {
            let sections = sizes.iter().enumerate().map(|(i, &size)| Section::new(format!("s{i}"), size));
            sections.fold(BufferOptions::new(0).pages(pages), BufferOptions::section)
        };
        let lengths = |pages, sizes: &[u64]| options(pages, sizes).section_lengths().collect::<Vec<_>>();
        const HUGE: u64 = 2 << 20;
        assert_eq!(lengths(Pages::Small, &[1, 4097]), [4096, 8192]);
        assert_eq!(lengths(Pages::Auto, &[1, 4097]), [4096, 8192]);
        assert_eq!(lengths(Pages::Auto, &[1, HUGE]), [HUGE, HUGE]);
        assert_eq!(lengths(Pages::Auto, &[HUGE / 2, HUGE / 2 - 1]), [HUGE, HUGE]);
        assert_eq!(lengths(Pages::Auto, &[HUGE / 2, HUGE / 2 - 4096]), [HUGE / 2, HUGE / 2 - 4096]);
        assert_eq!(lengths(Pages::Huge1G, &[1]), [1 << 30]);
        // Pages of 1 GiB would move the second section on some hosts.
        assert!(!options(Pages::Auto, &[HUGE, (1 << 30) - HUGE]).demand().has_whole(1 << 30));
        assert!(options(Pages::Auto, &[1 << 30, 2 << 30]).demand().has_whole(1 << 30));
        assert_eq!(options(Pages::Auto, &[1, HUGE]).requested(), 2 * HUGE);
    }

    #[test]
    fn the_rest_of_a_buffer_is_listed_if_it_has_a_placement_or_sections() {
        let section = Section::new("a", 4096);
        let options = BufferOptions::new(8192);
        assert_eq!(options.listed_ranges(), 0);
        assert_eq!(options.clone().numa("0".parse().unwrap()).listed_ranges(), 1);
        assert_eq!(options.clone().section(section.clone()).listed_ranges(), 2);
        assert_eq!(BufferOptions::new(0).section(section).listed_ranges(), 1);
    }
}
