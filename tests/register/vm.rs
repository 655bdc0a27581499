//! Registrations with a real RDMA device: the kernel's own in software, in a virtual machine. The checks are in
//! tests/fixtures/rdma_probe.rs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Says that something is not tested here, and why.
fn skip(why: &str) {
    eprintln!("skipped: RDMA: {why}");
    if let Some(path) = std::env::var_os("HOSTBUF_SKIPPED") {
        let file = std::fs::File::options().append(true).create(true).open(path);
        writeln!(file.expect("the list is writable"), "RDMA: {why}").expect("the list is writable");
    }
}

#[test]
fn with_an_rdma_device() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let machine = root.join("scripts/rdma-vm");
    let check = Command::new(&machine).arg("--check").output().expect("the script starts");
    if !check.status.success() {
        return skip(String::from_utf8_lossy(&check.stdout).trim());
    }
    let probe = root.join("target/rdma/debug/examples/rdma_probe");
    if !probe.exists() {
        return skip("its probe is not built (scripts/test builds it)");
    }
    let output = Command::new(&machine)
        .args(["--huge", "64", "--"])
        .arg(&probe)
        .stdin(Stdio::null())
        .output()
        .expect("the script starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    assert!(output.status.success(), "{}", output.status);
    for line in out.lines().filter_map(|line| line.strip_prefix("skipped ")) {
        skip(line);
    }
    // All of them have spoken.
    let spoken = |line: &&str| ["ok ", "skipped "].iter().any(|word| line.starts_with(word));
    assert_eq!(out.lines().filter(spoken).count(), 17);
}
