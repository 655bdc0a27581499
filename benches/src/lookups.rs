//! Random 8-byte lookups: the buffer against private memory with transparent huge pages, and
//! against an MPI window.
//!
//! The bar applies to the dependent chain: the address of each lookup comes from the previous
//! lookup, so each pays for the whole path to memory and the page walk. The chain is one cycle
//! through all words in an order that no prefetcher predicts. Sixteen interleaved chains are
//! printed beside it.

#![allow(unsafe_code, reason = "the measured lookups read tables by raw pointers")]

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use mpi::traits::Communicator;

use crate::fixture::BenchResult;
use crate::sample::{note, sample, timed};
use crate::window::MpiWindow;

/// A table of words, each the index of another.
struct LookupTable {
    name: String,
    at: *mut u64,
    /// The current position of the chain.
    next: u64,
}

const LANES: u64 = 16;
/// The number of lookups in one turn. Turns are short and many, since a machine is never completely
/// quiet.
const STEPS: u64 = 1 << 19;

/// Measures tables of `bytes` (a power of two): the buffer on each of `pages`, private memory on
/// huge and on small pages, and the window.
pub(crate) fn compare(bytes: usize, repeats: usize, pages: &[&str]) -> BenchResult {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let world = universe.world();
    if world.size() != 1 || !bytes.is_power_of_two() {
        return Err("one rank and a power of two are meant".into());
    }
    let window = MpiWindow::allocate(&world, bytes);
    let mut buffers = Vec::new();
    let mut tables = vec![
        LookupTable { name: "private-thp".into(), at: private(bytes, libc::MADV_HUGEPAGE)?, next: 0 },
        LookupTable { name: "private-4k".into(), at: private(bytes, libc::MADV_NOHUGEPAGE)?, next: 0 },
        LookupTable { name: "window".into(), at: window.base.cast(), next: 0 },
    ];
    for &name in pages {
        let pages: Pages = name.parse()?;
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(bytes as u64).pages(pages).name(name))?;
        let huge = buffer.huge_bytes() as f64 / bytes as f64;
        note(
            &format!("lookup-{name}-private"),
            &format!("{:.1} % of the buffer stand on huge pages", huge * 100.0),
        );
        tables.push(LookupTable {
            name: format!("buffer-{name}"),
            at: buffer.as_ptr().as_ptr().cast(),
            next: 0,
        });
        buffers.push(buffer);
    }
    let words = (bytes / 8) as u64;
    for table in &mut tables {
        fill(table.at, words);
    }
    let private_thp = "private-thp";
    // The pages that the kernel actually gave to private memory and to the window.
    for field in ["AnonHugePages", "ShmemPmdMapped"] {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
        let line = text.lines().find_map(|l| l.strip_prefix(field)).unwrap_or(": not told");
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        note("lookup-thp-private", &format!("{field} of the process {}", words.join(" ")));
    }
    for repeat in 0..repeats {
        for i in 0..tables.len() {
            // The order rotates, so that no table always follows the same one.
            let count = tables.len();
            let table = &mut tables[(i + repeat) % count];
            let (elapsed, end) = timed(|| chain(table.at, table.next, STEPS));
            table.next = end;
            let each = elapsed.as_secs_f64() / STEPS as f64;
            let (elapsed, sum) = timed(|| lanes(table.at, table.next, words, STEPS));
            table.next = (table.next + sum) % words;
            let each_lane = elapsed.as_secs_f64() / STEPS as f64;
            print_row(&table.name, private_thp, pages, each, each_lane);
        }
    }
    drop(buffers);
    window.free();
    Ok(())
}

/// Prints a table's time for every row that contains the table.
fn print_row(name: &str, private_thp: &str, pages: &[&str], chain: f64, lanes: f64) {
    for (kind, each) in [("lookup", chain), ("lookup16", lanes)] {
        for page in pages {
            if name == format!("buffer-{page}") {
                sample(&format!("{kind}-{page}-private"), "ours", each);
                sample(&format!("{kind}-{page}-window"), "ours", each);
            } else if name == private_thp {
                sample(&format!("{kind}-{page}-private"), "theirs", each);
            } else if name == "window" {
                sample(&format!("{kind}-{page}-window"), "theirs", each);
            }
        }
        if name == private_thp {
            sample(&format!("{kind}-private-4k"), "theirs", each);
        } else if name == "private-4k" {
            sample(&format!("{kind}-private-4k"), "ours", each);
        }
    }
}

/// Maps private memory at a multiple of 2 MiB with this advice. The mapping remains until the
/// process ends.
pub(crate) fn private(bytes: usize, advice: i32) -> Result<*mut u64, Box<dyn std::error::Error>> {
    const HUGE: usize = 2 << 20;
    // SAFETY: a new mapping that only this program knows.
    unsafe {
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let area = libc::mmap(std::ptr::null_mut(), bytes + HUGE, rw, flags, -1, 0);
        if area == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let at = (area as usize).next_multiple_of(HUGE) as *mut libc::c_void;
        if libc::madvise(at, bytes, advice) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(at.cast())
    }
}

/// Makes the words one cycle: a full-period congruential sequence, seen through a mixing
/// permutation of the indices.
pub(crate) fn fill(table: *mut u64, words: u64) {
    let bits = words.trailing_zeros();
    let mask = words - 1;
    let shift = bits.div_ceil(2);
    // An odd factor and its inverse modulo any power of two.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut inverse = FACTOR;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
    }
    // A shift of at least half the bits is its own inverse.
    let mix = |x: u64| {
        let y = (x ^ (x >> shift)).wrapping_mul(FACTOR) & mask;
        y ^ (y >> shift)
    };
    let unmix = |x: u64| {
        let y = (x ^ (x >> shift)).wrapping_mul(inverse) & mask;
        y ^ (y >> shift)
    };
    for index in 0..words {
        let next = unmix(index).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x14057) & mask;
        // SAFETY: index < words.
        unsafe { table.add(index as usize).write(mix(next)) };
    }
}

#[inline(never)]
pub(crate) fn chain(table: *const u64, start: u64, steps: u64) -> u64 {
    let mut at = start;
    for _ in 0..steps {
        // SAFETY: fill() wrote indices of the table only.
        at = unsafe { table.add(at as usize).read() };
    }
    at
}

#[inline(never)]
pub(crate) fn lanes(table: *const u64, start: u64, words: u64, steps: u64) -> u64 {
    let mut at: [u64; LANES as usize] = std::array::from_fn(|i| (start + i as u64 * (words / LANES)) % words);
    for _ in 0..steps / LANES {
        for lane in &mut at {
            // SAFETY: fill() wrote indices of the table only.
            *lane = unsafe { table.add(*lane as usize).read() };
        }
    }
    at.iter().fold(0, |sum, lane| (sum + lane) % words)
}
