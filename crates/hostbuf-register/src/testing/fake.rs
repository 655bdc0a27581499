//! A registrar without a device, for tests. It numbers and records its registrations. A test can
//! make its calls fail or wait.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use hostbuf_os::poison::IgnorePoison;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::properties::{Overlap, RegistrarProperties};
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// A registrar without a device, for tests; see the [module](self).
pub struct Fake {
    properties: RegistrarProperties,
    next: AtomicU64,
    state: Mutex<FakeState>,
    opened: Condvar,
    /// The number of next calls of register that fail.
    failing: AtomicUsize,
    /// The error of those calls.
    errno: AtomicUsize,
}

#[derive(Default)]
struct FakeState {
    live: BTreeMap<u64, (Memory, Access)>,
    /// The lengths of all registrations ever made, with their numbers.
    made: Vec<(u64, usize)>,
    ended: Vec<u64>,
    peak: (usize, usize),
    /// The number of calls of register that wait for the gate to open.
    waiting: usize,
    /// True while the gate is closed.
    closed: bool,
}

/// The handle of a registration with a [`Fake`]: a number that no other registration has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
// Exhaustive: a number, and nothing else.
pub struct Stamp(pub u64);

impl Fake {
    /// Makes a registrar of all kinds of memory, whose gate is open and whose calls succeed.
    #[must_use]
    pub fn new(overlap: Overlap) -> Fake {
        Fake::with_properties(RegistrarProperties::new(overlap).dma_buf(true).device_memory(true))
    }

    /// Makes a registrar with these properties, whose gate is open and whose calls succeed.
    #[must_use]
    pub fn with_properties(properties: RegistrarProperties) -> Fake {
        Fake {
            properties,
            next: AtomicU64::new(1),
            state: Mutex::default(),
            opened: Condvar::new(),
            failing: AtomicUsize::new(0),
            errno: AtomicUsize::new(libc::EIO as usize),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().ignore_poison()
    }

    /// Makes the next `calls` calls of register fail with `errno`.
    pub fn fail(&self, calls: usize, errno: i32) {
        self.errno.store(errno as usize, Ordering::Relaxed);
        self.failing.store(calls, Ordering::Relaxed);
    }

    /// Closes the gate: calls of register wait until [`open`](Fake::open).
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Opens the gate for the calls of register that wait and for later ones.
    pub fn open(&self) {
        self.lock().closed = false;
        self.opened.notify_all();
    }

    /// Waits until at least `calls` calls of register wait at the gate.
    ///
    /// # Panics
    /// If fewer calls wait there after ten seconds.
    pub fn expect_waiting(&self, calls: usize) {
        for _ in 0..10_000 {
            if self.lock().waiting >= calls {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("fewer than {calls} calls of register wait at the gate");
    }

    /// Returns the live registrations of host memory: number, range, access.
    #[must_use]
    pub fn live(&self) -> Vec<(u64, Span, Access)> {
        self.lock().live.iter().filter_map(|(&n, (memory, a))| Some((n, memory.as_host()?, *a))).collect()
    }

    /// Returns the live registrations of all kinds of memory: number, memory, access.
    #[must_use]
    pub fn live_memory(&self) -> Vec<(u64, Memory, Access)> {
        self.lock().live.iter().map(|(&n, (memory, a))| (n, memory.clone(), *a)).collect()
    }

    /// Returns the number of bytes that are pinned for the live registrations.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.lock().live.values().map(|(memory, _)| self.footprint(memory)).sum()
    }

    fn footprint(&self, memory: &Memory) -> usize {
        memory.as_host().map_or(memory.len(), |span| self.properties.footprint(span))
    }

    /// Returns the number of registrations made so far.
    #[must_use]
    pub fn made(&self) -> usize {
        self.lock().made.len()
    }

    /// Returns the number of bytes of all registrations made so far.
    #[must_use]
    pub fn made_bytes(&self) -> usize {
        self.lock().made.iter().map(|(_, length)| length).sum()
    }

    /// Returns the numbers of the deregistered registrations, in the order of deregistration.
    #[must_use]
    pub fn ended(&self) -> Vec<u64> {
        self.lock().ended.clone()
    }

    /// Returns the maximum number of simultaneous registrations and the maximum number of
    /// registered bytes. Both include registrations in progress.
    #[must_use]
    pub fn peak(&self) -> (usize, usize) {
        self.lock().peak
    }
}

impl Registrar for Fake {
    type Handle = Stamp;
    type Key = u64;

    fn name(&self) -> String {
        "fake".into()
    }

    fn properties(&self) -> RegistrarProperties {
        self.properties
    }

    fn key(&self, stamp: &Stamp) -> u64 {
        stamp.0
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Stamp> {
        let refuse = |why: &str, errno| {
            let source = Some(io::Error::from_raw_os_error(errno));
            let (device, memory) = (self.name(), memory.clone());
            Err(Error::Registration { device, memory, access, why: why.into(), source })
        };
        let is_supported = match memory {
            Memory::Host(_) => true,
            Memory::DmaBuf(_) => self.properties.dma_buf,
            Memory::Device(_) => self.properties.device_memory,
        };
        if !is_supported {
            return Err(memory.unsupported(&self.name()));
        }
        if memory.len() > self.properties.longest {
            return refuse("the range is longer than the longest one", libc::E2BIG);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let refuses = self.properties.overlap == Overlap::Refused;
        if refuses && state.live.values().any(|(other, _)| overlap(other, memory)) {
            return refuse("the range overlaps a registered one", libc::EEXIST);
        }
        // Counts from the beginning of the call, since a device pins page by page.
        state.live.insert(number, (memory.clone(), access));
        let now = (state.live.len(), state.live.values().map(|(m, _)| m.len()).sum());
        state.peak = (state.peak.0.max(now.0), state.peak.1.max(now.1));
        state.waiting += 1;
        while state.closed {
            state = self.opened.wait(state).ignore_poison();
        }
        state.waiting -= 1;
        let fail = |n: usize| n.checked_sub(1);
        if self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fail).is_ok() {
            state.live.remove(&number);
            drop(state);
            return refuse("the test made this call fail", self.errno.load(Ordering::Relaxed) as i32);
        }
        state.made.push((number, memory.len()));
        Ok(Stamp(number))
    }

    fn deregister(&self, memory: &Memory, Stamp(number): Stamp) -> Result<()> {
        let mut state = self.lock();
        let was = state.live.remove(&number);
        let was = was.map(|(was, _)| was);
        assert_eq!(was.as_ref(), Some(memory), "deregistered twice, or with another range");
        state.ended.push(number);
        Ok(())
    }
}

/// Returns whether two pieces of memory have a byte in common. Two descriptors are two dma-bufs.
fn overlap(a: &Memory, b: &Memory) -> bool {
    let meet = |a: (u64, usize), b: (u64, usize)| a.0 < b.0 + b.1 as u64 && b.0 < a.0 + a.1 as u64;
    match (a, b) {
        (Memory::Host(a), Memory::Host(b)) => a.overlaps(*b),
        (Memory::DmaBuf(a), Memory::DmaBuf(b)) => {
            a.descriptor().as_raw_fd() == b.descriptor().as_raw_fd()
                && meet((a.offset(), a.len()), (b.offset(), b.len()))
        }
        (Memory::Device(a), Memory::Device(b)) => meet((a.address(), a.len()), (b.address(), b.len())),
        _ => false,
    }
}
