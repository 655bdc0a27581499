//! How registrations end: to make room, because their memory changes, with their last lease, or before a buffer is frozen.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::shared::{CacheShared, CacheState};
use super::slot::{Slot, SlotState};
use super::slot_details::Leak;
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::register::monitor::Watcher;
use crate::register::own_ranges::FreezeObserver;
use crate::register::registrar::Registrar;
use crate::span::Span;

impl<R: Registrar> CacheShared<R> {
    /// Makes a live slot Ending if it is not leased.
    pub(super) fn try_evict(&self, state: &mut CacheState, slot: u32) -> bool {
        let here = &self.slots[slot as usize];
        here.set_state(SlotState::Dying);
        if self.counts.leases(slot) != 0 {
            here.set_state(SlotState::Live);
            return false;
        }
        state.policy.remove(slot);
        self.table.remove(here.span(), slot);
        self.begin_deregistering(state, slot);
        true
    }

    pub(super) fn begin_deregistering(&self, state: &mut CacheState, slot: u32) {
        self.slots[slot as usize].set_state(SlotState::Deregistering);
        state.deregistrations += 1;
        state.deregistering.push((slot, state.deregistrations));
    }

    /// Deregisters a slot that this thread has made Ending. Its part of the budget is free when the device has said yes.
    pub(super) fn deregister(&self, slot: u32) -> Result<()> {
        let mut ending = DeregisteringSlot { shared: self, slot, ended: false, why: None };
        // SAFETY: it is Ending by this thread.
        let handle = unsafe { self.slots[slot as usize].empty() };
        let Some(handle) = handle else {
            ending.ended = true;
            return Ok(());
        };
        let here = &self.slots[slot as usize];
        // Whoever comes here may be in a drop, or the cache's own thread.
        let asked = catch_unwind(AssertUnwindSafe(|| self.registrar.deregister(here.span(), handle)));
        let result = asked.unwrap_or_else(|_| {
            let (device, why) = (self.registrar.name(), "deregistering it panicked".into());
            Err(Error::Registration { device, span: here.span(), access: here.access(), why, source: None })
        });
        ending.ended = result.is_ok();
        ending.why = result.as_ref().err().map(reason);
        result
    }

    /// The same where nobody asked for this one: what the device said is logged and counted.
    pub(super) fn deregister_or_log(&self, slot: u32) {
        if let Err(error) = self.deregister(slot) {
            tracing::error!(%error, "a registration could not be ended");
        }
    }

    /// Takes everything that overlaps `span` out of the table, and says whether there was anything. What it was is ended
    /// later, by deregister_stale().
    pub(super) fn make_stale(&self, span: Span, cause: impl Fn(&mut Stats) -> &mut u64) -> bool {
        self.make_stale_if(span, |_| true, cause)
    }

    /// The same of `those` alone. Called by the monitor too: no allocation, no system call but the wake.
    fn make_stale_if(
        &self,
        span: Span,
        those: impl Fn(&Slot<R::Handle>) -> bool,
        cause: impl Fn(&mut Stats) -> &mut u64,
    ) -> bool {
        let mut state = self.lock();
        let mut any = false;
        while let Some(slot) = self.table.find_overlapping(span, |slot| those(&self.slots[slot as usize])) {
            let here = &self.slots[slot as usize];
            here.set_state(SlotState::Stale);
            state.policy.remove(slot);
            self.table.remove(here.span(), slot);
            state.stale.push(slot);
            *cause(&mut state.stats) += 1;
            any = true;
        }
        for at in 0..state.registering.len() {
            let slot = state.registering[at];
            let here = &self.slots[slot as usize];
            if here.span().overlaps(span) && those(here) && !state.tainted.contains(&slot) {
                state.tainted.push(slot);
            }
        }
        any
    }

    /// Ends what is stale and no longer leased.
    pub(super) fn deregister_stale(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let idle = self.claim_unused(&mut self.lock(), |_| true);
            let Some(slot) = idle else { return result };
            result = result.and(self.deregister(slot));
        }
    }

    /// Lets the reaper look after what is stale, if anything is and it does not do so anyhow.
    pub(super) fn wake_reaper(&self) {
        let mut state = self.lock();
        let wake = !state.stale.is_empty() && std::mem::take(&mut state.reaper_sleeps);
        drop(state);
        if wake {
            self.apart.stale.notify_one();
        }
    }

    /// One that is stale, pleases `fits`, and is no longer leased; it is Ending now.
    pub(super) fn claim_unused(&self, state: &mut CacheState, fits: impl Fn(Span) -> bool) -> Option<u32> {
        let idle = |&slot: &u32| fits(self.slots[slot as usize].span()) && self.counts.leases(slot) == 0;
        let at = state.stale.iter().position(idle)?;
        let slot = state.stale.swap_remove(at);
        self.begin_deregistering(state, slot);
        Some(slot)
    }

    /// Waits until all that is being ended now and has a byte of `span` has ended. Not for what begins later: others may end one
    /// after the other for ever.
    pub(super) fn wait_for_deregistrations(&self, span: Span) {
        let mut state = self.lock();
        let last = state.deregistrations;
        let is_meant =
            |&(slot, number): &(u32, u64)| number <= last && self.slots[slot as usize].span().overlaps(span);
        while state.deregistering.iter().any(is_meant) {
            state = self.wait(state, None);
        }
    }

    /// Returns the first failure to deregister memory of `span` after the first `leaked` failures of this cache, whichever
    /// thread met it. Another thread may have taken over what this one has made stale: the reaper, a miss that wants room, or
    /// whoever drops the last lease.
    ///
    /// # Errors
    /// [`Error::Registration`] with the device's answer.
    pub(super) fn check_leaks(&self, span: Span, leaked: u64) -> Result<()> {
        let state = self.lock();
        if state.stats.leaked == leaked {
            return Ok(());
        }
        let leaks = self.slots.iter().zip(&state.details).filter_map(|(here, kept)| {
            let leak =
                kept.leak.as_ref().filter(|leak| leak.number > leaked && here.span().overlaps(span))?;
            Some((here, leak))
        });
        let first = leaks.min_by_key(|(_, leak)| leak.number);
        let Some((span, access, why)) =
            first.map(|(here, leak)| (here.span(), here.access(), leak.why.clone()))
        else {
            return Ok(());
        };
        // The error is made without the lock: it allocates.
        drop(state);
        let device = self.registrar.name();
        let why = why.as_deref().unwrap_or("deregistering it panicked").to_owned();
        Err(Error::Registration { device, span, access, why, source: None })
    }

    #[cold]
    pub(super) fn deregister_if_unused(&self, slot: u32) {
        let ended = {
            let mut state = self.lock();
            let at = state.stale.iter().position(|&s| s == slot);
            let at = at.filter(|_| self.slots[slot as usize].state() == SlotState::Stale);
            match at.filter(|_| self.counts.leases(slot) == 0) {
                Some(at) => {
                    state.stale.swap_remove(at);
                    self.begin_deregistering(&mut state, slot);
                    true
                }
                None => false,
            }
        };
        if ended {
            self.deregister_or_log(slot);
        }
    }
}

/// Returns why a deregistration failed, without the device and the range.
fn reason(error: &Error) -> Arc<str> {
    match error {
        Error::Registration { why, source: Some(source), .. } => format!("{why}: {source}").into(),
        Error::Registration { why, source: None, .. } => why.as_str().into(),
        other => other.to_string().into(),
    }
}

/// A slot that is being ended: free again when the device has said yes, and leaked when it has not, or has panicked.
struct DeregisteringSlot<'a, R: Registrar> {
    shared: &'a CacheShared<R>,
    slot: u32,
    ended: bool,
    /// The device's answer where it has not ended.
    why: Option<Arc<str>>,
}

impl<R: Registrar> Drop for DeregisteringSlot<'_, R> {
    fn drop(&mut self) {
        let here = &self.shared.slots[self.slot as usize];
        let mut state = self.shared.lock();
        if let Some(memory) = state.details[self.slot as usize].memory.take() {
            // Not with the lock, since the memory may be unmapped; and before this ending counts as over, so that the memory
            // is gone when a thread that waits for this ending goes on. Never where the device may still have the memory.
            drop(state);
            match self.ended {
                true => drop(memory),
                false => std::mem::forget(memory),
            }
            state = self.shared.lock();
        }
        state.deregistering.retain(|&(slot, _)| slot != self.slot);
        if self.ended {
            state.stats.regions -= 1;
            state.stats.bytes -= state.details[self.slot as usize].bytes;
            here.set_state(SlotState::Free);
            state.free.push(self.slot);
        } else {
            here.set_state(SlotState::Leaked);
            state.stats.leaked += 1;
            let number = state.stats.leaked;
            state.details[self.slot as usize].leak = Some(Leak { number, why: self.why.take() });
        }
        self.shared.unlock(state);
    }
}

impl<R: Registrar> FreezeObserver for CacheShared<R> {
    fn prepare(&self, span: Span) -> std::result::Result<(), String> {
        if !self.lineage.is_here() {
            // The parent's.
            return Ok(());
        }
        let device = self.registrar.name();
        let writes = |slot: &Slot<R::Handle>| slot.access().writes() && slot.span().overlaps(span);
        loop {
            self.make_stale(span, |stats| &mut stats.invalidated);
            self.deregister_stale().map_err(|error| error.to_string())?;
            self.wake_reaper();
            let mut state = self.lock();
            let held = |slot: &&u32| writes(&self.slots[**slot as usize]) && self.counts.leases(**slot) != 0;
            let held = state.stale.iter().find(held).map(|&slot| self.slots[slot as usize].span());
            let leaked = |slot: &&Slot<R::Handle>| writes(slot) && slot.state() == SlotState::Leaked;
            let leaked = self.slots.iter().find(leaked).map(Slot::span);
            let is_busy = |slot: &Slot<R::Handle>| {
                writes(slot)
                    && matches!(
                        slot.state(),
                        SlotState::Registering | SlotState::Deregistering | SlotState::Stale
                    )
            };
            let busy = self.slots.iter().any(is_busy);
            if let (None, None, true) = (held, leaked, busy) {
                state = self.wait(state, None);
            }
            // What is said is made without the lock: it allocates.
            drop(state);
            if let Some(held) = held {
                return Err(format!(
                    "a lease lives by which {device} can write into {held}: put it back first, or get it for reading only"
                ));
            }
            if let Some(leaked) = leaked {
                return Err(format!("{device} has not ended its registration of {leaked}"));
            }
            if !busy {
                return Ok(());
            }
        }
    }
}

impl<R: Registrar> Watcher for CacheShared<R> {
    fn changed(&self, span: Span) {
        // hostbuf's own memory does not change by what the kernel tells of, or doubts.
        if self.make_stale_if(span, Slot::is_watched, |stats| &mut stats.changed) {
            self.wake_reaper();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Mutex, Weak};

    use super::*;
    use crate::register::cache::budget::Budget;
    use crate::register::cache::miss::WaitMode;
    use crate::register::fake::Fake;
    use crate::register::registrar::Overlap;
    use crate::span::Access;

    /// Notes how many registrations are being ended while it is dropped.
    struct Memory {
        shared: Weak<CacheShared<Fake>>,
        noted: Arc<Mutex<Vec<usize>>>,
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            let endings = self.shared.upgrade().map_or(0, |shared| shared.lock().deregistering.len());
            self.noted.lock().expect("no panic").push(endings);
        }
    }

    /// A thread that waits for an ending relies on the memory being gone: a program that has flushed the cache reuses the
    /// address.
    #[test]
    fn memory_is_released_before_its_deregistration_counts_as_done() {
        const START: usize = 0x10_0000;
        let fake = Arc::new(Fake::new(Overlap::Free));
        let shared =
            CacheShared::new(fake, Budget { regions: 1, bytes: 1 << 20 }, None).expect("there is memory");
        let shared = Arc::new(shared);
        let noted = Arc::new(Mutex::new(Vec::new()));
        drop(shared.get(START as *const u8, 100, Access::READ, WaitMode::Progress).expect("there is room"));
        let memory = Memory { shared: Arc::downgrade(&shared), noted: noted.clone() };
        shared.lock().details[0].memory = Some(Arc::new(memory));
        shared.make_stale(Span::new(START, 100).expect("a range"), |stats| &mut stats.invalidated);
        shared.deregister_stale().expect("the fake ends it");
        assert_eq!(*noted.lock().expect("no panic"), [1], "it went when its registration counted as ended");
        assert_eq!((shared.stats().regions, shared.lock().deregistering.len()), (0, 0));
    }
}
