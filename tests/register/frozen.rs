//! Freezing: no device writes into a frozen buffer.

#![allow(unsafe_code, reason = "the tests write to the buffer, and ask the kernel whether memory is mapped")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostbuf::job::Solo;
use hostbuf::register::Error;
use hostbuf::register::testing::fake::{Fake, Stamp};
use hostbuf::register::{Access, Memory, Overlap, Registrar, RegistrarProperties, RegistrationCache};
use hostbuf::{BufferOptions, HostBuffer, Proof};

use crate::memory::PAGE;
use crate::{MANY, READ, explicit};

fn filled() -> HostBuffer {
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
    buffer.initialize(|arena| arena.place(7u64)).unwrap();
    buffer
}

fn page(buffer: &HostBuffer, number: usize) -> *const u8 {
    buffer.as_ptr().as_ptr().wrapping_add(number * PAGE)
}

/// Counts the registrations of `fake` that allow the device to write.
fn writing(fake: &Fake) -> usize {
    fake.live().iter().filter(|(_, _, access)| access.writes()).count()
}

fn one_of_each(buffer: &HostBuffer) -> (Arc<Fake>, RegistrationCache<Fake>) {
    let (fake, cache) = explicit(MANY);
    drop(cache.get(page(buffer, 0), PAGE, READ).unwrap());
    drop(cache.get(page(buffer, 0), PAGE, Access::WRITE).unwrap());
    cache.keep(page(buffer, 2), PAGE, Access::REMOTE_WRITE).unwrap();
    (fake, cache)
}

#[test]
fn freezing_ends_registrations_and_allows_only_reading_afterwards() {
    let buffer = filled();
    let (fake, cache) = one_of_each(&buffer);
    let beside = vec![0u8; PAGE];
    drop(cache.get(beside.as_ptr(), PAGE, Access::WRITE).unwrap());
    assert_eq!((fake.live().len(), writing(&fake)), (4, 3));
    let frozen = buffer.freeze(&Solo).unwrap();
    assert_eq!(*frozen.proof(), Proof::Sealed);
    // The registration of the memory beside the buffer remains.
    assert_eq!((fake.live().len(), writing(&fake)), (1, 1));
    drop(cache.get(page(&buffer, 0), PAGE, READ).unwrap());
    cache.keep(page(&buffer, 2), PAGE, Access::REMOTE_READ).unwrap();
    let made = fake.made();
    let refused = cache.get(page(&buffer, 0), PAGE, Access::WRITE).unwrap_err();
    assert!(matches!(refused, Error::Freeze { .. }), "{refused}");
    assert!(matches!(cache.keep(page(&buffer, 0), PAGE, Access::WRITE), Err(Error::Freeze { .. })));
    assert_eq!((fake.made(), cache.stats().registrations, cache.stats().failures), (made, 3, 0));
}

#[test]
fn a_writing_lease_blocks_freezing_and_keeps_its_registration() {
    let buffer = filled();
    let (fake, cache) = one_of_each(&buffer);
    let lease = cache.get(page(&buffer, 5), PAGE, Access::WRITE).unwrap();
    let refused = buffer.freeze(&Solo).unwrap_err();
    assert!(matches!(&refused, hostbuf::Error::Freeze { why } if why.contains("lease")), "{refused}");
    assert!(fake.live().iter().any(|(number, ..)| *number == lease.handle().0));
    // It is still to be written, by the program and by devices.
    // SAFETY: this process's own buffer, which nobody else looks at.
    unsafe { page(&buffer, 9).cast_mut().write(1) };
    drop(cache.get(page(&buffer, 7), PAGE, Access::WRITE).unwrap());
    drop(lease);
    buffer.freeze(&Solo).unwrap();
    assert_eq!(writing(&fake), 0);
}

/// A registration is in progress when the buffer is frozen: freezing waits for it, and the cache
/// does not keep it.
#[test]
fn freezing_waits_for_a_registration_in_progress_and_ends_it() {
    let buffer = filled();
    let (fake, cache) = explicit(MANY);
    let (refusing, other) = explicit(MANY);
    refusing.fail(usize::MAX, libc::EIO);
    drop(cache.get(page(&buffer, 3), PAGE, READ).unwrap());
    fake.close();
    let frozen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| cache.get(page(&buffer, 0), PAGE, Access::WRITE).map(drop));
        fake.expect_waiting(1);
        let freezing = scope.spawn(|| {
            let result = buffer.freeze(&Solo).map(drop);
            frozen.store(true, Ordering::Release);
            result
        });
        // The device refuses, so that no lease ever conflicts: a freeze that fails for a lease has
        // also begun, and ends.
        while !matches!(other.get(page(&buffer, 1), PAGE, Access::WRITE), Err(Error::Freeze { .. })) {}
        // Freezing marks the buffer first, and then asks the cache. The cache has been asked when
        // it has ended its unused registration. If the gate opened earlier, the request could
        // succeed, and its lease end, before freezing asks the cache.
        while fake.ended().is_empty() {
            std::thread::yield_now();
        }
        // The registration has begun, and waits for the device.
        assert!(!frozen.load(Ordering::Acquire));
        fake.open();
        freezing.join().unwrap().unwrap();
        assert!(matches!(late.join().unwrap(), Err(Error::Freeze { .. })));
    });
    assert_eq!(writing(&fake), 0);
}

/// A device that fails to deregister may still write: the memory stays mapped, and is not frozen.
#[test]
fn a_failed_deregistration_prevents_freezing() {
    let buffer = filled();
    let start = page(&buffer, 0);
    let stuck = Arc::new(LeakingDevice(Fake::new(Overlap::Free)));
    let held = buffer.register(&stuck, .., Access::WRITE).unwrap();
    assert!(held.deregister().is_err());
    assert!(matches!(buffer.freeze(&Solo), Err(hostbuf::Error::Freeze { .. })));
    drop(buffer);
    // SAFETY: only asks whether it is mapped.
    assert_eq!(unsafe { libc::msync(start.cast_mut().cast(), PAGE, libc::MS_ASYNC) }, 0);
}

/// The device never ends a registration.
struct LeakingDevice(Fake);

impl Registrar for LeakingDevice {
    type Handle = Stamp;
    type Key = u64;

    fn name(&self) -> String {
        "stuck".into()
    }

    fn properties(&self) -> RegistrarProperties {
        RegistrarProperties::new(Overlap::Free)
    }

    fn key(&self, stamp: &Stamp) -> u64 {
        stamp.0
    }

    fn register(&self, memory: &Memory, access: Access) -> hostbuf::register::Result<Stamp> {
        self.0.register(memory, access)
    }

    fn deregister(&self, memory: &Memory, _: Stamp) -> hostbuf::register::Result<()> {
        let (device, why) = (self.name(), "as it is told".to_owned());
        Err(Error::Registration { device, memory: memory.clone(), access: READ, why, source: None })
    }
}

/// A lease was forgotten, and the cache is gone: the device still has the memory, so it stays
/// mapped.
#[test]
fn a_forgotten_lease_keeps_its_memory() {
    let buffer = filled();
    let start = page(&buffer, 0);
    let (fake, cache) = explicit(MANY);
    std::mem::forget(cache.get(start, PAGE, READ).unwrap());
    drop(cache);
    drop(buffer);
    assert_eq!(fake.live().len(), 1);
    // SAFETY: only asks whether it is mapped.
    assert_eq!(unsafe { libc::msync(start.cast_mut().cast(), PAGE, libc::MS_ASYNC) }, 0);
}
