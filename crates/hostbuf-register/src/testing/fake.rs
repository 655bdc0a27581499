//! A registrar without a device, for tests. It numbers and records its registrations. A test can
//! make its calls fail or wait.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::poison::IgnorePoison;
use crate::registrar::{Overlap, Registrar};
use crate::span::{Access, Span};

/// A registrar without a device, for tests; see the [module](self).
pub struct Fake {
    overlap: Overlap,
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
    live: BTreeMap<u64, (Span, Access)>,
    /// The spans of all registrations ever made, with their numbers.
    made: Vec<(u64, Span)>,
    ended: Vec<u64>,
    peak: (usize, usize),
    /// The number of calls of register that wait for the gate to open.
    waiting: usize,
    /// True while the gate is closed.
    closed: bool,
}

/// The handle of a registration with a [`Fake`]: a number that no other registration has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Fake {
    /// Makes a registrar whose gate is open and whose calls succeed.
    #[must_use]
    pub fn new(overlap: Overlap) -> Fake {
        Fake {
            overlap,
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

    /// Returns the live registrations: number, range, access.
    #[must_use]
    pub fn live(&self) -> Vec<(u64, Span, Access)> {
        self.lock().live.iter().map(|(&n, &(s, a))| (n, s, a)).collect()
    }

    /// Returns the number of registrations made so far.
    #[must_use]
    pub fn made(&self) -> usize {
        self.lock().made.len()
    }

    /// Returns the number of bytes of all registrations made so far.
    #[must_use]
    pub fn made_bytes(&self) -> usize {
        self.lock().made.iter().map(|(_, span)| span.len()).sum()
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

    fn overlap(&self) -> Overlap {
        self.overlap
    }

    fn key(&self, stamp: &Stamp) -> u64 {
        stamp.0
    }

    fn register(&self, span: Span, access: Access) -> Result<Stamp> {
        let refuse = |why: &str, errno| {
            let source = Some(io::Error::from_raw_os_error(errno));
            Err(Error::Registration { device: self.name(), span, access, why: why.into(), source })
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        if self.overlap == Overlap::Refused && state.live.values().any(|(other, _)| other.overlaps(span)) {
            return refuse("the range overlaps a registered one", libc::EEXIST);
        }
        // Counts from the beginning of the call, since a device pins page by page.
        state.live.insert(number, (span, access));
        let now = (state.live.len(), state.live.values().map(|(s, _)| s.len()).sum());
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
        state.made.push((number, span));
        Ok(Stamp(number))
    }

    fn deregister(&self, span: Span, Stamp(number): Stamp) -> Result<()> {
        let mut state = self.lock();
        let was = state.live.remove(&number);
        assert_eq!(was.map(|(s, _)| s), Some(span), "deregistered twice, or with another range");
        state.ended.push(number);
        Ok(())
    }
}
