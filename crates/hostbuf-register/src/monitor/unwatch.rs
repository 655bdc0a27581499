//! Stops watching memory: busy ranges, ranges that cannot be relied on, and everything when the
//! monitor stops.

use std::time::Instant;

use hostbuf_os::poison::IgnorePoison;

use super::change_sequence::ChangeSequence;
use super::monitor_shared::{MonitorShared, WatchedPiece};
use crate::span::Span;

impl MonitorShared {
    /// Stops watching the busy ranges of a descriptor. Called in the thread of a request that waits
    /// for the descriptor.
    #[cold]
    pub(super) fn give_up_busy(&self, number: usize) {
        self.sequences.of(number).set_busy(false);
        // Without queries the monitor's thread could not watch the ranges again.
        while self.mappings.queries().is_some() {
            let busy = self.ranges.lock().ignore_poison().busy.give_up(number, Instant::now());
            let Some(span) = busy else { return };
            self.unwatch(&[(span, number)]);
            // The monitor has no timeout as long as no range is given up.
            let _ = self.wake.write(1);
        }
    }

    /// Stops watching ranges. Registrations that rely on them, including those of other requests,
    /// become stale.
    ///
    /// From before the kernel stops reporting changes until caches know, no request relies on the
    /// descriptors. The monitor continues to read events meanwhile.
    pub(super) fn unwatch(&self, pieces: &[WatchedPiece]) {
        // All descriptors, since before Linux 6.17 a userfaultfd could unregister the ranges of
        // another one.
        let all = self.sequences.all();
        self.sequences.in_set(all).for_each(ChangeSequence::begin_unwatching);
        for &(span, number) in pieces {
            let is_done = self.unregister(span, number);
            self.apply(all, || {
                let mut ranges = self.ranges.lock().ignore_poison();
                ranges.remove(span);
                if !is_done {
                    // Parts may still be watched, by this descriptor or by another.
                    ranges.arrived(span);
                }
                drop(ranges);
                self.notify(span);
            });
        }
        self.sequences.in_set(all).for_each(ChangeSequence::end_unwatching);
    }

    /// Unregisters a range with the kernel, mapping by mapping if a part of it is no longer mapped.
    /// Returns whether one call was enough.
    fn unregister(&self, span: Span, number: usize) -> bool {
        let userfault = &self.sequences.of(number).userfault;
        if userfault.unregister(span).is_ok() {
            return true;
        }
        self.mappings.each_in(span, |mapping| {
            let (start, end) = (mapping.span.start().max(span.start()), mapping.span.end().min(span.end()));
            if let Some(part) = end.checked_sub(start).and_then(|length| Span::new(start, length).ok()) {
                let _ = userfault.unregister(part);
            }
        });
        false
    }

    /// Unwatches every mapping that may be watched, each as a whole, including mappings that have
    /// moved or grown. It allocates nothing, since a thread that frees memory may be waiting for
    /// the monitor.
    pub(super) fn unwatch_all(&self) {
        self.mappings.each_from(0, |mapping| {
            if mapping.is_own && self.ranges.lock().ignore_poison().may_be_watched(mapping.span) {
                for one in self.sequences.in_set(self.sequences.all()) {
                    let _ = one.userfault.unregister(mapping.span);
                }
            }
            true
        });
    }
}
