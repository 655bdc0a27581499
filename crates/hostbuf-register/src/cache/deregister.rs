//! How registrations end: to make room, because their memory changes, with their last lease, or before a buffer is frozen.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::shared::{Core, Inner};
use super::slot::{Slot, State};
use super::slot_details::Loss;
use super::stats::Stats;
use crate::error::{Error, Result};
use crate::register::monitor::Watcher;
use crate::register::own_ranges::FreezeObserver;
use crate::register::registrar::Registrar;
use crate::span::Span;

impl<R: Registrar> Inner<R> {
    /// Makes a live slot Ending if it is not leased.
    pub(super) fn try_kill(&self, core: &mut Core, slot: u32) -> bool {
        let here = &self.slots[slot as usize];
        here.set_state(State::Dying);
        if self.words.leases(slot) != 0 {
            here.set_state(State::Live);
            return false;
        }
        core.policy.remove(slot);
        self.table.remove(here.span(), slot);
        self.begin_to_end(core, slot);
        true
    }

    pub(super) fn begin_to_end(&self, core: &mut Core, slot: u32) {
        self.slots[slot as usize].set_state(State::Ending);
        core.endings += 1;
        core.ending.push((slot, core.endings));
    }

    /// Deregisters a slot that this thread has made Ending. Its part of the budget is free when the device has said yes.
    pub(super) fn end(&self, slot: u32) -> Result<()> {
        let mut ending = Ending { inner: self, slot, ended: false, why: None };
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
    pub(super) fn end_unasked(&self, slot: u32) {
        if let Err(error) = self.end(slot) {
            tracing::error!(%error, "a registration could not be ended");
        }
    }

    /// Takes everything that overlaps `span` out of the table, and says whether there was anything. What it was is ended
    /// later, by end_stale().
    pub(super) fn forget(&self, span: Span, cause: impl Fn(&mut Stats) -> &mut u64) -> bool {
        self.forget_those(span, |_| true, cause)
    }

    /// The same of `those` alone. Called by the monitor too: no allocation, no system call but the wake.
    fn forget_those(
        &self,
        span: Span,
        those: impl Fn(&Slot<R::Handle>) -> bool,
        cause: impl Fn(&mut Stats) -> &mut u64,
    ) -> bool {
        let mut core = self.lock();
        let mut any = false;
        while let Some(slot) = self.table.find_overlapping(span, |slot| those(&self.slots[slot as usize])) {
            let here = &self.slots[slot as usize];
            here.set_state(State::Stale);
            core.policy.remove(slot);
            self.table.remove(here.span(), slot);
            core.stale.push(slot);
            *cause(&mut core.stats) += 1;
            any = true;
        }
        for at in 0..core.filling.len() {
            let slot = core.filling[at];
            let here = &self.slots[slot as usize];
            if here.span().overlaps(span) && those(here) && !core.tainted.contains(&slot) {
                core.tainted.push(slot);
            }
        }
        any
    }

    /// Ends what is stale and no longer leased.
    pub(super) fn end_stale(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let idle = self.idle(&mut self.lock(), |_| true);
            let Some(slot) = idle else { return result };
            result = result.and(self.end(slot));
        }
    }

    /// Lets the reaper look after what is stale, if anything is and it does not do so anyhow.
    pub(super) fn wake_reaper(&self) {
        let mut core = self.lock();
        let wake = !core.stale.is_empty() && std::mem::take(&mut core.reaper_sleeps);
        drop(core);
        if wake {
            self.apart.stale.notify_one();
        }
    }

    /// One that is stale, pleases `fits`, and is no longer leased; it is Ending now.
    pub(super) fn idle(&self, core: &mut Core, fits: impl Fn(Span) -> bool) -> Option<u32> {
        let idle = |&slot: &u32| fits(self.slots[slot as usize].span()) && self.words.leases(slot) == 0;
        let at = core.stale.iter().position(idle)?;
        let slot = core.stale.swap_remove(at);
        self.begin_to_end(core, slot);
        Some(slot)
    }

    /// Waits until all that is being ended now and has a byte of `span` has ended. Not for what begins later: others may end one
    /// after the other for ever.
    pub(super) fn wait_for_endings(&self, span: Span) {
        let mut core = self.lock();
        let last = core.endings;
        let is_meant =
            |&(slot, number): &(u32, u64)| number <= last && self.slots[slot as usize].span().overlaps(span);
        while core.ending.iter().any(is_meant) {
            core = self.wait(core, None);
        }
    }

    /// Returns the first failure to deregister memory of `span` after the first `lost` failures of this cache, whichever
    /// thread met it. Another thread may have taken over what this one has made stale: the reaper, a miss that wants room, or
    /// whoever drops the last lease.
    ///
    /// # Errors
    /// [`Error::Registration`] with the device's answer.
    pub(super) fn check_losses(&self, span: Span, lost: u64) -> Result<()> {
        let core = self.lock();
        if core.stats.leaked == lost {
            return Ok(());
        }
        let losses = self.slots.iter().zip(&core.kept).filter_map(|(here, kept)| {
            let loss = kept.loss.as_ref().filter(|loss| loss.number > lost && here.span().overlaps(span))?;
            Some((here, loss))
        });
        let first = losses.min_by_key(|(_, loss)| loss.number);
        let Some((span, access, why)) =
            first.map(|(here, loss)| (here.span(), here.access(), loss.why.clone()))
        else {
            return Ok(());
        };
        // The error is made without the lock: it allocates.
        drop(core);
        let device = self.registrar.name();
        let why = why.as_deref().unwrap_or("deregistering it panicked").to_owned();
        Err(Error::Registration { device, span, access, why, source: None })
    }

    #[cold]
    pub(super) fn last_lease_perhaps(&self, slot: u32) {
        let ended = {
            let mut core = self.lock();
            let at = core.stale.iter().position(|&s| s == slot);
            let at = at.filter(|_| self.slots[slot as usize].state() == State::Stale);
            match at.filter(|_| self.words.leases(slot) == 0) {
                Some(at) => {
                    core.stale.swap_remove(at);
                    self.begin_to_end(&mut core, slot);
                    true
                }
                None => false,
            }
        };
        if ended {
            self.end_unasked(slot);
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

/// A slot that is being ended: free again when the device has said yes, and lost when it has not, or has panicked.
struct Ending<'a, R: Registrar> {
    inner: &'a Inner<R>,
    slot: u32,
    ended: bool,
    /// The device's answer where it has not ended.
    why: Option<Arc<str>>,
}

impl<R: Registrar> Drop for Ending<'_, R> {
    fn drop(&mut self) {
        let here = &self.inner.slots[self.slot as usize];
        let mut core = self.inner.lock();
        if let Some(memory) = core.kept[self.slot as usize].memory.take() {
            // Not with the lock, since the memory may be unmapped; and before this ending counts as over, so that the memory
            // is gone when a thread that waits for this ending goes on. Never where the device may still have the memory.
            drop(core);
            match self.ended {
                true => drop(memory),
                false => std::mem::forget(memory),
            }
            core = self.inner.lock();
        }
        core.ending.retain(|&(slot, _)| slot != self.slot);
        if self.ended {
            core.stats.regions -= 1;
            core.stats.bytes -= core.kept[self.slot as usize].bytes;
            here.set_state(State::Free);
            core.free.push(self.slot);
        } else {
            here.set_state(State::Lost);
            core.stats.leaked += 1;
            let number = core.stats.leaked;
            core.kept[self.slot as usize].loss = Some(Loss { number, why: self.why.take() });
        }
        self.inner.unlock(core);
    }
}

impl<R: Registrar> FreezeObserver for Inner<R> {
    fn prepare(&self, span: Span) -> std::result::Result<(), String> {
        if !self.lineage.is_here() {
            // The parent's.
            return Ok(());
        }
        let device = self.registrar.name();
        let writes = |slot: &Slot<R::Handle>| slot.access().writes() && slot.span().overlaps(span);
        loop {
            self.forget(span, |stats| &mut stats.invalidated);
            self.end_stale().map_err(|error| error.to_string())?;
            self.wake_reaper();
            let mut core = self.lock();
            let held = |slot: &&u32| writes(&self.slots[**slot as usize]) && self.words.leases(**slot) != 0;
            let held = core.stale.iter().find(held).map(|&slot| self.slots[slot as usize].span());
            let lost = |slot: &&Slot<R::Handle>| writes(slot) && slot.state() == State::Lost;
            let lost = self.slots.iter().find(lost).map(Slot::span);
            let is_busy = |slot: &Slot<R::Handle>| {
                writes(slot) && matches!(slot.state(), State::Filling | State::Ending | State::Stale)
            };
            let busy = self.slots.iter().any(is_busy);
            if let (None, None, true) = (held, lost, busy) {
                core = self.wait(core, None);
            }
            // What is said is made without the lock: it allocates.
            drop(core);
            if let Some(held) = held {
                return Err(format!(
                    "a lease lives by which {device} can write into {held}: put it back first, or get it for reading only"
                ));
            }
            if let Some(lost) = lost {
                return Err(format!("{device} has not ended its registration of {lost}"));
            }
            if !busy {
                return Ok(());
            }
        }
    }
}

impl<R: Registrar> Watcher for Inner<R> {
    fn changed(&self, span: Span) {
        // hostbuf's own memory does not change by what the kernel tells of, or doubts.
        if self.forget_those(span, Slot::is_watched, |stats| &mut stats.changed) {
            self.wake_reaper();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Mutex, Weak};

    use super::*;
    use crate::register::cache::budget::Budget;
    use crate::register::cache::miss::Wait;
    use crate::register::fake::Fake;
    use crate::register::registrar::Overlap;
    use crate::span::Access;

    /// Notes how many registrations are being ended while it is dropped.
    struct Memory {
        inner: Weak<Inner<Fake>>,
        noted: Arc<Mutex<Vec<usize>>>,
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            let endings = self.inner.upgrade().map_or(0, |inner| inner.lock().ending.len());
            self.noted.lock().expect("no panic").push(endings);
        }
    }

    /// A thread that waits for an ending relies on the memory being gone: a program that has flushed the cache reuses the
    /// address.
    #[test]
    fn memory_goes_before_its_ending_is_over() {
        const START: usize = 0x10_0000;
        let fake = Arc::new(Fake::new(Overlap::Free));
        let inner = Inner::new(fake, Budget { regions: 1, bytes: 1 << 20 }, None).expect("there is memory");
        let inner = Arc::new(inner);
        let noted = Arc::new(Mutex::new(Vec::new()));
        drop(inner.get(START as *const u8, 100, Access::READ, Wait::Progress).expect("there is room"));
        let memory = Memory { inner: Arc::downgrade(&inner), noted: noted.clone() };
        inner.lock().kept[0].memory = Some(Arc::new(memory));
        inner.forget(Span::new(START, 100).expect("a range"), |stats| &mut stats.invalidated);
        inner.end_stale().expect("the fake ends it");
        assert_eq!(*noted.lock().expect("no panic"), [1], "it went when its registration counted as ended");
        assert_eq!((inner.stats().regions, inner.lock().ending.len()), (0, 0));
    }
}
