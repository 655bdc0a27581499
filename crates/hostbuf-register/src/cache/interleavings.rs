//! Loom models of threads that take leases beside threads that end registrations: the cache itself
//! with the fake device, in every interleaving. sync.rs describes the limits of loom. scripts/test
//! runs them:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --package hostbuf-register --lib \
//!     --target-dir target/loom interleavings
//! ```
//!
//! Not modelled: the monitor (it needs the kernel), waiting requests (loom has no clocks), the
//! reaper, threads whose thread-local storage is gone, hints (each thread has its own), and more
//! than two threads at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use loom::thread;

use super::batch::hit_many;
use super::budget::Budget;
use super::cache_slot::CacheSlot;
use super::deregister::{deregister, deregister_stale, make_stale, select};
use super::eviction::Shortage;
use super::hit::{find_hint, key};
use super::lease::Lease;
use super::lease_end::uncount_lease;
use super::range_table::{Lookup, RangeTable};
use super::shared::CacheShared;
use super::sync::without_fences;
use super::wait::WaitMode;
use crate::properties::Overlap;
use crate::span::{Access, Span};
use crate::testing::fake::Fake;

const START: usize = 0x10_0000;
const LENGTH: usize = 100;

/// Runs a model with at most so many preemptions.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(run);
}

/// Takes a lease of an existing registration.
fn hit(shared: &CacheShared<Fake>, span: Span) -> Option<Lease<'_, Fake>> {
    super::hit::hit(shared, span, Access::READ)
}

/// Takes a lease, and returns it at once.
fn get(shared: &CacheShared<Fake>, span: Span) {
    let lease = super::miss::get(shared, span, Access::READ, WaitMode::Progress).expect("there is room");
    drop(lease);
}

fn span() -> Span {
    Span::new(START, LENGTH).expect("a range")
}

/// Makes a cache with room for one registration, which it has.
fn registered() -> (Arc<Fake>, Arc<CacheShared<Fake>>) {
    let fake = Arc::new(Fake::new(Overlap::Free));
    let shared = Arc::new(
        CacheShared::new(fake.clone(), Budget::new(1).bytes(1 << 20), None).expect("there is memory"),
    );
    get(&shared, span());
    (fake, shared)
}

/// Takes a lease if it can, and checks that its registration lives as long as the lease.
fn hold(fake: &Fake, shared: &CacheShared<Fake>) -> bool {
    let Some(lease) = hit(shared, span()) else { return false };
    assert!(lease.span().contains(span()), "{lease:?}");
    let number = lease.handle().0;
    let is_live = || fake.live().iter().any(|live| live.0 == number);
    assert!(is_live(), "it has ended before it was leased");
    // The others have their turn.
    thread::yield_now();
    assert!(is_live(), "it has ended while it was leased");
    assert_eq!((lease.handle().0, lease.key()), (number, number));
    true
}

/// Takes two leases of one registration at once if it can, and checks them as [`hold`] does.
fn hold_many(fake: &Fake, shared: &CacheShared<Fake>) -> bool {
    // With capacity, as get_many() allocates it, so that hinted leases are counted together.
    let mut leases = Vec::with_capacity(2);
    let number = || fake.live().first().map(|live| live.0);
    if hit_many(shared, &[span(), span()], Access::READ, &mut leases).is_none() {
        leases.drain(..).for_each(|lease| uncount_lease(shared, lease.into_slot()));
    }
    for lease in &leases {
        assert_eq!(
            (Some(lease.handle().0), lease.key()),
            (number(), lease.handle().0),
            "it has ended while it was leased"
        );
    }
    leases.len() == 2
}

fn evict(shared: &CacheShared<Fake>) -> bool {
    let chosen = select(shared, Shortage::Registrations, 7);
    if let Some(slot) = chosen {
        deregister(shared, slot).expect("the fake ends it");
    }
    chosen.is_some()
}

/// Runs `hold` and `other` in two threads. If the holder is `new`, it runs in a new thread, whose
/// counters are added to the list meanwhile; otherwise it runs in this thread, which has its
/// counters and a hint. Returns both results.
fn beside<T: 'static>(
    hold: fn(&Fake, &CacheShared<Fake>) -> bool,
    new: bool,
    (fake, shared): (Arc<Fake>, Arc<CacheShared<Fake>>),
    other: fn(&CacheShared<Fake>) -> T,
) -> (bool, T) {
    if new {
        let holder = thread::spawn({
            let shared = shared.clone();
            move || hold(&fake, &shared)
        });
        let gave = other(&shared);
        (holder.join().expect("it held what it had"), gave)
    } else {
        // The second hit stores the primary hint, which batches use.
        (0..2).for_each(|_| drop(hit(&shared, span())));
        let own = shared.counts.last_used().expect("this cache was used last");
        assert!(find_hint(&shared, own, span(), Access::READ).is_some());
        let other = thread::spawn({
            let shared = shared.clone();
            move || other(&shared)
        });
        (hold(&fake, &shared), other.join().expect("it did what it had to"))
    }
}

/// Checks that a registration is either leased or evicted, and that all orders occur.
fn never_both(hold: fn(&Fake, &CacheShared<Fake>) -> bool, preemptions: usize) {
    for new in [true, false] {
        let seen = Arc::new(Mutex::new(HashSet::new()));
        model(preemptions, {
            let seen = seen.clone();
            move || {
                let (fake, shared) = registered();
                let (held, evicted) = beside(hold, new, (fake.clone(), shared.clone()), evict);
                assert_eq!(fake.live().is_empty(), evicted);
                assert_eq!(shared.counts.leases(CacheSlot::new(0)), 0);
                seen.lock().expect("nobody panics with it").insert((held, evicted));
            }
        });
        let seen = seen.lock().expect("nobody panics with it");
        // The lease ends before the eviction, the eviction comes first, and both at once.
        for both in [(true, true), (false, true), (true, false)] {
            assert!(seen.contains(&both), "{both:?} of {seen:?}");
        }
    }
}

#[test]
fn a_slot_is_leased_or_evicted_but_never_both() {
    never_both(hold, 3);
}

#[test]
fn several_slots_are_leased_or_evicted_but_never_both() {
    never_both(hold_many, 2);
}

#[test]
fn an_invalidated_slot_is_not_leased_and_deregistered_once() {
    for new in [true, false] {
        model(3, move || {
            let (fake, shared) = registered();
            beside(hold, new, (fake.clone(), shared.clone()), |shared| {
                make_stale(shared, span(), |stats| &mut stats.invalidated);
                deregister_stale(shared).expect("the fake ends it");
                assert!(hit(shared, span()).is_none(), "it came back");
            });
            // As the reaper does, for a holder that has not noticed that its lease was the last.
            deregister_stale(&shared).expect("the fake ends it");
            assert_eq!((fake.live().len(), fake.ended()), (0, vec![1]));
        });
    }
}

#[test]
fn a_reused_slot_is_not_the_old_registration() {
    for new in [true, false] {
        model(1, move || {
            let (fake, shared) = registered();
            beside(hold, new, (fake.clone(), shared), |shared| {
                if evict(shared) {
                    get(shared, Span::new(START + 2 * LENGTH, LENGTH).expect("a range"));
                }
            });
            assert_eq!(fake.live().len(), 1);
        });
    }
}

/// The uses of a lease happen before the deregistration for every thread, by acquire and release
/// alone.
#[test]
fn uses_of_a_lease_happen_before_its_deregistration() {
    without_fences(|| {
        model(3, || {
            let (fake, shared) = registered();
            let lease = hit(&shared, span()).expect("nobody else is here");
            // The lease borrows from this thread, and goes to one that does not.
            let slot = lease.into_slot();
            let holder = thread::spawn({
                let shared = shared.clone();
                move || {
                    // Adds the thread's counters to the list first.
                    drop(hit(&shared, span()));
                    let lease = Lease::new(&shared, slot, key(&shared, slot));
                    assert_eq!(lease.handle().0, 1);
                }
            });
            // If the registration is still leased, the holder runs first.
            let evicted = evict(&shared) || {
                thread::yield_now();
                evict(&shared)
            };
            holder.join().expect("it held what it had");
            assert_eq!(fake.live().is_empty(), evicted);
        });
    });
}

/// ```text
///   |-- b --||-- a --|     a stays; b is inserted before it or removed, so a moves in its block
/// ```
#[test]
fn a_lookup_finds_the_entry_or_reports_a_concurrent_change() {
    for coming in [true, false] {
        without_fences(|| {
            model(2, move || {
                let (a, b) = (Span::new(100, 10).expect("a range"), Span::new(80, 10).expect("a range"));
                let table = Arc::new(RangeTable::new(2));
                table.insert(a, CacheSlot::new(0));
                if !coming {
                    table.insert(b, CacheSlot::new(1));
                }
                let writer = thread::spawn({
                    let table = table.clone();
                    move || {
                        if coming {
                            table.insert(b, CacheSlot::new(1))
                        } else {
                            table.remove(b, CacheSlot::new(1))
                        }
                    }
                });
                match table.find(a, |_| true) {
                    Lookup::Slot(slot) => assert_eq!(slot, CacheSlot::new(0)),
                    Lookup::Nothing => panic!("it was there all the time"),
                    Lookup::Changed => {}
                }
                writer.join().expect("a writer alone");
            });
        });
    }
}
