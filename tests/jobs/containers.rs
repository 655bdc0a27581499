//! Programs in containers whose root directory contains no part of hostbuf.

use std::process::Command;

use hostbuf_tests::{CommandOutput, have, hostbuf, skip};

use crate::address::build;
use crate::image::{image, object};
use crate::without_buffer::{all_absent, all_used, one_line};

/// Runs a job of two ranks in a container.
fn contained(more: &[&str], words: &[&str]) -> CommandOutput {
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2", "--size", "4M"]).args(more).arg("--").args(words);
    // Charliecloud requires this variable.
    CommandOutput::of(command.env("USER", "root"))
}

/// Returns whether the container runtime works here; records a skip if not.
fn can_run(words: &[&str]) -> bool {
    if !have("ldd") || !have(words[0]) {
        return false;
    }
    let outcome = CommandOutput::of(Command::new(words[0]).args(&words[1..]).env("USER", "root"));
    if outcome.status != 0 {
        skip(&format!("{}: {}", words[0], outcome.stderr.lines().next().unwrap_or("")));
    }
    outcome.status == 0
}

#[test]
fn a_charliecloud_image_needs_no_part_of_hostbuf() {
    let program = build("cc", "variables.c", &[]).unwrap();
    let closes = build("cc", "closes.c", &[]).unwrap();
    let dir = image(&[&program, &closes, "/bin/sh"], &[]);
    // A private /tmp could contain the object.
    let start = ["ch-run", "--private-tmp", dir.0.to_str().unwrap(), "--"];
    if !can_run(&[&start[..], &[&program]].concat()) {
        return;
    }
    let inside = |words: &[&str]| contained(&["--require"], &[&start[..], words].concat());
    all_used(&inside(&[&program]).ok(), 2);
    // Children that close inherited descriptors, of a program and of a shell that the program
    // replaces.
    all_used(&inside(&[&closes, &program]).ok(), 2);
    all_used(&inside(&["/bin/sh", "-c", &format!("{program}; exec {closes} {program}")]).ok(), 4);
    // If the object's path exists in the image, the path is used and no descriptor stays open.
    let own = object();
    let dir = image(&[&program, "/bin/sh"], &[&own]);
    let start = ["ch-run", "--private-tmp", dir.0.to_str().unwrap(), "--"];
    let script = format!("echo preload $LD_PRELOAD; [ ! -e /proc/self/fd/500 ] && {program}");
    let outcome = contained(&[], &[&start[..], &["/bin/sh", "-c", &script]].concat()).ok();
    assert_eq!(outcome.lines("preload "), [&own[..]; 2], "{outcome:?}");
    all_used(&outcome, 2);
}

#[test]
fn a_static_program_in_a_container_has_no_address() {
    let Some(fixed) = build("gcc", "variables.c", &["-static"]) else { return };
    let dir = image(&[&fixed], &[]);
    let words = ["ch-run", dir.0.to_str().unwrap(), "--", &fixed];
    if can_run(&words) {
        all_absent(&contained(&[], &words).ok(), 2);
    }
}

#[test]
fn bubblewrap_with_proc_needs_nothing_in_its_root_and_a_separate_network_is_reported() {
    let program = build("cc", "variables.c", &[]).unwrap();
    let closes = build("cc", "closes.c", &[]).unwrap();
    let dir = image(&[&program, &closes], &[]);
    let root = ["bwrap", "--bind", dir.0.to_str().unwrap(), "/", "--unshare-pid", "--proc", "/proc"];
    if !can_run(&[&root[..], &[&program]].concat()) {
        return;
    }
    all_used(&contained(&[], &[&root[..], &[&closes, &program]].concat()).ok(), 2);
    let outcome = contained(&[], &[&root[..], &["--unshare-net", &program]].concat()).ok();
    all_absent(&outcome, 2);
    one_line(&outcome, &["hostbuf: no buffer", &program, "ranks 0-1 on ", "network namespace of its own"]);
    // The host's own root directory, in a separate network namespace.
    let outcome = contained(&[], &["bwrap", "--bind", "/", "/", "--unshare-net", &program]).ok();
    all_absent(&outcome, 2);
    one_line(&outcome, &["network namespace of its own"]);
}
