//! The agents of `hostbuf exec`, which no launcher observes: their errors reach the user through a
//! rank.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_os::process;
use hostbuf_os::{encode, socket};
use hostbuf_protocol::message::{Hello, Message, Role};

use crate::hostile::name_for;
use crate::watched::{ARRIVAL, SOON, kill_now, probe};
use hostbuf_tests::{Outcome, Scratch, eventually, fixture, hostbuf};

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
        let mut command = Command::new(hostbuf());
        command.args(["exec", "--size", bytes, "--"]).args(program);
        let place = [("HOSTBUF_RANK", rank), ("HOSTBUF_RANKS", size), ("HOSTBUF_LOCAL_RANK", rank)];
        command.envs(place.map(|(name, value)| (name, value.to_string())));
        command.env("HOSTBUF_LOCAL_SIZE", size.to_string()).env("PMIX_NAMESPACE", &self.namespace);
        command.stdin(Stdio::null());
        command
    }

    /// Starts the agent as a child of the test.
    fn agent(&self, bytes: &str) -> Agent {
        let own = std::process::id() as i32;
        let start = process::start_time(own).expect("this process runs");
        let mut command = Command::new(hostbuf());
        command.args(["agent", "--job=1", &format!("--buffer=size={bytes}")]);
        command.arg(format!("--socket={}", self.socket())).arg(format!("--lifeline={own}:{start}"));
        Agent(command.stdin(Stdio::null()).spawn().expect("the command starts"))
    }
}

/// An agent that ends with the test.
struct Agent(Child);

impl Agent {
    fn status(&mut self) -> Option<i32> {
        self.0.try_wait().expect("it is a child").and_then(|status| status.code())
    }
}

impl Drop for Agent {
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
        outcome = Some(Outcome::of(command.arg("names").env("HOSTBUF_JOB", job.socket())));
        outcome.as_ref().is_some_and(|outcome| !outcome.stderr.contains("does not answer"))
    });
    assert!(outcome.as_ref().is_some_and(|o| o.stderr.contains("not enough memory")), "{outcome:?}");
}

#[test]
fn a_rank_that_connects_after_the_failure_prints_it() {
    let job = ExecJob::new("prints");
    let mut agent = job.agent("50T");
    wait_for_failure(&job);
    let first = Outcome::of(&mut job.rank(0, 2, "50T", &["true"]));
    assert_eq!((first.status, first.said().len()), (83, 1), "{first:?}");
    assert!(first.stderr.starts_with("hostbuf: not enough memory on "), "{first:?}");
    assert_eq!(agent.status(), None, "rank 1 has yet to connect");
    let second = Outcome::of(&mut job.rank(1, 2, "50T", &["true"]));
    assert_eq!((second.status, second.stderr.as_str()), (83, ""), "{second:?}");
    eventually("the agent's end", SOON, || agent.status() == Some(1));
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

#[test]
fn a_rank_starts_a_limited_number_of_agents_that_end_at_once() {
    let object = fixture("cc", "end_agent.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    let (job, dir) = (ExecJob::new("ends-at-once"), Scratch::new("ends-at-once"));
    let mut rank = job.rank(0, 1, "1M", &["true"]);
    rank.env("LD_PRELOAD", object).env("END_AGENT", dir.path("agent"));
    let mut rank = rank.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut status = None;
    let begun = Instant::now();
    while status.is_none() && begun.elapsed() < ARRIVAL {
        status = rank.try_wait().expect("it is a child");
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = rank.kill();
    let output = rank.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.lines().count()), (Some(86), 1), "{text}");
    assert!(text.contains("has ended 3 times at once after its start"), "{text}");
}

#[test]
fn the_agent_waits_for_a_hello_that_is_on_its_way() {
    loop {
        let job = ExecJob::new("hello");
        let dir = Scratch::new("hello-on-its-way");
        let folder = dir.0.to_str().expect("UTF-8");
        let mut rank = job.rank(0, 1, "1M", &[&probe(), "stay", folder]);
        let mut rank = rank.spawn().expect("the command starts");
        eventually("the rank runs", ARRIVAL, || dir.has("stay.0"));
        let pid = std::fs::read_to_string(dir.path("stay.0")).expect("it is complete");
        let connected = Instant::now();
        let client = socket::connect(&job.socket()).expect("the agent listens");
        kill_now(pid.parse().expect("a number"));
        let _ = rank.wait();
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
