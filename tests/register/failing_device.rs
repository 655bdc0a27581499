//! A device that fails or panics: the request that called it gets the error, and no other request
//! is affected.

#![allow(unsafe_code, reason = "the device asks the kernel whether memory is mapped")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use hostbuf::register::{
    Access, Memory, MonitorMode, Overlap, Probe, Registrar, RegistrarProperties, RegistrationCache,
};
use hostbuf::register::{Error, Result};

use crate::memory::{GuardedMapping, PAGE, map_over};
use crate::{MANY, READ, at, skip, span};

/// A device that counts its registrations and fails in turn.
#[derive(Default)]
struct FailingDevice {
    live: AtomicUsize,
    /// The failures of registrations.
    registering: FailureSchedule,
    /// The failures of deregistrations.
    ending: FailureSchedule,
}

/// The number of calls that fail next, and of those that have failed.
#[derive(Default)]
struct FailureSchedule {
    bad: AtomicUsize,
    calls: AtomicUsize,
}

impl FailureSchedule {
    /// Makes the next calls fail: the first by a panic, the second by an error, and so on in turn.
    fn fail(&self, calls: usize) {
        self.calls.store(0, Ordering::Relaxed);
        self.bad.store(calls, Ordering::Relaxed);
    }

    fn call(&self, memory: &Memory) -> Result<()> {
        if self.bad.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err() {
            return Ok(());
        }
        assert!(self.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1, "on purpose");
        let (device, why) = ("failing".into(), "on purpose".into());
        Err(Error::Registration { device, memory: memory.clone(), access: READ, why, source: None })
    }
}

impl Registrar for FailingDevice {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        "failing".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, (): &()) {}

    fn register(&self, memory: &Memory, _: Access) -> Result<()> {
        self.registering.call(memory)?;
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn deregister(&self, memory: &Memory, (): ()) -> Result<()> {
        self.ending.call(memory)?;
        self.live.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

fn failing(
    registrations: usize,
    monitor: MonitorMode,
) -> (Arc<FailingDevice>, RegistrationCache<FailingDevice>) {
    let failing = Arc::new(FailingDevice::default());
    let cache = RegistrationCache::new(failing.clone(), MANY.registrations(registrations), monitor).unwrap();
    (failing, cache)
}

/// Checks that the statistics of the cache agree with the device.
#[track_caller]
fn books(failing: &FailingDevice, cache: &RegistrationCache<FailingDevice>, live: usize, leaked: u64) {
    let stats = cache.stats();
    assert_eq!(
        (failing.live.load(Ordering::Relaxed), stats.registrations, stats.bytes),
        (live, live, live * PAGE)
    );
    assert_eq!(stats.leaked, leaked);
}

#[test]
fn a_failed_registration_leaves_nothing_behind() {
    let (failing, cache) = failing(4, MonitorMode::Explicit);
    failing.registering.fail(200);
    let outcomes: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4usize)
            .map(|thread| {
                scope.spawn({
                    let cache = &cache;
                    move || {
                        let mut wrong = 0;
                        for n in 0..100 {
                            // Two threads request the same range.
                            let start = at((thread % 2 + 1) * 0x100_0000 + n * PAGE);
                            let asked =
                                catch_unwind(AssertUnwindSafe(|| cache.get(start, PAGE, READ).map(drop)));
                            wrong += usize::from(!matches!(asked, Ok(Ok(()))));
                        }
                        wrong
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Each failed call belongs to exactly one request.
    assert_eq!((outcomes.iter().sum::<usize>(), cache.stats().failures), (200, 100));
    // A call that failed last has held one of the four places until its end.
    for n in 0..4 {
        drop(cache.get(at(0x400_0000 + n * PAGE), PAGE, READ).unwrap());
    }
    books(&failing, &cache, 4, 0);
    cache.flush().unwrap();
    books(&failing, &cache, 0, 0);
}

#[test]
fn a_failed_deregistration_during_an_eviction_is_counted_as_leaked() {
    let (failing, cache) = failing(4, MonitorMode::Explicit);
    for n in 1..=4 {
        drop(cache.get(at(n * PAGE), PAGE, READ).unwrap());
    }
    failing.ending.fail(2);
    drop(cache.get(at(5 * PAGE), PAGE, READ).unwrap());
    // Two registrations are leaked and still count in the budget, so two slots are left.
    books(&failing, &cache, 4, 2);
    for n in 6..=20 {
        drop(cache.get(at(n * PAGE), PAGE, READ).unwrap());
        books(&failing, &cache, 4, 2);
    }
}

#[test]
fn a_failed_deregistration_after_the_last_lease_is_counted_as_leaked() {
    let (failing, cache) = failing(4, MonitorMode::Explicit);
    failing.ending.fail(2);
    for n in 1..=3 {
        let lease = cache.get(at(n * PAGE), PAGE, READ).unwrap();
        cache.invalidate(lease.span()).unwrap();
        // A drop never panics.
        drop(lease);
    }
    // The cache's own thread may still be ending one of them. The flush waits for it, and returns
    // the device's error if there was one.
    let _ = cache.flush();
    books(&failing, &cache, 2, 2);
    drop(cache.get(at(PAGE), PAGE, READ).unwrap());
    books(&failing, &cache, 3, 2);
}

#[test]
fn invalidate_reports_its_failed_deregistration() {
    let (failing, cache) = failing(8, MonitorMode::Explicit);
    for n in 1..=5 {
        drop(cache.get(at(n * PAGE), PAGE, READ).unwrap());
    }
    failing.ending.fail(2);
    let error = cache.flush().unwrap_err().to_string();
    assert!(error.contains("failing"), "{error}");
    // The flush continued to the end despite the error.
    books(&failing, &cache, 2, 2);
    cache.invalidate(span(PAGE, PAGE)).unwrap();
    // A failure while the cache is dropped leaks one more.
    drop(cache.get(at(PAGE), PAGE, READ).unwrap());
    failing.ending.fail(1);
    drop(cache);
    assert_eq!(failing.live.load(Ordering::Relaxed), 3);
}

/// A device that fails to deregister the first page, but only once it is asked to deregister the
/// second.
struct FailingAfterSecond {
    begun: Barrier,
    second: Barrier,
}

impl Registrar for FailingAfterSecond {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        "one after the other".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, (): &()) {}

    fn register(&self, _: &Memory, _: Access) -> Result<()> {
        Ok(())
    }

    fn deregister(&self, memory: &Memory, (): ()) -> Result<()> {
        if memory.as_host().is_none_or(|span| span.start() != PAGE) {
            self.second.wait();
            return Ok(());
        }
        self.begun.wait();
        self.second.wait();
        let (device, why) = (self.name(), "on purpose".into());
        Err(Error::Registration { device, memory: memory.clone(), access: READ, why, source: None })
    }
}

#[test]
fn invalidate_reports_the_failed_deregistration_of_another_thread() {
    let device = Arc::new(FailingAfterSecond { begun: Barrier::new(2), second: Barrier::new(2) });
    let cache = RegistrationCache::new(device.clone(), MANY, MonitorMode::Explicit).unwrap();
    let first = cache.get(at(PAGE), PAGE, READ).unwrap();
    drop(cache.get(at(2 * PAGE), PAGE, READ).unwrap());
    cache.invalidate(first.span()).unwrap();
    std::thread::scope(|scope| {
        // The thread that drops the last lease deregisters it, or the cache's own thread does.
        scope.spawn(move || drop(first));
        device.begun.wait();
        let error = cache.flush().unwrap_err().to_string();
        assert!(error.contains("one after the other") && error.contains("on purpose"), "{error}");
        assert!(error.contains(&span(PAGE, PAGE).to_string()), "{error}");
    });
    assert_eq!((cache.stats().registrations, cache.stats().leaked), (1, 1));
    // The error belongs to that call alone.
    cache.flush().unwrap();
}

#[test]
fn a_failed_deregistration_by_the_reaper_is_counted_as_leaked() {
    if let Probe::Missing(why) = MonitorMode::probe() {
        return skip(&format!("the strict monitor: {why}"));
    }
    let (failing, cache) = failing(8, MonitorMode::Strict);
    let area = GuardedMapping::new(1);
    failing.ending.fail(2);
    for round in 1..=5 {
        drop(cache.get(area.pointer(), PAGE, READ).unwrap());
        map_over(area.at(), PAGE);
        // No request comes, so the cache's own thread ends the registration.
        let begun = Instant::now();
        let kept = round.min(2);
        while cache.stats().registrations != kept || cache.stats().changed != round as u64 {
            assert!(begun.elapsed() < Duration::from_secs(10), "round {round}: {:?}", cache.stats());
            std::thread::yield_now();
        }
    }
    books(&failing, &cache, 2, 2);
}

#[test]
fn memory_of_a_leaked_registration_stays_mapped() {
    use hostbuf::job::Solo;
    use hostbuf::{BufferOptions, HostBuffer};
    for wrong in 0..=2 {
        let (failing, cache) = failing(8, MonitorMode::Explicit);
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let start = buffer.as_ptr().as_ptr();
        drop(cache.get(start, PAGE, READ).unwrap());
        drop(buffer);
        failing.ending.fail(wrong);
        assert_eq!(cache.flush().is_err(), wrong > 0);
        // SAFETY: only asks whether it is mapped.
        let mapped = unsafe { libc::msync(start.cast(), PAGE, libc::MS_ASYNC) } == 0;
        assert_eq!(mapped, wrong > 0);
    }
}
