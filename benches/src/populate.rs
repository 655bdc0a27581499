//! An experiment on why populating is slower on many cores. Different numbers of workers (threads
//! or processes) populate the 4 KiB pages of a memory file with different calls and window lengths,
//! compared with four processes that each touch a part (as ranks do with an MPI window). It does
//! not use the library's own code (crates/hostbuf-memory/src/populate), and prints its own table.

#![allow(unsafe_code, reason = "maps and populates memory by system calls")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::fixture::BenchResult;
use crate::sample::median;

/// The call with which a worker populates pages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PopulateCall {
    /// `MADV_POPULATE_WRITE`.
    Populate,
    /// `pwrite` of zeroes, with this number of bytes per call.
    Write(usize),
    /// A store to each page.
    Touch,
}

/// The calls of the workers, by their number.
#[derive(Clone, Copy, Debug)]
enum Mix {
    All(PopulateCall),
    /// The first worker writes, as in the library; the others populate.
    OneWrites,
    /// Every second worker writes.
    HalfWrite,
}

impl Mix {
    fn of(self, worker: usize) -> PopulateCall {
        match self {
            Mix::All(means) => means,
            Mix::OneWrites if worker == 0 => PopulateCall::Write(64 << 10),
            Mix::HalfWrite if worker.is_multiple_of(2) => PopulateCall::Write(64 << 10),
            Mix::OneWrites | Mix::HalfWrite => PopulateCall::Populate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Mix::All(PopulateCall::Populate) => "populate",
            Mix::All(PopulateCall::Write(0x1_0000)) => "write 64 KiB",
            Mix::All(PopulateCall::Write(_)) => "write 2 MiB",
            Mix::All(PopulateCall::Touch) => "touch",
            Mix::OneWrites => "one writes, others populate (the library)",
            Mix::HalfWrite => "half write, half populate",
        }
    }
}

#[derive(Clone, Copy)]
struct Variant {
    processes: bool,
    workers: usize,
    mix: Mix,
    /// The number of bytes that a worker claims at a time; 0 gives each worker one contiguous part.
    window: usize,
}

static ZEROES: [u8; 2 << 20] = [0; 2 << 20];

/// The state that all workers share, including forked children.
#[repr(C)]
struct Board {
    next: AtomicUsize,
    ready: AtomicUsize,
    failed: AtomicU64,
}

fn shared_board() -> io::Result<&'static Board> {
    // SAFETY: new memory that stays mapped until the process ends; zeroes are a valid board.
    unsafe {
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Board>(), rw, flags, -1, 0);
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(&*at.cast()) }
    }
}

fn map(fd: &OwnedFd, bytes: usize) -> io::Result<usize> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes, rw, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}

/// Populates `length` bytes at `from` of the file that is mapped at `base`.
fn take(fd: i32, base: usize, from: usize, length: usize, means: PopulateCall) -> bool {
    match means {
        PopulateCall::Populate => {
            // SAFETY: inside the mapping; populating changes no content.
            unsafe { libc::madvise((base + from) as *mut _, length, libc::MADV_POPULATE_WRITE) == 0 }
        }
        PopulateCall::Write(piece) => (from..from + length).step_by(piece).all(|at| {
            let bytes = piece.min(from + length - at);
            // SAFETY: reads at most the length of ZEROES.
            unsafe { libc::pwrite(fd, ZEROES.as_ptr().cast(), bytes, at as libc::off_t) == bytes as isize }
        }),
        PopulateCall::Touch => {
            for at in (from..from + length).step_by(4096) {
                // SAFETY: inside the mapping, which only these workers use.
                unsafe { ((base + at) as *mut u8).write_volatile(1) };
            }
            true
        }
    }
}

fn work(board: &Board, fd: i32, base: usize, bytes: usize, worker: usize, variant: Variant) {
    board.ready.fetch_add(1, Ordering::AcqRel);
    while board.ready.load(Ordering::Acquire) < variant.workers {
        std::thread::yield_now();
    }
    let means = variant.mix.of(worker);
    let part = if variant.window == 0 { bytes.div_ceil(variant.workers) } else { variant.window };
    loop {
        let from = match variant.window {
            0 => worker * part,
            window => board.next.fetch_add(window, Ordering::Relaxed),
        };
        if from < bytes && !take(fd, base, from, part.min(bytes - from), means) {
            board.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if from >= bytes || variant.window == 0 {
            return;
        }
    }
}

/// Returns the seconds of one variant, including the mapping in each process and the start of the
/// workers.
fn once(board: &Board, bytes: usize, variant: Variant) -> Result<f64, Box<dyn std::error::Error>> {
    let file = memfd_create(c"populate", MFdFlags::MFD_CLOEXEC)?;
    nix::unistd::ftruncate(&file, bytes as i64)?;
    for count in [&board.next, &board.ready] {
        count.store(0, Ordering::Relaxed);
    }
    board.failed.store(0, Ordering::Relaxed);
    let begun = Instant::now();
    if variant.processes {
        let mut children = Vec::new();
        for worker in 0..variant.workers {
            // SAFETY: the child maps, populates and ends, with system calls and atomics only.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => children.push(child),
                ForkResult::Child => {
                    let well = map(&file, bytes)
                        .map(|base| work(board, file.as_raw_fd(), base, bytes, worker, variant));
                    // SAFETY: _exit runs no destructors or exit handlers of the parent.
                    unsafe { libc::_exit(i32::from(well.is_err())) }
                }
            }
        }
        for child in children {
            if waitpid(child, None)? != WaitStatus::Exited(child, 0) {
                return Err("a child failed".into());
            }
        }
    } else {
        let base = map(&file, bytes)?;
        std::thread::scope(|scope| {
            for worker in 0..variant.workers {
                let fd = file.as_raw_fd();
                scope.spawn(move || work(board, fd, base, bytes, worker, variant));
            }
        });
        // SAFETY: mapped above, and no worker is running.
        unsafe { libc::munmap(base as *mut _, bytes) };
    }
    let took = begun.elapsed().as_secs_f64();
    match board.failed.load(Ordering::Relaxed) {
        0 => Ok(took),
        _ => Err("the kernel refused pages".into()),
    }
}

fn variants(cores: usize) -> Vec<Variant> {
    const MIB: usize = 1 << 20;
    let counts: Vec<usize> = [1, 2, 4, 8, 16, 32].into_iter().filter(|&n| n <= cores.max(2)).collect();
    let mixes = [
        Mix::All(PopulateCall::Populate),
        Mix::All(PopulateCall::Write(64 << 10)),
        Mix::All(PopulateCall::Write(2 << 20)),
        Mix::All(PopulateCall::Touch),
        Mix::OneWrites,
        Mix::HalfWrite,
    ];
    let mut variants = Vec::new();
    for processes in [false, true] {
        for &workers in &counts {
            variants.extend(mixes.map(|mix| Variant { processes, workers, mix, window: 8 * MIB }));
        }
    }
    for window in [0, MIB, 2 * MIB, 32 * MIB] {
        for &workers in counts.iter().filter(|&&n| n >= 4 || n == cores) {
            variants.extend([Mix::All(PopulateCall::Populate), Mix::OneWrites].map(|mix| Variant {
                processes: false,
                workers,
                mix,
                window,
            }));
        }
    }
    variants
}

/// Runs `work` on a thread that is bound to the first `count` cores of this process, which sets the
/// library's number of workers.
fn on_cores<T: Send, E: Into<Box<dyn std::error::Error>> + Send>(
    count: usize,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, Box<dyn std::error::Error>> {
    let own = sched_getaffinity(Pid::from_raw(0))?;
    let mut few = CpuSet::new();
    let cores = (0..CpuSet::count()).filter(|&core| own.is_set(core).unwrap_or(false));
    cores.take(count).try_for_each(|core| few.set(core))?;
    let bound = || sched_setaffinity(Pid::from_raw(0), &few).map(|()| work());
    std::thread::scope(|scope| scope.spawn(bound).join()).map_err(|_| "it panicked")??.map_err(Into::into)
}

/// Measures every variant `repeats` times, in an order that changes, so that drift of the machine
/// affects all variants equally.
pub(crate) fn compare(bytes: usize, repeats: usize) -> BenchResult {
    let board = shared_board()?;
    let cores = std::thread::available_parallelism()?.get();
    let reference = Variant { processes: true, workers: 4, mix: Mix::All(PopulateCall::Touch), window: 0 };
    let variants = variants(cores);
    let mut times = vec![Vec::new(); variants.len()];
    let (mut touched, mut library) = (Vec::new(), vec![Vec::new(); cores]);
    let counts: Vec<usize> =
        [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64].into_iter().filter(|&n| n <= cores).collect();
    for repeat in 0..repeats {
        for i in 0..variants.len() {
            let place = (i + repeat * variants.len() / repeats) % variants.len();
            if i % 8 == 0 {
                touched.push(once(board, bytes, reference)?);
            }
            times[place].push(once(board, bytes, variants[place])?);
        }
        for &n in &counts {
            library[n - 1].push(on_cores(n, || {
                let begun = Instant::now();
                let buffer =
                    HostBuffer::allocate(&Solo, BufferOptions::new(bytes as u64).pages(Pages::Small));
                let took = begun.elapsed().as_secs_f64();
                buffer.map(|_| took)
            })?);
        }
    }
    let touched = median(&touched);
    println!(
        "\n{} in 4 KiB pages; four processes that touch a part each: {:.0} ms\n",
        hostbuf::Bytes(bytes as u64),
        touched * 1e3
    );
    println!("| HostBuffer::allocate on | ms | touch : this |\n| --- | --- | --- |");
    for &n in &counts {
        let took = median(&library[n - 1]);
        println!("| {n} cores | {:.0} | {:.3} |", took * 1e3, touched / took);
    }
    println!();
    println!("| workers | as | by | window | ms | touch : this |\n| --- | --- | --- | --- | --- | --- |");
    for (variant, times) in variants.iter().zip(&times) {
        let window = match variant.window {
            0 => "a part each".to_owned(),
            window => hostbuf::Bytes(window as u64).to_string(),
        };
        let (kind, took) = (if variant.processes { "processes" } else { "threads" }, median(times));
        println!(
            "| {} | {kind} | {} | {window} | {:.0} | {:.3} |",
            variant.workers,
            variant.mix.name(),
            took * 1e3,
            touched / took
        );
    }
    Ok(())
}
