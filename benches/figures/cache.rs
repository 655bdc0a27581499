//! The registration cache: what a hit costs, with how many entries, threads, and kinds of memory; what a miss adds; what the
//! monitor adds to munmap.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostbuf::register::fake::Fake;
use hostbuf::register::{Access, Budget, Lease, Monitor, Overlap, RegistrationCache, Span};

use crate::Outcome;
use crate::sample::{median, note, sample};

const PAGE: usize = 4096;

fn cache(regions: usize, monitor: Monitor) -> Result<RegistrationCache<Fake>, hostbuf::Error> {
    RegistrationCache::new(
        Arc::new(Fake::new(Overlap::Free)),
        Budget { regions, bytes: usize::MAX / 2 },
        monitor,
    )
}

/// Entries of one page each, a page apart, and the order in which they are asked for: one cycle through all of them, in which
/// each address is known only when the answer before it is: so hits do not overlap.
struct Chain {
    pointers: Vec<usize>,
    next: Vec<u32>,
}

impl Chain {
    fn new(base: usize, entries: usize) -> Chain {
        let mut state = 88_172_645_463_325_252u64;
        let mut order: Vec<u32> = (0..entries as u32).collect();
        for i in (1..entries).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            order.swap(i, (state % (i as u64 + 1)) as usize);
        }
        let mut next = vec![0; entries];
        for (i, &at) in order.iter().enumerate() {
            next[at as usize] = order[(i + 1) % entries];
        }
        // Every second one is asked for from its middle.
        let pointers = (0..entries).map(|i| base + 2 * i * PAGE + (i % 2) * 512).collect();
        Chain { pointers, next }
    }

    /// Nanoseconds for one get and drop.
    fn run(&self, cache: &RegistrationCache<Fake>, hits: usize) -> f64 {
        let mut at = 0usize;
        let begun = Instant::now();
        for _ in 0..hits {
            let lease = cache.get(self.pointers[at] as *const u8, 64, Access::READ).expect("a hit");
            // The next address depends on the lease.
            let nothing = black_box(lease.handle().0) & (1 << 63);
            at = (u64::from(self.next[at]) + nothing) as usize;
        }
        begun.elapsed().as_secs_f64() * 1e9 / hits as f64
    }
}

pub(crate) fn measure(repeats: usize, hits: usize) -> Outcome {
    owned(repeats, hits)?;
    foreign(repeats, hits)?;
    threads(repeats, hits)?;
    while_registering(hits)?;
    misses(repeats)?;
    unmapping(repeats)
}

fn owned(repeats: usize, hits: usize) -> Outcome {
    for (entries, name, bar) in [(1, "1", 25.0), (1024, "1k", 25.0), (65536, "64k", 80.0)] {
        let cache = cache(entries, Monitor::Explicit)?;
        let chain = Chain::new(0x10_0000_0000, entries);
        for &pointer in &chain.pointers {
            drop(cache.get((pointer & !(PAGE - 1)) as *const u8, PAGE, Access::READ)?);
        }
        chain.run(&cache, hits);
        for _ in 0..repeats {
            sample(&format!("cache-hit-{name}"), "ours", chain.run(&cache, hits) * 1e-9);
            sample(&format!("cache-hit-{name}"), "theirs", bar * 1e-9);
        }
        if cache.stats().misses != entries as u64 {
            return Err("a hit was a miss".into());
        }
    }
    Ok(())
}

/// getpid by the system call, nanoseconds.
fn getpid(calls: usize) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        // SAFETY: takes nothing.
        black_box(unsafe { libc::syscall(libc::SYS_getpid) });
    }
    begun.elapsed().as_secs_f64() * 1e9 / calls as f64
}

fn foreign(repeats: usize, hits: usize) -> Outcome {
    let (strict, explicit) = (cache(1024, Monitor::Strict)?, cache(1024, Monitor::Explicit)?);
    let memory = vec![1u8; 2 * 64 * PAGE + PAGE];
    let chain = Chain::new((memory.as_ptr() as usize).next_multiple_of(PAGE), 64);
    for cache in [&strict, &explicit] {
        for &pointer in &chain.pointers {
            drop(cache.get((pointer & !(PAGE - 1)) as *const u8, PAGE, Access::READ)?);
        }
    }
    let spans: Vec<Span> =
        chain.pointers.iter().map(|&p| Span::new(p, 64)).collect::<hostbuf::Result<_>>()?;
    let mut leases: Vec<Lease<'_, Fake>> = Vec::new();
    for _ in 0..repeats {
        let own = chain.run(&explicit, hits / 4);
        sample("cache-hit-foreign", "ours", chain.run(&strict, hits / 4) * 1e-9);
        sample("cache-hit-foreign", "theirs", (own + 2.0 * getpid(hits / 4)) * 1e-9);
        let begun = Instant::now();
        let rounds = hits / 64 / 4;
        for _ in 0..rounds {
            strict.get_many_into(&spans, Access::READ, &mut leases)?;
            leases.clear();
        }
        sample("cache-hit-many", "ours", begun.elapsed().as_secs_f64() / (rounds * 64) as f64);
        sample("cache-hit-many", "theirs", (own + 5.0) * 1e-9);
    }
    let stats = strict.stats();
    if stats.misses != 64 {
        note("cache-hit-foreign", &format!("not all were hits: {stats:?}"));
    }
    Ok(())
}

fn threads(repeats: usize, hits: usize) -> Outcome {
    let cache = &cache(4096, Monitor::Explicit)?;
    let chains = [Chain::new(0x10_0000_0000, 512), Chain::new(0x20_0000_0000, 512)];
    for pointer in chains.iter().flat_map(|c| &c.pointers) {
        drop(cache.get((pointer & !(PAGE - 1)) as *const u8, PAGE, Access::READ)?);
    }
    let together = |chains: [&Chain; 2]| {
        let (ready, go) = (&AtomicU64::new(0), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let all = chains.map(|chain| {
                scope.spawn(move || {
                    chain.run(cache, 1000);
                    ready.fetch_add(1, Ordering::Release);
                    while !go.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    chain.run(cache, hits)
                })
            });
            while ready.load(Ordering::Acquire) < 2 {
                std::hint::spin_loop();
            }
            go.store(true, Ordering::Release);
            let each = all.map(|t| t.join().expect("it ends"));
            // Hits a nanosecond, of both.
            1.0 / each[0] + 1.0 / each[1]
        })
    };
    for _ in 0..repeats {
        let one = 1.0 / chains[0].run(cache, hits);
        for (key, pair) in [
            ("cache-threads-apart", [&chains[0], &chains[1]]),
            ("cache-threads-same", [&chains[0], &chains[0]]),
        ] {
            sample(key, "ours", together(pair));
            sample(key, "theirs", one);
        }
    }
    Ok(())
}

/// The p99.9 of hits while another thread registers for a second.
fn while_registering(hits: usize) -> Outcome {
    let fake = Arc::new(Fake::new(Overlap::Free));
    let cache =
        RegistrationCache::new(fake.clone(), Budget { regions: 64, bytes: 1 << 40 }, Monitor::Explicit)?;
    let pointer = 0x10_0000 as *const u8;
    drop(cache.get(pointer, PAGE, Access::READ)?);
    fake.close();
    let mut took = Vec::with_capacity(hits);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| cache.get(0x20_0000 as *const u8, PAGE, Access::READ).map(drop));
        fake.expect_waiting(1);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            let one = Instant::now();
            drop(cache.get(pointer, PAGE, Access::READ));
            took.push(one.elapsed().as_secs_f64());
        }
        fake.open();
        slow.join().expect("it ends")
    })?;
    took.sort_by(f64::total_cmp);
    sample("cache-hit-p999", "ours", took[took.len() * 999 / 1000]);
    sample("cache-hit-p999", "theirs", 5e-6);
    Ok(())
}

fn misses(repeats: usize) -> Outcome {
    let count = 4096;
    for _ in 0..repeats {
        let fake = Arc::new(Fake::new(Overlap::Free));
        let own = {
            use hostbuf::register::Registrar;
            let spans: Vec<Span> = (0..count)
                .map(|i| Span::new(0x10_0000_0000 + 2 * i * PAGE, PAGE))
                .collect::<hostbuf::Result<_>>()?;
            let begun = Instant::now();
            for &span in &spans {
                let stamp = fake.register(span, Access::READ)?;
                fake.deregister(span, stamp)?;
            }
            begun.elapsed().as_secs_f64() / count as f64
        };
        // Each miss ends another one: the whole way.
        let cache = cache(64, Monitor::Explicit)?;
        for i in 0..64 {
            drop(cache.get((0x40_0000_0000usize + 2 * i * PAGE) as *const u8, PAGE, Access::READ)?);
        }
        let begun = Instant::now();
        for i in 0..count {
            drop(cache.get((0x10_0000_0000usize + 2 * i * PAGE) as *const u8, PAGE, Access::READ)?);
        }
        let each = begun.elapsed().as_secs_f64() / count as f64;
        sample("cache-miss", "ours", each - own);
        sample("cache-miss", "theirs", 1e-6);
    }
    Ok(())
}

fn unmapping(repeats: usize) -> Outcome {
    let cache = cache(1024, Monitor::Strict)?;
    let map = || {
        // SAFETY: new memory, touched once.
        unsafe {
            let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(std::ptr::null_mut(), 16 * PAGE, rw, flags, -1, 0).cast::<u8>();
            at.write(1);
            at
        }
    };
    let unmap = |at: *mut u8| {
        let begun = Instant::now();
        // SAFETY: mapped just now, used by nobody.
        unsafe { libc::munmap(at.cast(), 16 * PAGE) };
        begun.elapsed().as_secs_f64()
    };
    let mut added = Vec::new();
    for _ in 0..repeats * 300 {
        let plain = unmap(map());
        let at = map();
        drop(cache.get(at, 16 * PAGE, Access::READ)?);
        added.push(unmap(at) - plain);
    }
    added.sort_by(f64::total_cmp);
    sample("cache-munmap", "ours", median(&added));
    sample("cache-munmap", "theirs", 10e-6);
    let at = |share: usize| added[added.len() * share / 1000] * 1e6;
    note(
        "cache-munmap",
        &format!("p99 {:.1} µs, p99.9 {:.1} µs; the monitor's thread was asleep each time", at(990), at(999)),
    );
    Ok(())
}
