//! Attacks on the agent's socket, which every process on the host can reach. No message to it harms
//! the job.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hostbuf_os::encode;
use hostbuf_os::socket::{self, ReceivedPacket};
use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};
use hostbuf_protocol::frame::{self, FRAME_MAX, FrameError, FrameWriter};
use hostbuf_protocol::limits::TEXT_MAX;
use hostbuf_protocol::message::{Hello, Message, Role};
use hostbuf_tests::{CommandOutput, Scratch, eventually, fixture, hostbuf};

use crate::other_user::OtherUser;
use crate::running_job::{ARRIVAL, RunningJob, SOON, hold, kill_now, probe};

fn connect(name: &str) -> OwnedFd {
    socket::connect(name, None).expect("the agent listens")
}

/// Sends a packet. Returns false if the agent has closed the connection, which it may do at any
/// time.
fn send(connection: &OwnedFd, packet: &[u8]) -> bool {
    socket::send(connection.as_fd(), packet, &[]).is_ok()
}

fn hello(role: Role, local_size: u64) -> Vec<u8> {
    let hello = Hello { role, rank: 0, size: local_size, local_rank: 0, local_size, request: 0 };
    encode(&Message::Hello { hello, command: b"" })
}

/// Returns a frame of any kind, with these numbers and a text if its length is not 0.
fn frame(kind: u16, numbers: &[u64], text: usize) -> Vec<u8> {
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let mut buffer = vec![0; FRAME_MAX];
    let mut frame = FrameWriter::new(&mut buffer, kind).expect("there is room");
    frame.push(frame::REQUIRED | 1, &[&numbers]).expect("there is room");
    if text > 0 {
        frame.push(frame::REQUIRED | 2, &[&vec![b'%'; text]]).expect("there is room");
    }
    frame.finish().to_vec()
}

/// Sends malformed messages of all kinds.
fn send_malformed_messages(name: &str) {
    let good = hello(Role::Library, 0);
    for length in [1, 2, 15, 16, 17, 71, 73, 512, 4096, FRAME_MAX, FRAME_MAX + 8, 60_000] {
        send(&connect(name), &vec![0u8; length]);
        send(&connect(name), &vec![0xff; length]);
        let mut long = good.clone();
        long.resize(length, 7);
        send(&connect(name), &long);
    }
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0xff;
        send(&connect(name), &bytes);
    }
    // The agent did not ask for these descriptors.
    let null = fs::File::open("/dev/null").expect("the file exists");
    let connection = connect(name);
    for _ in 0..100 {
        let _ = socket::send(connection.as_fd(), &good, &[null.as_raw_fd(); 16]);
        let _ = socket::send(connection.as_fd(), b"half", &[null.as_raw_fd(); 16]);
    }
    // Messages in an invalid order. A rank's hello is left out, since any process of this user may
    // join the job and end it.
    for first in [None, Some(Role::Late), Some(Role::Library), Some(Role::Member)] {
        // All kinds, and some that do not exist.
        for kind in (0..18).chain([u16::MAX]) {
            let connection = connect(name);
            if let Some(role) = first {
                send(&connection, &hello(role, 1));
            }
            for frame in [
                frame(kind, &[u64::MAX; 40], TEXT_MAX),
                frame(kind, &[], 0),
                frame(kind, &[0; 2], TEXT_MAX + 1),
            ] {
                send(&connection, &frame);
                send(&connection, &frame);
            }
        }
    }
    // Greetings with numbers that are too large.
    for numbers in [
        [1, 0, u64::MAX, 0, u64::MAX, 0],
        [4, 0, 0, u64::MAX, u64::MAX, 0],
        [9, 0, 0, 0, 0, 0],
        [4, 5, 4, 0, 1, 0],
    ] {
        send(&connect(name), &frame(1, &numbers, 0));
    }
}

/// Connects clients that send nothing, that never read, and that make the agent store messages.
fn connect_abusive_clients(name: &str) -> Vec<OwnedFd> {
    let mut kept: Vec<OwnedFd> = (0..200).map(|_| connect(name)).collect();
    // Members with local ranks that the job does not have: a rank may take part once.
    let member = |local_rank: u64| {
        let local_size = 1 << 20;
        let hello = Hello { role: Role::Member, rank: 0, size: 0, local_rank, local_size, request: 0 };
        encode(&Message::Hello { hello, command: b"" })
    };
    for i in 0..8 {
        // Every gathering of a group of one is answered at once; nobody reads the answers.
        let deaf = connect(name);
        nix::fcntl::fcntl(&deaf, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .expect("it is open");
        send(&deaf, &member(100 + i));
        for sequence in 0..20_000 {
            let gather = Message::Gather { sequence, group: 100 + i, size: 1, part: &[1; TEXT_MAX] };
            if !send(&deaf, &encode(&gather)) {
                break;
            }
        }
        kept.push(deaf);
        // Gathers that are never complete, of the largest possible group.
        let eternal = connect(name);
        nix::fcntl::fcntl(&eternal, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .expect("it is open");
        send(&eternal, &member(200 + i));
        let begun = Instant::now();
        for sequence in 0..2_000u64 {
            let gather = Message::Gather {
                sequence: 1 << 50 | sequence,
                group: 0,
                size: 1 << 20,
                part: &[1; TEXT_MAX],
            };
            let gather = encode(&gather);
            while !send(&eternal, &gather) && begun.elapsed() < Duration::from_millis(200) {
                std::thread::yield_now();
            }
        }
        kept.push(eternal);
    }
    kept
}

/// Returns the resident memory of the agent, in bytes.
fn resident_bytes(agent: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{agent}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("the agent lives");
    line.split_ascii_whitespace().next().expect("a number").parse::<u64>().expect("a number") * 1024
}

fn descriptors(agent: i32) -> usize {
    fs::read_dir(format!("/proc/{agent}/fd")).expect("the agent lives").count()
}

/// Starts two ranks that succeed once `DIR/held.go` exists; rank 1 is held before it connects.
fn waiting_job(mark: &str) -> RunningJob {
    let job = RunningJob::start(mark, "size=4M", &["-n", "2"], &[&probe(), "tables"], |command, dir| {
        command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "1").env("HOLD_AT", "exec");
        command.env("HOLD_FILE", dir.path("held"));
    });
    eventually("rank 1 is held", ARRIVAL, || job.dir.has("held"));
    job
}

#[track_caller]
fn ends_well(job: &mut RunningJob) {
    fs::write(job.dir.path("held.go"), "").expect("the folder is there");
    let status = job.end(ARRIVAL);
    assert!(status.success(), "{status}: {}", job.err());
    assert_eq!(job.out().lines().filter(|l| l.starts_with("found 1000 ")).count(), 2, "{}", job.out());
    assert_eq!(job.err(), "");
    job.leaves_nothing("after all that");
}

/// Starts two ranks that run until they are killed.
fn running_job(mark: &str) -> RunningJob {
    let job = RunningJob::start(mark, "size=4M", &["-n", "2"], &[&probe(), "stay", "DIR"], |_, _| {});
    eventually("both ranks run", ARRIVAL, || job.dir.has("stay.0") && job.dir.has("stay.1"));
    job
}

/// Asserts that a client with the right to the memory receives it.
#[track_caller]
fn still_serves(name: &str) {
    let client = connect(name);
    assert!(send(&client, &hello(Role::Library, 0)));
    socket::set_receive_timeout(client.as_fd(), Some(Duration::from_secs(10))).expect("it is open");
    match socket::receive(client.as_fd(), FRAME_MAX) {
        Ok(ReceivedPacket::Packet(packet, memory)) => {
            assert!(matches!(Message::parse(&packet), Ok(Message::Agreed { .. })));
            assert_eq!(memory.len(), 3);
        }
        _ => panic!("no answer"),
    }
}

#[test]
fn malformed_messages_during_the_start_are_ignored() {
    let mut job = waiting_job("nonsense");
    for _ in 0..5 {
        send_malformed_messages(&job.socket);
    }
    ends_well(&mut job);
}

#[test]
fn malformed_messages_during_the_run_are_ignored() {
    let job = running_job("nonsense-runs");
    let agent = job.agent().expect("it serves");
    for _ in 0..5 {
        send_malformed_messages(&job.socket);
        // Ranks that arrive late also get the memory, and are not counted.
        send(&connect(&job.socket), &hello(Role::Rank, 1 << 20));
    }
    still_serves(&job.socket);
    eventually("what was sent is forgotten", SOON, || descriptors(agent) < 50);
    assert_eq!(job.agent(), Some(agent));
}

/// Returns `packet` as a build with the next version of the protocol would send it.
fn of_next_version(mut packet: Vec<u8>) -> Vec<u8> {
    packet[4..6].copy_from_slice(&(frame::VERSION + 1).to_ne_bytes());
    packet
}

#[test]
fn a_client_of_another_version_gets_an_answer_and_harms_nothing() {
    let mut job = waiting_job("version");
    let client = connect(&job.socket);
    socket::set_receive_timeout(client.as_fd(), Some(Duration::from_secs(10))).expect("it is open");
    assert!(send(&client, &of_next_version(hello(Role::Rank, 2))));
    let Ok(ReceivedPacket::Packet(packet, memory)) = socket::receive(client.as_fd(), FRAME_MAX) else {
        panic!("no answer")
    };
    let Ok(Message::Refused { error }) = Message::parse(&packet) else {
        panic!("{:?}", Message::parse(&packet))
    };
    assert_eq!((error.class.status(), memory.len()), (86, 0));
    assert!(error.line.contains(&format!("version {}", frame::VERSION)), "{error:?}");
    // A program of the next version recognises that the answer is not of its own.
    assert_eq!(Message::parse(&of_next_version(packet)), Err(FrameError::OtherVersion(frame::VERSION + 1)));
    assert!(matches!(socket::receive(client.as_fd(), FRAME_MAX), Ok(ReceivedPacket::End)));
    ends_well(&mut job);
}

/// Runs a command, whose first connection to `listener` gets the answer `packet`.
fn run_with_answer(listener: &OwnedFd, packet: &[u8], command: &mut Command) -> std::process::Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut client = None;
    eventually("it connects", ARRIVAL, || {
        client = client.take().or(socket::accept(listener.as_fd()).expect("it listens"));
        client.is_some() || child.try_wait().expect("it is a child").is_some()
    });
    // The connection stays open until the command has read the answer.
    let client = client.expect("it has connected");
    send(&client, packet);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_refused_client_does_not_report_that_the_job_has_failed() {
    let name = format!("hostbuf/{}/refuses-{}", nix::unistd::geteuid(), std::process::id());
    let listener = socket::listen_on(&name).expect("the name is free");
    let error = ErrorRecord::new(ErrorClass::Os, "it has no free descriptors");
    let refusal = encode(&Message::Refused { error });
    let said = "the agent of this host has refused this process: it has no free descriptors";
    let mut library = Command::new(probe());
    let output = run_with_answer(&listener, &refusal, library.arg("names").env("HOSTBUF_JOB", &name));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && text.contains(said), "{output:?}");
    // A later image runs without the buffer, and reports it.
    let dir = Scratch::new("refuses");
    let object = dir.path("object.so");
    CommandOutput::of(Command::new(hostbuf()).args(["object", &object])).ok();
    let mut late = Command::new("true");
    late.env("LD_PRELOAD", &object).env("HOSTBUF_JOB", &name).env("HOSTBUF_REPORT", "rank 0 on h0");
    let output = run_with_answer(&listener, &refusal, &mut late);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.lines().count()), (Some(0), 1), "{text}");
    assert!(text.starts_with("hostbuf: no buffer in process ") && text.contains(said), "{text}");
    // With `--require` it ends.
    let output = run_with_answer(&listener, &refusal, late.env("HOSTBUF_REQUIRE", "1"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(86) && text.contains(said), "{output:?}");
}

#[test]
fn an_agent_of_another_version_is_reported_by_every_kind_of_client() {
    let name = format!("hostbuf/{}/version-{}", nix::unistd::geteuid(), std::process::id());
    let listener = socket::listen_on(&name).expect("the name is free");
    let run = |command: &mut Command| {
        let fail = encode(&Message::Fail {
            prints: true,
            error: ErrorRecord::new(ErrorClass::Attach, "unreadable"),
        });
        run_with_answer(&listener, &of_next_version(fail), command)
    };
    let versions = [format!("protocol {}", frame::VERSION + 1), format!("has {}", frame::VERSION)];
    let reports = |output: std::process::Output, status: i32, what: &str| {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| versions.iter().all(|version| line.contains(version)));
        assert!(line.is_some() && output.status.code() == Some(status), "{what}: {:?} {text}", output.status);
    };
    let exec = ["exec", "--socket", &name, "--names", "default", "--"];
    // The preloaded object of a rank; `hostbuf exec` in the place of a static program; the library.
    reports(run(Command::new(hostbuf()).args(exec).arg("true")), 86, "a rank");
    let fixed = fixture("cc", "show.c", &["-static"]);
    if let Ok(fixed) = fixed {
        reports(run(Command::new(hostbuf()).args(exec).arg(fixed)), 86, "a static rank");
    }
    reports(run(Command::new(probe()).arg("names").env("HOSTBUF_JOB", &name)), 3, "the library");
}

#[test]
fn clients_that_never_send_or_never_read_do_not_grow_the_agent() {
    let mut job = waiting_job("burden");
    let agent = job.agent().expect("it serves");
    let before = resident_bytes(agent);
    let kept = connect_abusive_clients(&job.socket);
    let grown = resident_bytes(agent).saturating_sub(before);
    assert!(grown < 128 << 20, "grown by {} MiB", grown >> 20);
    ends_well(&mut job);
    drop(kept);
}

#[test]
fn a_job_withstands_ten_thousand_connections() {
    // The agent allows 64 unidentified clients and closes the oldest of the rest. The test
    // connects in rounds, because this process may open only about 1024 files.
    let mut job = waiting_job("crowd-starts");
    let name = job.socket.clone();
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut round: Vec<OwnedFd> = Vec::new();
                    while round.len() < 300 && !stop.load(Ordering::Relaxed) {
                        let Ok(connection) = socket::connect(&name, None) else { break };
                        if round.len().is_multiple_of(3) {
                            send(&connection, b"rubbish");
                        }
                        round.push(connection);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Many clients connect before the ranks do, while they connect, and until they have left.
        let half = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("half of them", ARRIVAL, || count.load(Ordering::Relaxed) >= 10_000);
            assert!(descriptors(job.agent().expect("the process runs")) < 250);
            ends_well(&mut job);
        }));
        stop.store(true, Ordering::Relaxed);
        half.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });

    let job = running_job("crowd-runs");
    let agent = job.agent().expect("it serves");
    let before = resident_bytes(agent);
    for _ in 0..25 {
        let round: Vec<OwnedFd> = (0..400).map(|_| connect(&job.socket)).collect();
        drop(round);
    }
    still_serves(&job.socket);
    assert!(resident_bytes(agent).saturating_sub(before) < 16 << 20);
}

#[test]
fn the_agent_refuses_another_user() {
    let Some(other) = OtherUser::new("another user who connects to the agent") else { return };
    let job = running_job("other-client");
    let outcome =
        CommandOutput::of(other.command(other.program(&probe())).args(["request-memory", &job.socket])).ok();
    assert_eq!(outcome.stdout, "got nothing, nothing, nothing\n", "{outcome:?}");
    still_serves(&job.socket);
}

/// Returns the name of the agent's socket for `hostbuf exec` in a job whose PMIx namespace is
/// `namespace`.
pub fn name_for(namespace: &str) -> String {
    let half = |basis: u64| {
        format!("pmix/{namespace}")
            .bytes()
            .fold(basis, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23))
    };
    let hash = u128::from(half(0xcbf2_9ce4_8422_2325)) << 64 | u128::from(half(0x8422_2325_cbf2_9ce4));
    format!("hostbuf/{}/{hash:032x}", nix::unistd::geteuid())
}

#[test]
fn a_socket_name_taken_by_another_user_is_detected() {
    let namespace = format!("hostbuf-test-{}", std::process::id());
    let exec = || {
        let mut command = Command::new("timeout");
        command.args(["20"]).arg(hostbuf()).args(["exec", "--size", "1M", "--", "echo", "ran"]);
        CommandOutput::of(command.env("PMIX_NAMESPACE", &namespace))
    };
    // The name is the right one: without another process on it the job runs.
    assert_eq!(exec().ok().stdout, "ran\n");
    eventually("its agent has gone", SOON, || socket::connect(&name_for(&namespace), None).is_err());
    let Some(other) = OtherUser::new("another user who takes the agent's name") else { return };
    let dir = Scratch(other.own_folder("bind-name"));
    let folder = dir.0.to_str().expect("UTF-8");
    let mut command = other.command(other.program(&probe()));
    command.args(["bind-name", folder, &name_for(&namespace)]).stdin(Stdio::null());
    let mut holder = command.spawn().expect("the probe starts");
    eventually("the name is taken", ARRIVAL, || {
        dir.has("bound.0") || holder.try_wait().expect("the process is a child of this one").is_some()
    });
    let begun = Instant::now();
    let outcome = exec();
    kill_now(holder.id() as i32);
    let _ = holder.wait();
    assert!(dir.has("bound.0"), "it could not take the name");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.said().len()), (86, "", 1), "{outcome:?}");
    let words = ["hostbuf exec: ", "user 65534", &name_for(&namespace)];
    assert!(words.iter().all(|w| outcome.stderr.contains(w)), "{outcome:?}");
    // After the name is free again the job runs.
    assert_eq!(exec().ok().stdout, "ran\n");
}

#[test]
fn an_agent_without_descriptors_reports_the_limit_at_once() {
    let script =
        format!("ulimit -n 16; exec {} run --launcher local -n 40 --size 1M -- true", hostbuf().display());
    let outcome = CommandOutput::of(Command::new("sh").args(["-c", &script]));
    assert_eq!(outcome.status, 85, "{outcome:?}");
    let line =
        outcome.stderr.lines().find(|line| line.starts_with("hostbuf run: ")).expect("one line says why");
    assert!(line.contains("limited to 16 open files (`ulimit -n`)"), "{line}");
}
