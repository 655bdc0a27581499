//! Killing any processes of a job at any time leaves nothing of the job behind.

use std::fs;
use std::time::{Duration, Instant};

use hostbuf_os::{memory, process};
use hostbuf_tests::{Scratch, can_simulate, eventually, flavours, processes_with, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster::{Cluster, named, of_mpi_rank};
use crate::other_user::OtherUser;
use crate::running_job::{
    ARRIVAL, RunningJob, SOON, children, hold, kill_now, probe, remains, socket_of, words,
};

/// Lists all nonempty subsets of `0..n`, those of more than one element in two orders.
fn subsets(n: usize) -> Vec<Vec<usize>> {
    let mut list = Vec::new();
    for bits in 1..1u32 << n {
        let subset: Vec<usize> = (0..n).filter(|i| bits >> i & 1 == 1).collect();
        if subset.len() > 1 {
            list.push(subset.iter().rev().copied().collect());
        }
        list.push(subset);
    }
    list
}

const NAMES: [&str; 4] = ["launcher", "agent", "rank 0", "rank 1"];

/// Starts a job by `start`, kills every subset of its processes, and checks that nothing remains.
/// `agreed` is true if the ranks already run, so that they no longer need an agent.
fn kill_every_subset(phase: &str, ranks: usize, agreed: bool, start: impl Fn() -> RunningJob) {
    for subset in subsets(2 + ranks) {
        let names: Vec<&str> = subset.iter().map(|&i| NAMES[i]).collect();
        let what = format!("{phase}, after {}", names.join(", then "));
        let mut job = start();
        let pid = |i: usize| match i {
            0 => Some(job.pid()),
            1 => job.agent(),
            _ => job.rank(i - 2),
        };
        // A process between two programs has no environment for a moment.
        let victim = |&i: &usize| {
            let mut found = None;
            eventually(&format!("{what}: {}", NAMES[i]), ARRIVAL, || {
                found = pid(i);
                found.is_some()
            });
            found.expect("the process was found")
        };
        let victims: Vec<i32> = subset.iter().map(victim).collect();
        victims.into_iter().for_each(kill_now);
        if !subset.contains(&0) {
            if agreed && subset == [1] {
                // The ranks have their buffer and continue; the user ends the job.
                assert!(
                    job.launcher.try_wait().expect("the process is a child of this one").is_none(),
                    "{what}: the job goes on"
                );
                kill(Pid::from_raw(job.pid()), Signal::SIGTERM).expect("the process is a child of this one");
            }
            let status = job.end(SOON);
            assert!(!status.success(), "{what}: {status}");
            if !agreed {
                explained(&job.err(), &what);
            }
        }
        job.leaves_nothing(&what);
    }
}

/// Asserts that the launcher states the cause, and that nothing else is said.
#[track_caller]
fn explained(err: &str, what: &str) {
    assert_eq!(err.lines().count(), 1, "{what}: {err}");
    assert!(err.starts_with("hostbuf run: "), "{what}: {err}");
}

/// Starts two ranks, and holds rank 1 at `place` before its main.
fn held(mark: &str, place: &'static str, then: &'static str) -> RunningJob {
    let job = RunningJob::start(mark, "size=1M", &["-n", "2"], &["sleep", "1000"], |command, dir| {
        command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "1").env("HOLD_AT", place).env("HOLD_THEN", then);
        command.env("HOLD_FILE", dir.path("held"));
    });
    eventually("rank 1 is held", ARRIVAL, || job.dir.has("held"));
    job
}

#[test]
fn a_job_killed_during_page_allocation_leaves_nothing() {
    // No rank exists yet, but the agent's children do: they are the third victim.
    let oom_kills = memory::oom_kills();
    for subset in subsets(3) {
        let mut job =
            RunningJob::start("populating", "size=3G,pages=4k", &["-n", "2"], &["sleep", "1000"], |_, _| {});
        let mut workers = Vec::new();
        eventually("the agent's children", ARRIVAL, || {
            workers = job.agent().map(children).unwrap_or_default();
            !workers.is_empty()
        });
        let agent = job.agent().expect("it takes pages");
        let what = format!("populating, after {subset:?} of launcher, agent, its children");
        for i in &subset {
            match i {
                0 => kill_now(job.pid()),
                1 => kill_now(agent),
                _ => workers.iter().copied().for_each(kill_now),
            }
        }
        if !subset.contains(&0) {
            let status = job.end(SOON);
            let err = job.err();
            explained(&err, &what);
            if subset.contains(&1) {
                assert_eq!(status.code(), Some(86), "{what}: {err}");
                assert!(err.contains("the agent of this host was ended before"), "{what}: {err}");
            } else if memory::oom_kills() == oom_kills {
                assert_eq!(status.code(), Some(90), "{what}: {err}");
                let ended =
                    |worker| format!("worker process {worker} was ended by signal 9 (SIGKILL), which");
                assert!(workers.iter().any(|worker| err.contains(&ended(worker))), "{what}: {err}");
            } else {
                // The kernel may have killed the agent's children for lack of memory.
                assert!([83, 90].map(Some).contains(&status.code()), "{what}: {err}");
            }
        }
        job.leaves_nothing(&what);
    }
}

/// The agent must not wait for its own children when it ends the processes of a job whose launcher
/// was killed.
#[test]
fn an_agent_that_allocates_pages_ends_at_once_with_its_launcher() {
    let job =
        RunningJob::start("stopped-workers", "size=3G,pages=4k", &["-n", "2"], &["sleep", "1000"], |_, _| {});
    // SIGTERM does not end a stopped worker.
    let maps_the_buffer = |worker: i32| {
        fs::read_to_string(format!("/proc/{worker}/maps")).is_ok_and(|maps| maps.contains("/memfd:hostbuf:"))
    };
    eventually("a child of the agent that maps the buffer is stopped", ARRIVAL, || {
        job.agent().map(children).unwrap_or_default().into_iter().any(|worker| {
            let worker_is = Pid::from_raw(worker);
            if !maps_the_buffer(worker) || kill(worker_is, Signal::SIGSTOP).is_err() {
                return false;
            }
            let is_held = maps_the_buffer(worker);
            if !is_held {
                let _ = kill(worker_is, Signal::SIGCONT);
            }
            is_held
        })
    });
    kill_now(job.pid());
    eventually("the agent and its children end", Duration::from_secs(4), || job.remains().is_empty());
}

#[test]
fn a_job_killed_while_a_rank_is_missing_leaves_nothing() {
    kill_every_subset("gathering", 2, false, || held("missing", "exec", ""));
}

#[test]
fn a_job_killed_while_a_rank_is_not_ready_leaves_nothing() {
    kill_every_subset("gathering, connected", 2, false, || held("connected", "image", ""));
}

#[test]
fn a_job_killed_while_the_ranks_vote_leaves_nothing() {
    kill_every_subset("agreeing", 2, false, || held("voting", "ballot", ""));
}

#[test]
fn a_job_killed_while_the_ranks_map_leaves_nothing() {
    kill_every_subset("mapping", 2, false, || held("mapping", "agreed", ""));
}

#[test]
fn a_job_killed_while_the_ranks_run_leaves_nothing() {
    let probe = probe();
    kill_every_subset("running", 2, true, || {
        let job = RunningJob::start("running", "size=1M", &["-n", "2"], &[&probe, "stay", "DIR"], |_, _| {});
        eventually("both ranks run", ARRIVAL, || job.dir.has("stay.0") && job.dir.has("stay.1"));
        job
    });
}

#[test]
fn a_job_killed_while_a_rank_fills_leaves_nothing() {
    let probe = probe();
    kill_every_subset("filling", 2, true, || {
        let job = RunningJob::start(
            "filling",
            "size=1M",
            &["-n", "2"],
            &[&probe, "fill-forever", "DIR"],
            |_, _| {},
        );
        eventually("a rank fills", ARRIVAL, || job.dir.has("filling.0") || job.dir.has("filling.1"));
        job
    });
}

#[test]
fn a_rank_that_dies_before_it_maps_the_buffer_ends_the_job_and_is_named() {
    for place in ["exec", "image", "ballot", "agreed"] {
        let mut job = held("dies", place, "die");
        let status = job.end(SOON);
        let err = job.err();
        assert_eq!(status.code(), Some(87), "{place}: {status} {err}");
        assert!(err.contains(&format!("rank 1 on {}", process::host_name())), "{place}: {err}");
        assert_eq!(err.lines().count(), 1, "{place}: {err}");
        assert_eq!(job.out(), "", "{place}: no rank came to its main");
        job.leaves_nothing(place);
    }
}

/// Lists the processes of a job over Open MPI, by name.
fn parts_of(mark: &str, socket: &str) -> Vec<(&'static str, i32)> {
    let mut list = Vec::new();
    for pid in processes_with(socket).into_iter().chain(processes_with(mark)).map(|(pid, _)| pid) {
        let words = words(pid);
        let second = words.get(1).map_or("", String::as_str);
        let is_agent = named(pid, "hostbuf-agent-openmpi4");
        let name = match () {
            () if named(pid, "hostbuf") && second == "run" => "launcher",
            () if named(pid, "mpirun.openmpi") && words.iter().any(|w| w == "exec") => "the ranks' mpirun",
            () if named(pid, "mpirun.openmpi") => "the agents' mpirun",
            () if is_agent && of_mpi_rank(pid, 0) => "agent of h0",
            () if is_agent && of_mpi_rank(pid, 1) => "agent of h1",
            () if !is_agent && of_mpi_rank(pid, 0) => "rank 0",
            () if !is_agent && of_mpi_rank(pid, 3) => "rank 3",
            () => continue,
        };
        if !list.iter().any(|(known, _)| *known == name) {
            list.push((name, pid));
        }
    }
    list
}

/// The processes to kill, one after another: each alone, and the pairs and triples in which one
/// death could cause another. mpirun takes about two seconds to end its daemons, so not every
/// subset is tried here.
const VICTIMS: &[&[&str]] = &[
    &["launcher"],
    &["agent of h0"],
    &["agent of h1"],
    &["rank 0"],
    &["rank 3"],
    &["the agents' mpirun"],
    &["the ranks' mpirun"],
    &["launcher", "the agents' mpirun"],
    &["the agents' mpirun", "launcher"],
    &["launcher", "the ranks' mpirun"],
    &["the ranks' mpirun", "the agents' mpirun"],
    &["launcher", "the agents' mpirun", "the ranks' mpirun"],
    &["the ranks' mpirun", "agent of h0", "launcher"],
    &["agent of h0", "agent of h1"],
    &["agent of h1", "rank 3", "launcher"],
    &[
        "launcher",
        "the agents' mpirun",
        "the ranks' mpirun",
        "rank 0",
        "rank 3",
        "agent of h0",
        "agent of h1",
    ],
];

fn over_two_hosts(phase: &str, agreed: bool, options: &str, program: &str, there: impl Fn(&Scratch) -> bool) {
    if !can_simulate() {
        return;
    }
    if !flavours().iter().any(|f| f == "openmpi4") {
        return skip("faults over two hosts: Open MPI 4 is not installed");
    }
    let mut cluster = Cluster::start(&format!("cluster-{phase}"), "openmpi4", 2);
    for (i, victims) in VICTIMS.iter().enumerate() {
        let mark = format!("{phase}-{i}-{}", std::process::id());
        let case = Scratch::new(&mark);
        let dir = case.0.display();
        let (options, program) =
            (options.replace("DIR", &dir.to_string()), program.replace("DIR", &dir.to_string()));
        cluster.run(&format!(
            "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN {options} --buffer name={mark},size=1M -- {program} \
             >{dir}/out 2>{dir}/err; echo $? >{dir}/status"
        ));
        let mut socket = String::new();
        let mut parts = Vec::new();
        eventually(&format!("{mark}: all are there ({:?})", cluster.dir.0), ARRIVAL, || {
            socket = socket_of(&format!("name={mark},")).unwrap_or_default();
            if there(&case) && !socket.is_empty() {
                parts = parts_of(&format!("name={mark},"), &socket);
            }
            victims.iter().all(|v| parts.iter().any(|(name, _)| name == v))
        });
        for victim in *victims {
            parts.iter().filter(|(name, _)| name == victim).for_each(|&(_, pid)| kill_now(pid));
        }
        let what = format!("{phase}, after {}", victims.join(", then "));
        // Running ranks do not need their agents, so the user ends the job.
        if agreed
            && !victims.iter().any(|v| ["launcher", "rank 0", "rank 3", "the ranks' mpirun"].contains(v))
        {
            let launcher = parts.iter().find(|(name, _)| *name == "launcher").expect("the process runs").1;
            assert!(!case.has("status"), "{what}: the job goes on");
            kill(Pid::from_raw(launcher), Signal::SIGTERM).expect("the process runs");
        }
        let begun = Instant::now();
        loop {
            // A process with the mark in a shell's script only belongs to the simulated cluster.
            let mut left = remains(&socket, &socket);
            left.extend(
                processes_with(&format!("{dir}/"))
                    .into_iter()
                    .filter(|(pid, _)| named(*pid, "job_probe"))
                    .map(|(_, l)| l),
            );
            if left.is_empty() {
                break;
            }
            let err = fs::read_to_string(case.0.join("err")).unwrap_or_default();
            assert!(begun.elapsed() < 2 * SOON, "{what}: left behind: {left:#?}\n{err}");
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{what}: {:?}", begun.elapsed());
        if !victims.contains(&"launcher") {
            eventually("the launcher's end", 2 * SOON, || case.has("status"));
            let status = fs::read_to_string(case.0.join("status")).expect("the file exists");
            assert_ne!(status.trim(), "0", "{what}");
        }
    }
}

#[test]
fn a_job_of_two_hosts_killed_while_it_runs_leaves_nothing() {
    let program = format!("{} stay DIR", probe());
    over_two_hosts("run", true, "", &program, |dir| (0..4).all(|r| dir.has(&format!("stay.{r}"))));
}

#[test]
fn a_job_of_two_hosts_killed_while_a_rank_is_missing_leaves_nothing() {
    // Rank 3 is held in its `hostbuf exec`.
    let options = format!(
        "--launcher-arg -x --launcher-arg LD_PRELOAD={} --launcher-arg -x --launcher-arg HOLD_RANK=3 \
         --launcher-arg -x --launcher-arg HOLD_AT=exec --launcher-arg -x --launcher-arg HOLD_FILE=DIR/held",
        hold()
    );
    over_two_hosts("gather", false, &options, "sleep 1000", |dir| dir.has("held"));
}

#[test]
fn two_concurrent_jobs_of_one_user_are_independent() {
    let probe = probe();
    let stay =
        |mark: &str| RunningJob::start(mark, "size=1M", &["-n", "2"], &[&probe, "stay", "DIR"], |_, _| {});
    let jobs = [stay("first"), stay("second")];
    let addresses = jobs.each_ref().map(|job| {
        eventually("both ranks run", ARRIVAL, || job.dir.has("stay.0") && job.dir.has("stay.1"));
        [0, 1].map(|rank| buffer_of(job.rank(rank).expect("it runs"), &job.mark))
    });
    // All jobs have one address, and each has a memory file of its own.
    let [[(address, first), (b, c)], [(d, second), (e, f)]] = addresses;
    assert!([&b, &d, &e].iter().all(|a| **a == address), "{address} {b} {d} {e}");
    assert!(first == c && second == f && first != second, "{first} {c} {second} {f}");
    assert_ne!(jobs[0].socket, jobs[1].socket);
    // A failure of one job does not end the other.
    let [mut one, mut other] = jobs;
    kill_now(one.rank(0).expect("it runs"));
    assert_eq!(one.end(SOON).code(), Some(137));
    one.leaves_nothing("one of two jobs");
    assert!(other.launcher.try_wait().expect("the process is a child of this one").is_none());
    kill(Pid::from_raw(other.pid()), Signal::SIGTERM).expect("the process is a child of this one");
    other.end(SOON);
    other.leaves_nothing("the other of two jobs");
}

/// Returns the addresses at which process `pid` maps the buffer named `name`, and the inode of its
/// memory.
fn buffer_of(pid: i32, name: &str) -> (String, String) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let line = maps.lines().find(|l| l.contains(&format!(":{name} "))).expect("it has the buffer");
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    (fields[0].to_owned(), fields[4].to_owned())
}

#[test]
fn concurrent_jobs_of_two_users_are_independent() {
    let Some(other) = OtherUser::new("two users") else { return };
    let probe = probe();
    let mine = RunningJob::start("mine", "size=1M", &["-n", "2"], &[&probe, "stay", "DIR"], |_, _| {});
    let place = |mark: &str| (other.hostbuf(), Scratch(other.own_folder(mark)));
    let program = [&*other.program(&probe), "stay", "DIR"];
    let theirs = RunningJob::start_at(place, "theirs", "size=1M", &["-n", "2"], &program, |command, _| {
        // The launcher keeps its preloaded object in that folder for the user's next job.
        other.runs(command, &other.own_folder("cache"));
    });
    for job in [&mine, &theirs] {
        eventually("both ranks run", ARRIVAL, || {
            assert_eq!(job.err(), "");
            job.dir.has("stay.0") && job.dir.has("stay.1")
        });
    }
    let (address, inode) = buffer_of(mine.rank(1).expect("it runs"), &mine.mark);
    let (other_address, other_inode) = buffer_of(theirs.rank(1).expect("it runs"), &theirs.mark);
    assert_eq!(address, other_address);
    assert_ne!(inode, other_inode);
    assert!(mine.socket.starts_with("hostbuf/0/") && theirs.socket.starts_with("hostbuf/65534/"));
    for mut job in [mine, theirs] {
        kill(Pid::from_raw(job.pid()), Signal::SIGTERM).expect("the process is a child of this one");
        job.end(SOON);
        job.leaves_nothing("one of two users");
    }
}
