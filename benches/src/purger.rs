//! The registration cache in a busy process: hits while another thread discards pages without a
//! pause, and a first miss among many mappings.

#![allow(unsafe_code, reason = "maps and discards memory by system calls")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostbuf::register::{Access, Budget, MonitorMode};

use crate::chain::PAGE;
use crate::fixture::BenchResult;
use crate::fixture::{BenchCache, cache};
use crate::sample::{median, note, sample};
use crate::scaling::{Mappings, hit, rate};

/// The interval between two purges: 100 000 per second.
const INTERVAL: Duration = Duration::from_micros(10);
/// The number of mappings from which pairs are drawn.
const MAPPINGS: usize = 64;

/// Purges the page at `address` while `work` runs. Returns the result of `work`, and the number of
/// purges per second.
fn purging<T>(address: usize, work: impl FnOnce() -> T) -> (T, f64) {
    let (stop, purges) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let purger = scope.spawn(|| {
            let begun = Instant::now();
            let mut next = begun;
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: no thread reads this page.
                unsafe { libc::madvise(address as *mut _, PAGE, libc::MADV_DONTNEED) };
                purges.fetch_add(1, Ordering::Relaxed);
                next = (next + INTERVAL).max(Instant::now());
                while Instant::now() < next {
                    std::hint::spin_loop();
                }
            }
            purges.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
        });
        while purges.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
        }
        let result = work();
        stop.store(true, Ordering::Relaxed);
        (result, purger.join().expect("the thread does not panic"))
    })
}

/// Measures hits on one mapping while another one is purged, for `pairs` random pairs of mappings.
pub(crate) fn measure(pairs: usize) -> BenchResult {
    let mut state = crate::chain::SEED;
    let (mut worst, mut rates) = ([f64::INFINITY; 2], Vec::new());
    let mut drawn = 0;
    while drawn < pairs {
        let mappings = Mappings::random(MAPPINGS, &mut state)?;
        // One page is hit, and another one is purged.
        let usable: Vec<usize> =
            mappings.0.iter().filter(|(_, length)| *length >= 2 * PAGE).map(|(at, _)| *at).collect();
        for _ in 0..10.min(pairs - drawn) {
            drawn += 1;
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let hit_one = state as usize % usable.len();
            let other = (hit_one + 1 + (state >> 32) as usize % (usable.len() - 1)) % usable.len();
            let (at, other) = (usable[hit_one], usable[other]);
            let cache: BenchCache = cache(Budget::new(1024).bytes(1 << 40), MonitorMode::Strict)?;
            mappings.0.iter().for_each(|&(at, _)| hit(&cache, at));
            let alone = rate(1, || {}, |_, _| hit(&cache, at));
            for (n, (key, purged)) in [("cache-purger-other", other + PAGE), ("cache-purger-same", at + PAGE)]
                .into_iter()
                .enumerate()
            {
                let (disturbed, purges) = purging(purged, || rate(1, || {}, |_, _| hit(&cache, at)));
                sample(key, "ours", disturbed);
                sample(key, "theirs", alone);
                worst[n] = worst[n].min(disturbed / alone);
                rates.push(purges);
            }
        }
    }
    let purges = format!("{:.0} purges a second", median(&rates));
    note("cache-purger-other", &format!("the worst of {pairs} pairs {:.2} (bar 0.3); {purges}", worst[0]));
    note("cache-purger-same", &format!("the worst of {pairs} {:.2}; {purges}", worst[1]));
    Ok(())
}

/// Adds mappings that the kernel does not join, and takes the first lease in a new one.
pub(crate) fn first_miss(repeats: usize) -> BenchResult {
    for (count, side) in [(46, "theirs"), (60_000, "ours")] {
        let (rw, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory of which every other page gets another protection.
        let many = unsafe {
            let many = libc::mmap(std::ptr::null_mut(), count * PAGE, rw, flags, -1, 0);
            for page in (0..count).step_by(2) {
                libc::mprotect(many.byte_add(page * PAGE), PAGE, libc::PROT_READ | libc::PROT_WRITE);
            }
            many
        };
        let cache: BenchCache = cache(Budget::new(1024).bytes(1 << 40), MonitorMode::Strict)?;
        let mut state = crate::chain::SEED;
        for _ in 0..repeats {
            let misses: Result<Vec<f64>, std::io::Error> = (0..50)
                .map(|_| {
                    let mapping = Mappings::random(1, &mut state)?;
                    let begun = Instant::now();
                    let lease = cache.get(mapping.0[0].0 as *const u8, PAGE, Access::READ);
                    let took = begun.elapsed().as_secs_f64();
                    drop(lease.expect("a lease"));
                    Ok(took)
                })
                .collect();
            sample("cache-first-miss", side, median(&misses?));
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(many, count * PAGE) };
    }
    Ok(())
}
