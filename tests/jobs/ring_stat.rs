//! `hostbuf stat` with rings.

#![allow(unsafe_code, reason = "reads a file into memory of the test")]

use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;

use hostbuf_staging::{BorrowedMemory, DeviceTarget, File, Ring, RingOptions};
use hostbuf_tests::{CommandOutput, Scratch, hostbuf};
use serde_json::{Value, json};

fn stat(arguments: &[&str]) -> String {
    CommandOutput::of(Command::new(hostbuf()).arg("stat").args(arguments)).ok().stdout
}

/// Returns the rings of this process in the report.
fn own_rings() -> Vec<Value> {
    let report: Value = serde_json::from_str(&stat(&["--json"])).expect("JSON");
    let rings = report["rings"].as_array().expect("a list").iter();
    rings.filter(|ring| ring["process"] == json!(std::process::id())).cloned().collect()
}

#[test]
fn the_report_shows_the_rings_of_other_processes() {
    const BYTES: usize = 3 << 20;
    let folder = Scratch::new("ring-stat");
    let path = folder.path("file");
    std::fs::write(&path, vec![7; BYTES]).expect("the folder is writable");
    let options = RingOptions::new().slots(3).workers(2);
    let ring = Ring::for_host(options).expect("threads");
    let mut into = vec![0; BYTES];
    // SAFETY: the vector is used after the transfer only.
    let memory = unsafe { BorrowedMemory::new(NonNull::from(&mut into[0]), BYTES, ()) };
    let to = DeviceTarget::new(Arc::new(memory));
    ring.read(Arc::new(File::open(&path).expect("it is there")), 0, to).wait().expect("it is read");
    assert!(into.iter().all(|&byte| byte == 7));

    let rings = own_rings();
    assert_eq!(rings.len(), 1, "{rings:?}");
    let ring_report = &rings[0];
    let figures = ["slots", "threads", "transfers", "to_device_bytes", "from_device_bytes"];
    let figures = figures.map(|name| ring_report[name].as_u64());
    assert_eq!(figures, [Some(3), Some(2), Some(1), Some(BYTES as u64), Some(0)]);
    assert_eq!(ring_report["device"], json!("the host"));
    assert!(ring_report["bytes_per_s"].as_f64() > Some(0.0), "{ring_report}");
    assert!(ring_report["thread_seconds"]["reading"].as_f64() > Some(0.0), "{ring_report}");
    let text = stat(&[]);
    let row = text.lines().find(|line| line.contains("the host") && line.contains("3 x 8 MiB"));
    assert!(row.is_some_and(|row| row.contains(" GB/s")), "{text}");
    drop(ring);
    assert_eq!(own_rings(), [] as [Value; 0]);
}
