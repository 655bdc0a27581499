//! The buffer exists before main in every process image of a rank, and nothing else about a program
//! changes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_tests::{
    CommandOutput, can_simulate, eventually, flavours, have, hostbuf, local, root, simulated, skip,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::address::{build, probe};
use crate::image::object;

const FIRST: &str = "0x550000000000";

/// Builds the program that counts its own process images, from a constructor, in the buffer's first
/// word.
fn show() -> String {
    build("cc", "show.c", &[]).expect("a C compiler built this test's crate")
}

/// Asserts that each of `images` process images printed the first address, and that the highest
/// count is `count`.
#[track_caller]
fn counted(outcome: &CommandOutput, images: usize, count: u64) {
    let lines = outcome.lines("buffer ");
    assert_eq!(lines.len(), images, "{outcome:?}");
    assert!(lines.iter().all(|l| l.starts_with(FIRST)), "{outcome:?}");
    let seen = lines.iter().filter_map(|l| l.rsplit(' ').next()?.parse().ok()).max();
    assert_eq!(seen, Some(count), "{outcome:?}");
    assert_eq!(outcome.said(), [""; 0], "{outcome:?}");
}

// Programming languages

#[test]
fn a_global_object_of_cpp_uses_the_buffer_in_its_constructor() {
    for compiler in ["g++", "clang++"] {
        let Some(early) = build(compiler, "early.cpp", &[]) else { continue };
        let outcome = local(2, "1M", &[], &[&early]).ok();
        assert_eq!(outcome.lines("early "), [format!("{FIRST} 42"), format!("{FIRST} 42")], "{outcome:?}");
    }
}

#[test]
fn a_fortran_program_has_the_buffer_at_its_first_statement() {
    let Some(early) = build("gfortran", "early.f90", &[]) else { return };
    let outcome = local(2, "1M", &[], &[&early]).ok();
    assert_eq!(outcome.lines("early "), [format!("{FIRST} 42"), format!("{FIRST} 42")], "{outcome:?}");
}

#[test]
fn python_and_its_forked_and_spawned_children_have_the_buffer() {
    if !have("python3") {
        return;
    }
    let script = root().join("tests/fixtures/early.py");
    let outcome = local(1, "1M", &[], &["python3", script.to_str().unwrap()]).ok();
    let lines = ["fork", "spawn", "forkserver"].map(|how| format!("0x0000550000000000 {how} 0 42"));
    assert_eq!(outcome.lines("early "), lines, "{outcome:?}");
    assert_eq!(outcome.said(), [""; 0]);
}

#[test]
fn a_rust_program_has_the_buffer_in_a_static_constructor_and_attaches() {
    let probe = probe("attach_probe", false).unwrap();
    let outcome = local(2, "1M", &[], &[&probe]).ok();
    assert_eq!(outcome.lines("early "), [FIRST; 2], "{outcome:?}");
    let attached = outcome.lines("attached ");
    assert!(attached.iter().all(|l| l.starts_with(&format!("{FIRST} 1048576 "))), "{outcome:?}");
    // Two constructors and two mains share the memory.
    assert!(attached.iter().any(|l| l.ends_with(" 4")), "{outcome:?}");
}

#[test]
fn a_program_of_another_libc_has_the_buffer() {
    // The program has no glibc, so the preloaded object cannot use one either.
    let Some(show) = build("musl-gcc", "show.c", &[]) else { return };
    let outcome = local(2, "1M", &[], &[&show]).ok();
    counted(&outcome, 2, 2);
    counted(&local(2, "1M", &[], &["sh", "-c", &format!("{show}; {show}")]).ok(), 4, 4);
}

// Process images that follow each other

#[test]
fn a_program_started_by_a_shell_has_the_same_buffer() {
    let show = show();
    for (words, each) in [
        (&["sh", "-c", "SHOW; exit $?"][..], 1),
        (&["sh", "-c", "exec SHOW"], 1),
        (&["sh", "-c", "SHOW; SHOW & wait; (SHOW)"], 3),
        (&["bash", "-c", "SHOW; x=$(SHOW); echo \"$x\""], 2),
        (&["env", "SHOW"], 1),
        (&["env", "A=b", "nice", "sh", "-c", "env SHOW && true"], 1),
        (&["timeout", "20", "SHOW"], 1),
        (&["setsid", "-w", "SHOW"], 1),
    ] {
        if words[0] != "sh" && !have(words[0]) {
            continue;
        }
        let words: Vec<String> = words.iter().map(|w| w.replace("SHOW", &show)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        counted(&local(2, "1M", &[], &words).ok(), 2 * each, 2 * each as u64);
    }
}

#[test]
fn children_of_a_program_have_the_same_buffer() {
    let children = build("cc", "children.c", &[]).unwrap();
    // Each of two ranks uses system(), fork and exec, vfork and exec, and posix_spawn.
    counted(&local(2, "1M", &[], &[&children, &show()]).ok(), 8, 8);
}

#[test]
fn a_script_with_an_interpreter_line_has_the_buffer() {
    let script = root().join(format!("target/fixtures/script-{}", std::process::id()));
    std::fs::write(&script, format!("#!/bin/sh\n{}\n", show())).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let outcome = local(2, "1M", &[], &[script.to_str().unwrap()]);
    std::fs::remove_file(&script).unwrap();
    counted(&outcome.ok(), 2, 2);
}

#[test]
fn a_surviving_grandchild_does_not_delay_the_end_of_the_job() {
    let begun = Instant::now();
    let script = "sleep 600 </dev/null >/dev/null 2>&1 & echo child $!";
    let outcome = local(2, "1M", &[], &["sh", "-c", script]).ok();
    let took = begun.elapsed();
    let children: Vec<i32> = outcome.lines("child ").iter().map(|l| l.parse().unwrap()).collect();
    assert_eq!((children.len(), &outcome.stderr[..]), (2, ""), "{outcome:?}");
    for child in children {
        // As with plain mpirun the grandchild lives on; a program that it starts later finds no
        // agent (see below).
        let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
    }
    assert!(took < Duration::from_secs(5), "the job ended after {took:?}");
}

// Outside a job

#[test]
fn a_program_outside_any_job_runs_unchanged() {
    let outcome = CommandOutput::of(Command::new(show()).env("LD_PRELOAD", object())).ok();
    assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), ("buffer (nil) 0 0\n", ""));
}

#[test]
fn a_program_of_an_ended_job_runs_without_the_buffer() {
    let object = object();
    let orphan = |program: &mut Command| {
        // The environment that a child inherits: it has the agreed address, but nothing is mapped
        // there now.
        program
            .env("LD_PRELOAD", &object)
            .env("HOSTBUF_JOB", format!("hostbuf/0/{:032x}", std::process::id()));
        program.env("HOSTBUF_ADDRESS", "0x0000550000000000").env("HOSTBUF_SIZE", "1048576");
        CommandOutput::of(program)
    };
    let outcome = orphan(&mut Command::new(show())).ok();
    assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), ("buffer (nil) 0 0\n", ""));
    // HostBuffer::attach returns the reason.
    let probe = probe("attach_probe", false).unwrap();
    let outcome = orphan(&mut Command::new(&probe));
    assert_eq!((outcome.status, &outcome.stdout[..]), (1, "early 0x0\n"), "{outcome:?}");
    assert!(outcome.stderr.contains("the agent of this host does not answer"), "{outcome:?}");
    // A program outside of any job gets the same error.
    let outcome = CommandOutput::of(Command::new(&probe).env("LD_PRELOAD", &object));
    assert!(outcome.status == 1 && outcome.stderr.contains("hostbuf run"), "{outcome:?}");
}

#[test]
fn malformed_variables_do_no_harm() {
    let (object, show) = (object(), show());
    let long = "x".repeat(5000);
    for job in ["", "x", &long, "hostbuf/0/\u{e4}"] {
        for connection in ["-", "", "0:1", "500:999999", "99999999999999999999:1", ":", "1:"] {
            for address in ["", "0x1", "0x0000000000000000"] {
                let mut command = Command::new(&show);
                command
                    .env("LD_PRELOAD", &object)
                    .env("HOSTBUF_JOB", job)
                    .env("HOSTBUF_CONNECTION", connection);
                // A value too short for the address must not be overwritten beyond its end. The
                // fixture would follow the address 0x1.
                let name = if address == "0x1" { "HOSTBUF_SIZE" } else { "HOSTBUF_ADDRESS" };
                let outcome = CommandOutput::of(command.env(name, address)).ok();
                assert_eq!(
                    (&outcome.stdout[..15], &outcome.stderr[..]),
                    ("buffer (nil) 0 ", ""),
                    "{job:.9} {connection}"
                );
            }
        }
    }
}

#[test]
fn the_object_needs_no_library_and_no_version_of_one() {
    if !have("readelf") {
        return;
    }
    let object = object();
    let readelf =
        |what: &str| CommandOutput::of(Command::new("readelf").args(["-W", what, &object])).ok().stdout;
    let dynamic = readelf("-d");
    assert!(dynamic.contains("INIT_ARRAY") && !dynamic.contains("NEEDED"), "{dynamic}");
    assert!(!dynamic.contains("VERNEED") && !dynamic.contains("TEXTREL"), "{dynamic}");
    let symbols = readelf("--dyn-syms");
    for line in
        symbols.lines().filter(|l| l.trim_start().split(':').next().is_some_and(|n| n.parse::<u32>().is_ok()))
    {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The columns are number, value, size, type, binding, visibility, section and name. The
        // object defines and requires no symbol.
        assert!(fields[6] == "UND" && (fields[4] == "WEAK" || fields.len() == 7), "{line}");
    }
    let segments = readelf("-l");
    assert!(!segments.contains("RWE"), "{segments}");
}

// The environment of the program

/// Parses the output of `env -0`.
fn variables(outcome: &CommandOutput) -> BTreeMap<String, String> {
    let entries = outcome.stdout.split('\0').filter_map(|e| e.split_once('='));
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn the_environment_gains_only_the_documented_variables() {
    let plain = variables(&CommandOutput::of(Command::new("env").arg("-0")).ok());
    let mut ranked = variables(&local(1, "1M", &[], &["env", "-0"]).ok());
    // Of these a host has those for which it has a device.
    let near = ["HOSTBUF_NUMA_NODE", "HOSTBUF_NEAR_GPU", "HOSTBUF_NEAR_NIC"];
    ranked.retain(|name, _| !near.contains(&name.as_str()));
    let mut added: Vec<String> = ranked.keys().filter(|name| !plain.contains_key(*name)).cloned().collect();
    added.sort();
    let mut expected = vec![
        "ASAN_OPTIONS",
        "HOSTBUF_ADDRESS",
        "HOSTBUF_ADDRESS_default",
        "HOSTBUF_CONNECTION",
        "HOSTBUF_JOB",
        "HOSTBUF_LOCAL_RANK",
        "HOSTBUF_LOCAL_SIZE",
        "HOSTBUF_NETWORK",
        "HOSTBUF_OBJECT",
        "HOSTBUF_RANK",
        "HOSTBUF_RANKS",
        "HOSTBUF_REPORT",
        "HOSTBUF_SIZE",
        "HOSTBUF_SIZE_default",
        "LD_PRELOAD",
    ];
    expected.retain(|name| !plain.contains_key(*name));
    assert_eq!(added, expected);
    assert_eq!(ranked["HOSTBUF_ADDRESS"], "0x0000550000000000");
    assert_eq!(ranked["HOSTBUF_SIZE"], (1 << 20).to_string());
    for name in ["HOSTBUF_ADDRESS", "HOSTBUF_SIZE"] {
        assert_eq!(ranked[&format!("{name}_default")], ranked[name]);
    }
    ranked.retain(|name, _| !expected.contains(&&name[..]));
    assert_eq!(ranked, plain);
}

#[test]
fn a_users_own_preload_list_and_sanitizer_options_are_kept() {
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "1", "--size", "1M", "--", "env", "-0"]);
    let outcome =
        CommandOutput::of(command.env("ASAN_OPTIONS", "detect_leaks=0").env("LD_PRELOAD", "libm.so.6")).ok();
    let ranked = variables(&outcome);
    assert_eq!(ranked["ASAN_OPTIONS"], "detect_leaks=0:verify_asan_link_order=0");
    assert!(ranked["LD_PRELOAD"].ends_with(":libm.so.6"), "{ranked:?}");
}

#[test]
fn no_descriptor_signal_mask_limit_or_folder_differs() {
    let script = "ls /proc/$$/fd; ulimit -a; umask; pwd; grep -E '^(Sig[^Q]|Shd|NoNewPrivs|Seccomp|Cap)' /proc/self/status; \
                  grep -c . /proc/self/mountinfo; nice; ls -l /proc/$$/ns";
    let plain = CommandOutput::of(Command::new("bash").args(["-c", script])).ok();
    let ranked = local(1, "1M", &[], &["bash", "-c", script]).ok();
    assert_eq!(ranked.stdout, plain.stdout);
    // The check also applies to a later process image.
    let ranked = local(1, "1M", &[], &["sh", "-c", "bash -c \"$0\"; exit $?", script]).ok();
    assert_eq!(ranked.stdout, plain.stdout);
}

// Streams, status, signals

#[test]
fn standard_streams_pass_through() {
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2", "--size", "1M", "--"]);
    command.args(["sh", "-c", "cat; echo error of $HOSTBUF_RANK >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let text = "one\ntwo\n".repeat(20_000);
    let mut stdin = child.stdin.take().unwrap();
    let sent = text.clone();
    let writer = std::thread::spawn(move || stdin.write_all(sent.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    // Only rank 0 reads, as with mpirun.
    assert!(output.status.success());
    assert_eq!(output.stdout.len(), text.len());
    assert!(output.stdout == text.as_bytes());
    let mut errors: Vec<_> = String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
    errors.sort();
    assert_eq!(errors, ["error of 0", "error of 1"]);
}

#[test]
fn a_closed_standard_error_does_not_crash_the_launcher() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "1", "--size", "1M", "--", "no_such"]);
    let status = command.stdin(Stdio::null()).stderr(writer).status().expect("it starts");
    assert_eq!(status.code(), Some(127));
}

#[test]
fn the_exit_status_passes_through() {
    for (script, status, signal) in [
        ("exit 0", 0, None),
        ("exit 7", 7, None),
        ("exit 255", 255, None),
        ("kill -9 $$", 137, Some("signal 9 (SIGKILL)")),
        ("kill -11 $$", 139, Some("signal 11 (SIGSEGV)")),
    ] {
        let outcome = local(1, "1M", &[], &["sh", "-c", script]);
        assert_eq!((outcome.status, &outcome.stdout[..]), (status, ""), "{script}: {outcome:?}");
        // The launcher prints one line about a rank that a signal has ended, and nothing about the
        // others.
        assert_eq!(outcome.said().len(), usize::from(signal.is_some()), "{script}: {outcome:?}");
        let named = signal.is_none_or(|signal| outcome.stderr.contains(&format!("was ended by {signal}")));
        assert!(named, "{script}: {outcome:?}");
    }
    // The status of the first failing rank is returned, and the other ranks are ended.
    let outcome = local(3, "1M", &[], &["sh", "-c", "[ $HOSTBUF_RANK = 1 ] && exit 5; exec sleep 600"]);
    assert_eq!(outcome.status, 5, "{outcome:?}");
}

/// A job of two ranks that print the signals that they receive.
struct SignalledJob {
    launcher: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl SignalledJob {
    fn start() -> (SignalledJob, Vec<i32>) {
        SignalledJob::start_as(Command::new(hostbuf()))
    }

    fn start_as(mut command: Command) -> (SignalledJob, Vec<i32>) {
        let program = build("cc", "signals.c", &[]).unwrap();
        command.args(["run", "--launcher", "local", "-n", "2", "--size", "1M", "--", &program]);
        let mut launcher = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(launcher.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| sender.send(l)));
        let job = SignalledJob { launcher, lines };
        let ready = [job.next(), job.next()];
        let pids = ready.iter().map(|l| l.strip_prefix("ready ").unwrap().parse().unwrap()).collect();
        (job, pids)
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(20)).expect("a rank says something")
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.launcher.id() as i32), signal).unwrap();
    }

    /// Sends a signal and asserts that both ranks received it.
    #[track_caller]
    fn arrives(&self, signal: Signal, said: &str) {
        self.send(signal);
        assert_eq!([self.next(), self.next()], [said; 2]);
    }
}

#[test]
fn signals_to_the_launcher_reach_the_ranks() {
    for (last, said) in [(Signal::SIGTERM, "got TERM"), (Signal::SIGINT, "got INT")] {
        let (mut job, _) = SignalledJob::start();
        job.arrives(Signal::SIGUSR1, "got USR1");
        job.arrives(Signal::SIGUSR2, "got USR2");
        job.arrives(Signal::SIGHUP, "got HUP");
        job.arrives(last, said);
        assert_eq!(job.launcher.wait().unwrap().code(), Some(last as i32));
    }
}

#[test]
fn a_stopped_launcher_stops_its_ranks_and_continues_them() {
    let (mut job, ranks) = SignalledJob::start();
    let launcher = job.launcher.id() as i32;
    let state = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().as_bytes()[0]
    };
    let processes: Vec<i32> = ranks.iter().copied().chain([launcher]).collect();
    for _ in 0..2 {
        job.send(Signal::SIGTSTP);
        eventually("all stop", Duration::from_secs(10), || processes.iter().all(|&p| state(p) == b'T'));
        job.send(Signal::SIGCONT);
        eventually("all run", Duration::from_secs(10), || processes.iter().all(|&p| state(p) != b'T'));
    }
    job.send(Signal::SIGTERM);
    let mut ended = 0;
    while ended < 2 {
        // The rank prints each continuation too.
        let line = job.next();
        assert!(["got CONT", "got TERM"].contains(&&line[..]), "{line}");
        ended += usize::from(line == "got TERM");
    }
    job.launcher.wait().unwrap();
}

/// As under `ssh -t host hostbuf run`, no process could continue a stopped job. The kernel
/// therefore ignores the stop for the ranks, and the launcher must continue too.
#[test]
fn a_launcher_that_leads_its_session_is_not_stopped() {
    if !have("setsid") {
        return;
    }
    let mut command = Command::new("setsid");
    command.arg(hostbuf());
    let (mut job, _) = SignalledJob::start_as(command);
    job.arrives(Signal::SIGTSTP, "got CONT");
    job.arrives(Signal::SIGUSR1, "got USR1");
    job.arrives(Signal::SIGTERM, "got TERM");
    job.launcher.wait().unwrap();
}

impl Drop for SignalledJob {
    fn drop(&mut self) {
        // Ends the job after a failed test: the launcher's end ends its job.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

#[test]
fn signals_pass_through_open_mpi() {
    if !can_simulate() {
        return;
    }
    if !flavours().iter().any(|f| f == "openmpi4") {
        return skip("signals through Open MPI: it is not installed");
    }
    let program = build("cc", "signals.c", &[]).unwrap();
    let script = format!(
        r#"out=$(mktemp)
        seen() {{ for i in $(seq 500); do [ $(grep -c "$1" $out) = 4 ] && return; sleep 0.02; done; echo "no $1"; }}
        $HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 4M -- {program} >$out 2>$out.err & pid=$!
        seen ready; kill -USR1 $pid; seen USR1; kill -USR2 $pid; seen USR2; kill -TERM $pid; wait $pid
        echo ended $?"#
    );
    let outcome = simulated(2, "openmpi4", &script);
    assert!(outcome.stdout.starts_with("ended ") && outcome.stdout.lines().count() == 1, "{outcome:?}");
    assert_ne!(outcome.stdout, "ended 0\n", "{outcome:?}");
}
