//! Attaching: the cost of finding the buffer in a process, and the cost of the preloaded object
//! before `main`.

#![allow(unsafe_code, reason = "the shared memory is read by a raw pointer")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf::HostBuffer;

use crate::fixture::BenchResult;
use crate::sample::{note, sample, time, turns};

/// The bar, in seconds.
const BAR: f64 = 1e-3;

/// Runs one rank for each size in turns. Its children are measured, since a process attaches only
/// once.
pub(crate) fn compare(hostbuf: &str, rounds: usize, children: usize) -> BenchResult {
    let own = std::env::current_exe()?;
    note(
        "attach-16m-before-main",
        "lifetime of /bin/true as a child of a rank, with the preloaded object and without",
    );
    for _ in 0..rounds {
        for (key, size) in [("attach-16m", "16M"), ("attach-4g", "4G")] {
            let mut job = Command::new(hostbuf);
            job.args([
                "run",
                "--launcher",
                "local",
                "--quiet",
                "-n",
                "1",
                "--pages",
                "4k",
                "--lazy",
                "--size",
                size,
                "--",
            ]);
            let status = job.arg(&own).args(["attach-rank", key, &children.to_string()]).status()?;
            if !status.success() {
                return Err(format!("hostbuf run ended with {status}").into());
            }
        }
    }
    Ok(())
}

/// Runs as the rank: starts children with and without hostbuf in turn, and samples their times.
pub(crate) fn rank(key: &str, children: usize) -> BenchResult {
    let own = std::env::current_exe()?;
    let row = |part: &str| format!("{key}-{part}");
    for turn in 0..=children {
        let output = Command::new(&own).arg("attach-child").stdin(Stdio::null()).output()?;
        let call: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
        let mut with = Command::new("/bin/true");
        let mut without = Command::new("/bin/true");
        without.env_remove("LD_PRELOAD");
        let mut took = [Duration::ZERO; 2];
        for side in turns(turn) {
            took[side] = lifetime(if side == 0 { &mut with } else { &mut without })?;
        }
        let [with, without] = took;
        if turn == 0 {
            continue;
        }
        sample(&row("call"), "ours", call);
        sample(&row("call"), "theirs", BAR);
        time(&row("before-main"), "ours", with);
        time(&row("before-main"), "theirs", without);
        // The sum of connecting, checking and mapping: the object does a part of it before main,
        // and the call the rest.
        sample(&row("all"), "ours", call + with.as_secs_f64() - without.as_secs_f64());
        sample(&row("all"), "theirs", BAR);
        if key == "attach-4g" {
            sample("attach-flat", "ours", call);
        } else {
            sample("attach-flat", "theirs", call);
        }
    }
    Ok(())
}

fn lifetime(command: &mut Command) -> Result<Duration, std::io::Error> {
    let begun = Instant::now();
    command.stdin(Stdio::null()).status()?;
    Ok(begun.elapsed())
}

/// Measures the first attach in a process of its own.
pub(crate) fn child() -> BenchResult {
    let begun = Instant::now();
    let buffer = HostBuffer::attach()?;
    let elapsed = begun.elapsed();
    // SAFETY: the buffer's first byte.
    unsafe { buffer.as_ptr().as_ptr().read_volatile() };
    println!("{}", elapsed.as_secs_f64());
    Ok(())
}
