//! The start of a job by plain mpirun, by `mpirun ... hostbuf exec` and by `hostbuf run`, with a
//! program that only starts and ends MPI. A list of parts shows the distribution of the time of
//! `hostbuf run`.

#![allow(unsafe_code, reason = "the clock is a foreign function")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use hostbuf::HostBuffer;

use crate::fixture::BenchResult;
use crate::sample::{median, note, sample, time, timed};

/// Runs as the launched program. With `stamps`, rank 0 prints the time of each step and the
/// durations of the agent's phases.
pub(crate) fn trivial(stamps: bool) -> BenchResult {
    let main = now();
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let started = now();
    let first = mpi::traits::Communicator::rank(&universe.world()) == 0;
    drop(universe);
    let ended = now();
    if stamps && first {
        println!("stamp main {main}\nstamp started {started}\nstamp ended {ended}");
        if let Ok(buffer) = HostBuffer::attach() {
            for (phase, took) in buffer.phases() {
                println!("phase {} {}", phase.name(), took.as_secs_f64());
            }
        }
    }
    Ok(())
}

/// Returns the seconds of the clock that all processes of this machine share.
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

struct LaunchSetup {
    hostbuf: String,
    mpirun: String,
    hosts: String,
    ranks: String,
    own: String,
}

impl LaunchSetup {
    fn of_environment(hostbuf: &str) -> Result<LaunchSetup, Box<dyn std::error::Error>> {
        let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
        let hosts = variable("SIMHOSTS_HOSTS")?;
        let slots = |host: &str| host.rsplit(':').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
        Ok(LaunchSetup {
            hostbuf: hostbuf.into(),
            mpirun: variable("MPIRUN")?,
            ranks: hosts.split(',').map(slots).sum::<usize>().to_string(),
            own: std::env::current_exe()?.to_string_lossy().into_owned(),
            hosts,
        })
    }

    /// Starts plain mpirun and each of `which`, in an order that changes in each turn. Returns the
    /// times of all turns after the first, which warms up: plain mpirun's, then those of `which`.
    fn turns(
        &self,
        repeats: usize,
        which: &[&str],
        program: &str,
    ) -> Result<Vec<Vec<Duration>>, Box<dyn std::error::Error>> {
        let kinds: Vec<&str> = std::iter::once("plain").chain(which.iter().copied()).collect();
        let mut all = Vec::new();
        for repeat in 0..=repeats {
            let mut times = vec![Duration::ZERO; kinds.len()];
            for i in 0..kinds.len() {
                let place = (i + repeat) % kinds.len();
                let kind = kinds[place];
                let mut command = self.command(kind, program);
                let (elapsed, output) = timed(|| command.output());
                let output = output?;
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    return Err(format!("{kind} ended with {}: {said}", output.status).into());
                }
                times[place] = elapsed;
            }
            all.push(times);
        }
        all.remove(0);
        Ok(all)
    }

    fn mpirun(&self) -> Command {
        let mut command = Command::new(&self.mpirun);
        command.args(["--host", &self.hosts, "-np", &self.ranks]);
        command
    }

    fn command(&self, which: &str, program: &str) -> Command {
        let mut command;
        match which {
            "exec" => {
                command = self.mpirun();
                command.args([&self.hostbuf, "exec", "--size", "16M", "--"]);
            }
            "run" => {
                command = Command::new(&self.hostbuf);
                command.args([
                    "run",
                    "--launcher",
                    "openmpi",
                    "--mpirun",
                    &self.mpirun,
                    "--host",
                    &self.hosts,
                ]);
                command.args(["-n", &self.ranks, "--size", "16M", "--verbose", "--"]);
            }
            _ => command = self.mpirun(),
        }
        command.args([&self.own, program]).stdin(Stdio::null());
        command
    }
}

/// Compares the start by each of `which` (`exec`, `run`) with plain mpirun. It runs inside of
/// simulated hosts; MPIRUN and SIMHOSTS_HOSTS describe them.
pub(crate) fn compare(hostbuf: &str, repeats: usize, which: &[&str]) -> BenchResult {
    let setup = LaunchSetup::of_environment(hostbuf)?;
    for times in setup.turns(repeats, which, "trivial")? {
        for (&row, elapsed) in which.iter().zip(&times[1..]) {
            time(&format!("launch-{row}"), "ours", *elapsed);
            time(&format!("launch-{row}"), "theirs", times[0]);
        }
    }
    for kind in std::iter::once("plain").chain(which.iter().copied()) {
        let key = if kind == "plain" { "launch-run".into() } else { format!("launch-{kind}") };
        parts(&setup, kind, &key, repeats.min(5))?;
    }
    Ok(())
}

/// Measures launches, on one of several numbers of hosts, of a program that does not initialise
/// MPI: MPI_Init of many ranks on few cores takes far longer than the launch. `place` is `fewest`
/// or `most` for the smallest and the largest number of hosts.
pub(crate) fn scale(hostbuf: &str, repeats: usize, place: &str) -> BenchResult {
    const WHICH: [&str; 2] = ["exec", "run"];
    let setup = LaunchSetup::of_environment(hostbuf)?;
    let hosts = setup.hosts.split(',').count();
    for times in setup.turns(repeats, &WHICH, "nothing")? {
        for (kind, elapsed) in WHICH.iter().zip(&times[1..]) {
            let key = format!("launch-scale-{kind}-{hosts}");
            time(&key, "ours", *elapsed);
            time(&key, "theirs", times[0]);
            let added = (elapsed.as_secs_f64() - times[0].as_secs_f64()) / hosts as f64;
            match place {
                "most" => sample(&format!("launch-scale-{kind}-growth"), "ours", added),
                "fewest" => sample(&format!("launch-scale-{kind}-growth"), "theirs", added),
                _ => {}
            }
        }
    }
    for kind in ["plain", "exec", "run"] {
        let row = if kind == "plain" { "run" } else { kind };
        parts(&setup, kind, &format!("launch-scale-{row}-{hosts}"), repeats.min(2))?;
    }
    Ok(())
}

/// Reports the median time of each part over some runs, as a note of the row `key`.
fn parts(setup: &LaunchSetup, kind: &str, key: &str, repeats: usize) -> BenchResult {
    let mut all: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..repeats {
        for (i, (name, took)) in stamps(setup, kind)?.into_iter().enumerate() {
            all.entry((i, name)).or_default().push(took);
        }
    }
    let list: Vec<String> =
        all.iter().map(|((_, name), took)| format!("{name} {:.0} ms", median(took) * 1e3)).collect();
    note(key, &format!("parts of {kind}: {}", list.join(", ")));
    Ok(())
}

/// Runs the program once, and returns the duration of each part in seconds.
fn stamps(setup: &LaunchSetup, kind: &str) -> Result<Vec<(String, f64)>, Box<dyn std::error::Error>> {
    let (reader, writer) = std::io::pipe()?;
    let mut command = setup.command(kind, "stamps");
    let begun = now();
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    drop(command);
    let mut at: BTreeMap<String, f64> = BTreeMap::new();
    let mut phases = Vec::new();
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let seen = now();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["stamp", name, time] => {
                at.insert(name.into(), time.parse()?);
            }
            ["phase", name, took] => phases.push((format!("of that {name}"), took.parse::<f64>()?)),
            ["hostbuf:", "starting", ..] => {
                let name = if at.contains_key("agents") { "ranks" } else { "agents" };
                at.insert(name.into(), seen);
            }
            ["hostbuf:", "all", "ranks", "agreed", ..] => {
                at.insert("agreed".into(), seen);
            }
            _ => {}
        }
    }
    child.wait()?;
    at.insert("over".into(), now());
    let order = [
        ("agents", "to the first command"),
        ("ranks", "agents' job until all are ready"),
        ("agreed", "second job until the address is agreed and mapped"),
        ("main", if kind == "plain" { "mpirun until main" } else { "until main" }),
        ("started", "MPI_Init"),
        ("ended", "MPI_Finalize"),
        ("over", "until the command has ended"),
    ];
    let mut parts = Vec::new();
    let mut last = begun;
    for (name, text) in order {
        if let Some(&reached) = at.get(name) {
            parts.push((text.to_owned(), reached - last));
            last = reached;
        }
    }
    parts.extend(phases);
    Ok(parts)
}
