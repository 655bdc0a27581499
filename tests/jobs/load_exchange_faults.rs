//! Deaths and pauses of processes while the hosts of a job exchange the windows of loaded files:
//! the job ends by itself, nothing remains, and the message names the host.

use std::fs;
use std::time::{Duration, Instant};

use hostbuf_tests::{Scratch, can_simulate, eventually, fixture, flavours, processes_with, program, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::{Cluster, named, of_mpi_rank};
use crate::loaded_tensors::TensorFiles;
use crate::running_job::{ARRIVAL, kill_now, remains, socket_of};

/// The time limit for the end of a job. Open MPI needs about four seconds to end both of its jobs.
const END: Duration = Duration::from_secs(20);
/// The time for which an agent is stopped.
const PAUSE: Duration = Duration::from_secs(1);
/// The rank of the agent, and of the rank of the program, that gets a signal: it is on h1.
const STRUCK: usize = 1;

/// A job with one rank on each host, whose agents are held in the exchange.
struct ExchangingJob {
    _cluster: Cluster,
    case: Scratch,
    files: TensorFiles,
    socket: String,
    hosts: usize,
}

impl ExchangingJob {
    /// Starts a job, and waits until all its agents are held. Returns `None` if this machine cannot
    /// run it.
    fn start(name: &str, hosts: usize) -> Option<ExchangingJob> {
        if !can_simulate() {
            return None;
        }
        if !flavours().iter().any(|flavour| flavour == "openmpi4") {
            skip("deaths in the exchange of loaded files: Open MPI 4 is not installed");
            return None;
        }
        let files = TensorFiles::new(&format!("{name}-files"), 64 << 20);
        let mark = format!("{name}-{}", std::process::id());
        let case = Scratch::new(name);
        let hold = fixture("cc", "hold_exchange.c", &["-shared", "-fPIC", "-ldl"]);
        let hold = hold.expect("a C compiler is there");
        let list: Vec<String> = (0..hosts).map(|host| format!("h{host}:1")).collect();
        let variables = [
            format!("LD_PRELOAD={}", hold.display()),
            "HOLD_WINDOW=1".to_owned(),
            format!("HOLD_FILE={}", case.path("held")),
        ];
        let variables = variables.map(|set| format!("--launcher-arg -x --launcher-arg {set}")).join(" ");
        let mut cluster = Cluster::start(&format!("{name}-cluster"), hosts);
        cluster.run(&format!(
            "$HOSTBUF run --quiet -n {hosts} --host {} --mpirun $MPIRUN {variables} --buffer name={mark},size=1M {} -- {} once \
             >{dir}/out 2>{dir}/err; echo $? >{dir}/status",
            list.join(","),
            files.options().join(" "),
            program("loaded_tensors").display(),
            dir = case.0.display(),
        ));
        let mut job = ExchangingJob { _cluster: cluster, case, files, socket: String::new(), hosts };
        eventually("all agents exchange windows", ARRIVAL, || {
            assert!(!job.case.has("status"), "the job has ended: {}", job.err());
            (0..hosts).all(|host| job.case.has(&format!("held.{host}")))
        });
        eventually("the agents' socket", ARRIVAL, || {
            job.socket = socket_of(&format!("name={mark},")).unwrap_or_default();
            !job.socket.is_empty()
        });
        Some(job)
    }

    /// Returns the process of the job with this program on h1.
    fn process(&self, program: &str) -> i32 {
        let mut found = None;
        eventually(program, ARRIVAL, || {
            let all = processes_with(&self.socket).into_iter().map(|(pid, _)| pid);
            found = all.into_iter().find(|&pid| named(pid, program) && of_mpi_rank(pid, STRUCK));
            found.is_some()
        });
        found.expect("the process was found")
    }

    /// Lets the agents go on with the exchange.
    fn release(&self) {
        fs::write(self.case.path("held.go"), "").expect("the folder is writable");
    }

    fn err(&self) -> String {
        fs::read_to_string(self.case.path("err")).unwrap_or_default()
    }

    /// Waits until the job has ended by itself and nothing of it remains. Returns its status.
    #[track_caller]
    fn end(&self) -> i32 {
        let begun = Instant::now();
        let status = || fs::read_to_string(self.case.path("status")).ok()?.trim().parse().ok();
        loop {
            let left = remains(&self.socket, &self.socket);
            if let (Some(status), true) = (status(), left.is_empty()) {
                eprintln!("the job has ended after {:?}", begun.elapsed());
                return status;
            }
            let err = self.err();
            assert!(begun.elapsed() < END, "the job has not ended within {END:?}: {left:#?}\n{err}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the line of the launcher on standard error.
    #[track_caller]
    fn line(&self) -> String {
        let err = self.err();
        let lines: Vec<&str> = err.lines().filter(|line| line.starts_with("hostbuf run: ")).collect();
        assert_eq!(lines.len(), 1, "{err}");
        lines[0].to_owned()
    }
}

fn kill_agent(name: &str, hosts: usize) {
    let Some(job) = ExchangingJob::start(name, hosts) else { return };
    let agent = job.process("hostbuf-agent-openmpi4");
    job.release();
    kill_now(agent);
    let status = job.end();
    let line = job.line();
    assert_eq!(status, 86, "{line}");
    let cause = "the agent on h1 was ended before all ranks had the buffer by signal 9 (SIGKILL). ";
    assert!(line.contains(cause), "{}", job.err());
}

#[test]
fn an_agent_of_two_hosts_that_is_killed_in_the_exchange_is_named() {
    kill_agent("exchange-agent-2", 2);
}

#[test]
fn an_agent_of_three_hosts_that_is_killed_in_the_exchange_is_named() {
    kill_agent("exchange-agent-3", 3);
}

#[test]
fn a_rank_that_is_killed_while_agents_load_is_named_and_ends_the_job() {
    let Some(job) = ExchangingJob::start("exchange-rank", 2) else { return };
    // The agents are never released, so the job does not wait for the end of the load.
    kill_now(job.process("loaded_tensors"));
    let status = job.end();
    let line = job.line();
    assert_eq!(status, 87, "{line}");
    assert!(line.contains("rank 1 on h1 (process "), "{}", job.err());
}

#[test]
fn an_agent_that_is_stopped_in_the_exchange_delays_the_job_only() {
    let Some(job) = ExchangingJob::start("exchange-stop", 3) else { return };
    let agent = Pid::from_raw(job.process("hostbuf-agent-openmpi4"));
    kill(agent, Signal::SIGSTOP).expect("it runs");
    job.release();
    let begun = Instant::now();
    while begun.elapsed() < PAUSE {
        assert!(!job.case.has("status"), "the job waits for the agent: {}", job.err());
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = || fs::read_to_string(job.case.path("out")).expect("the shell has made the file");
    assert_eq!(out(), "", "no rank runs before its agent has the files");
    kill(agent, Signal::SIGCONT).expect("it is stopped");
    assert_eq!(job.end(), 0, "{}", job.err());
    let lines: Vec<String> = out().lines().map(str::to_owned).collect();
    job.files.assert_complete(&lines, job.hosts);
}
