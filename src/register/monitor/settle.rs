//! Waiting until the changes that are under way have been applied.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::sequence::{ChangeMark, ChangeState, DescriptorSet, Unchanged};
use super::watching::{Shared, held};

/// The time for which the kernel may say that a change is under way while it has no event, before nothing is kept any more until the
/// change is over.
const STUCK: Duration = Duration::from_secs(1);
/// The time for which one look waits for others' changes to be over: longer than the monitor takes for one, and shorter than what most
/// registrations cost.
const PATIENCE: Duration = Duration::from_millis(1);
/// The number of looks at least, made without giving up the core.
const LOOKS: u32 = 100;
/// The time for which it waits for the monitor's thread to get a core: some turns of the scheduler.
pub(super) const PATIENCE_WITH_THREAD: Duration = Duration::from_millis(20);

/// Why it is not known that every change has been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// Others change memory without a pause, or one change takes long.
    Busy,
    /// The calling thread does not have the monitor's descriptor.
    Unknown,
}

impl Shared {
    /// Waits until every change that was under way in what `set` watches has been applied.
    pub(super) fn settle(&self, set: DescriptorSet) -> Result<(), Unsettled> {
        // One after the other: what begins meanwhile began after this call.
        set.iter().try_for_each(|number| self.settle_one(number))
    }

    /// Some kernels leave their mark for ever when an mremap fails. When nothing but the mark has been seen for long, the
    /// descriptor counts as unsound, and then nobody waits for it until the mark is gone.
    fn settle_one(&self, number: usize) -> Result<(), Unsettled> {
        let one = self.sequences.of(number);
        let mut since: Option<(Instant, u64)> = None;
        let mut looks = 0u32;
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
            // While it is odd the monitor is at work, and will be done.
            if before.is_multiple_of(2) && !one.is_sound() {
                if one.userfault.state() != ChangeState::Quiet {
                    return Err(Unsettled::Busy);
                }
                // A mark that is gone was none that stays.
                self.mark_sound(number);
            }
            let (begun, first) = *since.get_or_insert_with(|| (Instant::now(), before));
            let waited = begun.elapsed();
            // As long as the monitor has not come to the very first change, its thread has no core.
            let starved =
                || first == before && (before % 2 == 1 || one.is_unwatching() || self.has_events(number));
            // Time that this thread spent without a core was no look.
            let looked = looks >= LOOKS && waited > PATIENCE;
            if looked && (waited > PATIENCE_WITH_THREAD || !starved()) {
                self.look_for_a_mark_that_stays(number, before);
                return Err(Unsettled::Busy);
            }
            looks += 1;
            if one.is_busy() {
                self.give_up_busy(number);
                continue;
            }
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                // The monitor wants a core too.
                std::thread::yield_now();
            }
        }
    }

    fn has_events(&self, number: usize) -> bool {
        let mut fds = [PollFd::new(self.sequences.of(number).userfault.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0
    }

    /// Marks a descriptor as unsound when a change has been under way since long ago of which there is no event.
    fn look_for_a_mark_that_stays(&self, number: usize, sequence: u64) {
        let one = self.sequences.of(number);
        let stays = {
            let marks = &mut held(&self.marks);
            let mark = &mut marks[number];
            let changing = one.userfault.state() == ChangeState::Changing;
            if sequence % 2 == 1 || !changing || self.has_events(number) {
                *mark = None;
            } else if mark.is_none_or(|(_, then)| then != sequence) {
                *mark = Some((Instant::now(), sequence));
            }
            mark.is_some_and(|(since, _)| since.elapsed() > STUCK)
        };
        if stays && one.mark_sound(false) {
            tracing::error!(
                "for {STUCK:?} the kernel has reported that memory of this program is changing, without an event that says \
                 which: until that is over, registrations of memory that is watched with it live as long as their leases"
            );
            self.tell_everything();
        }
    }

    #[cold]
    fn mark_sound(&self, number: usize) {
        if self.sequences.of(number).mark_sound(true) {
            tracing::warn!(
                "the change of this program's memory that took so long is over: registrations are kept again"
            );
        }
    }
}
