//! The agents of `hostbuf exec`, which no launcher observes: their errors reach the user through a
//! rank.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_os::process;
use hostbuf_os::session::{Session, SessionError};
use hostbuf_os::{encode, socket};
use hostbuf_protocol::message::{Hello, Message, Role};

use crate::running_job::{ARRIVAL, SOON, hold, kill_now, probe};
use crate::untrusted_clients::name_for;
use hostbuf_tests::{CommandOutput, Scratch, eventually, fixture, hostbuf};

/// A job of `hostbuf exec` with a name of its own.
struct ExecJob {
    namespace: String,
}

impl ExecJob {
    fn new(test: &str) -> ExecJob {
        ExecJob { namespace: format!("hostbuf-{test}-{}", std::process::id()) }
    }

    /// Returns the name of the agent's socket.
    fn socket(&self) -> String {
        name_for(&self.namespace)
    }

    /// Returns the command that starts rank `rank` of `size` ranks with a buffer of `bytes`.
    fn rank(&self, rank: usize, size: usize, bytes: &str, program: &[&str]) -> Command {
        self.rank_with(rank, size, &["--size", bytes], program)
    }

    /// Returns the command that starts rank `rank` of `size` ranks with these options.
    fn rank_with(&self, rank: usize, size: usize, options: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new(hostbuf());
        command.arg("exec").args(options).arg("--").args(program);
        let place = [("RANK", rank), ("SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_SIZE", size)];
        command.envs(place.map(|(name, value)| (format!("OMPI_COMM_WORLD_{name}"), value.to_string())));
        command.env("PMIX_NAMESPACE", &self.namespace);
        command.stdin(Stdio::null());
        command
    }

    /// Starts the agent as a child of the test.
    fn agent(&self, bytes: &str) -> ChildProcess {
        let own = std::process::id() as i32;
        let start = process::start_time(own).expect("this process runs");
        let mut command = Command::new(hostbuf());
        command.args(["agent", "--job=1", &format!("--buffer=size={bytes}")]);
        command.arg(format!("--socket={}", self.socket())).arg(format!("--watched-process={own}:{start}"));
        ChildProcess::start(command.stdin(Stdio::null()))
    }
}

/// A process that ends with the test.
struct ChildProcess(Child);

impl ChildProcess {
    fn start(command: &mut Command) -> ChildProcess {
        ChildProcess(command.spawn().expect("the command starts"))
    }

    fn status(&mut self) -> Option<i32> {
        self.0.try_wait().expect("it is a child").and_then(|status| status.code())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hello(role: Role) -> Message<'static> {
    Message::Hello { hello: Hello { local_size: 1, ..Hello::of(role) }, command: b"" }
}

/// Waits until the job of this agent has failed.
fn wait_for_failure(job: &ExecJob) {
    // The process ends with its connection: the agent keeps a client whose process runs.
    let mut outcome = None;
    eventually("the agent listens", ARRIVAL, || {
        let mut command = Command::new(probe());
        outcome = Some(CommandOutput::of(command.arg("names").env("HOSTBUF_JOB", job.socket())));
        outcome.as_ref().is_some_and(|outcome| !outcome.stderr.contains("does not answer"))
    });
    assert!(outcome.as_ref().is_some_and(|o| o.stderr.contains("not enough memory")), "{outcome:?}");
}

#[test]
fn a_rank_that_connects_after_the_failure_prints_it() {
    let job = ExecJob::new("prints");
    let mut agent = job.agent("50T");
    wait_for_failure(&job);
    let first = CommandOutput::of(&mut job.rank(0, 2, "50T", &["true"]));
    assert_eq!((first.status, first.said().len()), (83, 1), "{first:?}");
    assert!(first.stderr.starts_with("hostbuf: not enough memory on "), "{first:?}");
    assert_eq!(agent.status(), None, "rank 1 has yet to connect");
    let second = CommandOutput::of(&mut job.rank(1, 2, "50T", &["true"]));
    assert_eq!((second.status, second.stderr.as_str()), (83, ""), "{second:?}");
    eventually("the agent's end", SOON, || agent.status() == Some(1));
}

/// Starts the ranks of a job at the same time, and returns their outcomes.
fn together(ranks: &mut [Command]) -> Vec<CommandOutput> {
    std::thread::scope(|scope| {
        let started: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(|| CommandOutput::of(rank))).collect();
        started.into_iter().map(|rank| rank.join().expect("the command starts")).collect()
    })
}

#[test]
fn an_error_of_all_ranks_is_printed_once() {
    let job = ExecJob::new("once");
    let options = ["--size", "1M", "--bind", "near-gpu"];
    let mut ranks = [0, 1, 2].map(|rank| {
        let mut command = job.rank_with(rank, 3, &options, &["true"]);
        command.env("CUDA_VISIBLE_DEVICES", "");
        command
    });
    let outcomes = together(&mut ranks);
    assert!(outcomes.iter().all(|outcome| outcome.status == 82), "{outcomes:?}");
    let lines: Vec<&str> = outcomes.iter().flat_map(CommandOutput::said).collect();
    assert!(lines.len() == 1 && lines[0].contains("--bind near-gpu: this rank sees no GPU on "), "{lines:?}");
}

#[test]
fn ranks_with_other_buffers_learn_what_one_of_them_requests() {
    let job = ExecJob::new("other-buffers");
    let section = "name=a,size=1M,numa=0";
    let options: [&[&str]; 2] = [&["--size", "1M"], &["--size", "4M", "--section", section]];
    let mut ranks = [0, 1].map(|rank| job.rank_with(rank, 2, options[rank], &["true"]));
    let outcomes = together(&mut ranks);
    let lines: Vec<&str> = outcomes.iter().flat_map(CommandOutput::said).collect();
    let requests = [
        "requests \"name=default,size=1048576,pages=auto\"",
        "--section buffer=default,name=a,size=1048576,numa=0\"",
    ];
    let is_one = |text: &&str| lines.iter().any(|line| line.contains(text));
    assert!(
        lines.len() == 1 && lines[0].contains("its requested buffers differ from those of "),
        "{lines:?}"
    );
    assert_eq!(requests.iter().filter(|text| is_one(text)).count(), 1, "{lines:?}");
}

/// Requires that an agent that has failed refuses a client. Returns whether the client prints the
/// reason.
fn prints(session: &Session) -> bool {
    match session.first_answer(ARRIVAL) {
        Err(SessionError::Refused(packet)) => match packet.message() {
            Ok(Message::Fail { prints, .. }) => prints,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Waits until an agent watches this many processes: the test as its watched process, and once more
/// for each connection.
fn await_watches(agent: &ChildProcess, count: usize) {
    let files = format!("/proc/{}/fd", agent.0.id());
    let is_process = |to: std::path::PathBuf| to.to_string_lossy().contains("pidfd");
    eventually("the agent's watches", SOON, || {
        let files = std::fs::read_dir(&files).expect("the agent runs").flatten();
        files.filter(|file| std::fs::read_link(file.path()).is_ok_and(is_process)).count() == count
    });
}

#[test]
fn all_clients_of_a_process_learn_of_the_failure_that_one_of_them_prints() {
    let job = ExecJob::new("one-prints");
    let agent = job.agent("50T");
    wait_for_failure(&job);
    let open = |role| Session::open(&job.socket(), None, &hello(role)).expect("the agent listens");
    let rank = open(Role::Rank);
    assert!(prints(&rank));
    await_watches(&agent, 2);
    let library = open(Role::Library);
    await_watches(&agent, 3);
    drop(rank);
    assert!(!prints(&library));
}

/// The agent then waits for the end of the process.
#[test]
fn a_client_that_connects_after_the_one_that_prints_has_left_learns_of_the_failure() {
    let job = ExecJob::new("one-left");
    let agent = job.agent("50T");
    wait_for_failure(&job);
    let open = |role| Session::open(&job.socket(), None, &hello(role)).expect("the agent listens");
    let rank = open(Role::Rank);
    assert!(prints(&rank));
    let before = open_files(&agent);
    drop(rank);
    eventually("the end of the connection", SOON, || open_files(&agent) < before);
    assert!(!prints(&open(Role::Library)));
}

/// Returns the number of open files of an agent.
fn open_files(agent: &ChildProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", agent.0.id())).expect("the agent runs").count()
}

#[test]
fn the_agent_of_a_failed_job_without_any_rank_ends() {
    let job = ExecJob::new("none");
    let begun = Instant::now();
    let mut agent = job.agent("50T");
    wait_for_failure(&job);
    eventually("the agent's end", ARRIVAL, || agent.status() == Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// The rank that starts an agent may be killed before it connects.
#[test]
fn an_agent_that_no_rank_reaches_ends() {
    let job = ExecJob::new("unreached");
    let begun = Instant::now();
    let mut agent = job.agent("1M");
    eventually("the agent's end", ARRIVAL, || agent.status() == Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_rank_starts_a_limited_number_of_agents_that_end_at_once() {
    let object = fixture("cc", "end_agent.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    let (job, dir) = (ExecJob::new("ends-at-once"), Scratch::new("ends-at-once"));
    let mut rank = job.rank(0, 1, "1M", &["true"]);
    rank.env("LD_PRELOAD", object).env("END_AGENT", dir.path("agent"));
    let mut rank =
        ChildProcess::start(rank.stderr(File::create(dir.path("err")).expect("the folder is there")));
    let mut status = None;
    eventually("the rank's end", ARRIVAL, || {
        status = rank.status();
        status.is_some()
    });
    let text = std::fs::read_to_string(dir.path("err")).expect("the file exists");
    assert_eq!((status, text.lines().count()), (Some(86), 1), "{text}");
    assert!(text.contains("was started 3 times and ended immediately each time"), "{text}");
}

#[test]
fn a_rank_whose_agent_ends_before_the_hello_starts_another() {
    let object = fixture("cc", "hold_hello.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    let (job, dir) = (ExecJob::new("ends-before-hello"), Scratch::new("ends-before-hello"));
    let agent = socket::listen_on(&job.socket()).expect("the name is free");
    let mut rank = job.rank(0, 1, "1M", &["true"]);
    rank.env("LD_PRELOAD", object).env("HOLD_FILE", dir.path("held"));
    let rank = rank.stderr(Stdio::piped()).spawn().expect("the command starts");
    eventually("the rank is connected", ARRIVAL, || dir.has("held"));
    // The connection has not been accepted, and ends with the listener.
    drop(agent);
    std::fs::write(dir.path("held.go"), "").expect("the folder is there");
    let output = rank.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*text), (Some(0), ""));
}

#[test]
fn every_rank_reports_a_killed_agent() {
    let (job, dir) = (ExecJob::new("killed"), Scratch::new("killed"));
    let agent = job.agent("1M");
    eventually("the agent listens", ARRIVAL, || socket::connect(&job.socket(), None).is_ok());
    let mut rank = job.rank(1, 2, "1M", &["true"]);
    rank.env("LD_PRELOAD", hold()).env("HOLD_RANK", "1").env("HOLD_AT", "image");
    let rank = rank.env("HOLD_FILE", dir.path("held")).stderr(Stdio::piped()).spawn();
    let rank = rank.expect("the command starts");
    eventually("rank 1 is connected", ARRIVAL, || dir.has("held"));
    drop(agent);
    std::fs::write(dir.path("held.go"), "").expect("the folder is there");
    let output = rank.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.lines().count()), (Some(86), 1), "{text}");
    assert!(text.starts_with("hostbuf: the agent of this host ended before"), "{text}");
}

#[test]
fn every_rank_reports_a_missing_program() {
    let (job, dir) = (ExecJob::new("missing-later"), Scratch::new("missing-later"));
    let folder = dir.0.to_str().expect("UTF-8");
    let _other = ChildProcess::start(&mut job.rank(0, 2, "1M", &[&probe(), "stay", folder]));
    let first = CommandOutput::of(&mut job.rank(1, 2, "1M", &["true"])).ok();
    assert_eq!(first.stderr, "", "{first:?}");
    let second = CommandOutput::of(&mut job.rank(1, 2, "1M", &["/no/such/program"]));
    assert_eq!((second.status, second.said().len()), (127, 1), "{second:?}");
    assert!(second.stderr.starts_with("hostbuf exec: ") && second.stderr.contains("/no/such"), "{second:?}");
}

#[test]
fn the_agent_waits_for_a_hello_that_is_on_its_way() {
    for _ in 0..20 {
        let job = ExecJob::new("hello");
        let dir = Scratch::new("hello-on-its-way");
        let folder = dir.0.to_str().expect("UTF-8");
        let mut rank = job.rank(0, 1, "1M", &[&probe(), "stay", folder]);
        let rank = ChildProcess::start(&mut rank);
        eventually("the rank runs", ARRIVAL, || dir.has("stay.0"));
        let pid = std::fs::read_to_string(dir.path("stay.0")).expect("it is complete");
        let connected = Instant::now();
        let client = socket::connect(&job.socket(), None).expect("the agent listens");
        kill_now(pid.parse().expect("a number"));
        drop(rank);
        // An agent that does not wait ends within this time.
        std::thread::sleep(Duration::from_millis(100));
        let client = hostbuf_os::FrameSocket::from_fd(client).expect("an agent of this user");
        let sent = client.send_packet(&encode(&hello(Role::Library)), &[]);
        if connected.elapsed() > Duration::from_millis(700) {
            // On a machine that is so slow, the agent may have given the connection up.
            continue;
        }
        sent.expect("the agent reads");
        let Ok(hostbuf_os::Received::Packet(packet)) = client.receive() else { panic!("no answer") };
        assert!(matches!(packet.message(), Ok(Message::Agreed { .. })), "{packet:?}");
        return;
    }
    panic!("the machine was too slow in 20 attempts");
}

#[test]
fn a_second_process_in_the_place_of_a_rank_is_refused_and_the_job_goes_on() {
    let (job, dir) = (ExecJob::new("place"), Scratch::new("place"));
    let held = dir.path("held");
    let mut first = job.rank(0, 2, "1M", &["true"]);
    first.env("LD_PRELOAD", hold()).env("HOLD_RANK", "0").env("HOLD_AT", "image").env("HOLD_FILE", &held);
    let mut first = ChildProcess::start(&mut first);
    eventually("rank 0 is connected", ARRIVAL, || dir.has("held"));
    for (local_rank, local_size) in [(0, 2), (1, 3)] {
        let hello = Hello { local_rank, local_size, ..Hello::of(Role::Rank) };
        let other =
            Session::open(&job.socket(), None, &Message::Hello { hello, command: b"" }).expect("it listens");
        let Err(SessionError::Refused(packet)) = other.first_answer(ARRIVAL) else { panic!("no refusal") };
        let Ok(Message::Refused { error }) = packet.message() else { panic!("{packet:?}") };
        assert_eq!(error.class.status(), 84, "{error:?}");
        let text = error.line;
        let places = [format!("local rank {local_rank} of {local_size}"), "local rank 0 of 2".into()];
        assert!(places.iter().all(|place| text.contains(place)), "{text}");
        assert!(text.contains(&format!("process {}", first.0.id())), "{text}");
        // A refused process does not influence the start.
        let ready = Message::Votes { mask: 0, refusal: None };
        let _ = other.connection().send(&ready, &[]);
    }
    std::fs::write(format!("{held}.go"), "").expect("the folder is there");
    let second = CommandOutput::of(&mut job.rank(1, 2, "1M", &["echo", "ran"])).ok();
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("ran\n", ""), "{second:?}");
    assert!(first.0.wait().expect("it is a child").success());
}

#[test]
fn one_program_after_another_runs_as_one_rank() {
    let (job, dir) = (ExecJob::new("restarted"), Scratch::new("restarted"));
    let folder = dir.0.to_str().expect("UTF-8");
    let _other = ChildProcess::start(&mut job.rank(1, 2, "1M", &[&probe(), "stay", folder]));
    let print = ["sh", "-c", "echo $HOSTBUF_ADDRESS"];
    let addresses: Vec<String> = (0..3)
        .map(|_| {
            let outcome = CommandOutput::of(&mut job.rank(0, 2, "1M", &print)).ok();
            assert_eq!(outcome.stderr, "", "{outcome:?}");
            outcome.stdout.trim().to_owned()
        })
        .collect();
    assert!(addresses[0].starts_with("0x") && addresses.iter().all(|a| *a == addresses[0]), "{addresses:?}");
    // A program that cannot have the address says so.
    let plant = fixture("cc", "plant.c", &[]).expect("a C compiler is there");
    let mut rank = job.rank(0, 2, "1M", &[plant.to_str().expect("UTF-8")]);
    let outcome = CommandOutput::of(rank.env("PLANT_0", &addresses[0]));
    assert_eq!((outcome.status, outcome.said().len()), (86, 1), "{outcome:?}");
    let address = u64::from_str_radix(&addresses[0][2..], 16).expect("a number");
    let parts = [&format!("an anonymous mapping occupies {address:#x}-"), "run it as a job of its own"];
    assert!(parts.iter().all(|part| outcome.stderr.contains(part)), "{outcome:?}");
}

/// Asserts that no agent of the job listens any more.
#[track_caller]
fn has_ended(job: &ExecJob) {
    let sockets = || std::fs::read_to_string("/proc/net/unix").expect("the file exists");
    eventually("the agent's end", SOON, || !sockets().contains(&job.socket()));
}

#[test]
fn a_job_of_exec_ends_with_its_last_rank() {
    let job = ExecJob::new("ends");
    let ranks: Vec<Child> =
        (0..2).map(|rank| job.rank(rank, 2, "1M", &["true"]).spawn().expect("the command starts")).collect();
    for rank in ranks {
        assert!(rank.wait_with_output().expect("it ends").status.success());
    }
    has_ended(&job);
}
