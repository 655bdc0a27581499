//! Registrations with an RDMA device, the kernel's software device in a virtual machine. The checks
//! are in tests/programs/src/bin/rdma_probe.

use std::process::{Command, Stdio};

use crate::skip;

#[test]
fn an_rdma_device_passes_the_probe() {
    let root = hostbuf_tests::root();
    let machine = root.join("scripts/rdma-vm");
    let check = Command::new(&machine).arg("--check").output().expect("the script starts");
    if !check.status.success() {
        return skip(&format!("RDMA: {}", String::from_utf8_lossy(&check.stdout).trim()));
    }
    let [probe, sends] =
        ["rdma_probe", "repeated_sends"].map(|name| root.join("target/rdma/release").join(name));
    let c = root.join("target/rdma/release/c_rdma");
    let hostbuf = root.join("target/release/hostbuf");
    let object = root.join("target/lib/hostbuf/libhostbuf_register_all.so");
    if ![&probe, &sends, &hostbuf, &object, &c].iter().all(|file| file.exists()) {
        return skip("RDMA: its programs are not built (scripts/test builds them)");
    }
    let output = Command::new(&machine)
        .args(["--huge", "64", "--", "sh", "-c"])
        .arg(
            "\"$0\" && \"$3\" && \"$1\" --device rdma --buffers 4 --bytes 65536 --rounds 3 && \
             \"$2\" run --quiet --launcher local -n 2 --size 1M --register rdma -- \"$0\" before-main \"$2\"",
        )
        .args([&probe, &sends, &hostbuf, &c])
        .stdin(Stdio::null())
        .output()
        .expect("the script starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    assert!(output.status.success(), "{}", output.status);
    for line in out.lines().filter_map(|line| line.strip_prefix("skipped ")) {
        skip(&format!("RDMA: {line}"));
    }
    assert!(out.lines().any(|line| line.starts_with("checked ")), "the example did not send");
    // All checks have printed a line.
    let spoken = |line: &&str| ["ok ", "skipped "].iter().any(|word| line.starts_with(word));
    assert_eq!(out.lines().filter(spoken).count(), 23);
}
