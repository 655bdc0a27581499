//! Starting a job: plain mpirun, `mpirun ... hostbuf exec`, and `hostbuf run`, of a program that does nothing but start
//! and end MPI. Where the time of `hostbuf run` goes is told as a list of parts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use hostbuf::HostBuffer;

use crate::Outcome;
use crate::sample::{median, note, time, timed};

/// The program. With `stamps` rank 0 says when it reached what, and how long the agent's phases took.
pub(crate) fn trivial(stamps: bool) -> Outcome {
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

/// Seconds on the clock that all processes of this machine share.
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

struct Setup {
    hostbuf: String,
    mpirun: String,
    hosts: String,
    ranks: String,
    own: String,
}

impl Setup {
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

/// Inside simulated hosts: MPIRUN and SIMHOSTS_HOSTS say how to start. `which`: `exec`, `run`.
pub(crate) fn compare(hostbuf: &str, repeats: usize, which: &[&str]) -> Outcome {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let hosts = variable("SIMHOSTS_HOSTS")?;
    let slots = |host: &str| host.rsplit(':').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
    let setup = Setup {
        hostbuf: hostbuf.into(),
        mpirun: variable("MPIRUN")?,
        ranks: hosts.split(',').map(slots).sum::<usize>().to_string(),
        own: std::env::current_exe()?.to_string_lossy().into_owned(),
        hosts,
    };
    let kinds: Vec<&str> = std::iter::once("plain").chain(which.iter().copied()).collect();
    for repeat in 0..=repeats {
        for i in 0..kinds.len() {
            let kind = kinds[(i + repeat) % kinds.len()];
            let mut command = setup.command(kind, "trivial");
            let (elapsed, output) = timed(|| command.output());
            let output = output?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(format!("{kind} ended with {}: {said}", output.status).into());
            }
            if repeat == 0 {
                continue;
            }
            if kind == "plain" {
                for row in which {
                    time(&format!("launch-{row}"), "theirs", elapsed);
                }
            } else {
                time(&format!("launch-{kind}"), "ours", elapsed);
            }
        }
    }
    for kind in kinds {
        parts(&setup, kind, repeats.min(5))?;
    }
    Ok(())
}

/// Tells where the time goes: the median of each part over some runs.
fn parts(setup: &Setup, kind: &str, repeats: usize) -> Outcome {
    let mut all: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..repeats {
        for (i, (name, took)) in stamps(setup, kind)?.into_iter().enumerate() {
            all.entry((i, name)).or_default().push(took);
        }
    }
    let list: Vec<String> =
        all.iter().map(|((_, name), took)| format!("{name} {:.0} ms", median(took) * 1e3)).collect();
    let key = if kind == "plain" { "launch-run".into() } else { format!("launch-{kind}") };
    note(&key, &format!("parts of {kind}: {}", list.join(", ")));
    Ok(())
}

/// One run, as parts in seconds.
fn stamps(setup: &Setup, kind: &str) -> Result<Vec<(String, f64)>, Box<dyn std::error::Error>> {
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
