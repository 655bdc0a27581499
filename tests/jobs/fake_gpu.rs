//! `--register cuda`, `stat` and `doctor` with a fake driver that cannot register read-only memory.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, fixture, hostbuf, root, skip};

use crate::running_job::probe;

/// Runs `hostbuf` with `arguments` and the driver in `folder`.
fn with_driver(folder: &Scratch, arguments: &[&str]) -> CommandOutput {
    let driver =
        fixture("cc", "fake_cuda.c", &["-shared", "-fPIC"]).expect("a C compiler built this test's crate");
    if !folder.has("libcuda.so.1") {
        symlink(&driver, folder.path("libcuda.so.1")).expect("it is new");
        // On a machine with a GPU this name takes precedence.
        symlink(&driver, folder.path("libcuda.so")).expect("it is new");
    }
    let mut command = Command::new(hostbuf());
    CommandOutput::of(
        command.args(arguments).env("LD_LIBRARY_PATH", &folder.0).env("FAKE_CUDA_READ_ONLY", "0"),
    )
}

fn can_register() -> bool {
    let there = root().join("target/lib/hostbuf/libhostbuf_register.so").is_file();
    if !there {
        skip("registering before main: the object is not built (scripts/build)");
    }
    there
}

#[test]
fn the_doctor_names_a_driver_that_cannot_register_frozen_buffers() {
    let folder = Scratch::new("fake-doctor");
    let outcome = with_driver(&folder, &["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("a list");
    let line = checks.iter().find(|check| check["name"] == "GPU registration").expect("there is a driver");
    let says = line["says"].as_str().expect("a text");
    assert!(line["mark"] == "note" && says.contains("cannot register read-only memory"), "{line}");
    assert!(line.to_string().contains("docs/gpu.md"), "{line}");
}

#[test]
fn stat_and_freezing_name_a_driver_that_cannot_register_frozen_buffers() {
    if !can_register() {
        return;
    }
    let folder = Scratch::new("fake-run");
    let command = hostbuf();
    let stat = format!(r#"{} stat | sed -n "/^job ${{HOSTBUF_JOB##*/}} /,/^$/p""#, command.display());
    let job = ["run", "--launcher", "local", "-n", "1", "--size", "4M", "--register", "cuda", "--"];
    let outcome = with_driver(&folder, &[&job[..], &["sh", "-c", &stat]].concat()).ok();
    assert!(outcome.stdout.contains("  cuda 0 (no read-only)  "), "{outcome:?}");
    // The buffer is frozen with a proof, and one line reports that it is no longer registered, with
    // the remedy.
    let outcome = with_driver(&folder, &[&job[..], &[&probe(), "freeze", "-", "plain"]].concat()).ok();
    assert_eq!(outcome.lines("proof "), ["sealed"], "{outcome:?}");
    let said: Vec<&str> =
        outcome.stderr.lines().filter(|line| line.contains("no longer registered")).collect();
    assert!(said.len() == 1 && said[0].contains("cannot register read-only memory"), "{outcome:?}");
    assert!(said[0].contains("unfrozen"), "{outcome:?}");
    fs::metadata(folder.path("libcuda.so.1")).expect("it was used");
}
