//! The nodes of the pages of a memory file, whichever process has mapped it.

#![allow(unsafe_code, reason = "maps the file, and calls lseek for the holes in it")]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use crate::numa::page_nodes::page_nodes;

/// Returns the node of the page at every `page` bytes of a memory file, `None` for holes. It
/// allocates no page: only what the file has is mapped and read.
///
/// A file with huge pages of a pool must have all of its pages, since the kernel does not report
/// its holes.
pub fn file_page_nodes(file: &impl AsFd, page: usize) -> io::Result<Vec<Option<u32>>> {
    // The file is opened again, so that its offset is not that of others.
    let file = File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
    let metadata = file.metadata()?;
    let Some(length) = NonZeroUsize::new(metadata.len() as usize) else { return Ok(Vec::new()) };
    let complete = metadata.blocks() * 512 >= metadata.len();
    if !complete && fstatfs(&file)?.filesystem_type() == HUGETLBFS_MAGIC {
        let (bytes, size) = (metadata.blocks() * 512, metadata.len());
        return Err(io::Error::other(format!("the file has {bytes} of its {size} bytes")));
    }
    // The kernel reports allocated pages that were never written as holes.
    let extents = if complete { vec![(0, length.get())] } else { data(&file)? };
    // SAFETY: a new mapping, which nothing refers to.
    let base = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &file, 0)? };
    let populate = || -> io::Result<()> {
        for &(begin, end) in &extents {
            // SAFETY: inside the mapping above, which it only reads.
            unsafe { madvise(base.byte_add(begin), end - begin, MmapAdvise::MADV_POPULATE_READ)? };
        }
        Ok(())
    };
    let nodes = populate().and_then(|()| page_nodes(0, base.as_ptr() as usize, length.get(), page));
    // SAFETY: the mapping above, which nothing refers to.
    unsafe { munmap(base, length.get())? };
    nodes
}

/// Returns the begin and the end of each part of a file that has contents.
fn data(file: &File) -> io::Result<Vec<(usize, usize)>> {
    // SAFETY: changes the offset of a file that the caller has opened for this.
    let seek = |from: usize, to: i32| unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, to) };
    let mut extents = Vec::new();
    let mut end = 0;
    loop {
        let begin = seek(end, libc::SEEK_DATA);
        if begin < 0 {
            let error = Errno::last();
            return if error == Errno::ENXIO { Ok(extents) } else { Err(error.into()) };
        }
        let next = seek(begin as usize, libc::SEEK_HOLE);
        Errno::result(next)?;
        end = next as usize;
        extents.push((begin as usize, end));
    }
}
