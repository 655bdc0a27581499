//! The monitor's thread, which reads events and applies them.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::change_sequence::{ChangeSequence, DescriptorSet, MOST_DESCRIPTORS};
use super::process_monitor::{MonitorShared, WatchedPiece, held};
use super::userfaultfd::{EventBuffer, MappingChange};
use crate::os::descriptors;
use crate::span::Span;

/// The epoll data of the descriptor that stops the thread.
pub(super) const STOP: u64 = u64::MAX;
/// The epoll data of the descriptor that makes the thread recompute its timeout.
pub(super) const WAKE: u64 = u64::MAX - 1;

impl MonitorShared {
    /// Reads and applies events until the monitor is stopped.
    pub(super) fn listen(&self) {
        self.keep_own_descriptors();
        // The last allocation is before this point: memory is watched from here on.
        self.listening.wait();
        let mut messages = EventBuffer::new();
        let mut ready = [EpollEvent::empty(); MOST_DESCRIPTORS + 2];
        loop {
            // The thread sleeps. Polling would not be faster on cores that halt when idle, and each munmap would have
            // to interrupt the polling core.
            let next = held(&self.armed).busy.next_due(Instant::now());
            let timeout =
                next.and_then(|left| EpollTimeout::try_from(left).ok()).unwrap_or(EpollTimeout::NONE);
            let count = self.epoll.wait(&mut ready, timeout).unwrap_or(0);
            let ready = &ready[..count];
            if ready.iter().any(|event| event.data() == STOP) {
                return;
            }
            if next.is_some() {
                self.watch_again();
            }
            let late = self.event_delay.load(Ordering::Relaxed);
            if late > 0 {
                std::thread::sleep(Duration::from_micros(late));
            }
            for event in ready {
                if event.data() == WAKE {
                    let _ = self.wake.read();
                    continue;
                }
                self.read_events(event.data() as usize, &mut messages);
            }
        }
    }

    /// Drops this thread's copies of the program's other descriptors, so that the thread does not keep them open.
    fn keep_own_descriptors(&self) {
        if descriptors::has_xpmem() {
            return;
        }
        let fds = self.sequences.in_set(self.sequences.all()).map(|one| one.userfault.as_fd().as_raw_fd());
        let own = [self.stop.as_fd().as_raw_fd(), self.wake.as_fd().as_raw_fd(), self.epoll.0.as_raw_fd()];
        let queries = self.mappings.queries().map(AsRawFd::as_raw_fd);
        // If this fails, the thread shares the program's table as usual.
        let _ = descriptors::keep_only(&fds.chain(own).chain(queries).collect::<Vec<_>>());
    }

    /// Stops watching the busy ranges of a descriptor. Called in the thread of a request that waits for the descriptor.
    #[cold]
    pub(super) fn give_up_busy(&self, number: usize) {
        self.sequences.of(number).mark_busy(false);
        // Without queries the monitor's thread could not watch the ranges again.
        while self.mappings.queries().is_some() {
            let busy = held(&self.armed).busy.give_up(number, Instant::now());
            let Some(span) = busy else { return };
            self.unwatch(&[(span, number)]);
            // The monitor has no timeout as long as no range is given up.
            let _ = self.wake.write(1);
        }
    }

    /// Watches formerly busy ranges again, so that the kernel joins them with their neighbours. Correctness does not
    /// depend on it: a request for such memory watches it again.
    fn watch_again(&self) {
        // The lock is held throughout: stopping the monitor first forbids this, and then unwatches all ranges.
        let mut armed = held(&self.armed);
        while let Some((span, number)) = armed.busy.due(Instant::now()) {
            self.pause_for_tests();
            // The address may belong to another, larger mapping by now.
            if self.mappings.is_exactly(span) {
                armed.arrived(span);
                let _ = self.sequences.of(number).userfault.register(span);
            }
        }
    }

    fn read_events(&self, number: usize, messages: &mut EventBuffer) {
        // The sequence is odd before the read, since the changing thread continues after the read.
        self.apply(DescriptorSet::of(number), || {
            let mut more = true;
            while more {
                more = self.sequences.of(number).userfault.read(messages);
                for (span, change) in messages.iter() {
                    match change {
                        MappingChange::Gone => held(&self.armed).unmapped(span),
                        MappingChange::Discarded => {
                            if held(&self.armed).discard(span, number) {
                                self.sequences.of(number).mark_busy(true);
                            }
                        }
                        MappingChange::Arrived => {
                            held(&self.armed).arrived(span);
                            continue;
                        }
                    }
                    self.notify(span);
                }
            }
        });
    }

    /// Runs `change` with odd sequences, so that concurrent hits wait for it. `change` must neither allocate nor free
    /// memory.
    fn apply(&self, set: DescriptorSet, change: impl FnOnce()) {
        let _alone = held(&self.applying);
        self.sequences.in_set(set).for_each(ChangeSequence::step);
        change();
        self.sequences.in_set(set).for_each(ChangeSequence::step);
    }

    /// Stops watching ranges. Registrations that rely on them, including those of other requests, become stale.
    ///
    /// From before the kernel stops reporting changes until caches know, no request relies on the descriptors. The
    /// monitor continues to read events meanwhile.
    pub(super) fn unwatch(&self, pieces: &[WatchedPiece]) {
        // All descriptors, since before Linux 6.17 a userfaultfd could unregister the ranges of another one.
        let all = self.sequences.all();
        self.sequences.in_set(all).for_each(ChangeSequence::begin_unwatching);
        for &(span, number) in pieces {
            let is_done = self.unregister(span, number);
            self.apply(all, || {
                let mut armed = held(&self.armed);
                armed.remove(span);
                if !is_done {
                    // Parts may still be watched, by this descriptor or by another.
                    armed.arrived(span);
                }
                drop(armed);
                self.notify(span);
            });
        }
        self.sequences.in_set(all).for_each(ChangeSequence::end_unwatching);
    }

    /// Unregisters a range with the kernel, mapping by mapping if a part of it is no longer mapped. Returns whether one
    /// call was enough.
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

    /// Unwatches every mapping that may be watched, each as a whole, including mappings that have moved or grown. It
    /// allocates nothing, since a thread that frees memory may be waiting for the monitor.
    pub(super) fn unwatch_all(&self) {
        self.mappings.each_from(0, |mapping| {
            if mapping.is_own && held(&self.armed).may_be_watched(mapping.span) {
                for one in self.sequences.in_set(self.sequences.all()) {
                    let _ = one.userfault.unregister(mapping.span);
                }
            }
            true
        });
    }

    pub(super) fn notify(&self, span: Span) {
        let late = self.notify_delay.load(Ordering::Relaxed);
        if late > 0 {
            std::thread::sleep(Duration::from_micros(late));
        }
        for watcher in held(&self.watchers).iter() {
            watcher.changed(span);
        }
    }

    pub(super) fn notify_of_everything(&self) {
        self.notify(Span::new(1, usize::MAX - 1).expect("a range"));
    }
}
