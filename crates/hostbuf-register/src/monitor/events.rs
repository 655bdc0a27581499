//! The monitor's thread, which reads events and applies them.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollTimeout};

use hostbuf_os::poison::IgnorePoison;

use super::descriptor_set::{DescriptorSet, MOST_DESCRIPTORS};
use super::monitor_shared::{MonitorShared, STOP, WAKE};
use super::userfaultfd::{EventBuffer, MappingChange};
use hostbuf_os::descriptors;

impl MonitorShared {
    /// Reads and applies events until the monitor is stopped.
    pub(super) fn listen(&self) {
        self.keep_own_descriptors();
        // The last allocation is before this point: memory is watched from here on.
        self.listening.wait();
        let mut messages = EventBuffer::new();
        let mut ready = [EpollEvent::empty(); MOST_DESCRIPTORS + 2];
        loop {
            // The thread sleeps. Polling would not be faster on cores that halt when idle, and each
            // munmap would have to interrupt the polling core.
            let next = self.ranges.lock().ignore_poison().busy.next_due(Instant::now());
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
            self.delays.events.wait();
            for event in ready {
                if event.data() == WAKE {
                    let _ = self.wake.read();
                    continue;
                }
                self.read_events(event.data() as usize, &mut messages);
            }
        }
    }

    /// Drops this thread's copies of the program's other descriptors, so that the thread does not
    /// keep them open.
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

    /// Watches formerly busy ranges again, so that the kernel joins them with their neighbours.
    /// Correctness does not depend on it: a request for such memory watches it again.
    fn watch_again(&self) {
        // The lock is held throughout: stopping the monitor first forbids this, and then unwatches
        // all ranges.
        let mut ranges = self.ranges.lock().ignore_poison();
        while let Some((span, number)) = ranges.busy.due(Instant::now()) {
            self.delays.requests.wait();
            // The address may belong to another, larger mapping by now.
            if self.mappings.is_exactly(span) {
                ranges.arrived(span);
                let _ = self.sequences.of(number).userfault.register(span);
            }
        }
    }

    /// Reads and applies the events of one descriptor.
    fn read_events(&self, number: usize, messages: &mut EventBuffer) {
        // The sequence is odd before the read, since the changing thread continues after the read.
        self.apply(DescriptorSet::of(number), || {
            let mut more = true;
            while more {
                more = self.sequences.of(number).userfault.read(messages);
                for (span, change) in messages.iter() {
                    match change {
                        MappingChange::Gone => self.ranges.lock().ignore_poison().unmapped(span),
                        MappingChange::Discarded => {
                            if self.ranges.lock().ignore_poison().discard(span, number) {
                                self.sequences.of(number).set_busy(true);
                            }
                        }
                        MappingChange::Arrived => {
                            self.ranges.lock().ignore_poison().arrived(span);
                            continue;
                        }
                    }
                    self.notify(span);
                }
            }
        });
    }
}
