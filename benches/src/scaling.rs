//! Concurrent hits of the registration cache, from one thread to one thread per core.
//!
//! Each pattern is a row of [`PATTERNS`]. A pattern in foreign memory is measured on many sets of
//! mappings at random addresses, since contention may depend on the addresses.

#![allow(unsafe_code, reason = "maps memory at fixed addresses")]

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hostbuf::register::{Access, Budget, MonitorMode, Span};
use hostbuf_os::cores::Cores;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::chain::{ASKED, Chain, PAGE};
use crate::fixture::BenchResult;
use crate::fixture::{BenchCache, cache};
use crate::other_caches::CacheProgram;
use crate::sample::{note, sample, unmeasured};

/// The duration of one measurement.
const TURN: Duration = Duration::from_millis(10);
/// The number of hits between two reads of the clock.
const ROUND: usize = 64;
/// The number of entries in hostbuf's own memory, and their address.
const ENTRIES: usize = 1024;
const BASE: usize = 0x10_0000_0000;

/// The mappings that threads hit in foreign memory, with the strict monitor.
struct Pattern {
    /// The part of the row's key after `cache-scale-`.
    key: &'static str,
    /// The number of mappings.
    mappings: usize,
    /// True if each thread hits only one of them, as long as there are enough; otherwise each
    /// thread hits all of them in turn.
    apart: bool,
    /// The function that each thread calls before its first hit.
    begin: fn(),
}

const PATTERNS: [Pattern; 5] = [
    Pattern { key: "apart", mappings: 16, apart: true, begin: || {} },
    Pattern { key: "set", mappings: 16, apart: false, begin: || {} },
    Pattern { key: "one", mappings: 1, apart: false, begin: || {} },
    Pattern { key: "set-unshared", mappings: 16, apart: false, begin: unshare },
    Pattern { key: "one-unshared", mappings: 1, apart: false, begin: unshare },
];

/// Unshares the descriptor table; a thread for which that fails is measured without it.
fn unshare() {
    let _ = MonitorMode::unshare_descriptors();
}

/// Returns 1, 2, 4, ... and the number of cores.
fn counts(cores: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n < cores);
    powers.chain([cores]).collect()
}

/// Returns the millions of calls per second of `threads` threads together, each on its own core.
/// `call` gets the numbers of the thread and of the call.
pub(crate) fn rate(threads: usize, begin: fn(), call: impl Fn(usize, usize) + Sync) -> f64 {
    let ready = &AtomicUsize::new(0);
    let call = &call;
    let one = move |thread: usize, core: Option<usize>| {
        if let Some(core) = core {
            // If the kernel refuses, the thread is not bound.
            let mut set = CpuSet::new();
            let _ = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
        }
        begin();
        // The thread's counters and hints are allocated before the measurement.
        (0..ROUND).for_each(|i| call(thread, i));
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < threads {
            std::hint::spin_loop();
        }
        let begun = Instant::now();
        let mut calls = 0;
        while begun.elapsed() < TURN {
            (calls..calls + ROUND).for_each(|i| call(thread, i));
            calls += ROUND;
        }
        calls as f64 / begun.elapsed().as_secs_f64() * 1e-6
    };
    let own = sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new());
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|&core| own.is_set(core).unwrap_or(false)).collect();
    std::thread::scope(|scope| {
        let core =
            |thread: usize| (threads > 1).then(|| cores.get(thread % cores.len().max(1)).copied()).flatten();
        let all: Vec<_> = (0..threads)
            .map(|thread| {
                let core = core(thread);
                scope.spawn(move || one(thread, core))
            })
            .collect();
        all.into_iter().map(|thread| thread.join().expect("the thread does not panic")).sum()
    })
}

pub(crate) fn hit(cache: &BenchCache, address: usize) {
    black_box(cache.get(address as *const u8, ASKED, Access::READ).expect("a hit").key());
}

/// Mappings of 1 to 64 pages at random addresses, none adjacent to another. They are unmapped when
/// dropped.
pub(crate) struct Mappings(pub(crate) Vec<(usize, usize)>);

impl Mappings {
    pub(crate) fn random(count: usize, state: &mut u64) -> std::io::Result<Mappings> {
        let mut mappings = Mappings(Vec::new());
        let mut random = || {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            *state as usize
        };
        while mappings.0.len() < count {
            let (at, length) =
                (0x1000_0000_0000 + (random() >> 24) % (1 << 33) * PAGE, (1 + random() % 64) * PAGE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: replaces nothing.
            let got =
                unsafe { libc::mmap(at as *mut _, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            if got == libc::MAP_FAILED {
                match std::io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EEXIST) => continue,
                    error => return Err(error),
                }
            }
            mappings.0.push((got as usize, length));
            // SAFETY: mapped just now.
            unsafe { (got as *mut u8).write_bytes(1, length) };
        }
        Ok(mappings)
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        for &(at, length) in &self.0 {
            // SAFETY: `random` has mapped it, and no other code uses it.
            unsafe { libc::munmap(at as *mut _, length) };
        }
    }
}

/// Measures all patterns, those in foreign memory on `sets` sets of mappings. `peer` is as for
/// [`crate::cache::measure`].
pub(crate) fn measure(sets: usize, repeats: usize, hits: usize, peer: Result<&str, &str>) -> BenchResult {
    let counts = counts(Cores::own().threads());
    owned(&counts, repeats, hits, peer)?;
    let mut state = crate::chain::SEED;
    for pattern in PATTERNS {
        let key = |threads: usize| format!("cache-scale-{}-{threads}", pattern.key);
        let mut kept = true;
        for _ in 0..sets {
            let mappings = Mappings::random(pattern.mappings, &mut state)?;
            let cache = cache(Budget::new(1024).bytes(1 << 40), MonitorMode::Strict)?;
            let ask = |thread: usize, i: usize| {
                let turn = if pattern.apart { 0 } else { i };
                hit(&cache, mappings.0[(thread + turn) % mappings.0.len()].0);
            };
            mappings.0.iter().for_each(|&(at, _)| hit(&cache, at));
            let alone = rate(1, pattern.begin, ask);
            for &threads in &counts {
                let all = if threads == 1 { alone } else { rate(threads, pattern.begin, ask) };
                sample(&key(threads), "ours", all);
                sample(&key(threads), "theirs", alone);
            }
            kept &= cache.stats().misses as usize == mappings.0.len();
        }
        if !kept {
            note(&key(1), "not all were hits: the monitor is not proven here, or had no core for long");
        }
    }
    Ok(())
}

/// Measures one set of entries in own memory for all threads, and UCX's cache beside it.
fn owned(counts: &[usize], repeats: usize, hits: usize, peer: Result<&str, &str>) -> BenchResult {
    let cache = cache(Budget::new(ENTRIES).bytes(usize::MAX / 2), MonitorMode::Explicit)?;
    let chain = Chain::new(BASE, ENTRIES);
    for span in chain.entries() {
        drop(cache.get(span.start() as *const u8, span.len(), Access::READ)?);
    }
    let addresses: Vec<usize> = chain.asked().map(Span::start).collect();
    let call = |thread: usize, i: usize| hit(&cache, addresses[(thread * 97 + i * 7) % ENTRIES]);
    let mut ucx = peer.map(|program| CacheProgram::start(program, BASE, ENTRIES));
    for _ in 0..repeats {
        let alone = rate(1, || {}, call);
        for &threads in counts {
            let all = if threads == 1 { alone } else { rate(threads, || {}, call) };
            sample(&format!("cache-scale-owned-{threads}"), "ours", all);
            sample(&format!("cache-scale-owned-{threads}"), "theirs", alone);
            let key = format!("cache-scale-ucx-{threads}");
            match &mut ucx {
                Ok(Ok(ucx)) => {
                    let each = ucx.turn_of(hits / threads, threads)?;
                    sample(&key, "ours", all);
                    sample(&key, "theirs", 1e-6 / each);
                }
                Ok(Err(error)) => return Err(error.to_string().into()),
                Err(why) => unmeasured(&key, why),
            }
        }
    }
    if let Ok(Ok(ucx)) = ucx {
        ucx.finish()?;
    }
    if cache.stats().misses != ENTRIES as u64 {
        return Err("a hit was a miss".into());
    }
    Ok(())
}
