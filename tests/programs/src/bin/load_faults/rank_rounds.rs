//! Rounds in which ranks load a file, and one of them is killed, or the file is cut.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hostbuf::BufferOptions;
use hostbuf::job::Collective;
use hostbuf_load::{LoadError, LoadErrorKind, LoadOptions};
use hostbuf_programs::process_resources::{ProcessResources, own_folder, wait_gone};
use hostbuf_programs::random::RandomInstants;
use hostbuf_programs::tcp::Tcp;

use crate::round_limit::RoundLimit;

const RANKS: usize = 3;
const BYTES: usize = 2 << 20;
/// The longest wait for another rank.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A folder that is removed on drop.
struct RoundsFolder(PathBuf);

impl Drop for RoundsFolder {
    fn drop(&mut self) {
        // It may be missing after an error.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Ranks that are killed on drop.
struct OtherRanks(Vec<Child>);

impl Drop for OtherRanks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            // It fails if the rank has ended.
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// Loads the file with a group, and checks all bytes. Returns their number, or `None` for a load
/// that has failed for a reason that a killed rank or a cut file is.
fn load(group: &dyn Collective, path: &Path) -> Result<Option<usize>, String> {
    let options = LoadOptions::new().window_bytes(16 << 10).piece_bytes(8 << 10).workers(1);
    let loaded = options.allocate_and_load(group, BufferOptions::new(0), &[path]);
    match loaded {
        Ok(tensors) => {
            let tensor = tensors.get("raw").map_err(|error| error.to_string())?;
            // A file that was cut before its length was read has fewer bytes.
            match content().starts_with(tensor.bytes) {
                true => Ok(Some(tensor.bytes.len())),
                false => Err("a load that has succeeded has wrong bytes".into()),
            }
        }
        Err(error) => match is_expected(&error) {
            true => Ok(None),
            false => Err(format!("{:?}: {error}", error.kind())),
        },
    }
}

fn is_expected(error: &LoadError) -> bool {
    use LoadErrorKind::{Changed, Damaged, Io, Job, Transfer};
    matches!(error.kind(), Job | Changed | Damaged | Io | Transfer)
}

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| ((at * 31 + at / 4096) % 251) as u8).collect()
}

/// Joins as another rank, loads, and ends.
pub(crate) fn join(number: &str, leader: &str, path: &str) -> ExitCode {
    let (Ok(rank), Ok(leader)) = (number.parse(), leader.parse::<SocketAddr>()) else {
        return ExitCode::from(2);
    };
    let loaded = match Tcp::join(rank, RANKS, leader, TIMEOUT) {
        Ok(group) => load(&group, Path::new(path)),
        // Another rank was killed before it had joined.
        Err(_) => Ok(None),
    };
    match loaded {
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("load_faults: rank {rank}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the rounds. This process is rank 0 of each.
///
/// # Errors
/// The first thing that did not hold.
pub(crate) fn run(rounds: u64, seed: u64) -> Result<String, String> {
    let mark = format!("load-faults-{}", std::process::id());
    let folder = own_folder()?.join(&mark);
    fs::create_dir(&folder).map_err(|error| format!("making {}: {error}", folder.display()))?;
    let folder = RoundsFolder(folder);
    let path = folder.0.join("raw");
    let mut counts = BTreeMap::<&str, u64>::new();
    let mut before = None;
    // The time of a load, in which faults happen: that of the first round.
    let mut longest = Duration::ZERO;
    for round in 0..=rounds {
        let limit = RoundLimit::begin(format!("round {round} of seed {seed}"));
        let mut random = RandomInstants::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        // The first round has no fault, and starts what a process keeps.
        let fault = if before.is_none() { 0 } else { random.below(4) };
        let what = one(&path, fault, &mut longest, &mut random);
        limit.end();
        let in_round = |why| format!("round {round}: {why}");
        let what = what.map_err(in_round)?;
        *counts.entry(what).or_default() += 1;
        let in_round = |why| format!("round {round} ({what}): {why}");
        wait_gone(&path).map_err(&in_round)?;
        let files = fs::read_dir(&folder.0).map_or(0, Iterator::count);
        if files != 1 {
            return Err(in_round(format!("{files} files are in the folder of one")));
        }
        match &before {
            None => before = Some(ProcessResources::count(&mark)),
            Some(before) => before.wait_returned(&mark).map_err(&in_round)?,
        }
    }
    let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
    Ok(format!("{}; nothing is left", counts.join(", ")))
}

/// Runs one round: with fault 1 or 2 this rank is killed, with 3 the file is cut, while the ranks
/// connect or load. A round without a fault sets the time of a load.
fn one(
    path: &Path,
    fault: u64,
    longest: &mut Duration,
    random: &mut RandomInstants,
) -> Result<&'static str, String> {
    let text = |error: std::io::Error| error.to_string();
    fs::write(path, content()).map_err(text)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(text)?;
    let leader = listener.local_addr().map_err(text)?.to_string();
    let own = std::env::current_exe().map_err(text)?;
    let mut others = OtherRanks(Vec::new());
    for rank in 1..RANKS {
        let mut command = Command::new(&own);
        command.args(["rank", &rank.to_string(), &leader]).arg(path).stdin(Stdio::null());
        others.0.push(command.spawn().map_err(text)?);
    }
    let delay = random.time((*longest).max(Duration::from_nanos(1)));
    let cut = random.below(BYTES as u64);
    let victim = others.0.get((fault as usize).wrapping_sub(1)).map(|rank| rank.id() as i32);
    // In one of four rounds, the ranks may not have connected.
    let waits = random.below(4) > 0;
    let (connected, wait) = mpsc::channel::<()>();
    let loaded = std::thread::scope(|scope| {
        scope.spawn(move || {
            if waits {
                // The other side is dropped once the ranks have connected, or cannot.
                let _ = wait.recv();
            }
            let until = Instant::now() + delay;
            while Instant::now() < until {
                std::thread::yield_now();
            }
            match victim {
                Some(victim) => {
                    // A rank that has ended is not waited for yet, so its number is not used again.
                    let victim = nix::unistd::Pid::from_raw(victim);
                    let _ = nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL);
                }
                None if fault == 3 => {
                    let file = OpenOptions::new().write(true).open(path);
                    file.and_then(|file| file.set_len(cut)).expect("the file is writable");
                }
                None => {}
            }
        });
        // A rank that is killed before it has connected is missed until then.
        let limit = if victim.is_none() || waits { TIMEOUT } else { TIMEOUT / 40 };
        let group = Tcp::lead(listener, RANKS, limit);
        drop(connected);
        match group {
            Ok(group) => {
                let begun = Instant::now();
                let loaded = load(&group, path);
                if fault == 0 {
                    *longest = begun.elapsed();
                }
                loaded.map(Some)
            }
            Err(_) if victim.is_some() && !waits => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    })?;
    // The other rank would try to connect until its own limit, so it is killed too.
    let Some(loaded) = loaded else { return Ok("loads without a rank that was killed before") };
    for (index, rank) in others.0.iter_mut().enumerate() {
        let status = rank.wait().map_err(text)?;
        let is_victim = index as u64 + 1 == fault;
        if !(status.success() || is_victim && status.signal() == Some(9)) {
            return Err(format!("rank {} has ended with {status}", index + 1));
        }
    }
    match (fault, loaded) {
        (0, None) => Err("a load without a fault has failed".into()),
        (3, None) => Ok("loads failed by a cut file"),
        (_, None) => Ok("loads failed by a killed rank"),
        (3, Some(_)) => Ok("loads before or after the file was cut"),
        (_, Some(bytes)) if bytes != BYTES => Err(format!("{bytes} of {BYTES} bytes were loaded")),
        (0, Some(_)) => Ok("loads without a fault"),
        (_, Some(_)) => Ok("loads before a rank was killed"),
    }
}
