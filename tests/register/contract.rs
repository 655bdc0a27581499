//! The contract of a registrar: one suite that every registrar passes.

use std::fmt::Debug;
use std::sync::Arc;

use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{
    Access, Budget, Mlock, MonitorMode, Overlap, Probe, Registrar, Registration, RegistrationCache, Span,
};
use hostbuf::register::{Error, Result};

use crate::memory::{Area, PAGE};
use crate::{skip, span};

const MIB: usize = 1 << 20;
const BOTH: Access = Access::WRITE;

/// Checks the promises of the trait's documentation for mapped memory.
pub fn contract<R: Registrar<Key: Debug + PartialEq>>(registrar: Arc<R>) {
    assert!(!registrar.name().is_empty());
    sizes(&registrar);
    neighbours(&registrar);
    overlaps(&registrar);
    threads(&registrar);
    by_a_registration(&registrar);
    through_a_cache(&registrar);
}

#[track_caller]
fn once<R: Registrar>(registrar: &Arc<R>, span: Span, access: Access) {
    let handle = registrar.register(&span.into(), access).expect("it is mapped");
    registrar.deregister(&span.into(), handle).expect("it is registered");
}

/// Registers a byte, a page and ranges with odd edges, each again after its deregistration, for
/// reading and for writing.
fn sizes<R: Registrar>(registrar: &Arc<R>) {
    let area = Area::new(MIB / PAGE + 2);
    for (offset, length) in [(0, 1), (PAGE - 1, 1), (0, PAGE), (0, MIB), (777, MIB), (1, 2 * PAGE)] {
        let span = span(area.at() + offset, length);
        assert!(registrar.properties().footprint(span) >= length);
        for access in [Access::READ, BOTH, BOTH] {
            once(registrar, span, access);
        }
    }
}

/// Registers two adjacent ranges that meet on a page boundary or inside of a page. The end of `a`
/// leaves `b` registered.
///
/// ```text
///   |--- a ---|--- b ---|
/// ```
fn neighbours<R: Registrar>(registrar: &Arc<R>) {
    let area = Area::new(4);
    for middle in [2 * PAGE, PAGE + 100] {
        let (a, b) = (span(area.at(), middle), span(area.at() + middle, PAGE));
        let first = registrar.register(&a.into(), BOTH).expect("a");
        let second = registrar.register(&b.into(), BOTH).expect("b");
        registrar.deregister(&a.into(), first).expect("a");
        once(registrar, a, BOTH);
        registrar.deregister(&b.into(), second).expect("b");
    }
}

/// Registers ranges that overlap a registered one. A registrar with [`Overlap::Refused`] returns an
/// error.
///
/// ```text
///   |-- held --|          the registered range
///      |-- over --|       ranges that overlap it
///   |-- held --|
///  |--- around ---|
/// ```
fn overlaps<R: Registrar>(registrar: &Arc<R>) {
    let area = Area::new(8);
    let held = span(area.at() + PAGE, 3 * PAGE);
    let over = span(area.at() + 2 * PAGE, 4 * PAGE);
    let around = span(area.at(), 6 * PAGE);
    let inside = span(area.at() + 2 * PAGE, 10);
    let handle = registrar.register(&held.into(), BOTH).expect("held");
    for other in [over, around, inside, held] {
        match (registrar.properties().overlap, registrar.register(&other.into(), BOTH)) {
            (Overlap::Free, second) => {
                registrar.deregister(&other.into(), second.expect("free overlap")).expect("registered");
            }
            (_, Err(error)) => expect_refusal(registrar, &error, other),
            (_, Ok(_)) => panic!("{other} overlaps {held}, and was not refused"),
        }
    }
    // The refusal changed nothing: the first registration exists, and can be ended.
    registrar.deregister(&held.into(), handle).expect("held");
    for other in [over, around, inside, held] {
        once(registrar, other, BOTH);
    }
}

fn expect_refusal<R: Registrar>(registrar: &Arc<R>, error: &Error, asked: Span) {
    match error {
        Error::Registration { device, memory, why, .. } => {
            assert_eq!((device, memory.as_host()), (&registrar.name(), Some(asked)));
            assert!(!why.is_empty());
        }
        other => panic!("not the error of a registration: {other:?}"),
    }
}

/// Registers from four threads, each in a range of its own, without pauses.
fn threads<R: Registrar>(registrar: &Arc<R>) {
    const EACH: usize = 64 * PAGE;
    let area = Area::new(4 * EACH / PAGE);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let base = area.at() + thread * EACH;
            scope.spawn(move || {
                for round in 0..50 {
                    let spans =
                        [span(base + round, EACH / 2 - round), span(base + EACH / 2, EACH / 2 - round)];
                    let handles = spans.map(|span| registrar.register(&span.into(), BOTH).expect("its own"));
                    for (span, handle) in spans.into_iter().zip(handles) {
                        registrar.deregister(&span.into(), handle).expect("registered");
                    }
                }
            });
        }
    });
}

/// Ends a [`Registration`] by dropping it, and by hand for the result.
fn by_a_registration<R: Registrar<Key: Debug + PartialEq>>(registrar: &Arc<R>) {
    let area = Area::new(2);
    let whole = span(area.at(), area.len());
    for _ in 0..3 {
        let registration = Registration::new(registrar, whole, BOTH).expect("mapped");
        assert_eq!((registration.span(), registration.access()), (Some(whole), BOTH));
        let key = registration.key();
        assert_eq!((registration.key(), registrar.key(registration.handle())), (key, key));
        drop(registration);
    }
    let registration = Registration::new(registrar, whole, BOTH).expect("the others have ended");
    registration.deregister().expect("it is registered");
    once(registrar, whole, BOTH);
}

/// Hits, evictions, ranges that grow over others, and a flush of everything.
fn through_a_cache<R: Registrar<Key: Debug + PartialEq>>(registrar: &Arc<R>) {
    let area = Area::new(64);
    let budget = Budget { regions: 8, bytes: 32 * PAGE };
    let cache = RegistrationCache::new(registrar.clone(), budget, MonitorMode::Explicit).expect("with room");
    let get = |first: usize, pages: usize| -> Result<Span> {
        let pointer = (area.at() + first * PAGE) as *const u8;
        let lease = cache.get(pointer, pages * PAGE, BOTH)?;
        assert!(lease.span().contains(span(pointer as usize, pages * PAGE)));
        assert_eq!(lease.key(), registrar.key(lease.handle()));
        Ok(lease.span())
    };
    for round in 0..3 {
        for page in 0..64 {
            get(page, 1).unwrap_or_else(|e| panic!("page {page} in round {round}: {e}"));
        }
    }
    get(0, 16).expect("over many small ones");
    get(8, 16).expect("over the end of one");
    let hits = cache.stats().hits;
    get(8, 16).expect("just asked for");
    get(23, 1).expect("inside it");
    assert_eq!(cache.stats().hits, hits + 2);
    for page in 0..24 {
        get(page, 1).expect("inside, or beside");
    }
    cache.invalidate(span(area.at(), area.len())).expect("nothing is leased");
    assert_eq!(cache.stats().regions, 0);
    once(registrar, span(area.at(), area.len()), BOTH);
    get(3, 2).expect("again");
    drop(cache);
    once(registrar, span(area.at(), area.len()), BOTH);
}

/// Checks that registering unmapped memory returns an error and leaves nothing registered.
pub fn unmapped<R: Registrar>(registrar: &Arc<R>) {
    let area = Area::new(4);
    let behind = area.at() + area.len();
    for access in [Access::READ, BOTH] {
        // All of the range is unmapped, or its end is, or its beginning.
        for hole in [span(behind, 1), span(area.at(), area.len() + 1), span(area.at() - 1, PAGE)] {
            let error = registrar.register(&hole.into(), access).err();
            expect_refusal(registrar, &error.unwrap_or_else(|| panic!("{hole} is registered")), hole);
            once(registrar, span(area.at(), area.len()), access);
        }
    }
}

#[test]
fn the_fake_keeps_the_contract() {
    for overlap in [Overlap::Free, Overlap::Refused] {
        let fake = Arc::new(Fake::new(overlap));
        contract(fake.clone());
        assert_eq!((fake.live().len(), fake.made()), (0, fake.ended().len()));
    }
}

#[test]
fn mlock_keeps_the_contract() {
    if let Probe::Missing(why) = Mlock::probe() {
        return skip(&format!("page-locking: {why}"));
    }
    let mlock = Arc::new(Mlock::new());
    contract(mlock.clone());
    unmapped(&mlock);
}
