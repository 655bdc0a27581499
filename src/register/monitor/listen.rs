//! The monitor's thread: reads events, and applies them.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use super::kernel::{Change, Messages};
use super::sequence::{ChangeSequence, DescriptorSet, MOST_DESCRIPTORS};
use super::watching::{Piece, Shared, held};
use crate::os::descriptors;
use crate::span::Span;

/// The epoll data of the descriptor that stops the thread.
pub(super) const STOP: u64 = u64::MAX;
/// The epoll data of the descriptor that has the thread look how long it may sleep.
pub(super) const WAKE: u64 = u64::MAX - 1;

impl Shared {
    /// Reads events until it is stopped.
    pub(super) fn listen(&self) {
        self.keep_own_descriptors();
        // Until now it has allocated; from here on memory is watched.
        self.listening.wait();
        let mut messages = Messages::new();
        let mut ready = [EpollEvent::empty(); MOST_DESCRIPTORS + 2];
        loop {
            // Asleep: one that looks again and again is no sooner there where cores halt when they are idle, and each munmap
            // would have to interrupt its core.
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
            let late = self.late.load(Ordering::Relaxed);
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

    /// The program's other descriptors are no business of this thread; closing them is not delayed by it.
    fn keep_own_descriptors(&self) {
        let fds = self.sequences.in_set(self.sequences.all()).map(|one| one.userfault.as_fd().as_raw_fd());
        let own = [self.stop.as_fd().as_raw_fd(), self.wake.as_fd().as_raw_fd(), self.epoll.0.as_raw_fd()];
        let queries = self.mappings.queries().map(AsRawFd::as_raw_fd);
        // Where it cannot be done, this thread shares the program's, as threads do.
        let _ = descriptors::keep_only(&fds.chain(own).chain(queries).collect::<Vec<_>>());
    }

    /// Stops watching what a descriptor reports to be discarded all the time. In the thread of somebody who waits for it.
    #[cold]
    pub(super) fn give_up_busy(&self, number: usize) {
        self.sequences.of(number).mark_busy(false);
        // Without queries nobody could watch them again by themselves.
        while self.mappings.queries().is_some() {
            let busy = held(&self.armed).busy.give_up(number, Instant::now());
            let Some(span) = busy else { return };
            self.unwatch(&[(span, number)]);
            // The monitor sleeps without an end as long as nothing is given up.
            let _ = self.wake.write(1);
        }
    }

    /// Has ranges watched again that were busy, so that their mappings become one with what is beside them. Nobody counts on
    /// that: whoever asks for such memory has it watched once more.
    fn watch_again(&self) {
        // Held all the while: whoever stops the monitor forbids it first, and gives up what is watched then.
        let mut armed = held(&self.armed);
        while let Some((span, number)) = armed.busy.due(Instant::now()) {
            // Something else may be there by now, of which this would be a part.
            if self.mappings.is_exactly(span) {
                armed.arrived(span);
                let _ = self.sequences.of(number).userfault.register(span);
            }
        }
    }

    fn read_events(&self, number: usize, messages: &mut Messages) {
        // Odd before the read: from the read on, whoever changes the memory goes on.
        self.apply(DescriptorSet::of(number), || {
            let mut more = true;
            while more {
                more = self.sequences.of(number).userfault.read(messages);
                for (span, change) in messages.iter() {
                    match change {
                        Change::Gone => held(&self.armed).unmapped(span),
                        Change::Discarded => {
                            if held(&self.armed).discard(span, number) {
                                self.sequences.of(number).mark_busy(true);
                            }
                        }
                        Change::Arrived => {
                            held(&self.armed).arrived(span);
                            continue;
                        }
                    }
                    self.tell(span);
                }
            }
        });
    }

    /// Does something after which what is live may be another one: whoever hits meanwhile waits until it is done. It must not
    /// allocate, nor free.
    fn apply(&self, set: DescriptorSet, change: impl FnOnce()) {
        let _alone = held(&self.applying);
        self.sequences.in_set(set).for_each(ChangeSequence::step);
        change();
        self.sequences.in_set(set).for_each(ChangeSequence::step);
    }

    /// Watches ranges no longer, nor what others have come to watch of them: for them they have changed.
    ///
    /// From before the kernel stops to report changes until that is known, nobody relies on their descriptors; and the monitor
    /// may go on with its work meanwhile.
    pub(super) fn unwatch(&self, pieces: &[Piece]) {
        // Of all descriptors: before Linux 6.17 a userfaultfd could take the watching of another one away.
        let all = self.sequences.all();
        self.sequences.in_set(all).for_each(ChangeSequence::begin_unwatching);
        for &(span, number) in pieces {
            let is_done = self.unregister(span, number);
            self.apply(all, || {
                let mut armed = held(&self.armed);
                armed.remove(span);
                if !is_done {
                    // Parts may be watched still, by this one or by another.
                    armed.arrived(span);
                }
                drop(armed);
                self.tell(span);
            });
        }
        self.sequences.in_set(all).for_each(ChangeSequence::end_unwatching);
    }

    /// Tells the kernel. Where a part is not mapped any more the rest is still to be given up. Returns whether all was one piece.
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

    /// Gives up every mapping that may be watched, each as a whole: also where it has moved to, and what it has grown by.
    /// Nothing is allocated, since whoever frees may wait for the monitor.
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

    pub(super) fn tell(&self, span: Span) {
        let late = self.tell_late.load(Ordering::Relaxed);
        if late > 0 {
            std::thread::sleep(Duration::from_micros(late));
        }
        for watcher in held(&self.watchers).iter() {
            watcher.changed(span);
        }
    }

    pub(super) fn tell_everything(&self) {
        self.tell(Span::new(1, usize::MAX - 1).expect("a range"));
    }
}
