//! Waits until the changes in progress have been applied.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use hostbuf_os::poison::IgnorePoison;

use super::change_mark::{ChangeMark, ChangeState};
use super::change_sequence::Unchanged;
use super::descriptor_set::DescriptorSet;
use super::monitor_shared::MonitorShared;

/// The time for which the kernel may report a change in progress without an event. After it, no
/// registration is kept until the change is over.
const STUCK: Duration = Duration::from_secs(1);
/// The time for which a request waits for the changes of other threads: longer than the monitor
/// needs for one change, and shorter than most registrations take.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(1);
/// The smallest number of checks, which are made without yielding the core.
const MIN_CHECKS: u32 = 100;
/// The time for which a request waits if the monitor's thread has no core: a few time slices of the
/// scheduler.
pub(super) const STARVED_TIMEOUT: Duration = Duration::from_millis(20);

/// The reason why it is unknown whether every change has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// Other threads change memory without a pause, or one change takes long.
    Busy,
    /// The calling thread does not have the monitor's descriptor.
    Unknown,
}

impl MonitorShared {
    /// Waits until every change that was in progress in memory that `set` watches has been applied.
    pub(super) fn settle(&self, set: DescriptorSet) -> Result<(), Unsettled> {
        // One descriptor after another, since changes that begin meanwhile do not matter.
        set.iter().try_for_each(|number| self.settle_one(number))
    }

    /// Waits for one descriptor. Some kernels leave the mark set for ever after a failed mremap. If
    /// the mark stays set for long without an event, the descriptor counts as unsound, and no
    /// request waits for it until the mark is cleared.
    fn settle_one(&self, number: usize) -> Result<(), Unsettled> {
        let one = self.sequences.of(number);
        let mut since: Option<(Instant, u64)> = None;
        let mut checks = 0u32;
        loop {
            let before = one.read();
            match one.check(before) {
                Unchanged::Yes => return Ok(()),
                Unchanged::No => {}
                Unchanged::Unknown => {
                    self.warn_of_unknown_descriptor();
                    return Err(Unsettled::Unknown);
                }
            }
            // While the sequence is odd, the monitor is applying a change and will finish.
            if before.is_multiple_of(2) && !one.is_sound() {
                if one.userfault.state() != ChangeState::Quiet {
                    return Err(Unsettled::Busy);
                }
                self.verify(DescriptorSet::of(number))?;
                // The mark has been cleared, so the descriptor is sound again.
                self.mark_sound(number);
            }
            let (begun, first) = *since.get_or_insert_with(|| (Instant::now(), before));
            let waited = begun.elapsed();
            // As long as the monitor has not finished the first change, its thread may have no
            // core.
            let starved =
                || first == before && (before % 2 == 1 || one.is_unwatching() || self.has_events(number));
            // Both limits, since the waiting time includes time in which this thread had no core.
            let is_due = checks >= MIN_CHECKS && waited > SETTLE_TIMEOUT;
            if is_due && (waited > STARVED_TIMEOUT || !starved()) {
                self.mark_unsound_if_stuck(number, before);
                return Err(Unsettled::Busy);
            }
            checks += 1;
            if one.is_busy() {
                self.give_up_busy(number);
                continue;
            }
            if checks < MIN_CHECKS {
                std::hint::spin_loop();
            } else {
                // The monitor may need this core.
                std::thread::yield_now();
            }
        }
    }

    /// Checks that the calling thread has the userfaultfds of `set`, and marks those that it lacks
    /// as unsound: a hit could mistake the answer of some other file for the userfaultfd's
    /// (`Userfaultfd::state`). They are marked as sound again when a thread that has them finds
    /// them quiet.
    pub(super) fn verify(&self, set: DescriptorSet) -> Result<(), Unsettled> {
        let mut result = Ok(());
        for one in self.sequences.in_set(set).filter(|one| !one.userfault.is_current_file()) {
            one.mark_unsound();
            self.warn_of_unknown_descriptor();
            result = Err(Unsettled::Unknown);
        }
        result
    }

    /// Returns whether the kernel has events of the descriptor that have not been read.
    fn has_events(&self, number: usize) -> bool {
        let mut fds = [PollFd::new(self.sequences.of(number).userfault.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0
    }

    /// Marks a descriptor as unsound if a change has been in progress for [`STUCK`] without an
    /// event.
    fn mark_unsound_if_stuck(&self, number: usize, sequence: u64) {
        let one = self.sequences.of(number);
        let stays = {
            let marks = &mut self.marks.lock().ignore_poison();
            let mark = &mut marks[number];
            let changing = one.userfault.state() == ChangeState::Changing;
            if sequence % 2 == 1 || !changing || self.has_events(number) {
                *mark = None;
            } else if mark.is_none_or(|(_, then)| then != sequence) {
                *mark = Some((Instant::now(), sequence));
            }
            mark.is_some_and(|(since, _)| since.elapsed() > STUCK)
        };
        if stays && one.mark_unsound() {
            tracing::error!(
                "for {STUCK:?} the kernel has reported a change of this program's memory without an event that names the range: \
                 until the change is over, memory that the same userfaultfd watches is registered for its leases only"
            );
            self.notify_of_everything();
        }
    }

    /// Marks a descriptor as sound, and reports the end of a long change.
    #[cold]
    fn mark_sound(&self, number: usize) {
        let stayed = self.marks.lock().ignore_poison()[number].take().is_some();
        if self.sequences.of(number).mark_sound() && stayed {
            tracing::warn!(
                "the long change of this program's memory is over: the cache keeps registrations again"
            );
        }
    }
}
