//! Several threads with the same range.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hostbuf::register::Error;
use hostbuf::register::{
    Access, Memory, MonitorMode, Overlap, Registrar, RegistrarProperties, RegistrationCache,
};

use crate::memory::PAGE;
use crate::{MANY, READ, at, explicit, span};

#[test]
fn misses_of_one_range_register_once() {
    let (fake, cache) = explicit(MANY);
    fake.close();
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..8).map(|_| scope.spawn(|| cache.get(at(0x1000), 64, READ).unwrap().handle().0)).collect();
        fake.expect_waiting(1);
        fake.open();
        let ids: Vec<u64> = all.into_iter().map(|t| t.join().unwrap()).collect();
        assert!(ids.iter().all(|&id| id == ids[0]), "{ids:?}");
    });
    assert_eq!(fake.made(), 1);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.hits + stats.coalesced), (1, 7));
}

#[test]
fn hits_continue_during_a_slow_registration() {
    let (fake, cache) = explicit(MANY);
    drop(cache.get(at(0x1000), 64, READ).unwrap());
    fake.close();
    std::thread::scope(|scope| {
        scope.spawn(|| cache.get(at(0x2000), 64, READ).map(drop).unwrap());
        fake.expect_waiting(1);
        for _ in 0..1000 {
            drop(cache.get(at(0x1000), 64, READ).unwrap());
            assert!(cache.try_get(at(0x1000), 64, READ).is_some());
            assert!(cache.try_get(at(0x2000), 64, READ).is_none());
        }
        fake.open();
    });
}

#[test]
fn waiting_requests_keep_their_own_timeout_and_an_error_wakes_them() {
    let (fake, cache) = explicit(MANY);
    fake.close();
    fake.fail(1, libc::EIO);
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| cache.get(at(0x1000), 64, READ).map(drop));
        fake.expect_waiting(1);
        let begun = Instant::now();
        let late = cache.get_timeout(at(0x1000), 64, READ, Duration::from_millis(30));
        assert!(
            matches!(&late, Err(Error::Registration { why, .. }) if why.contains("another thread")),
            "{late:?}"
        );
        assert_eq!(cache.stats().over_budget, 0);
        assert!(begun.elapsed() < Duration::from_secs(5));
        let follower = scope.spawn(|| cache.get(at(0x1000), 64, READ).map(drop));
        fake.open();
        assert!(leader.join().unwrap().is_err());
        follower.join().unwrap().unwrap();
    });
    assert_eq!((fake.made(), fake.live().len()), (1, 1));
}

#[test]
fn a_panicking_registration_leaves_nothing_behind() {
    use hostbuf::register::{Access, Overlap, Registrar, RegistrationCache};
    struct Bomb(std::sync::atomic::AtomicBool);
    impl Registrar for Bomb {
        type Handle = ();
        type Key = ();
        fn name(&self) -> String {
            "bomb".into()
        }
        fn properties(&self) -> RegistrarProperties {
            RegistrarProperties::new(Overlap::Free)
        }
        fn key(&self, (): &()) {}

        fn register(&self, _: &Memory, _: Access) -> hostbuf::register::Result<()> {
            let first = !self.0.swap(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!first, "on purpose");
            Ok(())
        }
        fn deregister(&self, _: &Memory, (): ()) -> hostbuf::register::Result<()> {
            Ok(())
        }
    }
    let bomb = std::sync::Arc::new(Bomb(false.into()));
    let cache = RegistrationCache::new(bomb, MANY, hostbuf::register::MonitorMode::Explicit).unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = cache.get(at(0x1000), 64, READ);
    }));
    assert!(outcome.is_err());
    assert_eq!((cache.stats().registrations, cache.stats().bytes), (0, 0));
    cache.get(at(0x1000), 64, READ).unwrap();
}

#[test]
fn overlapping_windows_on_several_threads_leak_nothing() {
    let (fake, cache) = explicit(MANY.registrations(32));
    std::thread::scope(|scope| {
        for seed in 1..5usize {
            let cache = &cache;
            scope.spawn(move || {
                let mut n = seed * 7919;
                for _ in 0..4000 {
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (from, pages) = ((n >> 33) % 64, (n >> 40) % 8 + 1);
                    let lease = cache.get(at(0x100_0000 + from * PAGE), pages * PAGE, READ).unwrap();
                    assert!(lease.span().contains(span(0x100_0000 + from * PAGE, pages * PAGE)));
                    if n % 19 == 0 {
                        cache.invalidate(span(0x100_0000 + from * PAGE, PAGE)).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fake.live().len(), cache.stats().registrations);
    cache.flush().unwrap();
    assert!(fake.live().is_empty());
    assert_eq!(fake.ended().len(), fake.made());
}

#[test]
fn a_lease_may_end_in_another_thread() {
    let (fake, cache) = explicit(MANY);
    for _ in 0..100 {
        let lease = cache.get(at(0x1000), 64, READ).unwrap();
        std::thread::scope(|scope| drop(scope.spawn(move || drop(lease))));
    }
    cache.invalidate(span(0x1000, 64)).unwrap();
    assert_eq!((fake.made(), fake.live().len()), (1, 0));
}

/// The type of a lease allows its use in other threads, and excludes copies: there is one lease for
/// each request.
#[test]
fn a_lease_is_send_and_not_clone() {
    use hostbuf::register::testing::fake::Fake;
    use hostbuf::register::{Lease, RegistrationCache};
    fn sent<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    sent::<Lease<'_, Fake>>();
    shared::<RegistrationCache<Fake>>();
    // If the type were Clone, both implementations would apply, and the call would be ambiguous.
    trait Either<Which> {
        fn has() {}
    }
    impl<T> Either<()> for T {}
    impl<T: Clone> Either<u8> for T {}
    <Lease<'_, Fake> as Either<_>>::has();
}

/// A device that delays deregistrations at one address until the test allows them.
struct SlowDevice {
    at: usize,
    /// The pair (requested, allowed) for the deregistration.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl SlowDevice {
    fn wait_until(&self, ready: impl Fn(&(bool, bool)) -> bool) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !ready(state)).unwrap());
    }

    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

impl Registrar for SlowDevice {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        "slow".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, (): &()) {}

    fn register(&self, _: &Memory, _: Access) -> hostbuf::register::Result<()> {
        Ok(())
    }

    fn deregister(&self, memory: &Memory, (): ()) -> hostbuf::register::Result<()> {
        if memory.as_host().is_some_and(|span| span.start() == self.at) {
            self.set(|state| state.0 = true);
            self.wait_until(|state| state.1);
        }
        Ok(())
    }
}

/// invalidate waits for deregistrations in its own range, and for no others.
#[test]
fn invalidate_waits_only_for_its_own_range() {
    let slow = SlowDevice { at: 0x1000, state: Mutex::default(), changed: Condvar::new() };
    let cache = RegistrationCache::new(Arc::new(slow), MANY, MonitorMode::Explicit).unwrap();
    drop(cache.get(at(0x1000), 64, READ).unwrap());
    drop(cache.get(at(0x2000), 64, READ).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| cache.invalidate(span(0x1000, 64)).unwrap());
        cache.registrar().wait_until(|state| state.0);
        // Waiting for the first range would take forever.
        cache.invalidate(span(0x2000, 64)).unwrap();
        cache.invalidate(span(0x3000, 64)).unwrap();
        assert_eq!(cache.stats().registrations, 1);
        let same = scope.spawn(|| {
            cache.invalidate(span(0x1020, 1)).unwrap();
            cache.stats().registrations
        });
        cache.registrar().set(|state| state.1 = true);
        assert_eq!(same.join().unwrap(), 0, "it came back before the registration had ended");
    });
}
