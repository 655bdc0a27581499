//! The hold that users have on a registration.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use super::RegistrationCache;
use super::shared::CacheShared;
use crate::register::registrar::Registrar;
use crate::span::{Access, Span};

/// A hold on a registration, which lives at least as long as the lease, whatever happens to its memory.
///
/// Another thread than the one that took it may drop it. It is not `Clone`: request another lease from the cache, since
/// a hit costs almost nothing.
pub struct Lease<'c, R: Registrar> {
    pub(super) shared: &'c CacheShared<R>,
    pub(super) slot: u32,
    pub(super) key: R::Key,
    pub(super) cache: PhantomData<&'c RegistrationCache<R>>,
}

impl<R: Registrar> Lease<'_, R> {
    /// Returns the key (lkey and rkey, or device address). The lease holds a copy, so no shared cache line is touched.
    #[must_use]
    #[inline]
    pub fn key(&self) -> R::Key {
        self.key
    }

    /// Returns the device's whole handle.
    #[must_use]
    #[inline]
    pub fn handle(&self) -> &R::Handle {
        // SAFETY: this is a lease of it.
        unsafe { self.shared.slots[self.slot as usize].handle() }
    }

    /// Returns the registered range, which may be longer than the request.
    #[must_use]
    pub fn span(&self) -> Span {
        self.shared.slots[self.slot as usize].span()
    }

    /// Returns the access that the device has.
    #[must_use]
    pub fn access(&self) -> Access {
        self.shared.slots[self.slot as usize].access()
    }
}

impl<R: Registrar> Drop for Lease<'_, R> {
    #[inline(always)]
    fn drop(&mut self) {
        self.shared.give(self.slot);
    }
}

impl<R: Registrar> fmt::Debug for Lease<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}, {})", self.span(), self.access())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::register::cache::budget::Budget;
    use crate::register::cache::miss::WaitMode;
    use crate::register::fake::Fake;
    use crate::register::registrar::Overlap;

    /// Threads that wait look again by themselves after a moment, so requests alone do not show that nobody wakes them.
    #[test]
    fn the_end_of_a_lease_wakes_threads_that_wait() {
        let fake = Arc::new(Fake::new(Overlap::Free));
        let shared =
            CacheShared::new(fake, Budget { regions: 1, bytes: 1 << 20 }, None).expect("there is memory");
        let span = Span::new(0x10_0000, 100).expect("a range");
        drop(
            shared
                .get(span.start() as *const u8, span.len(), Access::READ, WaitMode::Progress)
                .expect("room"),
        );
        shared.waiters.fetch_add(1, Ordering::Relaxed);
        let woken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let state = shared.lock();
            scope.spawn(|| {
                // The first of them may end before this thread waits.
                while !woken.load(Ordering::Relaxed) {
                    drop(shared.hit(span, Access::READ).expect("it is registered"));
                }
            });
            let (state, waited) =
                shared.apart.changed.wait_timeout(state, Duration::from_secs(20)).expect("no thread panics");
            drop(state);
            woken.store(true, Ordering::Relaxed);
            assert!(!waited.timed_out());
        });
    }
}
