//! The contract suite: the registrars of the crate keep the contract, and broken ones are caught.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hostbuf::register::testing::contract::{self, Contract, ContractReport, Promise};
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{
    Access, DeviceName, DeviceRange, DmaBuf, Error, Memory, Mlock, Overlap, Probe, Registrar,
    RegistrarProperties, Result, Span,
};
use hostbuf_os::maps::{self, RangeAccess};
use hostbuf_os::memlock;

use crate::memory::PAGE;
use crate::skip;

/// Returns a part of a dma-buf, which for the fake is any file.
fn dma_buf() -> Memory {
    let file: OwnedFd = File::open("/proc/self/status").expect("a file").into();
    DmaBuf::new(file, 0..8192, 0x1000).expect("a part").into()
}

fn device_range() -> Memory {
    DeviceRange::new(0x1000, 4096).expect("a range").into()
}

/// Runs the suite on fakes with these properties, with all help.
fn report_on_fakes(properties: RegistrarProperties) -> ContractReport {
    let fakes: Arc<Mutex<Vec<Arc<Fake>>>> = Arc::default();
    let mut contract = Contract::new({
        let fakes = fakes.clone();
        move || {
            let fake = Arc::new(Fake::with_properties(properties));
            fakes.lock().unwrap().push(fake.clone());
            SharedFake(fake)
        }
    })
    .live(|fake| fake.0.live_memory().len())
    .pinned(|fake| fake.0.pinned())
    .ignores_mappings();
    if properties.dma_buf {
        contract = contract.sample(dma_buf);
    }
    if properties.device_memory {
        contract = contract.sample(device_range);
    }
    let report = contract.run().unwrap_or_else(|violation| panic!("{properties:?}: {violation}"));
    for fake in fakes.lock().unwrap().iter() {
        assert_eq!((fake.live_memory().len(), fake.made()), (0, fake.ended().len()));
    }
    report
}

/// A fake that the test keeps a reference to.
struct SharedFake(Arc<Fake>);

impl Registrar for SharedFake {
    type Handle = <Fake as Registrar>::Handle;
    type Key = u64;

    fn name(&self) -> String {
        self.0.name()
    }

    fn properties(&self) -> RegistrarProperties {
        self.0.properties()
    }

    fn key(&self, handle: &Self::Handle) -> u64 {
        self.0.key(handle)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Self::Handle> {
        self.0.register(memory, access)
    }

    fn deregister(&self, memory: &Memory, handle: Self::Handle) -> Result<()> {
        self.0.deregister(memory, handle)
    }
}

#[test]
fn the_fake_keeps_the_contract() {
    for overlap in [Overlap::Free, Overlap::Refused] {
        let host_only = RegistrarProperties::new(overlap);
        for properties in [
            host_only,
            host_only.granularity(4096).longest(1 << 20),
            host_only.granularity(1 << 21),
            host_only.longest(100),
            host_only.dma_buf(true).device_memory(true),
        ] {
            let report = report_on_fakes(properties);
            let unchecked: Vec<_> = report.unchecked.iter().map(|(promise, _)| *promise).collect();
            assert_eq!(unchecked, [Promise::WholeOrNothing], "{properties:?}");
            assert_eq!(report.kept.len(), 11);
        }
    }
}

#[test]
fn mlock_keeps_the_contract() {
    if let Probe::Missing(why) = Mlock::probe() {
        return skip(&format!("page-locking: {why}"));
    }
    contract::check(Mlock::new);
    // The same device, selected by name.
    contract::check(|| "mlock".parse::<DeviceName>().expect("a name").open().expect("it is there"));
    let report = Contract::new(Mlock::new).pinned(|_| memlock::locked() as usize).run();
    assert!(report.unwrap_or_else(|violation| panic!("{violation}")).unchecked.is_empty());
}

/// A flaw of a registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    BlankName,
    ChangesProperties,
    NeverDeregisters,
    DeregistersAllThatOverlap,
    FailsToDeregister,
    ChangesKey,
    AcceptsOverlaps,
    RefusesOverlapsThatItAllows,
    AcceptsHoles,
    KeepsPartAfterError,
    NamesAnotherRange,
    ReportsAnotherError,
    AcceptsLongRanges,
    PinsMoreThanItStates,
    TakesAnyMemory,
    ReportsUnsupportedMemoryAsInvalid,
    LacksASample,
    OneCallAtATime,
    PanicsInThreads,
}

/// A registrar with one flaw.
struct FlawedRegistrar {
    flaw: Flaw,
    overlap: Overlap,
    next: AtomicU64,
    live: Mutex<Vec<(u64, Memory)>>,
    /// The lock of a call that must not run concurrently.
    call: Mutex<()>,
    calls: AtomicU64,
}

const LONGEST: usize = 1 << 20;

impl FlawedRegistrar {
    fn new(flaw: Flaw, overlap: Overlap) -> FlawedRegistrar {
        let (live, call, calls) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        FlawedRegistrar { flaw, overlap, next: AtomicU64::new(1), live, call, calls }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn live(&self) -> usize {
        self.live.lock().unwrap().len()
    }

    fn pinned(&self) -> usize {
        let page = if self.has(Flaw::PinsMoreThanItStates) { 2 * PAGE } else { PAGE };
        let properties = self.properties().granularity(page);
        let spans = self.live.lock().unwrap();
        spans.iter().map(|(_, memory)| memory.as_host().map_or(0, |span| properties.footprint(span))).sum()
    }

    fn refuse(&self, span: Span, access: Access, why: &str) -> Error {
        let other = Span::new(span.start(), span.len() + 1).unwrap();
        let memory = if self.has(Flaw::NamesAnotherRange) { other } else { span }.into();
        if self.has(Flaw::ReportsAnotherError) {
            return Error::Unsupported { what: "registering".into(), why: why.into() };
        }
        Error::Registration { device: self.name(), memory, access, why: why.into(), source: None }
    }
}

impl Registrar for FlawedRegistrar {
    type Handle = u64;
    type Key = u64;

    fn name(&self) -> String {
        if self.has(Flaw::BlankName) { " ".into() } else { "flawed".into() }
    }

    fn properties(&self) -> RegistrarProperties {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let changed = self.has(Flaw::ChangesProperties) && calls > 0;
        RegistrarProperties::new(self.overlap)
            .granularity(if changed { 2 * PAGE } else { PAGE })
            .longest(LONGEST)
            .device_memory(self.has(Flaw::LacksASample))
    }

    fn key(&self, handle: &u64) -> u64 {
        let more = if self.has(Flaw::ChangesKey) { self.calls.fetch_add(1, Ordering::Relaxed) } else { 0 };
        *handle + more
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<u64> {
        let _call = match self.call.try_lock() {
            Ok(call) => Some(call),
            Err(_) if self.has(Flaw::PanicsInThreads) => panic!("a second call"),
            Err(_) if self.has(Flaw::OneCallAtATime) => {
                return Err(self.refuse(
                    memory.require_host(|| self.name())?,
                    access,
                    "the device is in use",
                ));
            }
            Err(_) => None,
        };
        if self.has(Flaw::OneCallAtATime) || self.has(Flaw::PanicsInThreads) {
            // Other threads get a chance to call meanwhile.
            (0..100).for_each(|_| std::thread::yield_now());
        }
        let next = || self.next.fetch_add(1, Ordering::Relaxed);
        let span = match memory.require_host(|| self.name()) {
            Ok(span) => span,
            Err(_) if self.has(Flaw::TakesAnyMemory) => return Ok(next()),
            Err(_) if self.has(Flaw::ReportsUnsupportedMemoryAsInvalid) => {
                return Err(Error::Invalid { what: format!("flawed: {memory}") });
            }
            Err(error) => return Err(error),
        };
        if span.len() > LONGEST && !self.has(Flaw::AcceptsLongRanges) {
            return Err(self.refuse(span, access, "it is too long"));
        }
        let mut live = self.live.lock().unwrap();
        let overlaps =
            live.iter().any(|(_, other)| other.as_host().is_some_and(|other| other.overlaps(span)));
        let refuses = match self.overlap {
            Overlap::Refused => !self.has(Flaw::AcceptsOverlaps),
            _ => self.has(Flaw::RefusesOverlapsThatItAllows),
        };
        if overlaps && refuses {
            return Err(self.refuse(span, access, "it overlaps another"));
        }
        let number = next();
        let is_mapped = !matches!(maps::range_access(span.start(), span.end()), Ok(RangeAccess::Hole(_)));
        if !is_mapped && self.has(Flaw::KeepsPartAfterError) {
            live.push((number, memory.clone()));
        }
        if !is_mapped && !self.has(Flaw::AcceptsHoles) {
            return Err(self.refuse(span, access, "it is not mapped"));
        }
        live.push((number, memory.clone()));
        Ok(number)
    }

    fn deregister(&self, memory: &Memory, handle: u64) -> Result<()> {
        let span = memory.require_host(|| self.name())?;
        let overlaps = |other: &Memory| other.as_host().is_some_and(|other| other.overlaps(span));
        let mut live = self.live.lock().unwrap();
        match self.flaw {
            Flaw::NeverDeregisters => {}
            Flaw::FailsToDeregister => return Err(self.refuse(span, Access::READ, "no")),
            Flaw::DeregistersAllThatOverlap => live.retain(|(_, other)| !overlaps(other)),
            _ => live.retain(|(number, _)| *number != handle),
        }
        Ok(())
    }
}

/// Returns the promise that a registrar with a flaw breaks. `helped` adds the counts that only the
/// author of a registrar knows.
fn broken_promise(flaw: Flaw, overlap: Overlap, helped: bool) -> Option<Promise> {
    let mut contract = Contract::new(move || FlawedRegistrar::new(flaw, overlap));
    if helped {
        contract = contract.live(FlawedRegistrar::live).pinned(FlawedRegistrar::pinned);
    }
    contract.run().err().map(|violation| {
        assert!(violation.to_string().contains(&format!("{:?}: ", violation.promise())), "{violation}");
        violation.promise()
    })
}

#[test]
fn each_broken_promise_is_caught_and_named() {
    use Overlap::{Free, Refused};
    for overlap in [Free, Refused] {
        assert_eq!(broken_promise(Flaw::None, overlap, true), None);
        assert_eq!(broken_promise(Flaw::None, overlap, false), None);
    }
    for (flaw, promise, overlap, helped) in [
        (Flaw::BlankName, Promise::Name, Free, false),
        (Flaw::ChangesProperties, Promise::Properties, Free, false),
        (Flaw::NeverDeregisters, Promise::Ends, Refused, false),
        (Flaw::NeverDeregisters, Promise::Ends, Free, true),
        (Flaw::DeregistersAllThatOverlap, Promise::Ends, Free, true),
        (Flaw::FailsToDeregister, Promise::Ends, Free, false),
        (Flaw::ChangesKey, Promise::Keys, Free, false),
        (Flaw::AcceptsOverlaps, Promise::Overlap, Refused, false),
        (Flaw::RefusesOverlapsThatItAllows, Promise::Overlap, Free, false),
        (Flaw::AcceptsHoles, Promise::WholeOrNothing, Free, false),
        (Flaw::KeepsPartAfterError, Promise::WholeOrNothing, Refused, false),
        (Flaw::KeepsPartAfterError, Promise::WholeOrNothing, Free, true),
        (Flaw::NamesAnotherRange, Promise::Errors, Free, false),
        (Flaw::ReportsAnotherError, Promise::Errors, Refused, false),
        (Flaw::AcceptsLongRanges, Promise::Longest, Free, false),
        (Flaw::PinsMoreThanItStates, Promise::Granularity, Free, true),
        (Flaw::TakesAnyMemory, Promise::KindsOfMemory, Free, false),
        (Flaw::ReportsUnsupportedMemoryAsInvalid, Promise::KindsOfMemory, Free, false),
        (Flaw::LacksASample, Promise::KindsOfMemory, Free, false),
        (Flaw::OneCallAtATime, Promise::Threads, Free, false),
        (Flaw::PanicsInThreads, Promise::Threads, Free, false),
    ] {
        assert_eq!(broken_promise(flaw, overlap, helped), Some(promise), "{flaw:?}, {overlap:?}, {helped}");
    }
}

/// The suite reports the promises that it cannot check instead of counting them as kept.
#[test]
fn a_promise_that_cannot_be_checked_is_reported() {
    let report = Contract::new(|| FlawedRegistrar::new(Flaw::None, Overlap::Free)).run().expect("no flaw");
    assert_eq!(
        report.unchecked.iter().map(|(promise, _)| *promise).collect::<Vec<_>>(),
        [Promise::Granularity]
    );
    assert!(!report.kept.contains(&Promise::Granularity) && report.kept.contains(&Promise::Threads));
}
