//! One error of each class, followed from its source to the agent's report, the line for the user
//! and the exit status.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use hostbuf_os::{encode, process, socket};
use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};
use hostbuf_protocol::message::Message;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;

use crate::address::all_but;
use crate::other_user::OtherUser;
use crate::running_job::{ARRIVAL, RunningJob, SOON, hold, kill_now};
use hostbuf_tests::{
    CommandOutput, Scratch, agent_of, can_simulate, eventually, fixture, flavours, hostbuf, run, simulated,
};

/// A failed job: its outcome, and the failures that the agents have reported.
struct FailedJob {
    outcome: CommandOutput,
    reports: Vec<Value>,
}

/// A program in the place of an agent: it becomes that agent, and keeps a copy of its reports.
struct RecordingAgent {
    folder: Scratch,
}

impl RecordingAgent {
    fn new(name: &str, agent: &str) -> RecordingAgent {
        let folder = Scratch::new(&format!("errors-{name}"));
        // The launcher may end as soon as it has read a report.
        let script = format!(
            "#!/bin/bash\nexec {agent} \"$@\" > >(while IFS= read -r line; do echo \"$line\" >> {}; echo \"$line\"; done)\n",
            folder.path("reports")
        );
        fs::write(folder.path("agent"), script).expect("the folder is writable");
        fs::set_permissions(folder.path("agent"), Permissions::from_mode(0o755)).expect("our own file");
        RecordingAgent { folder }
    }

    fn path(&self) -> String {
        self.folder.path("agent")
    }

    /// Returns the failures of the agents. The launcher reads them before it ends.
    fn reports(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path("reports")).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.filter(|report: &Value| report["hostbuf"] == "failed").collect()
    }
}

/// Runs `hostbuf run` with the engine `local`.
fn failed(name: &str, arguments: &[&str], set: impl FnOnce(&mut Command)) -> FailedJob {
    let agent = RecordingAgent::new(name, hostbuf().to_str().expect("UTF-8"));
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "--agent", &agent.path()]).args(arguments);
    set(&mut command);
    FailedJob { outcome: CommandOutput::of(&mut command), reports: agent.reports() }
}

impl FailedJob {
    /// Asserts that the status and all reports have one class, that there is one line for the user,
    /// and that it is the line of the reports. Returns that line and the first report.
    #[track_caller]
    fn agrees(&self, status: i32) -> (&str, &Value) {
        let FailedJob { outcome, reports } = self;
        assert_eq!((outcome.status, outcome.said().len()), (status, 1), "{outcome:?}");
        let line = outcome.said()[0].strip_prefix("hostbuf run: ").expect("the launcher prints it");
        assert!(!reports.is_empty(), "{outcome:?}");
        for report in reports {
            assert_eq!(report["status"], status, "{report}");
            assert_eq!(report["message"], line, "{report}");
        }
        (line, &reports[0])
    }
}

#[test]
fn a_lack_of_memory_keeps_its_operands() {
    let job = failed("memory", &["-n", "2", "--size", "10T", "--", "true"], |_| {});
    let (line, report) = job.agrees(83);
    let host = process::host_name();
    assert!(line.starts_with(&format!("not enough memory on {host}: 10 TiB requested, ")), "{line}");
    assert_eq!((&report["host"], &report["rank"]), (&Value::from(host), &Value::Null), "{report}");
    assert_eq!(report["operands"][0], (10u64 << 40).to_string(), "{report}");
    let available: u64 = report["operands"][1].as_str().and_then(|n| n.parse().ok()).expect("a number");
    assert!(line.contains(&format!(" and {available} bytes)")), "{line}");
    let remedy = report["operands"][3].as_str().expect("a text");
    assert!(!remedy.is_empty() && line.ends_with(remedy), "{report}");
}

#[test]
fn a_refusal_of_the_kernel_keeps_its_class() {
    let agent = RecordingAgent::new("kernel", hostbuf().to_str().expect("UTF-8"));
    let mut command = Command::new("prlimit");
    command.arg("--fsize=1048576").arg(hostbuf()).args([
        "run",
        "--launcher",
        "local",
        "--agent",
        &agent.path(),
    ]);
    command.args(["--size", "40M", "--", "true"]);
    let job = FailedJob { outcome: CommandOutput::of(&mut command), reports: agent.reports() };
    let (line, report) = job.agrees(85);
    assert!(line.starts_with("creating a memory file of 41943040 bytes"), "{line}");
    assert_eq!(report["host"], process::host_name(), "{report}");
}

#[test]
fn the_error_of_a_rank_has_its_rank_and_host() {
    // Several programs, so no agent looks for them in advance.
    let job =
        failed("rank", &["-n", "1", "--size", "1M", "--", "true", ":", "-n", "1", "--", "/no/such"], |_| {});
    let (line, report) = job.agrees(127);
    let host = process::host_name();
    assert!(line.starts_with(&format!("rank 1 on {host} (process ")), "{line}");
    assert!(line.ends_with("program \"/no/such\" does not exist"), "{line}");
    assert_eq!((&report["host"], &report["rank"]), (&Value::from(host), &Value::from(1)), "{report}");
}

#[test]
fn a_rank_without_the_demanded_buffer_is_unsupported() {
    let Ok(fixed) = fixture("cc", "show.c", &["-static"]) else { return };
    let fixed = fixed.to_str().expect("UTF-8");
    let job = failed("require", &["-n", "1", "--size", "1M", "--require", "--", fixed], |_| {});
    let (line, report) = job.agrees(82);
    assert!(line.contains("no buffer (--require)"), "{line}");
    assert_eq!(report["rank"], 0, "{report}");
}

#[test]
fn an_address_in_use_names_the_rank_that_differs() {
    let plant = fixture("cc", "plant.c", &[]).expect("it compiles");
    let plant = plant.to_str().expect("UTF-8");
    // The fixture leaves holes of up to 16 MiB beside existing mappings.
    let job = failed("address", &["-n", "2", "--size", "64M", "--", plant], |command| {
        command.env("PLANT_1", all_but(&[]));
    });
    let (line, report) = job.agrees(84);
    let host = process::host_name();
    assert!(line.contains(&format!("rank 1 on {host}: ")), "{line}");
    assert_eq!((&report["host"], &report["rank"]), (&Value::from(host), &Value::from(1)), "{report}");
    let why = report["operands"][0].as_str().expect("a text");
    assert!(!why.is_empty() && line.ends_with(why), "{report}");
}

#[test]
fn a_rank_that_ends_too_early_is_lost() {
    let mut job =
        RunningJob::start("errors-lost", "size=1M", &["-n", "2"], &["sleep", "1000"], |command, dir| {
            command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "1").env("HOLD_AT", "image");
            command.env("HOLD_FILE", dir.path("held"));
        });
    eventually("rank 1 is held", ARRIVAL, || job.dir.has("held"));
    let rank = job.rank(1).expect("it is held");
    kill_now(rank);
    let status = job.end(SOON);
    let err = job.err();
    assert_eq!((status.code(), err.lines().count()), (Some(87), 1), "{err}");
    // The agent or the launcher is the first to see it.
    assert!(err.contains(&format!("rank 1 on {} (process {rank})", process::host_name())), "{err}");
    job.leaves_nothing("lost");
}

#[test]
fn a_killed_agent_is_reported_once() {
    let ended =
        "hostbuf run: the agent of this host was ended before all ranks had the buffer by signal 9 (SIGKILL)";
    // Rank 0 reports under other launchers. It reaches these places before the agent ends, and the
    // end of the agent afterwards.
    for at in ["exec", "image", "ballot", "agreed"] {
        let mut job =
            RunningJob::start("errors-agent", "size=1M", &["-n", "4"], &["sleep", "1000"], |command, dir| {
                command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "0").env("HOLD_AT", at);
                command.env("HOLD_FILE", dir.path("held"));
            });
        eventually("rank 0 is held", ARRIVAL, || job.dir.has("held"));
        let agent = job.agent().expect("it serves");
        // The launcher reads of the agent's end only after the ranks have done so.
        let _ = kill(Pid::from_raw(job.pid()), Signal::SIGSTOP);
        kill_now(agent);
        fs::write(job.dir.path("held.go"), "").expect("the folder is writable");
        eventually("the ranks end", ARRIVAL, || (0..4).all(|rank| job.rank(rank).is_none()));
        let _ = kill(Pid::from_raw(job.pid()), Signal::SIGCONT);
        let status = job.end(SOON);
        let err = job.err();
        assert_eq!((status.code(), err.lines().collect::<Vec<_>>()), (Some(86), vec![ended]), "{at}");
        job.leaves_nothing("agent");
    }
}

#[test]
fn an_agent_that_is_lost_behind_another_process_is_reported() {
    let folder = Scratch::new("errors-behind");
    // The launcher learns nothing from its child, which outlives the agent.
    let script = format!(
        "#!/bin/bash\n{} \"$@\" &\necho $! > {}\nwait\nexec sleep 1000\n",
        hostbuf().display(),
        folder.path("pid")
    );
    let wrapper = folder.path("wrapper");
    fs::write(&wrapper, script).expect("the folder is writable");
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).expect("our own file");
    let options = ["-n", "2", "--agent", &wrapper];
    let mut job =
        RunningJob::start("errors-behind", "size=1M", &options, &["sleep", "1000"], |command, dir| {
            command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "0").env("HOLD_AT", "ballot");
            command.env("HOLD_FILE", dir.path("held"));
        });
    eventually("rank 0 is held", ARRIVAL, || job.dir.has("held"));
    let agent = fs::read_to_string(folder.path("pid")).expect("the wrapper has written it");
    kill_now(agent.trim().parse().expect("a number"));
    fs::write(job.dir.path("held.go"), "").expect("the folder is writable");
    let status = job.end(SOON);
    let err = job.err();
    assert_eq!((status.code(), err.lines().count()), (Some(86), 1), "{err}");
    assert!(err.starts_with("hostbuf run: the agent of this host does not continue"), "{err}");
    job.leaves_nothing("behind");
}

#[test]
fn an_invalid_argument_is_reported_before_any_agent_starts() {
    let job = failed("invalid", &["-n", "0", "--size", "1M", "--", "true"], |_| {});
    assert_eq!((job.outcome.status, job.reports.len()), (2, 0), "{:?}", job.outcome);
    assert_eq!(job.outcome.said(), ["hostbuf run: -n 0: a job has at least one rank"]);
}

#[test]
fn another_user_gets_the_class_of_a_failed_attachment() {
    let Some(other) = OtherUser::new("attaching to another user's job") else { return };
    let name = format!("hostbuf/errors/{}", std::process::id());
    let _listener = socket::listen_on(&name).expect("the name is free");
    let mut command = other.command(other.hostbuf());
    command.args(["exec", "--socket", &name, "--names", "default", "--", "true"]);
    let outcome = CommandOutput::of(&mut command);
    assert_eq!((outcome.status, outcome.said().len()), (86, 1), "{outcome:?}");
    assert!(outcome.stderr.contains("belongs to user 0, and this process to user 65534"), "{outcome:?}");
}

#[test]
fn a_program_that_demands_the_buffer_reports_that_its_job_is_over() {
    let show = fixture("cc", "show.c", &[]).expect("it compiles");
    let show = show.to_str().expect("UTF-8");
    // The shell reads a line before it starts the program.
    let script = "read x < $0/go; $1; echo status $? > $0/status";
    for (required, status) in [(true, "status 86\n"), (false, "status 0\n")] {
        let options: &[&str] = if required { &["--verbose", "--require"] } else { &["--verbose"] };
        let program = ["sh", "-c", script, "DIR", show];
        let mut job = RunningJob::start("errors-over", "size=1M", options, &program, |_, dir| {
            mkfifo(&dir.0.join("go"), Mode::S_IRWXU).expect("the folder is writable");
        });
        // Opening the pipe waits for the shell, which has its buffer then.
        let mut go = fs::File::options().write(true).open(job.dir.path("go")).expect("it exists");
        // Until then the end of the agent ends the job.
        eventually("the launcher knows of it", ARRIVAL, || job.err().contains("hostbuf: agreed on "));
        kill_now(job.agent().expect("it serves the shell"));
        eventually("the agent has ended", ARRIVAL, || job.agent().is_none());
        go.write_all(b"\n").expect("the shell reads");
        job.end(SOON);
        let err = job.err();
        assert_eq!(fs::read_to_string(job.dir.path("status")).unwrap_or_default(), status, "{err}");
        let verbose =
            |line: &&str| line.starts_with("hostbuf: starting") || line.starts_with("hostbuf: agreed");
        let said: Vec<&str> = err.lines().filter(|line| !verbose(line)).collect();
        assert_eq!(said.len(), usize::from(required), "{err}");
        if let [line] = said[..] {
            let end = format!(
                ", {show} (rank 0 on {}): the job is over, and its agent has ended (--require)",
                process::host_name()
            );
            assert!(line.starts_with("hostbuf: no buffer in process ") && line.ends_with(&end), "{err}");
        }
        job.leaves_nothing("over");
    }
}

#[test]
fn a_program_that_demands_the_buffer_has_the_error_of_its_failed_job() {
    let folder = Scratch::new("errors-failed");
    let object = folder.path("object.so");
    run(&["object", &object]).ok();
    let name = format!("hostbuf/errors-failed/{}", std::process::id());
    let listener = socket::listen_on(&name).expect("the name is free");
    let show = fixture("cc", "show.c", &[]).expect("it compiles");
    for (required, status) in [("1", 83), ("", 0)] {
        let mut command = Command::new(&show);
        command.env("LD_PRELOAD", &object).env("HOSTBUF_JOB", &name).env("HOSTBUF_REQUIRE", required);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut client = None;
        eventually("the object connects", ARRIVAL, || {
            client = socket::accept(listener.as_fd()).expect("it listens");
            client.is_some()
        });
        let fail =
            Message::Fail { prints: false, error: ErrorRecord::new(ErrorClass::NoSpace, "no memory on h1") };
        let client = client.expect("it has connected");
        socket::send(client.as_fd(), &encode(&fail), &[]).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert_eq!(said.lines().count(), usize::from(status != 0), "{said}");
        assert!(status == 0 || said.ends_with(": no memory on h1 (--require)\n"), "{said}");
    }
}

#[test]
fn a_rank_distinguishes_the_end_of_its_agent_from_its_own_errors() {
    let folder = Scratch::new("errors-connection");
    let object = folder.path("object.so");
    run(&["object", &object]).ok();
    let show = fixture("cc", "show.c", &[]).expect("it compiles");
    let name = format!("hostbuf/errors-connection/{}", std::process::id());
    let listener = socket::listen_on(&name).expect("the name is free");
    // `hostbuf exec` hands a connection over like this: the process keeps its number.
    let rank = |connection: &OwnedFd| {
        let kept = nix::unistd::dup(connection).expect("a descriptor is free");
        let script = "exec env LD_PRELOAD=$0 HOSTBUF_JOB=$1 HOSTBUF_CONNECTION=$2:$$ $3";
        let mut command = Command::new("sh");
        command.args(["-c", script, &object, &name, &kept.as_raw_fd().to_string()]).arg(&show);
        CommandOutput::of(&mut command)
    };
    let connected = |last: Option<Message<'_>>| {
        let client = socket::connect(&name, None).expect("it listens");
        let server = socket::accept(listener.as_fd()).expect("it listens").expect("a client has connected");
        if let Some(message) = last {
            socket::send(server.as_fd(), &encode(&message), &[]).expect("it reads");
        }
        client
    };
    let reason =
        Message::Fail { prints: true, error: ErrorRecord::new(ErrorClass::NoSpace, "no memory on h1") };
    for (connection, status, beginning) in [
        // A socket that is no connection: ENOTCONN.
        (&listener, 85, "hostbuf: sending a message to the agent of this host failed, error 107 (process "),
        (
            &connected(None),
            86,
            "hostbuf: the agent of this host ended before the buffer was agreed on (process ",
        ),
        (&connected(Some(reason)), 83, "hostbuf: no memory on h1"),
    ] {
        let outcome = rank(connection);
        assert_eq!((outcome.status, outcome.said().len()), (status, 1), "{outcome:?}");
        assert!(outcome.stderr.starts_with(beginning), "{outcome:?}");
    }
}

#[test]
fn an_error_is_the_same_under_an_mpi() {
    if !can_simulate() {
        return;
    }
    let plant = fixture("cc", "plant.c", &[]).expect("it compiles");
    for flavour in flavours() {
        let agent = agent_of(&flavour);
        for (what, status, words) in [
            ("-n 2 --size 10T -- true".to_owned(), 83, "not enough memory on h0: 10 TiB requested, "),
            ("-n 1 --size 1M -- true : -n 1 -- /no/such".to_owned(), 127, "rank 1 on h0 (process "),
            (format!("-n 2 --size 1M -- {}", plant.display()), 84, "no agreement among the ranks: rank "),
        ] {
            let recording =
                RecordingAgent::new(&format!("{flavour}-{status}"), agent.to_str().expect("UTF-8"));
            let export = if flavour.starts_with("openmpi") {
                "--launcher-arg -x --launcher-arg PLANT_0 --launcher-arg -x --launcher-arg PLANT_1"
            } else {
                ""
            };
            let plants = all_but(&[]);
            let script = format!(
                "export PLANT_0={plants} PLANT_1={plants}\n\
                 timeout 60 $HOSTBUF run --mpirun $MPIRUN --agent {} {export} {what}",
                recording.path()
            );
            let outcome = simulated(1, &flavour, &script);
            let line = outcome.stderr.lines().find_map(|line| line.strip_prefix("hostbuf run: "));
            let line = line.unwrap_or_else(|| panic!("{flavour}: {outcome:?}"));
            assert_eq!(outcome.status, status, "{flavour}: {outcome:?}");
            assert!(line.starts_with(words), "{flavour}: {line}");
            let reports = recording.reports();
            assert!(!reports.is_empty(), "{flavour}: {outcome:?}");
            for report in reports {
                assert_eq!(
                    (&report["status"], &report["message"]),
                    (&status.into(), &line.into()),
                    "{report}"
                );
                assert_eq!(report["host"], "h0", "{report}");
            }
        }
    }
}
