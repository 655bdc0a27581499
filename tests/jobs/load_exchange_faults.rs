//! Deaths and pauses of processes while the hosts of a job exchange the windows of loaded files:
//! the job ends by itself, nothing remains, and the message names the host.

use std::time::{Duration, Instant};

use hostbuf_tests::{can_simulate, flavours, root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::exchanging_job::{ExchangingJob, LOADER};
use crate::running_job::kill_now;

/// The time for which an agent is stopped.
const PAUSE: Duration = Duration::from_secs(1);
/// The agents of a job.
const AGENT: &str = "hostbuf-agent-openmpi4";
/// The rank of the agent, and of the rank of the program, that gets a signal: it is on h1.
const STRUCK: usize = 1;

fn kill_agent(name: &str, hosts: usize) {
    let Some(job) = ExchangingJob::of_agents(name, hosts) else { return };
    let agent = job.process(AGENT, STRUCK);
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

/// Kills a rank that waits for its `main`.
fn kill_waiting_rank(name: &str, hosts: usize) {
    let Some(job) = ExchangingJob::of_agents(name, hosts) else { return };
    // The agents are never released, so the job does not wait for the end of the load.
    kill_now(job.process("loaded_tensors", STRUCK));
    let status = job.end();
    let line = job.line();
    assert_eq!(status, 87, "{line}");
    assert!(line.contains("rank 1 on h1 (process "), "{}", job.err());
    assert_eq!(job.out(), "", "no rank has come to its main");
}

#[test]
fn a_rank_of_two_hosts_that_is_killed_while_agents_load_is_named_and_ends_the_job() {
    kill_waiting_rank("exchange-rank-2", 2);
}

#[test]
fn a_rank_of_three_hosts_that_is_killed_while_agents_load_is_named_and_ends_the_job() {
    kill_waiting_rank("exchange-rank-3", 3);
}

/// Kills a rank of a program that loads files by a collective call. Its MPI ends the other ranks
/// and names it, or its process and host: hostbuf itself prints nothing. Under Open MPI 5 another
/// rank may notice the loss before mpirun does, and abort the job.
fn kill_loading_rank(name: &str, rank: usize) {
    if !root().join("target/lib/libhostbuf.so").exists() {
        return skip("deaths in a program's own load: there is no libhostbuf (scripts/build)");
    }
    if !can_simulate() {
        return;
    }
    for flavour in flavours().iter().filter(|flavour| flavour.ends_with('4')) {
        let job = ExchangingJob::of_ranks(&format!("{name}-{flavour}"), flavour, 3);
        kill_now(job.process(LOADER, rank));
        // The other ranks come to a collective operation without the lost one.
        job.release();
        let status = job.end();
        let (out, err) = (job.out(), job.err());
        assert!(!out.contains("loaded"), "{flavour}: {out}");
        assert!(!out.contains("hostbuf") && !err.contains("hostbuf: "), "{flavour}: {out}{err}");
        let (all, begins, ends, of_engine) = match flavour.starts_with("openmpi") {
            true => (
                &err,
                format!("process rank {rank} with PID "),
                " on node h1 exited on signal 9 (Killed).",
                137,
            ),
            false => (&out, "=   PID ".to_owned(), " RUNNING AT h1", 255),
        };
        let named: Vec<&str> = all.lines().filter(|line| line.contains(" PID ")).collect();
        assert!(
            named.len() == 1 && named[0].contains(&begins) && named[0].ends_with(ends),
            "{flavour}: {out}{err}"
        );
        assert_eq!(status, of_engine, "{flavour}: {out}{err}");
    }
}

#[test]
fn a_leader_that_is_killed_in_its_own_load_is_named_and_ends_the_job() {
    kill_loading_rank("own-load-leader", 2);
}

#[test]
fn a_rank_that_is_killed_in_its_own_load_is_named_and_ends_the_job() {
    kill_loading_rank("own-load-rank", 3);
}

#[test]
fn an_agent_that_is_stopped_in_the_exchange_delays_the_job_only() {
    const HOSTS: usize = 3;
    let Some(job) = ExchangingJob::of_agents("exchange-stop", HOSTS) else { return };
    let agent = Pid::from_raw(job.process(AGENT, STRUCK));
    kill(agent, Signal::SIGSTOP).expect("it runs");
    job.release();
    let begun = Instant::now();
    while begun.elapsed() < PAUSE {
        assert!(!job.case.has("status"), "the job waits for the agent: {}", job.err());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(job.out(), "", "no rank runs before its agent has the files");
    kill(agent, Signal::SIGCONT).expect("it is stopped");
    assert_eq!(job.end(), 0, "{}", job.err());
    let lines: Vec<String> = job.out().lines().map(str::to_owned).collect();
    job.files.assert_complete(&lines, HOSTS);
}
