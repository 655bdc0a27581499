//! Tests of the parts of a cache together, against the fake device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::budget::Budget;
use super::cache_slot::CacheSlot;
use super::deregister::{deregister_stale, make_stale};
use super::hit::{hit, validate_hint};
use super::shared::CacheShared;
use super::slot::VERSION_BITS;
use super::wait::WaitMode;
use crate::properties::Overlap;
use crate::span::{Access, Span};
use crate::testing::fake::Fake;

const START: usize = 0x10_0000;
const VERSIONS: u32 = 1 << VERSION_BITS;

fn span() -> Span {
    Span::new(START, 100).expect("a range")
}

fn with_room_for_one() -> CacheShared<Fake> {
    let fake = Arc::new(Fake::new(Overlap::Free));
    CacheShared::new(fake, Budget::new(1).bytes(1 << 20), None).expect("there is memory")
}

fn get(shared: &CacheShared<Fake>) {
    let lease = super::miss::get(shared, span(), Access::READ, WaitMode::Progress).expect("there is room");
    assert_eq!(lease.key(), lease.handle().0, "the key of another registration");
}

fn end(shared: &CacheShared<Fake>) {
    make_stale(shared, span(), |stats| &mut stats.invalidated);
    deregister_stale(shared).expect("the fake ends it");
}

/// The versions of a slot wrap around while a thread with an old hint sleeps, or before a thread
/// takes over the hints of another one.
#[test]
fn a_reused_version_is_not_the_old_registration() {
    for version in [0, 1, 5, VERSIONS - 1] {
        let shared = with_room_for_one();
        shared.slots[CacheSlot::new(0)].set_version(version.wrapping_sub(1));
        (0..3).for_each(|_| get(&shared));
        std::thread::scope(|scope| drop(scope.spawn(|| (0..3).for_each(|_| get(&shared)))));
        end(&shared);
        // All versions up to the one that wraps around, that one, and all up to the old one.
        shared.slots[CacheSlot::new(0)].set_version(VERSIONS - 1);
        std::thread::scope(|scope| {
            drop(scope.spawn(|| {
                get(&shared);
                end(&shared);
            }));
        });
        if version != 0 {
            shared.slots[CacheSlot::new(0)].set_version(VERSIONS + version - 1);
        }
        std::thread::scope(|scope| drop(scope.spawn(|| (0..2).for_each(|_| get(&shared)))));
        get(&shared);
    }
}

/// The versions of a slot wrap around after a thread has found its hint and before it checks the
/// slot.
#[test]
fn a_hint_found_before_its_version_is_reused_is_not_current() {
    let shared = with_room_for_one();
    shared.slots[CacheSlot::new(0)].set_version(u32::MAX);
    (0..3).for_each(|_| get(&shared));
    let own = shared.counts.last_used().expect("this cache was used last");
    let found = own.primary_hint(shared.slots.page(START)).expect("it was stored");
    end(&shared);
    shared.slots[CacheSlot::new(0)].set_version(VERSIONS - 1);
    std::thread::scope(|scope| drop(scope.spawn(|| get(&shared))));
    assert!(
        shared.slots[CacheSlot::new(0)].observe_version(span(), Access::READ, found.hint.version).is_some(),
        "the same version"
    );
    assert!(validate_hint(&shared, found, span(), Access::READ).is_none(), "the key of another registration");
}

/// Memory that records the number of deregistrations in progress when it is dropped.
struct RecordingMemory {
    shared: Weak<CacheShared<Fake>>,
    recorded: Arc<Mutex<Vec<usize>>>,
}

impl Drop for RecordingMemory {
    fn drop(&mut self) {
        let in_progress = self.shared.upgrade().map_or(0, |shared| shared.lock().lists.deregistering().len());
        self.recorded.lock().expect("no panic").push(in_progress);
    }
}

/// A thread that waits for a deregistration relies on the memory being gone: a program that has
/// flushed the cache reuses the address.
#[test]
fn memory_is_released_before_its_deregistration_counts_as_done() {
    let shared = Arc::new(with_room_for_one());
    let recorded = Arc::new(Mutex::new(Vec::new()));
    get(&shared);
    let memory = RecordingMemory { shared: Arc::downgrade(&shared), recorded: recorded.clone() };
    shared.lock().details(CacheSlot::new(0)).memory = Some(Arc::new(memory));
    end(&shared);
    assert_eq!(*recorded.lock().expect("no panic"), [1], "released after its deregistration counted as done");
    assert_eq!((shared.stats().registrations, shared.lock().lists.deregistering().len()), (0, 0));
}

/// Waiting threads check again by themselves after a moment, so requests alone do not show that
/// nobody wakes them.
#[test]
fn the_end_of_a_lease_wakes_threads_that_wait() {
    let shared = with_room_for_one();
    get(&shared);
    shared.waiters.fetch_add(1, Ordering::Relaxed);
    let woken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let state = shared.lock();
        scope.spawn(|| {
            // The first lease may end before this thread waits.
            while !woken.load(Ordering::Relaxed) {
                drop(hit(&shared, span(), Access::READ).expect("it is registered"));
            }
        });
        let (state, timed_out) = shared.state.wait_unannounced(state, Duration::from_secs(20));
        drop(state);
        woken.store(true, Ordering::Relaxed);
        assert!(!timed_out);
    });
}
