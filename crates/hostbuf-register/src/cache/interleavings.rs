//! Every interleaving of those who take leases with those who end registrations, by loom: the cache itself, with the fake for
//! a device. What loom cannot see is told in sync.rs. Run by scripts/test:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --lib --no-default-features --target-dir target/loom interleavings
//! ```
//!
//! Not modelled: the monitor (a kernel stands behind it), threads that wait (loom has no clocks), the thread of the cache,
//! threads whose own storage is gone, the guesses (each thread has its own), and more than two threads at a time.

use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

use loom::thread;

use super::budget::Budget;
use super::eviction::Shortage;
use super::miss::WaitMode;
use super::range_table::{Lookup, RangeTable};
use super::shared::CacheShared;
use super::sync::without_fences;
use crate::register::fake::Fake;
use crate::register::registrar::Overlap;
use crate::span::{Access, Span};

const START: usize = 0x10_0000;
const LENGTH: usize = 100;

/// With at most so many preemptions.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(run);
}

fn span() -> Span {
    Span::new(START, LENGTH).expect("a range")
}

/// A cache with room for one, and one in it.
fn registered() -> (Arc<Fake>, Arc<CacheShared<Fake>>) {
    let fake = Arc::new(Fake::new(Overlap::Free));
    let shared = Arc::new(
        CacheShared::new(fake.clone(), Budget { regions: 1, bytes: 1 << 20 }, None).expect("there is memory"),
    );
    drop(shared.get(START as *const u8, LENGTH, Access::READ, WaitMode::Progress).expect("there is room"));
    (fake, shared)
}

/// Takes a lease if it can, and looks whether it is one for as long as it has it.
fn hold(fake: &Fake, shared: &CacheShared<Fake>) -> bool {
    let Some(lease) = shared.hit(span(), Access::READ) else { return false };
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

/// The same of two at once, which are of one registration.
fn hold_many(fake: &Fake, shared: &CacheShared<Fake>) -> bool {
    // With capacity, as get_many() allocates it, so that the guesses are counted together.
    let mut leases = Vec::with_capacity(2);
    let number = || fake.live().first().map(|live| live.0);
    if shared.count_many(&[span(), span()], Access::READ, &mut leases).is_none() {
        leases.drain(..).for_each(|lease| shared.take_back(ManuallyDrop::new(lease).slot));
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
    let chosen = shared.choose(Shortage::Regions, 7);
    if let Some(slot) = chosen {
        shared.deregister(slot).expect("the fake ends it");
    }
    chosen.is_some()
}

/// Runs `other` in another thread than the one that holds: in this one if the holder is new here, so that its words come into
/// the list meanwhile; else this one holds, and has its words and a guess. What both gave, of the holder first.
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
        // The second hit makes it the first guess, which batches use.
        (0..2).for_each(|_| drop(shared.hit(span(), Access::READ)));
        let own = shared.counts.last().expect("this cache was used last");
        assert!(shared.look_up_hint(own, span(), Access::READ).is_some());
        let other = thread::spawn({
            let shared = shared.clone();
            move || other(&shared)
        });
        (hold(&fake, &shared), other.join().expect("it did what it had to"))
    }
}

/// Either somebody holds what he took, or it is evicted; and all orders come about.
fn never_both(hold: fn(&Fake, &CacheShared<Fake>) -> bool, preemptions: usize) {
    for new in [true, false] {
        let seen = Arc::new(Mutex::new(HashSet::new()));
        model(preemptions, {
            let seen = seen.clone();
            move || {
                let (fake, shared) = registered();
                let (held, evicted) = beside(hold, new, (fake.clone(), shared.clone()), evict);
                assert_eq!(fake.live().is_empty(), evicted);
                assert_eq!(shared.counts.leases(0), 0);
                seen.lock().expect("nobody panics with it").insert((held, evicted));
            }
        });
        let seen = seen.lock().expect("nobody panics with it");
        // First one and then the other, either way, and both at once.
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
                shared.make_stale(span(), |stats| &mut stats.invalidated);
                shared.deregister_stale().expect("the fake ends it");
                assert!(shared.hit(span(), Access::READ).is_none(), "it came back");
            });
            // As the thread of the cache does, for a holder that has not seen that it was the last.
            shared.deregister_stale().expect("the fake ends it");
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
                    let other = (START + 2 * LENGTH) as *const u8;
                    drop(shared.get(other, LENGTH, Access::READ, WaitMode::Progress).expect("there is room"));
                }
            });
            assert_eq!(fake.live().len(), 1);
        });
    }
}

/// What the holder did with its lease is over, for every thread, before it is ended; by acquiring and releasing alone.
#[test]
fn uses_of_a_lease_happen_before_its_deregistration() {
    without_fences(|| {
        model(3, || {
            let (fake, shared) = registered();
            let lease = shared.hit(span(), Access::READ).expect("nobody else is here");
            // It borrows from here, and goes to a thread that does not.
            let slot = ManuallyDrop::new(lease).slot;
            let holder = thread::spawn({
                let shared = shared.clone();
                move || {
                    // Its words are in the list already.
                    drop(shared.hit(span(), Access::READ));
                    let lease = shared.lease(slot);
                    assert_eq!(lease.handle().0, 1);
                }
            });
            // If it is leased still the holder has its turn first.
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
///   |-- b --||-- a --|     a is always there; b comes before it, or goes, and a moves in its block
/// ```
#[test]
fn a_lookup_finds_the_entry_or_reports_a_concurrent_change() {
    for coming in [true, false] {
        without_fences(|| {
            model(2, move || {
                let (a, b) = (Span::new(100, 10).expect("a range"), Span::new(80, 10).expect("a range"));
                let table = Arc::new(RangeTable::new(2));
                table.insert(a, 0);
                if !coming {
                    table.insert(b, 1);
                }
                let writer = thread::spawn({
                    let table = table.clone();
                    move || if coming { table.insert(b, 1) } else { table.remove(b, 1) }
                });
                match table.find(a, |_| true) {
                    Lookup::Slot(slot) => assert_eq!(slot, 0),
                    Lookup::Nothing => panic!("it was there all the time"),
                    Lookup::Changed => {}
                }
                writer.join().expect("a writer alone");
            });
        });
    }
}
