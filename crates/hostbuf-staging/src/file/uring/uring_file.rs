//! A file that is read and written by io_uring.

#![allow(unsafe_code, reason = "lets the kernel write to a slice while it is borrowed")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::RwLock;

use hostbuf_os::per_process::PerProcess;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::set_once::SetOnce;

use super::io_queue::{Direction, IoQueue, Piece};
use super::thread_queue::with_queue;
use crate::file::direct_io::DirectFile;

/// The largest number of bytes of one call.
const LARGEST: usize = 1 << 30;

/// Returns whether this process has io_uring.
///
/// # Errors
/// The reason why it has none.
pub(in crate::file) fn probe() -> Result<(), String> {
    IoQueue::new().map(drop)
}

/// The part of a file that io_uring reads and writes, bypassing the page cache where the file
/// allows it.
#[derive(Debug)]
pub(in crate::file) struct UringFile {
    direct: Option<DirectFile>,
    /// The lock that writes bypassing the page cache share, and that a write through it has alone:
    /// see [`write_edge`](UringFile::write_edge). The threads of a ring share it while they write,
    /// so a forked child needs one of its own.
    edges: PerProcess<RwLock<()>>,
    /// The reason why the memory of a ring was not registered.
    refusal: SetOnce<String>,
    /// True if nobody has requested io_uring, so that other system calls may replace it.
    is_replaceable: bool,
    /// The reason why a thread had no io_uring, since which the file is read and written by
    /// `pread` and `pwrite`.
    replaced: SetOnce<String>,
}

impl UringFile {
    /// Makes a file. Without a descriptor that bypasses the page cache, io_uring goes through
    /// it.
    pub(in crate::file) fn new(direct: Option<DirectFile>) -> UringFile {
        UringFile {
            direct,
            edges: PerProcess::new(),
            refusal: SetOnce::new(),
            is_replaceable: false,
            replaced: SetOnce::new(),
        }
    }

    /// Lets `pread` and `pwrite` replace io_uring as soon as a thread has none.
    pub(in crate::file) fn replaceable(mut self) -> UringFile {
        self.is_replaceable = true;
        self
    }

    /// Returns the reason why the file is read and written without io_uring, if it is.
    pub(in crate::file) fn replaced(&self) -> Option<&str> {
        self.replaced.get().map(String::as_str)
    }

    /// Returns the descriptor that bypasses the page cache.
    pub(in crate::file) fn direct(&self) -> Option<&DirectFile> {
        self.direct.as_ref()
    }

    /// Returns the reason why the slots of a ring that has used the file are not fixed buffers, or
    /// `None` if they are, and before the first use.
    pub(in crate::file) fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
    }

    /// Reads bytes at `offset`, and returns their number. If the file has a descriptor past the
    /// page cache, memory and offset are aligned as it demands.
    ///
    /// # Errors
    /// As `pread(2)`, and those of io_uring.
    pub(in crate::file) fn read_at(
        &self,
        buffered: &File,
        into: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        let bytes = into.len().min(LARGEST);
        let piece = self.piece(buffered, Direction::Read, (into.as_mut_ptr(), bytes), offset);
        // SAFETY: the slice is borrowed until the call returns.
        let read = unsafe { self.run(&piece) };
        read.unwrap_or_else(|| self.descriptor(buffered).read_at(into, offset))
    }

    /// Writes bytes at `offset`, and returns their number, as [`read_at`](UringFile::read_at).
    ///
    /// # Errors
    /// As `pwrite(2)`, and those of io_uring.
    pub(in crate::file) fn write_at(&self, buffered: &File, from: &[u8], offset: u64) -> io::Result<usize> {
        let bytes = from.len().min(LARGEST);
        let piece = self.piece(buffered, Direction::Write, (from.as_ptr().cast_mut(), bytes), offset);
        let _no_edge = self.edges.get().read().ignore_poison();
        // SAFETY: the slice is borrowed until the call returns, and the kernel only reads it.
        let written = unsafe { self.run(&piece) };
        written.unwrap_or_else(|| self.descriptor(buffered).write_at(from, offset))
    }

    /// Writes a part of a block through the page cache.
    ///
    /// The kernel drops the cached pages of a block when it has written the block bypassing the
    /// page cache. If such a page is written meanwhile, the kernel reports possible corruption, and
    /// the next fsync fails with EIO. `pwrite` excludes that by the lock of the inode, but io_uring
    /// gives the lock up when the operation has started. Writes of other processes, and by another
    /// file of this one, are not excluded.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    pub(in crate::file) fn write_edge(&self, buffered: &File, from: &[u8], offset: u64) -> io::Result<usize> {
        let _alone = self.edges.get().write().ignore_poison();
        buffered.write_at(from, offset)
    }

    /// Returns the descriptor that is read and written.
    fn descriptor<'f>(&'f self, buffered: &'f File) -> &'f File {
        self.direct.as_ref().map_or(buffered, |direct| &direct.file)
    }

    fn piece(
        &self,
        buffered: &File,
        direction: Direction,
        (memory, bytes): (*mut u8, usize),
        offset: u64,
    ) -> Piece {
        let descriptor = self.descriptor(buffered).as_raw_fd();
        let alignment = self.direct.as_ref().map_or(1, |direct| direct.alignment as usize);
        Piece { descriptor, direction, memory, bytes, offset, alignment }
    }

    /// Reads or writes a piece in the io_uring of the calling thread. Returns `None` if the file is
    /// read and written without io_uring.
    ///
    /// # Safety
    /// As [`IoQueue::run`].
    unsafe fn run(&self, piece: &Piece) -> Option<io::Result<usize>> {
        if self.replaced.get().is_some() {
            return None;
        }
        let run = with_queue(|queue| {
            if let Some(why) = queue.refusal()
                && self.refusal.get().is_none()
            {
                self.refusal.set(why.to_owned());
            }
            // SAFETY: the caller's promise.
            unsafe { queue.run(piece) }
        });
        match run {
            Ok(result) => Some(result),
            Err(why) if self.is_replaceable => {
                self.replaced.set(why);
                None
            }
            Err(why) => Some(Err(io::Error::other(why))),
        }
    }
}
