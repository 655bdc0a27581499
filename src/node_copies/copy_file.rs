//! The memory file of one node with its copies of the sections of a buffer.

#![allow(unsafe_code, reason = "makes slices of mapped memory files")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use hostbuf_memory::placement::{HostNodes, Placement};
use hostbuf_memory::populate::{PageRequest, populate_placed};
use hostbuf_memory::{
    CreatedFile, Demand, DemandPart, FileMapping, MappingRefused, Pages, Seals, create_all, memfd,
};
use hostbuf_os::cores::Cores;
use hostbuf_os::{NodeId, non_temporal};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::core_threads::on_cores;
use crate::error::{Error, Result};
use crate::seal::seal_when_free;

/// The number of bytes that have one checksum, and that a thread copies at a time.
const PART: usize = 4 << 20;
/// The number of bytes that a thread reads at a time: they stay in the cache of the core until they
/// are hashed and written.
const BLOCK: usize = 128 << 10;

/// The copies of a node that are to be made.
pub(super) struct CopyFile<'a> {
    /// The name of the memory file.
    pub(super) name: String,
    /// The sections with copies in messages, such as `the copies of buffer "index"`.
    pub(super) part: String,
    /// The bytes of the sections, which nothing changes any more. Each has whole pages.
    pub(super) sources: Vec<&'a [u8]>,
    /// The kind of pages.
    pub(super) pages: Pages,
    /// The node.
    pub(super) node: NodeId,
    /// The cores of the node that its ranks may use.
    pub(super) cores: Cores,
    /// The nodes of the host.
    pub(super) host: &'a HostNodes,
}

impl CopyFile<'_> {
    /// Makes the file: allocates its pages on the node, copies the sections one after the other,
    /// seals the file against all writes, and then compares the checksums of the copies with those
    /// of the sources.
    ///
    /// # Errors
    /// Those of creating and populating a memory file with a placement; [`Error::Freeze`] if the
    /// bytes of a copy differ; [`Error::Os`].
    pub(super) fn make(&self) -> Result<OwnedFd> {
        let begun = Instant::now();
        let file = self.populated()?;
        let populated = begun.elapsed();
        let expected = self.copy(file.as_fd())?;
        let copied = begun.elapsed() - populated;
        seal_when_free(file.as_fd(), Seals::WRITE, || true)
            .and_then(|()| memfd::seal(file.as_fd(), Seals::SEAL))
            .map_err(Error::os(format!("sealing {} on node {}", self.part, self.node)))?;
        self.compare(file.as_fd(), &expected)?;
        tracing::debug!(node = %self.node, ?populated, ?copied, elapsed = ?begun.elapsed(), "copied");
        Ok(file)
    }

    fn length(&self) -> u64 {
        self.sources.iter().map(|source| source.len() as u64).sum()
    }

    /// Creates the file, and allocates its pages on the node.
    fn populated(&self) -> Result<OwnedFd> {
        let length = self.length();
        let part = DemandPart::new(length, Some(Placement::Node(self.node))).named(self.part.clone());
        let demand = Demand::new(length, self.pages).parts(vec![part]);
        let mut created = create_all(&[demand], std::slice::from_ref(&self.name), Some(self.host))?;
        let CreatedFile { file, pages, plan } = created.remove(0);
        let request = PageRequest::new(&plan, pages);
        populate_placed(file.as_fd(), request, &|_| self.cores, &mut |_| {})?;
        Ok(file)
    }

    /// Copies the sections. Returns the checksums of the parts that were read.
    fn copy(&self, file: BorrowedFd<'_>) -> Result<Vec<u64>> {
        let mapping = FileMapping::new(file, 0, self.length(), self.alignment()).map_err(self.unmapped())?;
        // SAFETY: mapped until the end of this function, for writing, and no other process knows
        // the file.
        let mut into =
            unsafe { std::slice::from_raw_parts_mut(mapping.start() as *mut u8, mapping.len() as usize) };
        let mut parts = Vec::new();
        for from in self.sources.iter().flat_map(|source| source.chunks(PART)) {
            let (first, rest) = into.split_at_mut(from.len());
            parts.push((first, from));
            into = rest;
        }
        Ok(on_cores(&self.cores, parts, |(into, from): (&mut [u8], &[u8])| copy_part(into, from)))
    }

    /// Compares the checksums of the sealed copies with those of the bytes that were read.
    fn compare(&self, file: BorrowedFd<'_>, expected: &[u64]) -> Result<()> {
        let mapping = FileMapping::read_only(file, 0, self.length(), self.alignment());
        let mapping = mapping.map_err(self.unmapped())?;
        // SAFETY: mapped until the end of this function, and sealed, so no process changes it.
        let copy =
            unsafe { std::slice::from_raw_parts(mapping.start() as *const u8, mapping.len() as usize) };
        let mut rest = copy;
        let mut parts = Vec::new();
        for from in self.sources.iter().flat_map(|source| source.chunks(PART)) {
            let (first, behind) = rest.split_at(from.len());
            parts.push(first);
            rest = behind;
        }
        let found = on_cores(&self.cores, parts, xxh3_64);
        let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) else {
            return Ok(());
        };
        Err(Error::Freeze {
            why: format!(
                "the checksum of a part of {} on node {} (part {at} of {}, each of {PART} bytes) is {:#018x} instead of {:#018x}: another \
                 process has written to the copy, or the memory is faulty",
                self.part,
                self.node,
                found.len(),
                found[at],
                expected[at]
            ),
        })
    }

    fn alignment(&self) -> usize {
        self.pages.size().max(Pages::Transparent.size()) as usize
    }

    fn unmapped(&self) -> impl FnOnce(MappingRefused) -> Error {
        let doing = format!("mapping {} on node {}", self.part, self.node);
        move |refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            Error::os(doing)(std::io::Error::from_raw_os_error(errno))
        }
    }
}

/// Copies a part. Returns the checksum of the bytes that were read.
fn copy_part(into: &mut [u8], from: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
        sum.update(from);
        non_temporal::copy(into, from);
    }
    non_temporal::fence();
    sum.digest()
}
