//! The replacement policy: hit rates of a full cache on the usual traces.

use hostbuf::register::{Access, Budget, MonitorMode, RegistrationCache};

use crate::chain::PAGE;
use crate::fixture::BenchResult;
use crate::fixture::{Idle, cache};
use crate::sample::sample;

/// The numbers of registrations that the budget allows.
const CAPACITIES: [usize; 3] = [16, 64, 1024];

/// Requests buffer number `key` of `pages` pages. Returns true for a hit.
fn ask(cache: &RegistrationCache<Idle>, key: usize, pages: usize) -> hostbuf::Result<bool> {
    let made = cache.stats().misses;
    // Buffers are far apart: no two have a page in common.
    let address = (0x10_0000_0000 + key * (8 << 20)) as *const u8;
    drop(cache.get(address, pages * PAGE, Access::READ)?);
    Ok(cache.stats().misses == made)
}

fn rate(cache: &RegistrationCache<Idle>, keys: impl Iterator<Item = usize>) -> hostbuf::Result<f64> {
    let (mut hits, mut all) = (0u32, 0u32);
    for key in keys {
        hits += u32::from(ask(cache, key, 1)?);
        all += 1;
    }
    Ok(f64::from(hits) / f64::from(all))
}

fn cycle(first: usize, count: usize, rounds: usize) -> impl Iterator<Item = usize> {
    (0..count * rounds).map(move |i| first + i % count)
}

pub(crate) fn measure() -> BenchResult {
    for capacity in CAPACITIES {
        let fresh = || cache(Budget::new(capacity).bytes(usize::MAX / 2), MonitorMode::Explicit);
        let rounds = (20_000 / capacity).clamp(20, 200);

        let full = fresh()?;
        rate(&full, cycle(0, capacity, 1))?;
        sample("cache-policy-same", "ours", rate(&full, cycle(0, capacity, 5))?);
        // After that the trace requests none of it.
        rate(&full, cycle(capacity, capacity, 4))?;
        sample("cache-policy-shift", "ours", rate(&full, cycle(capacity, capacity, 5))?);

        let more = fresh()?;
        rate(&more, cycle(0, capacity + 1, 20))?;
        sample("cache-policy-more", "ours", rate(&more, cycle(0, capacity + 1, rounds))?);

        let scanned = fresh()?;
        let hot = capacity / 2;
        rate(&scanned, cycle(0, hot, 5))?;
        let (mut hits, steps) = (0u32, rounds * hot);
        for step in 0..steps {
            hits += u32::from(ask(&scanned, step % hot, 1)?);
            ask(&scanned, 10_000 + step, 1)?;
        }
        sample("cache-policy-scan", "ours", f64::from(hits) / steps as f64);
        for key in ["same", "shift", "more", "scan"] {
            sample(&format!("cache-policy-{key}"), "theirs", 1.0);
        }
    }
    mixed_sizes()
}

/// Compares the registered bytes with those of a list in the order of last use. The buffers have
/// sizes from a page to 4 MiB; low numbers are most frequent, and some buffers occur only once.
fn mixed_sizes() -> BenchResult {
    const BUDGET: usize = 64 << 20;
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let trace: Vec<(usize, usize)> = (0..40_000)
        .map(|i| {
            let share = (random() % 1_000_000) as f64 / 1e6;
            let key = if i % 50 < 3 { 10_000 + i } else { 400.0_f64.powf(share) as usize };
            (key, 1 << (key * 7 % 11))
        })
        .collect();
    let ours = cache(Budget::new(4096).bytes(BUDGET), MonitorMode::Explicit)?;
    for &(key, pages) in &trace {
        ask(&ours, key, pages)?;
    }
    let (mut order, mut used, mut registered) = (Vec::<(usize, usize)>::new(), 0, 0);
    for &(key, pages) in &trace {
        if let Some(at) = order.iter().position(|entry| entry.0 == key) {
            let entry = order.remove(at);
            order.push(entry);
            continue;
        }
        while used + pages * PAGE > BUDGET {
            used -= order.remove(0).1 * PAGE;
        }
        order.push((key, pages));
        used += pages * PAGE;
        registered += pages * PAGE;
    }
    sample("cache-policy-mixed", "ours", ours.stats().registered_bytes as f64);
    sample("cache-policy-mixed", "theirs", registered as f64);
    Ok(())
}
