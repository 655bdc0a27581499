//! The cache's part in the freezing of buffers and in changes that the monitor reports.

use super::cache_slot::CacheSlot;
use super::deregister::{deregister_stale, make_stale};
use super::shared::CacheShared;
use super::slot::{Slot, SlotState};
use crate::monitor::Watcher;
use crate::own_ranges::FreezeObserver;
use crate::registrar::Registrar;
use crate::span::Span;

impl<R: Registrar> FreezeObserver for CacheShared<R> {
    fn prepare(&self, span: Span) -> Result<(), String> {
        if !self.fork_guard.is_current() {
            // The registrations are the parent's.
            return Ok(());
        }
        let device = self.registrar.name();
        let writes = |slot: &Slot<R::Handle>| slot.access().writes() && slot.span().overlaps(span);
        loop {
            make_stale(self, span, |stats| &mut stats.invalidated);
            deregister_stale(self).map_err(|error| error.to_string())?;
            self.state.wake_reaper();
            let mut state = self.lock();
            let leased = |slot: &&CacheSlot| writes(&self.slots[**slot]) && self.counts.leases(**slot) != 0;
            let leased = state.lists.stale().iter().find(leased).map(|&slot| self.slots[slot].span());
            let leaked = |slot: &&Slot<R::Handle>| writes(slot) && slot.state() == SlotState::Leaked;
            let leaked = self.slots.iter().find(leaked).map(Slot::span);
            let is_in_progress = |slot: &Slot<R::Handle>| {
                let in_progress = [SlotState::Registering, SlotState::Deregistering, SlotState::Stale]
                    .contains(&slot.state());
                in_progress && writes(slot)
            };
            let in_progress = self.slots.iter().any(is_in_progress);
            if let (None, None, true) = (leased, leaked, in_progress) {
                state = self.state.wait(state, None);
            }
            // The errors are made without the lock, since they allocate.
            drop(state);
            if let Some(leased) = leased {
                return Err(format!(
                    "a lease lets {device} write into {leased}: drop it first, or get it for reading only"
                ));
            }
            if let Some(leaked) = leaked {
                return Err(format!("{device} has failed to end its registration of {leaked}"));
            }
            if !in_progress {
                return Ok(());
            }
        }
    }
}

impl<R: Registrar> Watcher for CacheShared<R> {
    fn changed(&self, span: Span) {
        // The pages of hostbuf's own memory do not change by the events of the kernel, nor do
        // doubts concern them.
        let any = self.lock().make_stale(&self.slots, span, Slot::is_watched, |stats| &mut stats.changed);
        if any {
            self.state.wake_reaper();
        }
    }
}
