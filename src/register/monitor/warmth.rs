//! Whether the monitor's thread looks again at once, or sleeps until the kernel wakes it: whoever changes watched memory waits
//! for it to read, and waking a thread on a core that sleeps takes longer than all the rest.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// How long after a change the next one is looked for without sleeping, when changes come in such intervals.
const WARM: Duration = Duration::from_micros(100);
/// How long it sleeps between changes once it has been in the way of others.
const COLD: Duration = Duration::from_millis(5);

pub(super) struct Warmth {
    /// No use on a single core: there the others wait for this thread to sleep.
    possible: bool,
    last: Option<Instant>,
    until: Option<Instant>,
    cold_until: Option<Instant>,
    /// How often the kernel has given this thread's core to another.
    displaced: i64,
}

impl Warmth {
    pub(super) fn new() -> Warmth {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Warmth { possible: cores > 1, last: None, until: None, cold_until: None, displaced: 0 }
    }

    /// Whether to look again without sleeping.
    pub(super) fn is_warm(&mut self) -> bool {
        let Some(until) = self.until else { return false };
        if Instant::now() < until {
            return true;
        }
        self.until = None;
        false
    }

    /// Something has changed.
    pub(super) fn changed(&mut self) {
        if !self.possible {
            return;
        }
        let now = Instant::now();
        let soon = self.last.is_some_and(|last| now - last < 2 * WARM);
        self.last = Some(now);
        if self.cold_until.is_some_and(|until| now < until) || !soon {
            return;
        }
        // Others want this core: they shall have it, and be waited for.
        let displaced =
            getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches());
        if std::mem::replace(&mut self.displaced, displaced) != displaced {
            (self.until, self.cold_until) = (None, Some(now + COLD));
            return;
        }
        self.until = Some(now + WARM);
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
