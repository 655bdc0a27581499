//! The key of a hit is a copy that the thread has stored earlier: it must belong to the leased
//! registration.

use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf::register::Budget;

use crate::memory::PAGE;
use crate::{READ, Stamped, at, explicit, span};

const BASE: usize = 0x10_0000;

/// With a small budget, one slot after the other gets another range, and the first range again.
#[test]
fn a_hit_in_a_reused_slot_returns_the_new_key() {
    for registrations in 1..=4 {
        let (fake, cache) = explicit(Budget::new(registrations).bytes(1 << 40));
        let mut state = 88_172_645_463_325_252_u64;
        let mut hits = 0;
        for step in 0..20_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (page, pages) = (state as usize % 6, 1 + (state >> 8) as usize % 2);
            let start = at(BASE + page * PAGE);
            match state >> 16 & 15 {
                0 => cache.invalidate(span(start as usize, pages * PAGE)).unwrap(),
                _ => {
                    let before = cache.stats().hits;
                    let lease = cache.get(start, pages * PAGE, READ).unwrap();
                    let stamp = lease.stamp();
                    assert!(
                        fake.live().contains(&(stamp.0, lease.span(), READ)),
                        "step {step}: {lease:?} has ended"
                    );
                    hits += cache.stats().hits - before;
                }
            }
        }
        assert!(hits > 1000, "{hits}");
    }
}

/// One thread ends registrations that two others find, until each has seen many.
#[test]
fn a_hit_returns_the_right_key_while_another_thread_evicts() {
    const SEEN: usize = 300;
    let (_, cache) = explicit(Budget::new(2).bytes(1 << 40));
    let (cache, asking) = (&cache, &AtomicUsize::new(2));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                // The flag is also set after a panic, so that the other threads end.
                let _asks = RequestGuard(asking);
                let (mut seen, mut last) = (0, 0);
                while seen < SEEN {
                    let stamp = cache.get(at(BASE), PAGE, READ).unwrap().stamp().0;
                    seen += usize::from(stamp != last);
                    last = stamp;
                }
            });
        }
        while asking.load(Ordering::Relaxed) > 0 {
            cache.invalidate(span(BASE, PAGE)).unwrap();
        }
    });
}

struct RequestGuard<'a>(&'a AtomicUsize);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
