//! The user's handle of a buffer.

use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::job::HostIndex;
use crate::segment::control::Control;
use crate::segment::fill_state::FillState;
use crate::segment::identity::BufferIdentity;
use crate::segment::mapped_segment::MappedSegment;
use crate::segment::phase::Phase;
use hostbuf_memory::Pages;
use hostbuf_register::Span;

/// A buffer of this host, mapped in this process at the address that all ranks of all hosts agreed
/// on.
///
/// Clones refer to the same buffer. A buffer of [`allocate`](HostBuffer::allocate) is unmapped with
/// the last handle of the process, and its memory is freed with the last process. A buffer of a
/// launcher stays mapped until the process ends.
///
/// hostbuf gives no consistency guarantees: synchronise concurrent reads and writes yourself. The
/// usual sequence is [`initialize`](HostBuffer::initialize), [`replicate`](HostBuffer::replicate),
/// [`freeze`](HostBuffer::freeze), and then reading.
#[derive(Clone, Debug)]
pub struct HostBuffer {
    pub(crate) segment: Arc<MappedSegment>,
    pub(crate) index: usize,
}

impl HostBuffer {
    pub(crate) fn identity(&self) -> &BufferIdentity {
        &self.segment.identity.buffers[self.index]
    }

    pub(crate) fn control(&self) -> Control<'_> {
        self.segment.control()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fds[self.index].as_fd()
    }

    /// Returns the address of the first byte, the same in every rank of every host. It is valid for
    /// reads of [`len`](HostBuffer::len) bytes and, until the buffer is frozen, for writes.
    ///
    /// # Panics
    /// Never: no buffer begins at address 0.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        let address = self.segment.identity.address + self.identity().offset;
        NonNull::new(address as *mut u8).expect("no buffer begins at address 0")
    }

    /// Returns an owner of the mapping: the buffer stays mapped as long as the owner exists. It is
    /// meant for registrations that the program makes itself.
    #[must_use]
    pub fn keepalive(&self) -> Arc<dyn Send + Sync> {
        self.segment.clone()
    }

    /// Returns the number of usable bytes: the requested size, rounded up to whole pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer has at least one byte")]
    pub fn len(&self) -> usize {
        self.identity().length as usize
    }

    /// Returns the address range of the bytes `region` of the buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region is empty or not inside the buffer.
    pub fn region(&self, region: impl RangeBounds<usize>) -> Result<Span> {
        let start = match region.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match region.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        if start >= end || end > self.len() {
            let (name, length) = (self.name(), self.len());
            return Err(Error::invalid(format!(
                "invalid region {start}..{end}: expected at least one byte, inside buffer \"{name}\" of {length} bytes"
            )));
        }
        Ok(Span::new(self.as_ptr().as_ptr() as usize + start, end - start)?)
    }

    /// Returns the name: `default` unless another one was requested.
    #[must_use]
    pub fn name(&self) -> String {
        self.identity().name()
    }

    /// Returns the kind of pages that were obtained on this host.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.identity().pages
    }

    /// Returns the number of bytes on huge pages.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.identity().huge
    }

    /// Returns the index of this host in the job, or `None` under `hostbuf exec`, where the hosts
    /// do not know each other.
    ///
    /// ```
    /// use hostbuf::{BufferOptions, HostBuffer};
    /// use hostbuf::job::{HostIndex, Solo};
    ///
    /// let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(4096))?;
    /// assert_eq!((buffer.host(), buffer.hosts()), (Some(HostIndex(0)), 1));
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    #[must_use]
    pub fn host(&self) -> Option<HostIndex> {
        (self.hosts() > 0).then_some(HostIndex(self.segment.identity.host as usize))
    }

    /// Returns the number of hosts of the job: 0 under `hostbuf exec`, where the hosts do not know
    /// each other.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.segment.identity.hosts as usize
    }

    /// Returns the duration of each phase before the ranks started.
    #[must_use]
    pub fn phases(&self) -> Vec<(Phase, std::time::Duration)> {
        Phase::ALL.into_iter().zip(self.control().phases()).collect()
    }

    /// Returns the fill state on this host.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn fill_state(&self) -> Result<FillState> {
        self.control().fill(self.index)
    }

    /// Returns the number of fills that have begun on this host. It exceeds 1 if a filler died or
    /// failed.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn generation(&self) -> Result<u64> {
        self.control().generation(self.index)
    }

    /// Returns the number of bytes, from the beginning, that the arena has allocated.
    /// [`replicate`](HostBuffer::replicate) sends these.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn high_water(&self) -> Result<u64> {
        let mark = self.control().high_water(self.index)?;
        if mark > self.len() as u64 {
            return Err(Error::Corrupt { word: "the high-water mark", found: mark });
        }
        Ok(mark)
    }

    /// Returns whether `[pointer, pointer + bytes)` is inside the buffer.
    #[must_use]
    pub fn contains(&self, pointer: *const u8, bytes: usize) -> bool {
        let start = self.as_ptr().as_ptr() as usize;
        (pointer as usize).checked_sub(start).is_some_and(|at| at <= self.len() && bytes <= self.len() - at)
    }
}
