//! The registration cache: the cost of a hit for several numbers of entries and threads and kinds
//! of memory, beside UCX's, and the cost that a miss adds. The replacement policy and the cost of
//! the monitor for munmap have files of their own.

#![allow(unsafe_code, reason = "calls the system directly")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostbuf::register::{Access, Budget, Lease, MonitorMode, Span};
use hostbuf_os::cores::Cores;

use crate::chain::{ASKED, Chain, PAGE, own_time};
use crate::fixture::{BenchCache, BenchResult, Idle, cache};
use crate::other_caches::{self, CacheProgram};
use crate::policy;
use crate::sample::{median, note, sample, unmeasured};
use crate::unmapping::{Reader, unmapping};

const BASE: usize = 0x10_0000_0000;

fn of_registrations(registrations: usize, monitor: MonitorMode) -> hostbuf::register::Result<BenchCache> {
    cache(Budget::new(registrations).bytes(usize::MAX / 2), monitor)
}

/// Gets and drops one lease, and returns its key. It is inlined, as in a program's own loop: every
/// return is costly after a system call.
#[inline(always)]
fn hit(cache: &BenchCache, address: *const u8) -> u64 {
    cache.get(address, ASKED, Access::READ).expect("a hit").key()
}

fn fill(cache: &BenchCache, chain: &Chain) -> hostbuf::register::Result<()> {
    chain
        .entries()
        .try_for_each(|span| cache.get(span.start() as *const u8, span.len(), Access::READ).map(drop))
}

/// Measures the named `parts`, or all if there are none. `peer` is the program that measures UCX's
/// cache, or the reason for its absence.
pub(crate) fn measure(repeats: usize, hits: usize, peer: Result<&str, &str>, parts: &[&str]) -> BenchResult {
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    // The bar, and the lowest figure of libfabric's cache on such a machine, in nanoseconds.
    for (entries, name, bar, libfabric) in
        [(1, "1", 25.0, 62.0), (1024, "1k", 25.0, 173.0), (65536, "64k", 80.0, 1361.0)]
    {
        if wanted(name) {
            owned(repeats, hits, peer, (entries, name), (bar, libfabric))?;
        }
    }
    if wanted("foreign") {
        foreign(repeats, hits)?;
    }
    if wanted("policy") {
        policy::measure()?;
    }
    if wanted("threads") {
        threads(repeats, hits)?;
    }
    if wanted("p999") {
        while_registering()?;
    }
    if wanted("miss") {
        misses(repeats)?;
    }
    if wanted("munmap") {
        let strict = || of_registrations(1024, MonitorMode::Strict);
        let (asleep, both) = ([Reader::Asleep], [Reader::Asleep, Reader::Awake]);
        on_one_core(|| unmapping("cache-munmap", &asleep, &strict()?, repeats))?;
        unmapping("cache-munmap-free", &both, &strict()?, repeats)?;
        every_core_busy(|| on_one_core(|| unmapping("cache-munmap-busy", &asleep, &strict()?, repeats)))?;
    }
    Ok(())
}

fn owned(
    repeats: usize,
    hits: usize,
    peer: Result<&str, &str>,
    (entries, name): (usize, &str),
    (bar, libfabric): (f64, f64),
) -> BenchResult {
    let cache = of_registrations(entries, MonitorMode::Explicit)?;
    let chain = Chain::new(BASE, entries);
    fill(&cache, &chain)?;
    let mut ucx = match peer {
        Ok(program) => {
            note(&format!("cache-ucx-{name}"), &CacheProgram::version(program)?);
            Some(CacheProgram::start(program, BASE, entries)?)
        }
        Err(why) => {
            unmeasured(&format!("cache-ucx-{name}"), why);
            None
        }
    };
    let pair = |row: &str, ours: f64, theirs: f64| {
        sample(&format!("cache-{row}-{name}"), "ours", ours);
        sample(&format!("cache-{row}-{name}"), "theirs", theirs);
    };
    for _ in 0..repeats {
        let ours = chain.time(hits, |address| hit(&cache, address));
        pair("hit", ours, bar * 1e-9);
        pair("walk", chain.time(hits, |address| black_box(address) as u64), ours);
        if let Some(ucx) = &mut ucx {
            pair("ucx", ours, ucx.turn(hits)?);
        }
        pair("libfabric", ours, libfabric * 1e-9);
    }
    if let Some(ucx) = ucx {
        ucx.finish()?;
    }
    if cache.stats().misses != entries as u64 {
        return Err("a hit was a miss".into());
    }
    let why = other_caches::libfabric();
    note(
        &format!("cache-libfabric-{name}"),
        &format!("not measured here ({why}): theirs is an earlier figure, of another run"),
    );
    Ok(())
}

/// Returns the duration of the system call getpid, in seconds.
fn getpid(calls: usize) -> f64 {
    let begun = own_time();
    for _ in 0..calls {
        // SAFETY: takes nothing.
        black_box(unsafe { libc::syscall(libc::SYS_getpid) });
    }
    (own_time() - begun) / calls as f64
}

fn foreign(repeats: usize, hits: usize) -> BenchResult {
    let (strict, explicit) =
        (of_registrations(1024, MonitorMode::Strict)?, of_registrations(1024, MonitorMode::Explicit)?);
    let memory = vec![1u8; 64 * crate::chain::STRIDE * PAGE + PAGE];
    let chain = Chain::new((memory.as_ptr() as usize).next_multiple_of(PAGE), 64);
    fill(&strict, &chain)?;
    fill(&explicit, &chain)?;
    let spans: Vec<Span> = chain.asked().collect();
    let mut leases: Vec<Lease<'_, Idle>> = Vec::new();
    for _ in 0..repeats {
        let own = chain.time(hits / 4, |address| hit(&explicit, address));
        sample("cache-hit-foreign", "ours", chain.time(hits / 4, |address| hit(&strict, address)));
        sample("cache-hit-foreign", "theirs", own + 2.0 * getpid(hits / 4));
        let begun = own_time();
        let rounds = hits / 64 / 4;
        for _ in 0..rounds {
            strict.get_many_into(&spans, Access::READ, &mut leases)?;
            black_box(&leases);
            leases.clear();
        }
        sample("cache-hit-many", "ours", (own_time() - begun) / (rounds * 64) as f64);
        sample("cache-hit-many", "theirs", own + 5e-9);
    }
    let stats = strict.stats();
    if stats.misses != 64 {
        note("cache-hit-foreign", &format!("not all were hits: {stats:?}"));
    }
    Ok(())
}

fn threads(repeats: usize, hits: usize) -> BenchResult {
    let cache = &of_registrations(4096, MonitorMode::Explicit)?;
    let chains = [Chain::new(BASE, 512), Chain::new(2 * BASE, 512)];
    fill(cache, &chains[0])?;
    fill(cache, &chains[1])?;
    // Prints the nanoseconds of a hit by the clock, and by the thread's CPU time.
    let run = |chain: &Chain| {
        let (begun, own) = (Instant::now(), own_time());
        chain.walk(hits, |address| hit(cache, address));
        let clock = begun.elapsed().as_secs_f64();
        [clock, own_time() - own].map(|seconds| seconds * 1e9 / hits as f64)
    };
    // Each thread has a core of its own from the beginning: the kernel tends to leave a new thread
    // on the core of its creator.
    let cores = Cores::own();
    let together = |[first, second]: [&Chain; 2]| {
        let (ready, go) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let elsewhere = cores.spread(1)[0];
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                cores.begin_at(&elsewhere);
                second.walk(1000, |address| hit(cache, address));
                ready.store(true, Ordering::Release);
                while !go.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                run(second)
            });
            while !ready.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            go.store(true, Ordering::Release);
            let each = [run(first), other.join().expect("the thread does not panic")];
            // Returns the hits per nanosecond of both threads.
            [0, 1].map(|time| 1.0 / each[0][time] + 1.0 / each[1][time])
        })
    };
    run(&chains[0]);
    for (key, pair) in
        [("cache-threads-apart", [&chains[0], &chains[1]]), ("cache-threads-same", [&chains[0], &chains[0]])]
    {
        let mut own = Vec::new();
        for _ in 0..repeats {
            // One thread walks both chains one after the other, since the chains may differ in
            // speed.
            let alone = [run(pair[0]), run(pair[1])];
            let one = [0, 1].map(|time| 2.0 / (alone[0][time] + alone[1][time]));
            let two = together(pair);
            sample(key, "ours", two[0]);
            sample(key, "theirs", one[0]);
            own.push(two[1] / one[1]);
        }
        note(key, &format!("by the threads' own time {:.2}: what two cost each other", median(&own)));
    }
    Ok(())
}

/// Samples the p99.9 of hits during a second in which another thread registers.
fn while_registering() -> BenchResult {
    let cache = of_registrations(64, MonitorMode::Explicit)?;
    let pointer = 0x10_0000 as *const u8;
    drop(cache.get(pointer, PAGE, Access::READ)?);
    let idle = cache.registrar().clone();
    idle.closed.store(true, Ordering::Release);
    let mut took = Vec::with_capacity(100_000_000);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| cache.get(0x20_0000 as *const u8, PAGE, Access::READ).map(drop));
        while !idle.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            let one = Instant::now();
            drop(cache.get(pointer, PAGE, Access::READ));
            took.push(one.elapsed().as_nanos() as u32);
        }
        idle.closed.store(false, Ordering::Release);
        slow.join().expect("the thread does not panic")
    })?;
    took.sort_unstable();
    sample("cache-hit-p999", "ours", f64::from(took[took.len() * 999 / 1000]) * 1e-9);
    sample("cache-hit-p999", "theirs", 5e-6);
    Ok(())
}

/// Measures complete misses, each of which evicts another registration.
fn misses(repeats: usize) -> BenchResult {
    const COUNT: usize = 4096;
    let owned = of_registrations(64, MonitorMode::Explicit)?;
    let strict = of_registrations(64, MonitorMode::Strict)?;
    let memory = vec![1u8; 2 * COUNT * PAGE + PAGE];
    let base = (memory.as_ptr() as usize).next_multiple_of(PAGE);
    let miss = |cache: &BenchCache| -> hostbuf::register::Result<f64> {
        let begun = Instant::now();
        for i in 0..COUNT {
            drop(cache.get((base + 2 * i * PAGE) as *const u8, PAGE, Access::READ)?);
        }
        Ok(begun.elapsed().as_secs_f64() / COUNT as f64)
    };
    miss(&owned)?;
    miss(&strict)?;
    for _ in 0..repeats {
        let each = miss(&owned)?;
        sample("cache-miss", "ours", each);
        sample("cache-miss", "theirs", 1e-6);
        sample("cache-miss-foreign", "ours", miss(&strict)?);
        sample("cache-miss-foreign", "theirs", each);
    }
    let all = (COUNT * (repeats + 1)) as u64;
    if owned.stats().misses != all {
        return Err("a miss was a hit".into());
    }
    Ok(())
}

/// Runs `work` on a thread that is bound to one core, as mpirun binds a rank.
fn on_one_core(work: impl FnOnce() -> BenchResult + Send) -> BenchResult {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            Cores::own().spread(1)[0].apply().map_err(|e| e.to_string())?;
            work().map_err(|e| e.to_string())
        });
        Ok(bound.join().map_err(|_| "it panicked")??)
    })
}

/// Runs `work` while as many threads as there are cores only count.
fn every_core_busy(work: impl FnOnce() -> BenchResult) -> BenchResult {
    let stop = &AtomicBool::new(false);
    let cores = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = work();
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}
