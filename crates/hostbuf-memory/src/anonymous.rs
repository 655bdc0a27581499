//! Shared memory without an agreed address, for pools and slabs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hostbuf_os::{NodeId, memory};

use crate::create::{CreatedFile, create_all, create_without_pools, has_chosen_pools};
use crate::demand::Demand;
use crate::error::{Error, Result};
use crate::mapping::{FileMapping, MappingRefused};
use crate::pages::Pages;
use crate::placement::HostNodes;
use crate::populate::{self, PageRequest, Workers};

/// A memory file of this process, populated and mapped at an address of the kernel's choice.
/// Dropping it unmaps the file. It is shared with forked children and excluded from core files.
#[derive(Debug)]
pub struct AnonymousSegment {
    mapping: FileMapping,
    file: OwnedFd,
    length: u64,
    pages: Pages,
    on_nodes: Vec<(NodeId, u64)>,
}

impl AnonymousSegment {
    /// Creates a segment for `demand`, named `name` in `/proc/PID/maps`. The thread of the caller
    /// and `workers` populate it, unless the demand is lazy. The bytes are zero.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes, and for a lazy demand with a placement; [`Error::NoSpace`],
    /// [`Error::Placement`] and [`Error::Unsupported`] before any page is allocated, or if pages
    /// ran out meanwhile; [`Error::Os`]. Nothing stays mapped.
    pub fn new(name: &str, demand: Demand, workers: Workers) -> Result<AnonymousSegment> {
        if demand.size == 0 {
            return Err(Error::Invalid { what: "invalid size 0: expected at least one byte".into() });
        }
        if demand.lazy && demand.is_placed() {
            let what = "a segment with a placement cannot be lazy: leave out one of them";
            return Err(Error::Invalid { what: what.into() });
        }
        let length = demand.length();
        let nodes = demand.is_placed().then(HostNodes::of_this_host);
        let (demands, names) = (std::slice::from_ref(&demand), &[name.to_owned()]);
        let one = |created: Vec<CreatedFile>| created.into_iter().next().expect("one file for one demand");
        let mut created = one(create_all(demands, names, nodes.as_ref())?);
        let mut on_nodes = Vec::new();
        if !demand.lazy {
            let cores = |node| {
                let cores = workers.cores();
                nodes.as_ref().map_or(*cores, |nodes| nodes.cores(node, cores))
            };
            let populate = |created: &CreatedFile| {
                let request = PageRequest::new(&created.plan, created.pages);
                let request = request.strict(demand.pages == Pages::Transparent);
                populate::populate(created.file.as_fd(), request, workers, &cores, &mut |_| {})
            };
            let obtained = match populate(&created) {
                Err(Error::NoSpace(first)) if has_chosen_pools(demands, &[created.pages]) => {
                    drop(created);
                    let again = create_without_pools(demands, names, nodes.as_ref());
                    created = again.map(one).map_err(|second| second.after(first.clone()))?;
                    populate(&created).map_err(|second| second.after(first))
                }
                populated => populated,
            };
            on_nodes = obtained?.on_nodes.concat();
        }
        let CreatedFile { file, pages, .. } = created;
        let align = pages.size().max(memory::page_size()) as usize;
        let mapping = FileMapping::new(file.as_fd(), 0, length, align).map_err(|refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            let source = std::io::Error::from_raw_os_error(errno);
            Error::os(format!("mapping a memory file of {length} bytes"))(source)
        })?;
        // If the kernel rejects the advice, core files are only larger.
        let _ = mapping.advise(0, length, libc::MADV_DONTDUMP);
        if pages == Pages::Small {
            // With `shmem_enabled` set to `always`, khugepaged would make huge pages of small ones,
            // each on the node that has most of them. A kernel that rejects it has no huge pages.
            let _ = mapping.advise(0, length, libc::MADV_NOHUGEPAGE);
        }
        Ok(AnonymousSegment { mapping, file, length, pages, on_nodes })
    }

    /// Returns the address of the first byte. All bytes are readable and writable while the segment
    /// exists.
    #[must_use]
    pub fn start(&self) -> usize {
        self.mapping.start()
    }

    /// Returns the number of bytes: the requested size, rounded up to whole pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a segment has at least one byte")]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns the kind of pages of the file: [`Pages::Transparent`] also if only some of the pages
    /// are huge.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns the number of bytes on each NUMA node, as verified after allocating them, for each
    /// part of the demand with a placement.
    #[must_use]
    pub fn on_nodes(&self) -> &[(NodeId, u64)] {
        &self.on_nodes
    }
}

impl AsFd for AnonymousSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "the tests read and write the segment by its address")]

    use super::*;
    use hostbuf_os::mempolicy::is_only_node;

    #[test]
    fn a_segment_is_zeroed_writable_and_unmapped_at_the_end() {
        for (size, pages) in [(1, Pages::Auto), (5 << 20, Pages::Auto), (3 << 20, Pages::Small)] {
            let demand = Demand::new(size, pages);
            let segment = AnonymousSegment::new("hostbuf-test", demand, Workers::of_this_process()).unwrap();
            assert!(segment.len() as u64 >= size && segment.start().is_multiple_of(4096));
            let taken = nix::sys::stat::fstat(&segment).unwrap().st_blocks as usize * 512;
            assert_eq!(taken, segment.len());
            let start = segment.start();
            // SAFETY: mapped while the segment lives, and only this test uses it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, segment.len()) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(7);
            let align = segment.pages().size() as usize;
            let again = FileMapping::new(segment.file.as_fd(), 0, segment.length, align).unwrap();
            // SAFETY: another mapping of the same file.
            assert_eq!(unsafe { *(again.start() as *const u8) }, 7);
            drop(segment);
            assert!(matches!(
                hostbuf_os::maps::range_access(start, start + 1),
                Ok(hostbuf_os::maps::RangeAccess::Hole(_))
            ));
        }
    }

    #[test]
    fn a_segment_is_placed_on_its_node() {
        let placed = |size, pages, placement: &str| {
            let demand = Demand::new(size, pages).placement(placement.parse().unwrap());
            AnonymousSegment::new("hostbuf-test", demand, Workers::of_this_process())
        };
        let forbidden = |why: &str| why.contains("SYS_NICE") || why.contains("seccomp=unconfined");
        for (size, pages, placement) in [
            (5 << 20, Pages::Small, "0"),
            (6 << 20, Pages::Transparent, "0"),
            (7 << 20, Pages::Auto, "interleave:0"),
        ] {
            let segment = match placed(size, pages, placement) {
                // Containers may forbid to place memory, except on the only node.
                Err(Error::Placement { why, .. }) if !is_only_node(NodeId(0)) && forbidden(&why) => {
                    eprintln!("skipped: {why}");
                    return;
                }
                segment => segment.unwrap(),
            };
            assert_eq!(segment.on_nodes(), [(NodeId(0), segment.len() as u64)], "{pages}");
        }
        assert!(matches!(placed(4096, Pages::Small, "63"), Err(Error::Placement { .. })));
        assert!(matches!(placed(1 << 50, Pages::Small, "0"), Err(Error::NoSpace(_))));
        let lazy = Demand::new(4096, Pages::Small).placement("0".parse().unwrap()).lazy(true);
        let refused = AnonymousSegment::new("hostbuf-test", lazy, Workers::of_this_process());
        assert!(matches!(refused, Err(Error::Invalid { .. })));
    }

    /// khugepaged would undo the placement of small pages.
    #[test]
    fn small_pages_stay_small() {
        for (pages, is_advised) in [(Pages::Small, true), (Pages::Transparent, false)] {
            let demand = Demand::new(4 << 20, pages);
            let segment = AnonymousSegment::new("hostbuf-test", demand, Workers::of_this_process()).unwrap();
            let start = format!("{:x}-", segment.start());
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
            let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
            assert_eq!(flags.split_whitespace().any(|flag| flag == "nh"), is_advised, "{pages}: {flags}");
        }
    }

    #[test]
    fn a_segment_that_is_too_large_is_rejected() {
        let demand = |size| Demand::new(size, Pages::Small);
        let refused = |size| {
            AnonymousSegment::new("hostbuf-test", demand(size), Workers::of_this_process()).unwrap_err()
        };
        assert!(matches!(refused(1 << 50), Error::NoSpace(_)));
        assert!(matches!(refused(0), Error::Invalid { .. }));
    }
}
