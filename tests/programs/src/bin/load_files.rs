//! A rank that loads files: `load_files MODE RANK RANKS LEADER FILE...`. The ranks connect to rank
//! 0 at LEADER (address and port). With 0 RANKS the ranks are those that `hostbuf run` has started,
//! and the buffer is the launcher's.
//!
//! MODE is `load`, or `slow` for an exchange that takes 2 ms longer for each window, or `die=RANK`
//! or `change=RANK` for a rank that kills itself, or changes the first file, when it has read its
//! first window. The other ranks read one window before that, and the others afterwards.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hostbuf::job::{Collective, Local};
use hostbuf::{BufferOptions, HostBuffer};
use hostbuf_load::{LoadBound, LoadError, LoadOptions, LoadProgress, Tensors};
use hostbuf_os::process;
use hostbuf_programs::slow_group::SlowGroup;
use hostbuf_programs::tcp::Tcp;
use nix::sys::signal::{Signal, raise};
use xxhash_rust::xxh3::Xxh3;

/// The longest wait for another rank.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mode, rank, ranks, leader, files @ ..] = &words[..] else {
        panic!("load_files MODE RANK RANKS LEADER FILE...")
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let group: Box<dyn Collective> = match (number(rank), number(ranks)) {
        (_, 0) => Box::new(Local::from_env().expect("a launcher has started this process")),
        (rank, ranks) => Box::new(connect(rank, ranks, leader.parse().expect("an address"))),
    };
    let group: Box<dyn Collective> = match mode.as_str() {
        "slow" => Box::new(SlowGroup { group, delay: Duration::from_millis(2) }),
        _ => group,
    };
    let begun = Instant::now();
    let loaded = load(&*group, mode, files);
    let (rank, host) = (group.rank(), process::host_name());
    match loaded {
        Ok(line) => println!("rank {rank}: on {host} {line}"),
        Err(error) => {
            let seconds = begun.elapsed().as_secs();
            println!("rank {rank}: failed as {:?} after {seconds} s: {error}", error.kind());
        }
    }
}

fn connect(rank: usize, ranks: usize, leader: SocketAddr) -> Tcp {
    let connected = match rank {
        0 => Tcp::lead(TcpListener::bind(leader).expect("the address is free"), ranks, TIMEOUT),
        _ => Tcp::join(rank, ranks, leader, TIMEOUT),
    };
    connected.expect("all ranks connect")
}

/// Returns the number of bytes that this process has read by system calls.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("/proc is there");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("the kernel counts reads");
    line.parse().expect("a number")
}

/// The rank that ends itself or changes a file, in the view of this rank.
struct LoadFault {
    is_own: bool,
    kills: bool,
    file: PathBuf,
    /// The file that shows the other ranks that it has happened.
    mark: PathBuf,
    /// The number of times that the load has reported its progress.
    reports: AtomicU32,
}

impl LoadFault {
    fn of(mode: &str, rank: usize, file: &str) -> Option<LoadFault> {
        let (kind, whose) = mode.split_once('=')?;
        let file = PathBuf::from(file);
        let mark = file.with_extension("mark");
        let is_own = whose.parse() == Ok(rank);
        Some(LoadFault { is_own, kills: kind == "die", file, mark, reports: AtomicU32::new(0) })
    }

    /// Acts after the first window of this rank. The first report is that of the beginning.
    fn report(&self) {
        if self.reports.fetch_add(1, Ordering::Relaxed) != 1 {
            return;
        }
        if !self.is_own {
            let until = Instant::now() + TIMEOUT;
            while !self.mark.exists() && Instant::now() < until {
                std::thread::yield_now();
            }
            return;
        }
        if !self.kills {
            let file = File::options().write(true).open(&self.file).expect("the file is there");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("the file is writable");
        }
        fs::write(&self.mark, "").expect("the folder is writable");
        if self.kills {
            raise(Signal::SIGKILL).expect("a process may end itself");
        }
    }
}

fn load(group: &dyn Collective, mode: &str, files: &[String]) -> Result<String, LoadError> {
    // Many windows, several rounds of them, and one thread for each rank.
    let options = LoadOptions::new().window_bytes(16 << 10).piece_bytes(8 << 10).workers(1);
    let fault = LoadFault::of(mode, group.rank(), &files[0]);
    let observer = |_: &LoadProgress| {
        if let Some(fault) = &fault {
            fault.report();
        }
    };
    let buffer = match HostBuffer::is_launched() {
        true => HostBuffer::attach()?,
        false => HostBuffer::allocate(group, BufferOptions::new(8 << 20))?,
    };
    let before = bytes_read();
    let loaded = options.load_with(group, &buffer, files, &observer)?;
    let read = bytes_read() - before;
    // As another program of the job does.
    let tensors = Tensors::open(&buffer)?;
    assert_eq!(loaded.table(), tensors.table());
    let mut hash = Xxh3::new();
    for tensor in tensors.iter() {
        hash.update(tensor.entry.name.as_bytes());
        hash.update(tensor.bytes);
    }
    let counters = tensors.counters();
    Ok(format!(
        "digest {:016x} at {:p} read {read} counted {} received {} job {} headers {} bound {}",
        hash.digest(),
        tensors.file_bytes(0).unwrap_or_default().as_ptr(),
        counters.bytes_read,
        counters.bytes_received,
        counters.job_bytes_read,
        tensors.table().header_bytes(),
        counters.bound().map_or("none", LoadBound::name),
    ))
}
