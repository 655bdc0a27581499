//! A registrar for tests: it counts, stamps numbers, fails and waits as it is told, and knows what
//! is registered.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::poison::IgnorePoison;
use crate::registrar::{Overlap, Registrar};
use crate::span::{Access, Span};

/// See the [module](self).
pub struct Fake {
    overlap: Overlap,
    next: AtomicU64,
    state: Mutex<State>,
    opened: Condvar,
    /// How many of the next calls of register fail, and with which number of the system's.
    failing: AtomicUsize,
    errno: AtomicUsize,
}

#[derive(Default)]
struct State {
    live: BTreeMap<u64, (Span, Access)>,
    /// The spans of all registrations ever made, with their numbers.
    made: Vec<(u64, Span)>,
    ended: Vec<u64>,
    peak: (usize, usize),
    /// How many calls of register wait at the gate, and whether it is closed.
    waiting: usize,
    closed: bool,
}

/// What it gives: a number that no other registration has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Fake {
    /// One that does what it is asked.
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    /// The next `calls` of register fail with `errno`.
    pub fn fail(&self, calls: usize, errno: i32) {
        self.errno.store(errno as usize, Ordering::Relaxed);
        self.failing.store(calls, Ordering::Relaxed);
    }

    /// Calls of register wait until [`open`](Fake::open).
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Lets those that wait go on, and later ones through.
    pub fn open(&self) {
        self.lock().closed = false;
        self.opened.notify_all();
    }

    /// Waits until so many calls of register wait at the gate.
    ///
    /// # Panics
    /// When they do not come within ten seconds.
    pub fn expect_waiting(&self, calls: usize) {
        for _ in 0..10_000 {
            if self.lock().waiting >= calls {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{calls} calls of register did not come");
    }

    /// What is registered now: number, range, rights.
    #[must_use]
    pub fn live(&self) -> Vec<(u64, Span, Access)> {
        self.lock().live.iter().map(|(&n, &(s, a))| (n, s, a)).collect()
    }

    /// How many registrations were made so far.
    #[must_use]
    pub fn made(&self) -> usize {
        self.lock().made.len()
    }

    /// Bytes of all registrations made so far.
    #[must_use]
    pub fn made_bytes(&self) -> usize {
        self.lock().made.iter().map(|(_, span)| span.len()).sum()
    }

    /// The numbers of those that were ended, in order.
    #[must_use]
    pub fn ended(&self) -> Vec<u64> {
        self.lock().ended.clone()
    }

    /// The most registrations, and the most bytes, that were live at a time, with those in
    /// progress.
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
            return refuse("it overlaps another", libc::EEXIST);
        }
        // From the beginning of the call on: a device pins page by page.
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
            return refuse("it was told to fail", self.errno.load(Ordering::Relaxed) as i32);
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
