//! A hold on the registration of an array.

use std::fmt;
use std::sync::Arc;

use hostbuf_register::{Access, Device, Registrar, Span};

use super::file_range::FileRange;
use super::segment::AdoptedSegment;
use crate::releases::{self, Completion};

/// An array in adopted memory. Its bytes stay registered until this is dropped.
///
/// It does not keep the array itself: its owner could reuse the memory for other data. The caller
/// keeps both.
#[must_use = "the hold ends when this is dropped"]
pub struct Adopted<R: Registrar> {
    segment: Arc<AdoptedSegment<R>>,
    offset: usize,
    length: usize,
}

impl<R: Registrar> Adopted<R> {
    /// Holds `segment`, which has all bytes of `range`.
    pub(super) fn new(segment: Arc<AdoptedSegment<R>>, range: &FileRange) -> Adopted<R> {
        Adopted { segment, offset: range.offset as usize, length: range.span.len() }
    }

    /// Returns the addresses of the array's bytes in hostbuf's mapping of the file. Other processes
    /// may write to them at any time.
    ///
    /// # Panics
    /// Never: the mapping contains all bytes of the array.
    #[must_use]
    pub fn host_span(&self) -> Span {
        let start = self.segment.span().start() + self.offset;
        Span::new(start, self.length).expect("the mapping contains the array")
    }

    /// Returns the key of the whole file's registration, for requests to the device. The array
    /// begins at [`offset`](Adopted::offset).
    #[must_use]
    pub fn key(&self) -> R::Key {
        self.segment.registration().key()
    }

    /// Returns the device's handle of the whole file's registration.
    #[must_use]
    pub fn handle(&self) -> &R::Handle {
        self.segment.registration().handle()
    }

    /// Returns the offset of the array's first byte in the file, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes of the array.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an array has at least one byte")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the access that the device has, which is at least the requested one.
    #[must_use]
    pub fn access(&self) -> Access {
        self.segment.access()
    }

    /// Ends the hold once `completion` is complete, for example an event behind the last copy from
    /// the array. `array` is dropped then too: the object that keeps the array alive, or `()`.
    ///
    /// A thread of the process waits, which the first call starts. If it cannot be started, this
    /// call waits itself.
    pub fn release_after(self, completion: impl Completion, array: impl Send + 'static) {
        releases::add(Box::new(completion), Box::new((self, array)));
    }
}

impl Adopted<Device> {
    /// Returns the device's address of the array's first byte, or `None` if the device has no
    /// addresses of its own, or had to register the file in parts of which the array needs several.
    #[must_use]
    pub fn device_address(&self) -> Option<u64> {
        let (whole, span) = (self.segment.span(), self.host_span());
        let device = self.segment.registrar();
        let parts = device.parts(whole, self.handle());
        let part = parts.iter().find(|part| part.span.contains(span))?;
        let offset = (span.start() - part.span.start()) as u64;
        (part.key.address != 0).then(|| part.key.address + offset)
    }
}

impl<R: Registrar> fmt::Debug for Adopted<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopted")
            .field("registration", self.segment.registration())
            .field("offset", &self.offset)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
