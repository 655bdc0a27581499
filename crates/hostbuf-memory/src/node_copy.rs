//! A memory file on one NUMA node with copies of memory that does not change.

#![allow(unsafe_code, reason = "makes slices of mapped memory files")]

use std::hash::Hasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use hostbuf_os::cores::Cores;
use hostbuf_os::{NodeId, non_temporal, on_cores};
use twox_hash::XxHash3_64;

use crate::create::{CreatedFile, create_all};
use crate::demand::Demand;
use crate::demand_part::DemandPart;
use crate::error::{Error, Result};
use crate::mapping::{FileMapping, MappingRefused};
use crate::memfd;
use crate::pages::{EXTENT, Pages};
use crate::placement::{HostNodes, Placement};
use crate::populate::{PageRequest, populate_placed};
use crate::seals::Seals;

/// The number of bytes that have one checksum, and that a thread copies at a time.
const CHUNK: usize = 4 << 20;
/// The number of bytes that a thread reads at a time: this block and the next stay in the first
/// cache of the core until they are hashed and written.
const BLOCK: usize = 16 << 10;

/// A request to copy memory to one NUMA node.
#[derive(Debug)]
// Exhaustive: the operands of the copy, all of which the caller has.
pub struct NodeCopy<'a> {
    /// The name of the memory file.
    pub name: String,
    /// The name of the copies in messages, such as `the copies of buffer "index"`.
    pub label: String,
    /// The memory to copy, each source in whole pages. Nothing may change it.
    pub sources: Vec<&'a [u8]>,
    /// The kind of pages, never [`Pages::Auto`].
    pub pages: Pages,
    /// The node.
    pub node: NodeId,
    /// The cores that do the work, usually those of the node.
    pub cores: Cores,
    /// The nodes of the host.
    pub host: &'a HostNodes,
}

/// A sealed memory file with copies.
#[derive(Debug)]
#[non_exhaustive]
pub struct CopiedFile {
    /// The descriptor. The copies of the sources follow each other without gaps.
    pub file: OwnedFd,
    /// The time for allocating the pages on the node.
    pub populate: Duration,
    /// The time for copying the bytes.
    pub copy: Duration,
    /// The time for sealing the file and comparing the checksums.
    pub compare: Duration,
}

impl NodeCopy<'_> {
    /// Makes the file: allocates its pages on the node, copies the sources one after the other,
    /// seals the file against all writes, and then compares the checksums of the copies with those
    /// of the bytes that were read.
    ///
    /// # Errors
    /// Those of [`create_all`] and [`populate_placed`]; [`Error::Copy`] if the bytes of a copy
    /// differ; [`Error::Os`].
    pub fn make(&self) -> Result<CopiedFile> {
        let begun = Instant::now();
        let file = self.populated()?;
        let populate = begun.elapsed();
        let expected = self.copy(file.as_fd())?;
        let copy = begun.elapsed() - populate;
        let seal = || {
            memfd::seal_when_free(file.as_fd(), Seals::WRITE, || true)?;
            memfd::seal(file.as_fd(), Seals::SEAL)
        };
        seal().map_err(Error::os(format!("sealing {} on node {}", self.label, self.node)))?;
        self.compare(file.as_fd(), &expected)?;
        let compare = begun.elapsed() - populate - copy;
        tracing::debug!(node = %self.node, ?populate, ?copy, ?compare, "copied");
        Ok(CopiedFile { file, populate, copy, compare })
    }

    fn length(&self) -> u64 {
        self.sources.iter().map(|source| source.len() as u64).sum()
    }

    /// Creates the file, and allocates its pages on the node.
    fn populated(&self) -> Result<OwnedFd> {
        let length = self.length();
        let part = DemandPart::new(length, Some(Placement::Node(self.node))).named(self.label.clone());
        let demand = Demand::new(length, self.pages).parts(vec![part]);
        let mut created = create_all(&[demand], std::slice::from_ref(&self.name), Some(self.host))?;
        let CreatedFile { file, pages, plan } = created.remove(0);
        let request = PageRequest::new(&plan, pages);
        let obtained = populate_placed(file.as_fd(), request, &|_| self.cores, &mut |_| {})?;
        if pages == Pages::Transparent && obtained.huge < length {
            let huge = obtained.huge;
            tracing::warn!(node = %self.node, huge, length, "a node has too few huge pages for its copies");
        }
        Ok(file)
    }

    /// Copies the sources. Returns the checksums of the chunks that were read.
    fn copy(&self, file: BorrowedFd<'_>) -> Result<Vec<u64>> {
        let mapping = FileMapping::new(file, 0, self.length(), self.alignment()).map_err(self.unmapped())?;
        // SAFETY: mapped until the end of this function, for writing, and no other process knows
        // the file.
        let mut into =
            unsafe { std::slice::from_raw_parts_mut(mapping.start() as *mut u8, mapping.len() as usize) };
        let mut chunks = Vec::new();
        let mut offset = 0;
        for from in self.sources.iter().flat_map(|source| source.chunks(CHUNK)) {
            let (first, rest) = into.split_at_mut(from.len());
            chunks.push((offset, first, from));
            offset += from.len() as u64;
            into = rest;
        }
        Ok(on_cores(&self.cores, chunks, |(offset, into, from): (u64, &mut [u8], &[u8])| {
            // One call instead of a fault for each page, and for reading, since the kernel then
            // maps several pages at a time, which are writable nevertheless. The pages are
            // allocated, so without the advice, as before Linux 5.14, the stores fault.
            let _ = mapping.advise(offset, from.len() as u64, libc::MADV_POPULATE_READ);
            let sum = copy_chunk(into, from);
            if self.pages == Pages::Small {
                // Many small pages are unmapped faster by all threads than at once.
                let _ = mapping.advise(offset, from.len() as u64, libc::MADV_DONTNEED);
            }
            sum
        }))
    }

    /// Compares the checksums of the sealed copies with those of the bytes that were read.
    fn compare(&self, file: BorrowedFd<'_>, expected: &[u64]) -> Result<()> {
        let mapping = FileMapping::read_only(file, 0, self.length(), self.alignment());
        let mapping = mapping.map_err(self.unmapped())?;
        // SAFETY: mapped until the end of this function, and sealed, so no process changes it.
        let copy =
            unsafe { std::slice::from_raw_parts(mapping.start() as *const u8, mapping.len() as usize) };
        let mut rest = copy;
        let mut chunks = Vec::new();
        for from in self.sources.iter().flat_map(|source| source.chunks(CHUNK)) {
            let (first, behind) = rest.split_at(from.len());
            chunks.push(first);
            rest = behind;
        }
        let found = on_cores(&self.cores, chunks, XxHash3_64::oneshot);
        let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) else {
            return Ok(());
        };
        Err(Error::Copy {
            why: format!(
                "the checksum of chunk {} of {} ({CHUNK} bytes each) of {} on node {} is {:#018x} instead of {:#018x}: another process \
                 has written to the copy, or the memory of the node is faulty. Freeze the buffer again; if the error recurs, test \
                 the memory of the node",
                at + 1,
                found.len(),
                self.label,
                self.node,
                found[at],
                expected[at]
            ),
        })
    }

    fn alignment(&self) -> usize {
        self.pages.size().max(EXTENT) as usize
    }

    fn unmapped(&self) -> impl FnOnce(MappingRefused) -> Error {
        let doing = format!("mapping {} on node {}", self.label, self.node);
        move |refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            Error::os(doing)(std::io::Error::from_raw_os_error(errno))
        }
    }
}

/// Copies a chunk. Returns the checksum of the bytes that were read (XXH3, 64 bits).
fn copy_chunk(into: &mut [u8], from: &[u8]) -> u64 {
    let mut sum = XxHash3_64::new();
    let mut rest = from;
    for into in into.chunks_mut(BLOCK) {
        let (block, next) = rest.split_at(into.len());
        sum.write(block);
        non_temporal::copy_and_prefetch(into, block, next);
        rest = next;
    }
    non_temporal::fence();
    sum.finish()
}
