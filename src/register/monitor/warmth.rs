//! Whether the monitor's thread looks again at once, or sleeps until the kernel wakes it: whoever changes watched memory waits
//! for it to read, and waking a thread on a core that sleeps takes longer than all the rest.

use std::time::{Duration, Instant};

/// How long after a change the next one is looked for without sleeping, when changes come in such intervals.
const WARM: Duration = Duration::from_micros(200);
/// Between two looks nothing takes so long, unless others have the core for a turn. Whoever has just been woken may have it
/// for a moment: then the kernel moves this thread.
const DISPLACED: Duration = Duration::from_micros(400);
/// How long it sleeps between changes once it has been in the way of others.
const COLD: Duration = Duration::from_millis(5);

pub(super) struct Warmth {
    /// No use on a single core: there the others wait for this thread to sleep.
    possible: bool,
    /// The last change.
    last: Option<Instant>,
    /// While it is warm: until when, and when it has last looked.
    warm: Option<(Instant, Instant)>,
    cold_until: Option<Instant>,
}

impl Warmth {
    pub(super) fn new() -> Warmth {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Warmth { possible: cores > 1, last: None, warm: None, cold_until: None }
    }

    /// Whether to look again without sleeping.
    pub(super) fn is_warm(&mut self) -> bool {
        self.warm.is_some() && self.stays_warm(Instant::now())
    }

    fn stays_warm(&mut self, now: Instant) -> bool {
        let Some((until, looked)) = self.warm else { return false };
        if now - looked > DISPLACED {
            // Others want this core: they shall have it, and be waited for.
            self.cold_until = Some(now + COLD);
        }
        let stays = now < until && now - looked <= DISPLACED;
        self.warm = stays.then_some((until, now));
        stays
    }

    /// Something has changed.
    pub(super) fn changed(&mut self) {
        if !self.possible {
            return;
        }
        let now = Instant::now();
        self.stays_warm(now);
        let soon = self.last.is_some_and(|last| now - last < 2 * WARM);
        self.last = Some(now);
        let cold = self.cold_until.is_some_and(|until| now < until);
        self.warm = (soon && !cold).then_some((now + WARM, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_warm_only_for_a_while_after_changes_that_come_soon_one_after_the_other() {
        let mut warmth = Warmth { possible: true, ..Warmth::new() };
        warmth.changed();
        assert!(!warmth.is_warm(), "one is none");
        let mut warmed = false;
        for _ in 0..10_000 {
            warmth.changed();
            warmed |= warmth.is_warm();
        }
        assert!(warmed);
        std::thread::sleep(WARM);
        assert!(!warmth.is_warm());
        let mut never = Warmth { possible: false, ..Warmth::new() };
        (0..100).for_each(|_| never.changed());
        assert!(!never.is_warm());
    }
}
