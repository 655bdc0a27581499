//! Memory that is registered with an io_uring.

#![allow(unsafe_code, reason = "registers memory that the caller keeps")]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use hostbuf_os::{Bytes, memlock};
use io_uring::IoUring;

/// The largest length of a fixed buffer in bytes.
const LARGEST: usize = 1 << 30;

/// A range of memory whose pages an io_uring has pinned, in buffers of 1 GiB. Reads into it take no
/// reference to each page.
pub(super) struct FixedBuffers {
    memory: Range<usize>,
}

impl FixedBuffers {
    /// Registers `memory`.
    ///
    /// # Errors
    /// The reason why it cannot be registered.
    ///
    /// # Safety
    /// The memory stays mapped until [`end`](FixedBuffers::end), or until the io_uring has ended.
    #[doc(alias = "IORING_REGISTER_BUFFERS")]
    pub(super) unsafe fn register(ring: &IoUring, memory: NonNull<[u8]>) -> Result<FixedBuffers, String> {
        let (start, bytes) = (memory.cast::<u8>().as_ptr(), memory.len());
        let buffer = |offset: usize| libc::iovec {
            iov_base: start.wrapping_add(offset).cast(),
            iov_len: LARGEST.min(bytes - offset),
        };
        let buffers: Vec<_> = (0..bytes).step_by(LARGEST).map(buffer).collect();
        // SAFETY: the caller keeps the memory.
        match unsafe { ring.submitter().register_buffers(&buffers) } {
            Ok(()) => Ok(FixedBuffers { memory: start as usize..start as usize + bytes }),
            Err(error) => Err(refusal(bytes, &error)),
        }
    }

    /// Returns the number of the buffer in which `memory` lies. `None` if it lies in several, or in
    /// none.
    pub(super) fn index(&self, memory: Range<usize>) -> Option<u16> {
        if memory.is_empty() || memory.start < self.memory.start || memory.end > self.memory.end {
            return None;
        }
        let number = |address: usize| (address - self.memory.start) / LARGEST;
        let first = number(memory.start);
        (first == number(memory.end - 1)).then(|| u16::try_from(first).ok()).flatten()
    }

    /// Ends the registration, and returns when no page is pinned any more. Closing an io_uring does
    /// that later.
    ///
    /// # Errors
    /// As `io_uring_register(2)`.
    pub(super) fn end(self, ring: &IoUring) -> io::Result<()> {
        ring.submitter().unregister_buffers()
    }
}

/// Describes why memory is not registered.
fn refusal(bytes: usize, error: &io::Error) -> String {
    let request = format!("io_uring cannot register {} ({error})", Bytes(bytes as u64));
    match (error.raw_os_error(), memlock::limit()) {
        (Some(libc::ENOMEM), Some(limit)) => {
            format!("{request}: the limit of locked memory is {}, raise ulimit -l", Bytes(limit))
        }
        _ => request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_in_one_buffer() {
        const START: usize = 7 << 40;
        let buffers = FixedBuffers { memory: START..START + 2 * LARGEST + 4096 };
        assert_eq!(buffers.index(START..START + LARGEST), Some(0));
        assert_eq!(buffers.index(START + LARGEST..START + LARGEST + 1), Some(1));
        assert_eq!(buffers.index(START + 2 * LARGEST..START + 2 * LARGEST + 4096), Some(2));
        assert_eq!(buffers.index(START + LARGEST - 1..START + LARGEST + 1), None);
        assert_eq!(buffers.index(START - 1..START + 1), None);
        assert_eq!(buffers.index(START + 2 * LARGEST..START + 2 * LARGEST + 4097), None);
        assert_eq!(buffers.index(START..START), None);
    }
}
