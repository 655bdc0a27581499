//! The parts of the suite: one for each promise.

use std::fmt::Debug;
use std::fs::File;
use std::os::fd::OwnedFd;

use super::subject::{CheckResult, Subject, UNITS};
use super::violation::{Promise, broken};
use crate::cache::{Budget, RegistrationCache};
use crate::error::Error;
use crate::memory::{DeviceRange, DmaBuf, Memory};
use crate::monitor::MonitorMode;
use crate::properties::Overlap;
use crate::registrar::{Registrar, Registration};
use crate::span::{Access, Span};

/// The access of most registrations of the suite.
const BOTH: Access = Access::WRITE;
/// The longest range that the suite maps.
const LONGEST_MAPPED: usize = 256 << 20;

/// A part of the suite.
pub(super) type PromisePart<R> = fn(&mut Subject<'_, R>) -> CheckResult;

/// Returns all parts, in the order in which they run.
pub(super) fn all<R: Registrar<Key: Debug + PartialEq>>() -> [(Promise, PromisePart<R>); 12] {
    [
        (Promise::Name, name),
        (Promise::Properties, properties),
        (Promise::Ends, ends),
        (Promise::Keys, keys),
        (Promise::Overlap, overlap),
        (Promise::WholeOrNothing, whole_or_nothing),
        (Promise::Longest, longest),
        (Promise::Granularity, granularity),
        (Promise::KindsOfMemory, kinds_of_memory),
        (Promise::Threads, threads),
        (Promise::Registration, registration),
        (Promise::Cache, cache),
    ]
}

fn name<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    for name in [subject.registrar.name(), subject.registrar.stat_name()] {
        if name.trim().is_empty() || name.lines().count() != 1 {
            return Err(broken(Promise::Name, format!("\"{name}\" is not a name")));
        }
    }
    Ok(())
}

fn properties<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    let area = subject.area(subject.unit())?;
    let span = area.part(0, subject.unit());
    let handle = subject.register(Promise::Ends, span, BOTH)?;
    let now = subject.registrar.properties();
    subject.deregister(Promise::Ends, span, handle)?;
    match [now, subject.registrar.properties()].into_iter().find(|found| *found != subject.properties) {
        Some(other) => Err(broken(
            Promise::Properties,
            format!("they change from {:?} to {other:?}", subject.properties),
        )),
        None => Ok(()),
    }
}

/// Registers a byte, a page and ranges with odd edges, each again after its deregistration, and
/// adjacent ranges that meet on a page boundary or inside of a page.
///
/// ```text
///   |--- a ---|--- b ---|
/// ```
fn ends<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    let unit = subject.unit();
    let area = subject.area((UNITS + 2) * unit)?;
    let most = (UNITS - 1) * unit;
    for (offset, length) in [(0, 1), (unit - 1, 1), (0, unit), (0, most), (unit / 5, most), (1, 2 * unit)] {
        for access in [Access::READ, BOTH, BOTH] {
            subject.once(Promise::Ends, area.part(offset, length), access)?;
            subject.expect_live(Promise::Ends, 0)?;
        }
    }
    for middle in [2 * unit, unit + unit / 3] {
        let (a, b) = (area.part(0, middle), area.part(middle, unit));
        let first = subject.register(Promise::Ends, a, BOTH)?;
        let second = subject.register(Promise::Ends, b, BOTH)?;
        subject.expect_live(Promise::Ends, 2)?;
        subject.deregister(Promise::Ends, a, first)?;
        subject.expect_live(Promise::Ends, 1)?;
        subject.once(Promise::Ends, a, BOTH)?;
        subject.deregister(Promise::Ends, b, second)?;
    }
    Ok(())
}

/// Compares keys again and again while other registrations come and go.
fn keys<R: Registrar<Key: Debug + PartialEq>>(subject: &mut Subject<'_, R>) -> CheckResult {
    let unit = subject.unit();
    let area = subject.area(16 * unit)?;
    let spans: Vec<Span> = (0..4).map(|i| area.part(4 * i * unit, unit)).collect();
    let mut held = Vec::new();
    for span in &spans {
        let handle = subject.register(Promise::Ends, *span, BOTH)?;
        held.push((subject.registrar.key(&handle), handle, *span));
    }
    for round in 0..10 {
        subject.once(Promise::Ends, area.part(2 * unit, unit), BOTH)?;
        let now = |handle| {
            let of_another_thread = || subject.registrar.key(handle);
            match round % 2 {
                0 => subject.registrar.key(handle),
                _ => std::thread::scope(|scope| scope.spawn(of_another_thread).join().expect("key returns")),
            }
        };
        for (key, handle, span) in &held {
            let found = now(handle);
            if found != *key {
                return Err(broken(
                    Promise::Keys,
                    format!("the key of {span} changes from {key:?} to {found:?}"),
                ));
            }
        }
    }
    held.into_iter().try_for_each(|(_, handle, span)| subject.deregister(Promise::Ends, span, handle))
}

/// Registers ranges that overlap a registered one.
///
/// ```text
///   |-- held --|          the registered range
///      |-- over --|       ranges that overlap it
///   |-- held --|
///  |--- around ---|
/// ```
fn overlap<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    let unit = subject.unit();
    let area = subject.area(8 * unit)?;
    let held = area.part(unit, 3 * unit);
    let others = [area.part(2 * unit, 4 * unit), area.part(0, 6 * unit), area.part(2 * unit, 1), held];
    let handle = subject.register(Promise::Ends, held, BOTH)?;
    for other in others {
        if subject.properties.overlap == Overlap::Refused {
            let why = format!("it overlaps {held}, and the properties state that overlaps are refused");
            subject.expect_refusal(Promise::Overlap, other, BOTH, &why)?;
            subject.expect_live(Promise::WholeOrNothing, 1)?;
            continue;
        }
        let second = subject.register(Promise::Overlap, other, BOTH)?;
        subject.expect_live(Promise::Overlap, 2)?;
        subject.deregister(Promise::Ends, other, second)?;
        // Only the second registration has ended.
        subject.expect_live(Promise::Ends, 1)?;
    }
    subject.deregister(Promise::Ends, held, handle)?;
    others.into_iter().try_for_each(|other| subject.once(Promise::Ends, other, BOTH))
}

/// Registers ranges that are not mapped in full.
fn whole_or_nothing<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    if subject.ignores_mappings() {
        subject.leave_unchecked("the registrar accepts host memory that is not mapped");
        return Ok(());
    }
    let length = 4 * subject.unit();
    for access in [Access::READ, BOTH] {
        // Another thread of the process may map a page into the hole meanwhile.
        for attempt in 0.. {
            let area = subject.area(length)?;
            let result = match area.ranges_with_holes(length) {
                Some(ranges) => expect_all_refused(subject, &ranges, area.part(0, length), access),
                None => Ok(()),
            };
            if area.ranges_with_holes(length).is_some() {
                result?;
                break;
            }
            assert!(attempt < 100, "other threads map memory beside the test without end");
        }
    }
    Ok(())
}

/// Registers ranges that are not mapped in full, and after each of them mapped memory.
fn expect_all_refused<R: Registrar>(
    subject: &Subject<'_, R>,
    ranges: &[Span],
    mapped: Span,
    access: Access,
) -> CheckResult {
    ranges.iter().try_for_each(|range| {
        subject.expect_refusal(Promise::WholeOrNothing, *range, access, "a part is not mapped")?;
        subject.expect_nothing_left(Promise::WholeOrNothing)?;
        subject.once(Promise::WholeOrNothing, mapped, access)
    })
}

/// Registers the longest range, and one byte more.
fn longest<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    let longest = subject.properties.longest;
    if longest >= LONGEST_MAPPED {
        if longest < usize::MAX {
            subject.leave_unchecked("the longest range is longer than the memory of this test");
        }
        return Ok(());
    }
    let area = subject.area(longest + 1)?;
    subject.once(Promise::Longest, area.part(0, longest), BOTH)?;
    let why = format!("the properties state that the longest range has {longest} bytes");
    subject.expect_refusal(Promise::Longest, area.part(0, longest + 1), BOTH, &why)
}

/// Compares the number of pinned bytes with the footprint.
fn granularity<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    let unit = subject.unit();
    let area = subject.area(16 * unit)?;
    for (offset, length) in [(0, 1), (unit - 1, 2), (0, unit), (7, 3 * unit), (unit, 8 * unit)] {
        let span = area.part(offset, length);
        let handle = subject.register(Promise::Ends, span, BOTH)?;
        let (expected, found) = (subject.properties.footprint(span), subject.pinned());
        subject.deregister(Promise::Ends, span, handle)?;
        match found {
            Some(found) if found != expected => {
                let why = format!(
                    "{found} bytes are pinned for {span} instead of {expected}, with a granularity of {}",
                    subject.properties.granularity
                );
                return Err(broken(Promise::Granularity, why));
            }
            Some(_) => subject.expect_nothing_left(Promise::Ends)?,
            None => {
                subject.leave_unchecked("the number of pinned bytes is unknown (Contract::pinned)");
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Registers the samples, and memory of the kinds that the registrar does not support.
fn kinds_of_memory<R: Registrar<Key: Debug + PartialEq>>(subject: &mut Subject<'_, R>) -> CheckResult {
    let wrong = |details: String| broken(Promise::KindsOfMemory, details);
    let (mut has_dma_buf, mut has_device) = (false, false);
    for memory in subject.samples() {
        has_dma_buf |= matches!(memory, Memory::DmaBuf(_));
        has_device |= matches!(memory, Memory::Device(_));
        let handle = subject.register(Promise::KindsOfMemory, memory.clone(), BOTH)?;
        let key = subject.registrar.key(&handle);
        if subject.registrar.key(&handle) != key {
            return Err(broken(Promise::Keys, format!("the key of {memory} changes")));
        }
        subject.deregister(Promise::Ends, memory, handle)?;
        subject.expect_nothing_left(Promise::Ends)?;
    }
    let file: OwnedFd = File::open("/proc/self/exe")
        .map_err(|error| wrong(format!("opening a file for the test: {error}")))?
        .into();
    let part = DmaBuf::new(file, 0..4096, 0x1000).expect("a part");
    let range = DeviceRange::new(0x1000, 4096).expect("a range");
    for (memory, kind, supported, sampled) in [
        (Memory::from(part), "a dma-buf", subject.properties.dma_buf, has_dma_buf),
        (Memory::from(range), "memory of a device", subject.properties.device_memory, has_device),
    ] {
        if supported && !sampled {
            let why = format!("the properties state that {kind} is supported: add one by Contract::sample");
            return Err(wrong(why));
        }
        if supported {
            continue;
        }
        match subject.registrar.register(&memory, BOTH) {
            Ok(_) => {
                return Err(wrong(format!("{kind} is registered, and the properties do not include it")));
            }
            Err(error @ Error::Unsupported { .. }) => {
                let text = error.to_string();
                if !text.contains(&subject.registrar.name()) || text.lines().count() != 1 {
                    return Err(broken(
                        Promise::Errors,
                        format!("\"{text}\" is not one line with the device"),
                    ));
                }
            }
            Err(other) => {
                return Err(wrong(format!("{kind} is {} instead of Unsupported: {other}", other.kind())));
            }
        }
    }
    Ok(())
}

/// Registers from four threads, each in a range of its own, without pauses.
fn threads<R: Registrar>(subject: &mut Subject<'_, R>) -> CheckResult {
    let each = UNITS * subject.unit();
    let area = subject.area(4 * each)?;
    let (registrar, properties) = (&*subject.registrar, subject.properties);
    let start = std::sync::Barrier::new(4);
    let work = |base: usize| -> Result<(), String> {
        start.wait();
        for round in 0..50 {
            let spans =
                [0, each / 2].map(|offset| area.part(base + offset + round % 7, each / 2 - round % 7));
            let mut held = Vec::new();
            for span in spans {
                let handle = registrar.register(&span.into(), BOTH).map_err(|e| e.to_string())?;
                registrar.key(&handle);
                held.push((span, handle));
            }
            if registrar.properties() != properties {
                return Err("the properties differ between threads".to_owned());
            }
            for (span, handle) in held {
                registrar.deregister(&span.into(), handle).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread * each))).collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(broken(Promise::Threads, format!("a concurrent call fails: {why}"))),
            Err(_) => Err(broken(Promise::Threads, "a concurrent call panics")),
        })
    })
}

/// Ends a [`Registration`] by dropping it, and by hand for the result.
fn registration<R: Registrar<Key: Debug + PartialEq>>(subject: &mut Subject<'_, R>) -> CheckResult {
    let area = subject.area(2 * subject.unit())?;
    let whole = area.part(0, 2 * subject.unit());
    let failed = |error: Error| broken(Promise::Registration, error.to_string());
    for round in 0..4 {
        let registration = Registration::new(&subject.registrar, whole, BOTH).map_err(failed)?;
        let key = registration.key();
        if (registration.span(), registration.access()) != (Some(whole), BOTH) || registration.key() != key {
            return Err(broken(
                Promise::Registration,
                format!("{registration:?} is not of {whole} ({BOTH})"),
            ));
        }
        match round % 2 {
            0 => drop(registration),
            _ => registration.deregister().map_err(failed)?,
        }
        subject.expect_live(Promise::Registration, 0)?;
    }
    subject.once(Promise::Registration, whole, BOTH)
}

/// Uses a cache: hits, evictions, ranges that grow over others, and a flush of everything.
fn cache<R: Registrar<Key: Debug + PartialEq>>(subject: &mut Subject<'_, R>) -> CheckResult {
    const PAGES: usize = 64;
    let unit = subject.unit();
    let area = subject.area(PAGES * unit)?;
    let all = area.part(0, PAGES * unit);
    let failed = |error: Error| broken(Promise::Cache, error.to_string());
    let expect = |holds: bool, what: &str| holds.then_some(()).ok_or_else(|| broken(Promise::Cache, what));
    let granularity = subject.properties.granularity;
    let budget = Budget::new(8).bytes(32 * unit + 16 * granularity);
    let cache = RegistrationCache::new(subject.registrar.clone(), budget, MonitorMode::Explicit);
    let cache = cache.map_err(failed)?;
    let get = |first: usize, pages: usize| -> CheckResult {
        let asked = area.part(first * unit, pages * unit);
        let lease = cache.get(asked.start() as *const u8, asked.len(), BOTH).map_err(failed)?;
        expect(lease.span().contains(asked), "a lease does not cover its request")?;
        expect(lease.key() == subject.registrar.key(lease.handle()), "a lease has the key of another")
    };
    for _ in 0..3 {
        (0..PAGES).try_for_each(|page| get(page, 1))?;
    }
    get(0, 16)?;
    get(8, 16)?;
    let hits = cache.stats().hits;
    get(8, 16)?;
    get(23, 1)?;
    expect(cache.stats().hits == hits + 2, "a request inside a registration does not hit")?;
    (0..24).try_for_each(|page| get(page, 1))?;
    cache.invalidate(all).map_err(failed)?;
    expect(cache.stats().registrations == 0, "invalidating leaves registrations")?;
    subject.expect_live(Promise::Cache, 0)?;
    subject.once(Promise::Cache, all, BOTH)?;
    get(3, 2)?;
    drop(cache);
    subject.expect_live(Promise::Cache, 0)?;
    subject.once(Promise::Cache, all, BOTH)
}
