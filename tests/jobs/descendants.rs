//! Processes that a rank has started end with the job, and a rank that a signal ends is named.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use hostbuf_os::process;
use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, eventually, fixture, flavours, hostbuf, local, simulated,
};
use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;

use crate::running_job::{ARRIVAL, RunningJob, SOON, kill_now, remains};

/// The relation of a rank's child to it (tests/fixtures/family.c).
const RELATIONS: [&[&str]; 2] = [&[], &["daemon"]];

/// Starts a job of a rank with a child of the given relation, and of the programs in `more`.
fn family(mark: &str, flags: &[&str], relation: &[&str], more: &[&str]) -> RunningJob {
    let program = fixture("cc", "family.c", flags).expect("a C compiler is there");
    let program = [&[program.to_str().expect("UTF-8"), "DIR"], relation, more].concat();
    let job = RunningJob::start(mark, "size=1M", &["-n", "1"], &program, |_, _| {});
    eventually("the rank's child", ARRIVAL, || job.dir.has("child"));
    job
}

/// Checks that all processes of the job have ended with the launcher.
#[track_caller]
fn nothing_is_left(job: &RunningJob, what: &str) {
    let left = job.remains();
    assert!(left.is_empty(), "{what}: {left:#?}\n{}", job.err());
}

#[test]
fn a_signal_ends_the_descendants_of_the_ranks() {
    for relation in RELATIONS {
        for flags in [&[][..], &["-static"]] {
            for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
                let what = format!("{relation:?} {flags:?} {signal}");
                let mut job = family(&format!("signalled-{signal}"), flags, relation, &[]);
                kill(Pid::from_raw(job.pid()), signal).expect("the process is a child of this one");
                assert_eq!(job.end(SOON).code(), Some(128 + signal as i32), "{what}: {}", job.err());
                assert_eq!(job.err(), "", "{what}: the launcher reports only signals of others");
                nothing_is_left(&job, &what);
            }
        }
    }
}

#[test]
fn a_failing_rank_ends_the_descendants_of_the_other_ranks() {
    for relation in RELATIONS {
        // The other rank fails when the first one has a child.
        let fails = "until [ -e $0/child ]; do read -t 0.01 <> <(:); done; exit 3";
        let second = [":", "-n", "1", "--", "bash", "-c", fails, "DIR"];
        let mut job = family("failing", &[], relation, &second);
        assert_eq!(job.end(SOON).code(), Some(3), "{relation:?}: {}", job.err());
        nothing_is_left(&job, &format!("{relation:?}"));
    }
}

#[test]
fn processes_that_a_rank_leaves_behind_end_after_a_successful_job() {
    for relation in RELATIONS {
        let relation = [relation, &["leave"]].concat();
        let mut job = family("leaving", &[], &relation, &[]);
        assert_eq!(job.end(SOON).code(), Some(0), "{relation:?}: {}", job.err());
        assert_eq!(job.err(), "");
        nothing_is_left(&job, &format!("{relation:?}"));
    }
}

#[test]
fn a_process_that_ignores_sigterm_is_killed() {
    let mut job = family("deaf", &[], &["daemon", "deaf"], &[]);
    kill(Pid::from_raw(job.pid()), Signal::SIGTERM).expect("the process is a child of this one");
    assert_eq!(job.end(3 * SOON).code(), Some(143), "{}", job.err());
    nothing_is_left(&job, "deaf");
}

#[test]
fn a_killed_launcher_leaves_no_process_of_its_job() {
    for (flags, relation) in
        [(&[][..], &[][..]), (&[], &["daemon"]), (&[], &["daemon", "deaf"]), (&["-static"], &["daemon"])]
    {
        let mut job = family("orphaned", flags, relation, &[]);
        kill_now(job.pid());
        job.end(SOON);
        let begun = Instant::now();
        eventually(&format!("{flags:?} {relation:?}: the end of all processes"), 3 * SOON, || {
            job.remains().is_empty()
        });
        let deaf = relation.contains(&"deaf");
        assert_eq!(
            begun.elapsed() > Duration::from_secs(4),
            deaf,
            "{relation:?}: SIGKILL comes after a while"
        );
    }
}

/// A shell that replaces itself by the launcher leaves its background processes as children of the
/// launcher. They do not belong to the job.
#[test]
fn a_process_from_before_the_job_survives() {
    for (program, status) in [("true", 0), ("false", 1)] {
        let script = format!(
            "sleep 1000 >/dev/null 2>&1 & echo $!; exec {} run --launcher local -n 1 --size 1M -- {program}",
            hostbuf().display()
        );
        let outcome = CommandOutput::of(Command::new("bash").args(["-c", &script]));
        let pid = outcome.stdout.trim().parse().expect("a process number");
        let name = process::name(pid);
        let stays = process::state(pid).is_some_and(|state| state != 'Z') && name == "sleep";
        if stays {
            kill_now(pid);
        }
        assert!(stays && outcome.status == status, "{program}: {name}: {outcome:?}");
    }
}

/// An mpiexec that is ended while it starts its daemon may leave the daemon and the agent behind. A
/// script stands for MPICH's mpiexec here, since that happens only if the signal comes between its
/// fork and its exec.
#[test]
fn a_daemon_that_an_engine_leaves_behind_at_the_start_ends() {
    let dir = Scratch::new(&format!("engine-{}", std::process::id()));
    let engine = dir.path("mpiexec");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && printf 'HYDRA build details:\\n    Version: 4.0.2\\n' && exit\n\
         setsid sleep 1000 >/dev/null 2>&1 &\necho $! > {0}.new && mv {0}.new {0}\nexec sleep 1000\n",
        dir.path("daemon")
    );
    fs::write(&engine, script).expect("our own folder");
    fs::set_permissions(&engine, fs::Permissions::from_mode(0o755)).expect("our own file");
    let mut launcher = Command::new(hostbuf())
        .args(["run", "--mpirun", &engine, "--agent", "/bin/true", "-n", "1", "--size", "1M", "--", "true"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the launcher starts");
    eventually("the engine's daemon", ARRIVAL, || dir.has("daemon"));
    let text = fs::read_to_string(dir.path("daemon")).expect("the file exists");
    let daemon = text.trim().parse().expect("a process number");
    kill(Pid::from_raw(launcher.id() as i32), Signal::SIGTERM).expect("the process is a child of this one");
    let mut status = None;
    eventually("the launcher's end", 3 * SOON, || {
        status = launcher.try_wait().expect("the process is a child of this one");
        status.is_some()
    });
    let remains = process::state(daemon).is_some_and(|state| state != 'Z');
    if remains {
        kill_now(daemon);
    }
    assert_eq!((status.and_then(|status| status.code()), remains), (Some(143), false));
}

#[test]
fn the_error_names_a_rank_that_a_signal_ended() {
    let host = process::host_name();
    for (signal, number) in [("SEGV", 11), ("KILL", 9), ("SYS", 31)] {
        let dies = format!("[ $HOSTBUF_LOCAL_RANK = 0 ] && exec sleep 1000; echo $$; kill -{signal} $$");
        let outcome = local(2, "1M", &[], &["sh", "-c", &dies]);
        let process = outcome.stdout.trim();
        let named = format!(
            "hostbuf run: rank 1 on {host} (process {process}) was ended by signal {number} (SIG{signal})"
        );
        let said = outcome.said();
        assert_eq!((outcome.status, said.len()), (128 + number, 1), "{outcome:?}");
        let err = said[0];
        assert!(err.starts_with(&named), "{err}");
        assert_eq!(err.contains("seccomp"), signal == "SYS", "{err}");
    }
    // The launcher prints nothing about a rank that exits by itself, whatever its status.
    assert_eq!(local(2, "1M", &[], &["sh", "-c", "exit 3"]).said(), [""; 0]);
}

/// `hostbuf run` as the leader of a session whose terminal is closed while the ranks run.
#[test]
fn a_terminal_that_closes_ends_the_job() {
    let terminal = fixture("cc", "terminal.c", &[]).expect("a C compiler is there");
    let family = fixture("cc", "family.c", &[]).expect("a C compiler is there");
    let job = format!("hangup-{}", std::process::id());
    let dir = Scratch::new(&job);
    let buffer = format!("name={job},size=1M");
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "30"]).arg(&terminal).arg(dir.path("child")).arg(hostbuf());
    let options = ["run", "--launcher", "local", "-n", "2", "--buffer", &buffer, "--"];
    let outcome = CommandOutput::of(command.args(options).arg(&family).arg(&dir.0));
    assert_eq!(outcome.status, 129, "{outcome:?}");
    let left = remains(&format!("name={job},"), "");
    assert!(left.is_empty(), "{left:#?}");
    let left = remains(&dir.path(""), "");
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn under_nohup_a_hangup_stays_ignored() {
    let job = RunningJob::start("nohup", "size=1M", &["-n", "1"], &["sleep", "1000"], |command, _| {
        use std::os::unix::process::CommandExt;
        // SAFETY: the closure makes one system call between fork and exec.
        #[allow(unsafe_code, reason = "a closure runs between fork and exec")]
        unsafe {
            command.pre_exec(|| {
                nix::sys::signal::signal(Signal::SIGHUP, SigHandler::SigIgn)?;
                Ok(())
            })
        };
    });
    let status = fs::read_to_string(format!("/proc/{}/status", job.pid())).expect("it runs");
    let has_hangup = |set: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).expect("each process has it");
        u64::from_str_radix(line.trim(), 16).expect("a set of signals") & 1 == 1
    };
    // A signalfd returns blocked signals even if they are ignored.
    assert!(has_hangup("SigIgn:") && !has_hangup("SigBlk:"), "{status}");
}

#[test]
fn a_terminal_that_closes_ends_the_job_of_every_mpi() {
    if !can_simulate() {
        return;
    }
    let terminal = fixture("cc", "terminal.c", &[]).expect("a C compiler is there").display().to_string();
    for flavour in flavours() {
        let mark = format!("hangup-{flavour}-{}", std::process::id());
        let script = format!(
            "timeout -k 1 30 {terminal} $SIMHOSTS_DIR/there $HOSTBUF run -n 2 --host h0:1,h1:1 --mpirun $MPIRUN \
             --buffer name={mark},size=1M -- sh -c \"touch $SIMHOSTS_DIR/there; exec sleep 1000 # {mark}\"; echo status $?"
        );
        let outcome = simulated(2, &flavour, &script);
        let status = outcome.lines("status ");
        assert!(status.len() == 1 && status[0] != "0" && status[0] != "124", "{flavour}: {outcome:?}");
        eventually(&format!("{flavour}: nothing is left"), SOON, || remains(&mark, "").is_empty());
    }
}
