//! Runs programs on the two machines of `scripts/rdma-vm --hosts 2`, and tests that script.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hostbuf_os::process;
use nix::poll::{PollFd, PollFlags, poll};

use crate::skip;

fn root() -> &'static Path {
    hostbuf_tests::root()
}

/// Returns the script that starts two machines, or `None` if it cannot run here.
fn script() -> Option<Command> {
    let script = root().join("scripts/rdma-vm");
    let check = Command::new(&script).arg("--check").output().expect("the script starts");
    if !check.status.success() {
        skip(&format!("RDMA between hosts: {}", String::from_utf8_lossy(&check.stdout).trim()));
        return None;
    }
    let mut command = Command::new(&script);
    command.args(["--hosts", "2", "--"]).stdin(Stdio::null());
    Some(command)
}

/// Returns the path of a program that was built with RDMA, or `None` if it was not built.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = root().join("target/rdma/release").join(name);
    if !path.exists() {
        skip("RDMA between hosts: its programs are not built (scripts/test builds them)");
        return None;
    }
    Some(path)
}

/// Runs a program on both machines, and returns its lines, each with the machine that printed it.
/// Returns `None` if the machines or the program do not exist.
pub fn run_on_both(name: &str) -> Option<Vec<(usize, String)>> {
    let mut script = script()?;
    Some(lines(script.arg(program(name)?)))
}

/// Runs a command in the shell of the first machine. `there COMMAND` runs a command on the second
/// one. Returns its lines like [`run_on_both`].
pub fn run_on_first(command: &str) -> Option<Vec<(usize, String)>> {
    let mut script = script()?;
    let job = format!(
        r#""$RDMA_VM_RSH" --serve || exit; [[ $RDMA_VM_HOST == 0 ]] || exit 0
           there() {{ "$RDMA_VM_RSH" rdma-vm1 "$@"; }}; {command}"#
    );
    Some(lines(script.args(["bash", "-c", &job]).current_dir(root())))
}

/// Runs a command in the shell of the first machine, with MPI over both: `mpirun` starts a job.
/// Returns its lines like [`run_on_both`].
pub fn run_over_both(command: &str) -> Option<Vec<(usize, String)>> {
    let listed = Command::new(root().join("scripts/mpienv")).arg("list").output().expect("the script starts");
    if !String::from_utf8_lossy(&listed.stdout).lines().any(|flavour| flavour == "openmpi4") {
        skip("MPI over hosts with RDMA: Debian's Open MPI is not installed");
        return None;
    }
    run_on_first(&format!(r#"mpirun() {{ scripts/mpienv run openmpi4 "$@"; }}; {command}"#))
}

fn lines(script: &mut Command) -> Vec<(usize, String)> {
    let output = script.output().expect("the script starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    assert!(output.status.success(), "{}", output.status);
    let said = |line: &str| {
        let (name, words) = line.split_once(": ")?;
        Some((name.strip_prefix("rdma-vm")?.parse().ok()?, words.to_owned()))
    };
    out.lines().map(|line| said(line).expect("each line says whose it is")).collect()
}

/// The machines resolve each other's names, lines are printed whole, and the exit status is that of
/// the failed machine.
#[test]
fn two_machines_reach_each_other() {
    let Some(mut script) = script() else { return };
    let output = script
        .args(["bash", "-c"])
        .arg(
            r#"for i in {1..200}; do echo "$i from $(</proc/sys/kernel/hostname) $RDMA_VM_HOST of $RDMA_VM_ADDRESSES"; done
               getent hosts rdma-vm0 rdma-vm1 | wc -l; printf unfinished; exit $((RDMA_VM_HOST * 7))"#,
        )
        .output()
        .expect("the script starts");
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    for host in 0..2 {
        let name = format!("rdma-vm{host}");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&format!("{name}: ")));
        let wanted = (1..=200).map(|i| format!("{i} from {name} {host} of 10.9.0.1 10.9.0.2"));
        let wanted = wanted.chain(["2".into(), "unfinished".into()]);
        assert_eq!(lines.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    }
    assert_eq!(text.lines().count(), 2 * 202);
}

#[test]
fn a_machine_that_dies_ends_the_other() {
    let Some(mut script) = script() else { return };
    let begun = Instant::now();
    let output = script
        .args(["sh", "-c", "[ $RDMA_VM_HOST = 0 ] || echo o >/proc/sysrq-trigger; exec sleep 1000"])
        .output()
        .expect("the script starts");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{err}");
    assert!(err.contains("machine 1 ended without a result"), "{err}");
    // Without the failure the other machine would run until the timeout of the script.
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
}

#[test]
fn nothing_remains_after_the_script_is_killed() {
    let Some(mut script) = script() else { return };
    let temporary = root().join(format!("target/tmp/machines-{}", std::process::id()));
    fs::create_dir_all(&temporary).expect("a folder");
    let mut script =
        script.args(["sleep", "1000"]).env("TMPDIR", &temporary).spawn().expect("the script starts");
    let pid = script.id();
    // The script replaces itself by the process that starts the machines.
    let machines = || -> Vec<i32> {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_ascii_whitespace().map(|child| child.parse().expect("a number"));
        children.filter(|&child| process::name(child).starts_with("qemu-system")).collect()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while machines().len() < 2 {
        assert!(Instant::now() < until && script.try_wait().expect("a child").is_none(), "no machines");
        thread::sleep(Duration::from_millis(5));
    }
    let ends: Vec<_> =
        machines().into_iter().map(|pid| process::pidfd(pid).expect("the process runs")).collect();
    assert_eq!(ends.len(), 2);
    script.kill().expect("the process runs");
    script.wait().expect("a child");
    for end in ends {
        let ended = poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], 30_000u16).expect("poll");
        assert_eq!(ended, 1, "a machine lives on");
    }
    // Removing a folder that is not empty is an error.
    fs::remove_dir(&temporary).expect("nothing was left in it");
}

/// Runs `program` on both machines, and requires that each of `checks` succeeds on both.
pub fn check_on_both(program: &str, checks: &[&str]) {
    let Some(lines) = run_on_both(program) else { return };
    for check in checks {
        for host in [0, 1] {
            let well = format!("ok {check} ");
            let spoken = lines.iter().any(|(of, line)| *of == host && line.starts_with(&well));
            assert!(spoken, "{check} on host {host}");
        }
    }
}
