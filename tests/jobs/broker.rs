//! `hostbuf broker`: its start, its sockets, and its end.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_os::encode;
use hostbuf_os::socket::{self, ReceivedPacket};
use hostbuf_pool::{BrokerRefusal, Pool, PoolError, PoolKind, PoolMode, PoolOptions, ProducerOptions};
use hostbuf_protocol::message::{Hello, Message, Role};
use hostbuf_tests::{CommandOutput, Scratch, eventually, hostbuf, processes_with, program, run, skip};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::arguments::one_line;
use crate::other_user::OtherUser;
use crate::running_broker::{RunningBroker, SOON, small_blocks, socket_name};

#[test]
fn a_signal_ends_a_broker_and_nothing_remains() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let folder = Scratch::new(&format!("broker-end-{signal}"));
        let path = folder.path("pool.socket");
        let broker = RunningBroker::start(&format!("end-{signal}"), &["--path", &path, "--limit", "100M"]);
        let expected = format!(
            "hostbuf broker: listening on @{} and {path} (limit 100 MiB, 100 MiB for each client)\n",
            broker.name
        );
        assert_eq!(broker.line, expected);
        let pool = Pool::connect(broker.options("by name").path(&path)).expect("it listens at the path");
        assert_eq!(pool.kind(), PoolKind::Shared);
        let _producer = pool.producer(&small_blocks("camera")).expect("there is memory");
        let name = broker.name.clone();
        broker.signal(signal);
        let (status, rest) = broker.wait();
        assert_eq!((status.code(), rest.as_str()), (Some(0), ""));
        assert_eq!(fs::read_dir(&folder.0).expect("it is there").count(), 0);
        assert!(socket::connect(&name, None).is_err());
    }
}

#[test]
fn a_broker_under_nohup_ignores_the_hangup() {
    let name = socket_name("nohup");
    let script = "trap '' HUP; exec \"$0\" broker --name \"$1\"";
    let mut command = Command::new("sh");
    let broker = RunningBroker::spawn(name.clone(), command.args(["-c", script]).arg(hostbuf()).arg(name));
    broker.signal(Signal::SIGHUP);
    // It answers after the signal.
    assert!(broker.connect("client").status().is_ok());
    broker.signal(Signal::SIGTERM);
    assert_eq!(broker.wait().0.code(), Some(0));
}

#[test]
fn a_taken_socket_is_refused_with_the_process_that_has_it() {
    let folder = Scratch::new("broker-taken");
    let path = folder.path("pool.socket");
    let broker = RunningBroker::start("taken", &["--path", &path]);
    let owner = format!("process {} (hostbuf) listens there already", broker.pid());
    let remedy = "use that broker (hostbuf stat shows it), end process";
    let second = run(&["broker", "--name", &broker.name]);
    one_line(&second, 85, &["hostbuf broker: ", &broker.name, &owner, remedy, "(--name)"]);
    let other = socket_name("taken-other");
    let second = run(&["broker", "--name", &other, "--path", &path]);
    one_line(&second, 85, &["hostbuf broker: ", &path, &owner, remedy, "(--path)"]);
    // Neither attempt has disturbed the first broker.
    assert!(Pool::connect(broker.options("client").path(&path)).expect("it listens").status().is_ok());
}

#[test]
fn the_path_of_a_killed_broker_is_replaced() {
    let folder = Scratch::new("broker-killed");
    let path = folder.path("pool.socket");
    let broker = RunningBroker::start("killed", &["--path", &path]);
    broker.signal(Signal::SIGKILL);
    assert_eq!(broker.wait().0.signal(), Some(libc::SIGKILL));
    assert!(folder.has("pool.socket"));
    let next = RunningBroker::start("killed", &["--path", &path]);
    assert!(Pool::connect(next.options("client").path(&path)).expect("it listens").status().is_ok());
}

#[test]
fn only_a_socket_is_replaced_at_the_path() {
    let folder = Scratch::new("broker-path");
    let (name, file) = (socket_name("path"), folder.path("data"));
    fs::write(&file, "data").expect("the folder is writable");
    one_line(&run(&["broker", "--name", "a\nb"]), 2, &["invalid name \"a\\nb\"", "control character"]);
    let refused = run(&["broker", "--name", &name, "--path", &file]);
    one_line(&refused, 2, &["invalid path", &file, "the file there is not a socket"]);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "data");
    let long = folder.path(&"x".repeat(100));
    one_line(&run(&["broker", "--name", &name, "--path", &long]), 2, &["invalid path", "at most 103"]);
    let lost = folder.path("missing/pool.socket");
    one_line(&run(&["broker", "--name", &name, "--path", &lost]), 85, &[&lost, "No such file"]);
}

#[test]
fn other_files_beside_the_path_are_kept() {
    let folder = Scratch::new("broker-beside");
    let (name, path) = (socket_name("beside"), folder.path("data"));
    let (new, lock) = (folder.path("data.new"), folder.path("data.lock"));
    let attempt = || run(&["broker", "--name", &name, "--path", &path]);
    fs::write(&lock, "text").expect("the folder is writable");
    one_line(&attempt(), 85, &[&lock, "is not an empty file of this user", "--path"]);
    assert_eq!(fs::read_to_string(&lock).expect("it is there"), "text");
    fs::remove_file(&lock).expect("it is there");
    symlink(folder.path("elsewhere"), &lock).expect("it is new");
    one_line(&attempt(), 85, &[&lock, "is not a lock file", "--path"]);
    assert!(!folder.has("elsewhere"));
    fs::remove_file(&lock).expect("it is there");
    fs::write(&new, "text").expect("the folder is writable");
    one_line(&attempt(), 85, &[&new, "is not a socket", "--path"]);
    assert_eq!(fs::read_to_string(&new).expect("it is there"), "text");
}

/// As after a program that cleans up old files.
#[test]
fn a_broker_without_its_lock_file_leaves_the_path_to_another_one() {
    let folder = Scratch::new("broker-unlocked");
    let path = folder.path("pool.socket");
    let first = RunningBroker::start("unlocked-first", &["--path", &path]);
    fs::remove_file(folder.path("pool.socket.lock")).expect("it is there");
    let second = RunningBroker::start("unlocked-second", &["--path", &path]);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait().0.code(), Some(0));
    assert!(folder.has("pool.socket") && folder.has("pool.socket.lock"));
    assert!(Pool::connect(second.options("client").path(&path)).expect("it listens").status().is_ok());
}

#[test]
fn a_linger_time_of_ages_is_no_panic() {
    let broker = RunningBroker::start("ages", &["--linger", "9223372036854775807"]);
    let pool = broker.connect("client");
    drop(pool.producer(&ProducerOptions::new(4096, 2)).expect("there is memory"));
    assert!(pool.status().is_ok());
}

#[test]
fn invalid_arguments_are_refused() {
    for (arguments, words) in [
        (&["--limit", "0"][..], &["--limit 0: the pool would have no memory"][..]),
        (&["--limit", "1G", "--per-client", "2G"], &["--per-client 2 GiB is more than --limit 1 GiB"]),
        (
            &["--gpu-limit", "1G", "--gpu-per-client", "2G"],
            &["--gpu-per-client 2 GiB is more than --gpu-limit 1 GiB"],
        ),
        (&["--idle", "soon"], &["invalid value 'soon' for '--idle", "60, 60s or 0.5"]),
        (&["--name", "@x"], &["invalid --name \"@x\""]),
        (&["--limits", "1G"], &["did you mean --limit?", "see hostbuf broker --help"]),
    ] {
        one_line(&run(&[&["broker"], arguments].concat()), 2, words);
    }
}

#[test]
fn an_unused_broker_ends_after_its_idle_time() {
    let broker = RunningBroker::start("idle", &["--idle", "0.2"]);
    let pool = broker.connect("client");
    drop(pool);
    assert_eq!(broker.wait().0.code(), Some(0));
}

#[test]
fn a_service_manager_passes_its_socket() {
    let name = socket_name("activated");
    let listener = socket::listen_on(&name).expect("the name is free");
    // No broker has the socket yet, so the message does not tell to end the service manager.
    let options = PoolOptions::new("client").mode(PoolMode::Required).socket(&name);
    let error = Pool::connect(options.timeout(Duration::from_millis(100))).map(drop).expect_err("no broker");
    assert!(matches!(error, PoolError::Timeout { broker: None, .. }), "{error}");
    assert!(error.to_string().contains("ss -xlp"), "{error}");
    // The shell passes its standard input as descriptor 3, as a service manager does.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" broker --name unused";
    let mut command = Command::new("sh");
    let listener_of_broker = listener.try_clone().expect("a descriptor");
    command.args(["-c", script]).arg(hostbuf()).stdin(Stdio::from(listener_of_broker));
    let broker = RunningBroker::spawn(name.clone(), &mut command);
    assert!(broker.line.contains(&format!("listening on @{name} (limit")), "{}", broker.line);
    assert!(broker.connect("client").producer(&small_blocks("camera")).is_ok());
    // Not the process that has opened the socket.
    let second = CommandOutput::of(Command::new(hostbuf()).args(["broker", "--name", &name]));
    one_line(&second, 85, &[&format!("process {} (hostbuf) listens there already", broker.pid())]);
    // A client that connects between two brokers waits for the second one.
    broker.signal(Signal::SIGTERM);
    assert_eq!(broker.wait().0.code(), Some(0));
    let early = std::thread::spawn({
        let name = name.clone();
        move || Pool::connect(PoolOptions::new("early").mode(PoolMode::Required).socket(name)).map(drop)
    });
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(hostbuf()).stdin(Stdio::from(listener));
    let broker = RunningBroker::spawn(name, &mut command);
    early.join().expect("it does not panic").expect("the second broker answers");
    drop(broker);
}

#[test]
fn a_descriptor_that_is_no_socket_of_a_broker_is_refused() {
    let folder = Scratch::new("broker-descriptor");
    let stream = UnixListener::bind(folder.path("stream")).expect("the folder is writable");
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" broker";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(hostbuf()).stdin(Stdio::from(OwnedFd::from(stream)));
    let output = command.output().expect("it starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("descriptor 3 of the service manager") && said.contains("ListenSequentialPacket="));
}

#[test]
fn clients_that_start_at_once_have_one_broker() {
    let name = socket_name("auto");
    let client = || {
        let mut command = Command::new(program("pool_client"));
        command.arg(&name).env("HOSTBUF_POOL", "auto").env("HOSTBUF_COMMAND", hostbuf());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts")
    };
    let mut clients: Vec<Child> = (0..4).map(|_| client()).collect();
    let lines: Vec<String> = clients
        .iter_mut()
        .map(|client| {
            let mut line = String::new();
            let output = client.stdout.take().expect("it is piped");
            BufReader::new(output).read_line(&mut line).expect("text");
            line
        })
        .collect();
    assert!(lines[0].starts_with("Shared ") && lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    let pid: i32 = lines[0].split_whitespace().last().and_then(|pid| pid.parse().ok()).expect("a number");
    let brokers = || {
        let all = processes_with(&name).into_iter();
        all.filter(|(_, command)| command.contains("broker")).map(|(pid, _)| pid).collect::<Vec<_>>()
    };
    eventually("the other brokers have ended", SOON, || brokers() == [pid]);
    // A broker that dies while it has clients has one successor. Several clients may have started
    // one, and those that do not serve end by themselves: its own answer tells which one serves.
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    let mut successor = pid;
    eventually("another broker serves", SOON, || {
        let options = PoolOptions::new("another").mode(PoolMode::Required).socket(name.clone());
        let Ok(status) = Pool::connect(options).and_then(|pool| pool.status()) else { return false };
        let status: Value = serde_json::from_str(&status).expect("JSON");
        successor = status["pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("a process");
        successor != pid
    });
    eventually("it is the only one", SOON, || brokers() == [successor]);
    let pid = successor;
    for mut client in clients {
        // The end of its standard input ends it.
        assert!(client.wait().expect("a child").success());
    }
    // It has no controlling client, and would end by itself after a minute.
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    eventually("the broker has ended", SOON, || brokers().is_empty());
}

#[test]
fn a_client_does_not_wait_for_a_broker_that_ends_at_once() {
    let name = socket_name("no-broker");
    let mut command = Command::new(program("pool_client"));
    command.arg(&name).env("HOSTBUF_POOL", "auto").env("HOSTBUF_COMMAND", "/bin/false");
    let begun = Instant::now();
    let said = String::from_utf8(command.output().expect("it starts").stderr).expect("text");
    let line = format!(
        "the broker (/bin/false broker --name {name}) has ended at once: run that command to see why"
    );
    assert!(said.contains(&line), "{said}");
    assert!(begun.elapsed() < PoolOptions::TIMEOUT / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_verbose_broker_prints_the_clients_that_come_and_go() {
    let (name, folder) = (socket_name("verbose"), Scratch::new("verbose"));
    let log = folder.path("log");
    let mut command = Command::new(hostbuf());
    command.args(["broker", "--verbose", "--name", &name]).env_remove("HOSTBUF_LOG");
    let broker =
        RunningBroker::spawn(name, command.stderr(fs::File::create(&log).expect("the folder is writable")));
    drop(broker.connect("visitor"));
    let has = |what: &str| {
        let text = fs::read_to_string(&log).expect("text");
        text.lines().any(|line| line.contains(what) && line.contains("visitor (process"))
    };
    eventually("it comes", SOON, || has("a client has connected"));
    eventually("it goes", SOON, || has("a client has ended"));
}

#[test]
fn a_broker_without_descriptors_does_not_start() {
    let command =
        format!("ulimit -n 32 && exec {} broker --name {}", hostbuf().display(), socket_name("few"));
    let outcome = CommandOutput::of(Command::new("sh").args(["-c", &command]));
    one_line(&outcome, 2, &["the limit on descriptors is 32 (ulimit -n)", "at least 64"]);
}

/// A stopped broker does not accept connections. The kernel keeps some for it, and then none.
#[test]
fn connecting_to_a_stopped_broker_ends_in_time() {
    let broker = RunningBroker::start("full", &[]);
    broker.stop();
    let doctor = || {
        let mut command = Command::new(hostbuf());
        CommandOutput::of(command.arg("doctor").env("HOSTBUF_POOL", broker.variable())).stdout
    };
    let stopped = format!("process {} (hostbuf) listens on @{}, but is stopped", broker.pid(), broker.name);
    let said = doctor();
    assert!(said.contains(&stopped) && said.contains(&format!("kill -CONT {}", broker.pid())), "{said}");
    let limit = Duration::from_millis(300);
    let connect = || Pool::connect(broker.options("client").timeout(limit)).map(drop);
    let timeout = |result| matches!(result, Err(PoolError::Timeout { limit: after, .. }) if after == limit);
    let error = connect().expect_err("the broker answers no hello");
    assert!(error.to_string().contains(&format!("(process {}) has not answered", broker.pid())), "{error}");
    assert!(timeout(Err(error)));
    // The queue of the socket holds more than 1024 connections.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(4096)), hard).expect("the hard limit allows it");
    let mut kept = Vec::new();
    let full = loop {
        match socket::connect(&broker.name, Some(Duration::ZERO)) {
            Ok(connection) => kept.push(connection),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::TimedOut, "after {} connections: {full}", kept.len());
    let begun = Instant::now();
    assert!(timeout(connect()), "the broker accepts no connection");
    assert!(begun.elapsed() >= limit && begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let said = doctor();
    assert!(said.contains("accepts no connections: it may be stopped"), "{said}");
    let second = CommandOutput::of(Command::new(hostbuf()).args(["broker", "--name", &broker.name]));
    one_line(&second, 85, &["another process listens there already"]);
    let stat = CommandOutput::of(Command::new(hostbuf()).arg("stat").env("HOSTBUF_POOL", broker.variable()));
    assert!(stat.status == 1 && stat.stdout.contains("find its process with ss -xlp"), "{stat:?}");
    drop(kept);
    broker.signal(Signal::SIGCONT);
    eventually("the broker serves again", SOON, || connect().is_ok());
}

#[test]
fn requests_to_a_stopped_broker_end_in_time() {
    let broker = RunningBroker::start("stopped", &[]);
    let limit = Duration::from_millis(300);
    let client = Pool::connect(broker.options("client").timeout(limit)).expect("the broker listens");
    let producers: Vec<_> =
        (0..8).map(|_| client.producer(&ProducerOptions::new(4096, 2)).expect("there is memory")).collect();
    broker.stop();
    // More requests than the socket has room for, which the broker does not read.
    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..600).map(|_| scope.spawn(|| client.status().is_err())).collect();
        assert!(requests.into_iter().all(|request| request.join().expect("no panic")));
    });
    let begun = Instant::now();
    drop(producers);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    broker.signal(Signal::SIGCONT);
    // It learns that the client has given up its segments.
    eventually("no segment is left", SOON, || {
        let status = client.status().ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
        status.is_some_and(|status| status["segments"] == json!([]))
    });
}

#[test]
fn refusals_state_the_limits_and_the_holders() {
    let broker = RunningBroker::start("limits", &["--limit", "16M", "--per-client", "10M"]);
    let (first, second) = (broker.connect("first"), broker.connect("second"));
    let _segment = first.producer(&ProducerOptions::new(2 << 20, 4)).expect("8 MiB are within both limits");
    let beyond_own = first.producer(&ProducerOptions::new(2 << 20, 4)).expect_err("16 MiB");
    let beyond_pool = second.producer(&ProducerOptions::new(2 << 20, 4)).expect_err("16 MiB and the tables");
    for (error, words) in [
        (beyond_own, ["--per-client", "10 MiB", "use fewer or smaller blocks"]),
        (beyond_pool, ["--limit", "16 MiB", &format!("first (process {})", std::process::id())]),
    ] {
        let text = error.to_string();
        assert!(matches!(error, PoolError::Refused(BrokerRefusal::NoSpace { .. })), "{error:?}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}

#[test]
fn garbage_and_silent_connections_do_not_disturb_a_client() {
    let broker = RunningBroker::start("garbage", &[]);
    let client = broker.connect("client");
    let producer = client.producer(&small_blocks("camera")).expect("there is memory");
    let connect = || socket::connect(&broker.name, None).expect("it listens");
    let mut silent = Vec::new();
    for round in 0..1000u32 {
        let connection = connect();
        let garbage: Vec<u8> = (0..round % 300).map(|byte| (byte * 7 + round) as u8).collect();
        // The broker may have closed the connection.
        let _ = socket::send(connection.as_fd(), &garbage, &[]);
        silent.push(connect());
        if round % 100 == 0 {
            drop(producer.take_timeout(SOON).expect("a free block"));
            let another = broker.connect("another");
            assert!(another.producer(&small_blocks("another")).is_ok());
        }
    }
    assert!(client.status().is_ok());
}

#[test]
fn another_user_is_refused() {
    let Some(other) = OtherUser::new("a client of another user") else { return };
    let broker = RunningBroker::start("user", &[]);
    let outcome =
        CommandOutput::of(other.command(other.hostbuf()).arg("stat").env("HOSTBUF_POOL", broker.variable()));
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let why = "the socket belongs to user 0, and this process to user 65534";
    assert!(outcome.stdout.contains(why), "{outcome:?}");
    // The name of the socket is not free for the other user.
    let taken = CommandOutput::of(other.command(other.hostbuf()).args(["broker", "--name", &broker.name]));
    let owner = format!("process {} (hostbuf) of user 0 listens there already", broker.pid());
    one_line(&taken, 85, &[&owner]);
}

/// Connects as another user, says hello, and returns whether there was an answer.
#[allow(unsafe_code, reason = "changes the user of one thread, which the C library does not offer")]
fn is_answered_as(uid: libc::uid_t, name: &str) -> bool {
    // SAFETY: the system call changes the credentials of this thread only, which ends soon.
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    assert_eq!(changed, 0, "root becomes another user");
    let connection = socket::connect(name, None).expect("all users reach an abstract name");
    let hello = Message::Hello { hello: Hello::of(Role::PoolClient), command: b"intruder" };
    // The broker may have closed the connection.
    let _ = socket::send(connection.as_fd(), &encode(&hello), &[]);
    matches!(socket::receive(connection.as_fd(), 4096), Ok(ReceivedPacket::Packet(..)))
}

#[test]
fn a_client_that_does_not_check_the_user_gets_no_answer() {
    if !nix::unistd::geteuid().is_root() {
        return skip("a client of another user: only root can become another user");
    }
    let broker = RunningBroker::start("intruder", &[]);
    let own = nix::unistd::geteuid().as_raw();
    for (uid, answered) in [(own, true), (65534, false)] {
        let name = broker.name.clone();
        let thread = std::thread::spawn(move || is_answered_as(uid, &name));
        assert_eq!(thread.join().expect("it does not panic"), answered, "user {uid}");
    }
    assert!(broker.connect("client").status().is_ok());
}
