//! Memory of all ranks together: a shared table against private copies, and against the same
//! program without one.

#![allow(unsafe_code, reason = "the measured programs touch pages by raw pointers")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostbuf::HostBuffer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::BenchResult;
use crate::sample::{note, sample};

/// The allowance of the bar beside the table itself.
const TABLE: f64 = 1.02;
const EACH_RANK: f64 = 4e6;

/// Runs as a rank: creates a table of its `kind`, reads all of it, prints a line, and stays until a
/// signal ends it.
pub(crate) fn hold(kind: &str, bytes: usize) -> BenchResult {
    // SAFETY: no memory is involved.
    unsafe { libc::alarm(120) };
    let buffer;
    match kind {
        "shared" => {
            buffer = HostBuffer::attach()?;
            read_all(buffer.as_ptr().as_ptr(), bytes);
        }
        "4k" | "thp" => {
            let advice = if kind == "thp" { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            let at = crate::lookups::private(bytes, advice)?.cast::<u8>();
            for page in (0..bytes).step_by(4096) {
                // SAFETY: inside the mapping just made.
                unsafe { at.add(page).write_volatile(1) };
            }
            read_all(at, bytes);
        }
        _ => {}
    }
    println!("ready {}", std::process::id());
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn read_all(at: *const u8, bytes: usize) {
    for page in (0..bytes).step_by(4096) {
        // SAFETY: inside the table.
        unsafe { at.add(page).read_volatile() };
    }
}

/// The sum over all ranks, in bytes.
struct Usage {
    pss: f64,
    tables: f64,
}

/// Compares `ranks` ranks with a table of `bytes` on pages `pages` in all three ways.
pub(crate) fn compare(hostbuf: &str, pages: &str, bytes: usize, ranks: usize) -> BenchResult {
    let own = std::env::current_exe()?;
    let rank = |kind: &str| {
        let mut command = Command::new(&own);
        command.args(["hold", kind, &bytes.to_string()]);
        command
    };
    let alone = |kind: &str| (0..ranks).map(|_| rank(kind)).collect::<Vec<_>>();
    let mut job = Command::new(hostbuf);
    job.args(["run", "--launcher", "local", "--quiet", "--pages", pages]);
    job.args(["-n", &ranks.to_string(), "--size", &bytes.to_string(), "--"]).arg(&own);
    job.args(["hold", "shared", &bytes.to_string()]);
    let none = usage(alone("none"), ranks)?;
    let shared = usage(vec![job], ranks)?;
    let private = usage(alone(pages), ranks)?;
    let key = format!("memory-{pages}");
    sample(&key, "ours", shared.pss - none.pss);
    sample(&key, "theirs", TABLE * bytes as f64 + EACH_RANK * ranks as f64);
    let copies = format!("memory-{pages}-copies");
    sample(&copies, "ours", shared.pss);
    sample(&copies, "theirs", private.pss);
    let tables = format!("memory-{pages}-tables");
    sample(&tables, "ours", shared.tables);
    sample(&tables, "theirs", private.tables);
    let above = (shared.pss - none.pss - TABLE * bytes as f64) / ranks as f64;
    note(
        &key,
        &format!(
            "{ranks} ranks, T = {} MiB; PSS without the table {:.1} MiB; {:.2} MB a rank above 1.02 T; VmPTE {:.1} \
             MiB, without the table {:.1}, private {:.1}",
            bytes >> 20,
            none.pss / 1048576.0,
            above / 1e6,
            shared.tables / 1048576.0,
            none.tables / 1048576.0,
            private.tables / 1048576.0
        ),
    );
    Ok(())
}

/// Starts the commands, whose output names `ranks` ranks, and measures these when all are ready.
fn usage(commands: Vec<Command>, ranks: usize) -> Result<Usage, Box<dyn std::error::Error>> {
    let (reader, writer) = std::io::pipe()?;
    let mut children: Vec<Child> = Vec::new();
    for mut command in commands {
        children.push(command.stdin(Stdio::null()).stdout(writer.try_clone()?).spawn()?);
    }
    drop(writer);
    let pids: Vec<i32> = BufReader::new(reader)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("ready ")?.parse().ok())
        .take(ranks)
        .collect();
    let mut sum = Usage { pss: 0.0, tables: 0.0 };
    for pid in &pids {
        sum.pss += field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")?;
        sum.tables += field(&format!("/proc/{pid}/status"), "VmPTE:")?;
    }
    for child in &mut children {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM)?;
    }
    for child in &mut children {
        child.wait()?;
    }
    if pids.len() < ranks {
        return Err(format!("{} of {ranks} ranks got ready", pids.len()).into());
    }
    Ok(sum)
}

/// Returns the value of a line of a file in /proc, converted from KiB to bytes.
fn field(path: &str, name: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)).ok_or(format!("{path} has no {name}"))?;
    let number = line.split_ascii_whitespace().next().ok_or(format!("{path}: {name} is empty"))?;
    Ok(number.parse::<f64>()? * 1024.0)
}
