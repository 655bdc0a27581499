//! A region of a buffer that one part of a process uses alone.

#![allow(unsafe_code, reason = "promises that nothing else in this process accesses the region")]

use std::any::Any;
use std::fmt;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf_register::{Access, Registrar, RingMemory, Span, own_ranges};

use crate::HostBuffer;
use crate::error::{Error, Result};
use crate::segment::fill_state::FillState;
use crate::segment::mapped_segment::MappedSegment;

/// A region of a filled buffer that one part of this process uses alone, as the memory of a ring
/// between files and devices. The buffer stays mapped as long as this exists.
///
/// Freezing the buffer ends a ring in the region first.
pub struct ExclusiveRegion {
    /// Dropped before the claim ends.
    registration: Option<Box<dyn Any + Send + Sync>>,
    claim: RegionClaim,
    buffer: HostBuffer,
}

/// The claim on a region, which ends on drop.
struct RegionClaim {
    span: Span,
    segment: Arc<MappedSegment>,
}

impl Drop for RegionClaim {
    fn drop(&mut self) {
        self.segment.regions.release(self.span);
    }
}

impl HostBuffer {
    /// Takes the bytes `region` of the buffer for one part of this process. The buffer is filled,
    /// and the region lies behind its [content](HostBuffer::high_water), so no object is there.
    ///
    /// Other processes have the same memory, and so has another copy of this library in the
    /// process: they agree which of them uses which bytes.
    ///
    /// ```
    /// use hostbuf::{BufferOptions, HostBuffer, job::Solo};
    ///
    /// let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20))?;
    /// buffer.initialize(|arena| arena.place(3.14159))?;
    /// let region = buffer.exclusive_region(64 << 10..)?;
    /// assert!(buffer.exclusive_region(512 << 10..).is_err(), "it is a part of the other one");
    /// # drop(region);
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is not inside the buffer, is not behind the content, or
    /// overlaps another one; [`Error::Fill`] if the buffer is not filled; [`Error::Freeze`] if it
    /// is frozen, or is being frozen.
    pub fn exclusive_region(&self, region: impl RangeBounds<usize>) -> Result<ExclusiveRegion> {
        let span = self.region(region)?;
        match self.fill_state()? {
            FillState::Empty | FillState::Filling => {
                let why = format!(
                    "buffer \"{}\" is not filled, so its content has no end: fill it first",
                    self.name()
                );
                return Err(Error::Fill { why });
            }
            FillState::Filled | FillState::Frozen => {}
        }
        own_ranges::may_write(span)?;
        let (start, content) = (self.as_ptr().as_ptr() as usize, self.high_water()? as usize);
        if span.start() < start + content {
            let from = span.start() - start;
            return Err(Error::invalid(format!(
                "invalid region from {from} on: the content of buffer \"{}\" ends at {content}",
                self.name()
            )));
        }
        self.segment.regions.claim(span).map_err(|other| {
            Error::invalid(format!("invalid region {span}: another part of the process uses {other}"))
        })?;
        let claim = RegionClaim { span, segment: self.segment.clone() };
        Ok(ExclusiveRegion { registration: None, claim, buffer: self.clone() })
    }
}

impl ExclusiveRegion {
    /// Registers the region with a device, for copies in both directions. The registration ends
    /// with the region.
    ///
    /// # Errors
    /// As [`HostBuffer::register_until_freeze`].
    pub fn registered<R: Registrar>(mut self, registrar: &Arc<R>) -> Result<ExclusiveRegion> {
        let start = self.claim.span.start() - self.buffer.as_ptr().as_ptr() as usize;
        let region = start..start + self.claim.span.len();
        let registration = self.buffer.register_until_freeze(registrar, region, Access::WRITE)?;
        self.registration = Some(Box::new(registration));
        Ok(self)
    }

    /// Returns the address range.
    #[must_use]
    pub fn span(&self) -> Span {
        self.claim.span
    }
}

// SAFETY: the buffer stays mapped, and its memory is initialised. Its arena is closed, since it is
// filled, and has no blocks in the region; no other object of this process stands for a part of it.
unsafe impl RingMemory for ExclusiveRegion {
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.claim.span.start() as *mut u8).expect("a span begins behind the null address")
    }

    fn bytes(&self) -> usize {
        self.claim.span.len()
    }
}

impl fmt::Debug for ExclusiveRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExclusiveRegion").field("span", &self.claim.span).finish_non_exhaustive()
    }
}
