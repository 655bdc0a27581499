//! The part of userfaultfd(2) that the monitor uses.

#![allow(unsafe_code, reason = "the system calls have addresses of structures as operands")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::stat::fstat;

use super::change_mark::{ChangeMark, ChangeState};
use crate::span::Span;
use hostbuf_os::memory;
use hostbuf_os::raw::{self, Errno};

const API: u64 = 0xaa;
const API_IOCTL: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const UNREGISTER: u64 = 0x8010_aa01;
const WRITEPROTECT: u64 = 0xc018_aa06;
const USER_MODE_ONLY: i32 = 1;
const MODE_WP: u64 = 2;

const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// The requested features: write-protection faults, and the events of remap, remove and unmap. The
/// event of a fork is not requested, since its receiver must serve the child.
pub(super) const FEATURES: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// A userfaultfd, which reports changes of this process's address space.
pub(super) struct Userfaultfd {
    fd: OwnedFd,
    /// The device and the inode of its file. Each userfaultfd has its own inode.
    file: (u64, u64),
}

/// A change of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappingChange {
    /// The range is no longer mapped.
    Gone,
    /// The pages are discarded, and the mapping stays.
    Discarded,
    /// A watched mapping has moved there, or its beginning if the mapping has grown.
    Arrived,
}

/// Events of the kernel, read without allocating.
pub(super) struct EventBuffer {
    bytes: [u64; 4 * EventBuffer::MOST],
    count: usize,
}

impl EventBuffer {
    const MOST: usize = 32;

    pub(super) fn new() -> EventBuffer {
        EventBuffer { bytes: [0; 4 * EventBuffer::MOST], count: 0 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, MappingChange)> {
        self.bytes[..4 * self.count].chunks_exact(4).flat_map(|message| {
            let (first, second, third) = (message[1], message[2], message[3]);
            let change = |start: u64, length: Option<u64>, change| {
                Some((Span::new(start as usize, length? as usize).ok()?, change))
            };
            // The first byte is the kind of the event, and three operands follow the first eight
            // bytes.
            let changes = match message[0] as u8 {
                EVENT_REMAP => [
                    change(first, Some(third), MappingChange::Gone),
                    change(second, Some(third), MappingChange::Arrived),
                ],
                EVENT_REMOVE => [change(first, second.checked_sub(first), MappingChange::Discarded), None],
                EVENT_UNMAP => [change(first, second.checked_sub(first), MappingChange::Gone), None],
                _ => [None, None],
            };
            changes.into_iter().flatten()
        })
    }
}

impl Userfaultfd {
    /// Opens a userfaultfd with these features.
    ///
    /// # Errors
    /// `EPERM` if it is forbidden, as often in containers; `ENOSYS`; `EINVAL` if the kernel lacks a
    /// feature.
    pub(super) fn open(features: u64) -> io::Result<Userfaultfd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let file = file_of(&fd)?;
        let userfault = Userfaultfd { fd, file };
        let mut api = [API, features, 0];
        userfault.control(API_IOCTL, &mut api)?;
        if api[1] & features != features {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(userfault)
    }

    /// Makes an ioctl request with these operands.
    fn control(&self, request: u64, words: &mut [u64]) -> io::Result<()> {
        // SAFETY: each caller passes as many words as its request reads and writes.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, words.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns whether the calling thread has this userfaultfd, and not another file in its place.
    pub(super) fn is_current_file(&self) -> bool {
        file_of(&self.fd).is_ok_and(|file| file == self.file)
    }

    /// Watches a range that consists of whole mappings.
    pub(super) fn register(&self, span: Span) -> io::Result<()> {
        self.control(REGISTER, &mut [span.start() as u64, span.len() as u64, MODE_WP, 0])
    }

    /// Stops watching a range.
    pub(super) fn unregister(&self, span: Span) -> io::Result<()> {
        self.control(UNREGISTER, &mut [span.start() as u64, span.len() as u64])
    }

    /// Reads the events that are pending, as many as `messages` has room for. Returns whether there
    /// may be more.
    pub(super) fn read(&self, messages: &mut EventBuffer) -> bool {
        let size = size_of_val(&messages.bytes);
        // SAFETY: the buffer has `size` bytes.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), messages.bytes.as_mut_ptr().cast(), size) };
        messages.count = usize::try_from(n).unwrap_or(0) / 32;
        messages.count == EventBuffer::MOST
    }
}

/// Returns the device and the inode of a file.
fn file_of(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    let file = fstat(fd)?;
    Ok((file.st_dev, file.st_ino))
}

/// Waits until all threads that change the address space, or discard pages of it, have released its
/// lock: mapping and unmapping a page takes that lock for writing.
pub(super) fn wait_for_the_address_space() {
    let (page, flags) = (memory::page_size() as usize, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the page belongs to this function.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), page, libc::PROT_NONE, flags, -1, 0);
        if at != libc::MAP_FAILED {
            libc::munmap(at, page);
        }
    }
}

impl ChangeMark for Userfaultfd {
    /// Queries the kernel's mark with an empty range. The kernel checks the mark first (`EAGAIN`),
    /// then the range (`EINVAL`).
    ///
    /// Some other files answer `EINVAL` to an unknown request: an epoll instance since Linux 6.9,
    /// `/dev/urandom`, a userfaultfd without `UFFDIO_API`. A thread that has one of these in the
    /// userfaultfd's place sees no change in progress. `EFAULT`, for an operand that cannot be
    /// read, would rule them out. But the kernel then takes a page fault, so the request costs 680
    /// ns instead of 165 ns (Linux 6.18, x86-64), valgrind reports the operand, and a driver that
    /// copies the operand before it checks the request answers `EFAULT` too. So each miss checks
    /// the file itself ([`is_current_file`](Userfaultfd::is_current_file)).
    #[inline(always)]
    fn state(&self) -> ChangeState {
        let none = [0u64; 3];
        // SAFETY: the request reads three words, which `none` has.
        let result =
            unsafe { raw::ioctl(self.fd.as_raw_fd(), WRITEPROTECT as usize, none.as_ptr() as usize) };
        match result {
            Err(Errno::INVAL) => ChangeState::Quiet,
            Err(Errno::AGAIN) => ChangeState::Changing,
            _ => ChangeState::Unknown,
        }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
