//! The registration of host buffers.

use std::ops::RangeBounds;
use std::sync::{Arc, OnceLock};

use hostbuf_register::{Access, Registrar, Registration};

use crate::HostBuffer;
use crate::error::{Error, Result};
use crate::segment::ledger::Ledger;
use crate::segment::listed::Listed;
use crate::segment::mapped_segment::MappedSegment;
#[cfg(doc)]
use hostbuf_register::own_ranges::FreezeObserver;
use hostbuf_register::own_ranges::{self, Writing};

/// The resources of a buffer's registration until it has ended: the entry that a device can write,
/// the memory, and the row that `hostbuf stat` shows.
struct RegistrationResources {
    _writing: Option<Writing>,
    segment: Arc<MappedSegment>,
    listed: OnceLock<Option<Listed>>,
}

impl HostBuffer {
    /// Registers the buffer, or the bytes `region` of it, with a device, for this process. The
    /// memory stays mapped until the registration has ended.
    ///
    /// A registration belongs to one process, and RDMA charges each registration against `ulimit
    /// -l`. Usually one process of a host registers, the one that does its I/O; others register
    /// when they need it. `hostbuf stat` shows the registrations of all processes, from a table
    /// with room for about 170 registrations of a job on each host.
    ///
    /// A [`RegistrationCache`](crate::register::RegistrationCache) over the same registrar does not
    /// know of this registration. If a device rejects overlaps (CUDA), the registration conflicts
    /// with those of the cache. In this case let the cache register the buffer, by
    /// [`keep`](crate::register::RegistrationCache::keep), which needs no monitoring either.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hostbuf::{HostBuffer, BufferOptions, Pages, job::Solo, register::{Access, Mlock}};
    /// let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(64 << 10).pages(Pages::Small))?;
    /// let registrar = Arc::new(Mlock::new());
    /// let whole = buffer.register(&registrar, .., Access::READ)?;
    /// let part = buffer.register(&registrar, 4096..8192, Access::READ)?;
    /// assert_eq!((whole.memory().len(), part.memory().len()), (64 << 10, 4096));
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region that is empty or not inside the buffer; [`Error::Freeze`]
    /// for an access that writes to a frozen buffer; as [`Registrar::register`]. While there is a
    /// registration by which a device can write, the buffer cannot be [frozen](HostBuffer::freeze).
    pub fn register<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        region: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Registration<R>> {
        self.register_as(registrar, region, access, true)
    }

    /// Registers as [`register`](HostBuffer::register) does, for a holder that ends the
    /// registration when the buffer is frozen. The registration does not prevent
    /// [freezing](HostBuffer::freeze): the holder ends it in [`FreezeObserver::commit`], or when
    /// `hostbuf_registered_end` (include/hostbuf_registered.h) asks for it. If it stays, the buffer
    /// is frozen while a device can write to it.
    ///
    /// # Errors
    /// As [`register`](HostBuffer::register).
    pub fn register_until_freeze<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        region: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Registration<R>> {
        self.register_as(registrar, region, access, false)
    }

    fn register_as<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        region: impl RangeBounds<usize>,
        access: Access,
        prevents_freezing: bool,
    ) -> Result<Registration<R>> {
        let span = self.region(region)?;
        if access.writes() && self.fill_state()? == crate::FillState::Frozen {
            let why = format!(
                "buffer \"{}\" is frozen, and a device could change it by {access}. Register it for reading",
                self.name()
            );
            return Err(Error::Freeze { why });
        }
        let writing = match access.writes() {
            true if prevents_freezing => Some(Writing::new(span, registrar.name())?),
            true => own_ranges::may_write(span).map(|()| None)?,
            false => None,
        };
        let kept = Arc::new(RegistrationResources {
            _writing: writing,
            segment: self.segment.clone(),
            listed: OnceLock::new(),
        });
        let registration = Registration::with_keepalive(registrar, span, access, kept.clone())?;
        let region = ((span.start() - self.as_ptr().as_ptr() as usize) as u64, span.len() as u64);
        kept.listed.get_or_init(|| {
            Listed::enter(kept.segment.clone(), self.index, region, access, &registrar.stat_name())
        });
        Ok(registration)
    }

    /// Removes the rows that `hostbuf stat` shows for this process from before its last exec, of
    /// all buffers of the job. Those registrations ended with the exec. Call it before this process
    /// registers anything.
    pub fn forget_earlier_image(&self) {
        Ledger::new(self.control()).forget_earlier_image();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferOptions;
    use crate::job::Solo;
    use hostbuf_register::testing::fake::Fake;
    use hostbuf_register::{Overlap, Span};

    #[test]
    fn a_region_is_registered_and_keeps_the_memory() {
        let fake = Arc::new(Fake::new(Overlap::Free));
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let (start, length) = (buffer.as_ptr().as_ptr() as usize, buffer.len());
        for (region, what) in [(0..0, "empty"), (0..length + 1, "too long"), (length..length + 1, "behind")] {
            assert!(
                matches!(buffer.register(&fake, region, Access::READ), Err(Error::Invalid { .. })),
                "{what}"
            );
        }
        let part = buffer.register(&fake, 100..=199, Access::WRITE).unwrap();
        assert_eq!(part.span(), Some(Span::new(start + 100, 100).unwrap()));
        let whole = buffer.register(&fake, .., Access::READ).unwrap();
        let all = Span::new(start, length).unwrap();
        assert_eq!(whole.span(), Some(all));
        let segment = Arc::downgrade(&buffer.segment);
        drop(buffer);
        drop(part);
        // The memory is still mapped, readable and listed.
        let mapped = segment.upgrade().expect("a registration keeps it");
        let listed = Ledger::new(mapped.control()).registrations();
        let [Ok(left)] = &listed[..] else { panic!("not one row but {listed:?}") };
        assert_eq!((left.pid, left.index, left.offset), (std::process::id(), 0, 0));
        assert_eq!((left.length, left.access, left.device.as_str()), (length as u64, Access::READ, "fake"));
        assert!(own_ranges::find(all).is_some());
        drop(mapped);
        whole.deregister().unwrap();
        assert!(fake.live().is_empty());
        assert!(own_ranges::find(all).is_none());
    }

    #[test]
    fn no_device_may_write_to_a_frozen_buffer() {
        let fake = Arc::new(Fake::new(Overlap::Free));
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        buffer.initialize(|arena| arena.place(1u64)).unwrap();
        let held = buffer.register(&fake, 0..10, Access::WRITE).unwrap();
        let refused = buffer.freeze(&Solo).unwrap_err().to_string();
        assert!(refused.contains("fake"), "{refused}");
        assert_eq!(fake.live().len(), 1);
        drop(held);
        // The failed freeze was undone: the buffer can be registered for writing again.
        buffer.register(&fake, .., Access::WRITE).unwrap();
        let frozen = buffer.freeze(&Solo).unwrap();
        let refused = buffer.register(&fake, .., Access::REMOTE_WRITE).unwrap_err().to_string();
        assert!(refused.contains("frozen"), "{refused}");
        buffer.register(&fake, .., Access::REMOTE_READ).unwrap();
        drop(frozen);
    }
}
