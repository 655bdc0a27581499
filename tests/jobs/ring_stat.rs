//! `hostbuf stat` with rings.

#![allow(unsafe_code, reason = "reads a file into memory of the test")]

use std::io;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use hostbuf_staging::{
    BorrowedMemory, DeviceTarget, Fault, File, HostMemory, ReadAt, Ring, RingOptions, SimulatedDevice,
    SimulatedMemory, WriteAt,
};
use hostbuf_tests::{CommandOutput, Scratch, eventually, hostbuf};
use serde_json::{Value, json};

use crate::running_job::SOON;

fn stat(arguments: &[&str]) -> String {
    CommandOutput::of(Command::new(hostbuf()).arg("stat").args(arguments)).ok().stdout
}

/// Returns the rings of this process in the report, of those with this device.
fn own_rings(device: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(&stat(&["--json"])).expect("JSON");
    let rings = report["rings"].as_array().expect("a list").iter();
    let is_own =
        |ring: &&Value| ring["process"] == json!(std::process::id()) && ring["device"] == json!(device);
    rings.filter(is_own).cloned().collect()
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

    let rings = own_rings("the host");
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
    assert_eq!(own_rings("the host"), [] as [Value; 0]);
}

const PIECE: usize = 16 << 10;
const PIECES: usize = 8;
/// The time that a slow operation takes: long beside all others, also beside other work.
const SLOW: Duration = Duration::from_millis(100);

/// A source and sink, each of whose operations takes some time.
#[derive(Debug)]
struct DelayedEndpoint(Duration);

impl ReadAt for DelayedEndpoint {
    fn name(&self) -> String {
        "delayed".into()
    }

    fn read_at(&self, into: &mut [u8], _offset: u64) -> io::Result<usize> {
        std::thread::sleep(self.0);
        Ok(into.len())
    }
}

impl WriteAt for DelayedEndpoint {
    fn name(&self) -> String {
        "delayed".into()
    }

    fn write_at(&self, from: &[u8], _offset: u64) -> io::Result<usize> {
        std::thread::sleep(self.0);
        Ok(from.len())
    }
}

/// Moves pieces through a ring with one slot of one piece. Each read or write takes `endpoint`, and
/// each copy `copy`. Returns the entry of the ring in the report. Its row in the table has the same
/// figures.
#[track_caller]
fn moved(reads: bool, endpoint: Duration, copy: Duration, workers: usize) -> Value {
    let device = SimulatedDevice::new();
    for number in 1..=PIECES as u64 {
        device.fault(number, Fault::Delay(copy));
    }
    // The first copy takes that time from the moment on when a thread waits for it.
    let is_device_slow = copy > endpoint;
    if is_device_slow {
        device.fault(1, Fault::Hang);
    }
    let options = RingOptions::new().slots(1).slot_bytes(PIECE).piece_bytes(PIECE).workers(workers);
    let ring = Ring::new(device, options, HostMemory::new(PIECE)).expect("the options are valid");
    let memory = DeviceTarget::new(Arc::new(SimulatedMemory::new(PIECES * PIECE)));
    let endpoint = Arc::new(DelayedEndpoint(endpoint));
    let transfer = if reads { ring.read(endpoint, 0, memory) } else { ring.write(memory, endpoint, 0) };
    if is_device_slow {
        while !ring.device().is_awaited() {
            std::thread::yield_now();
        }
        std::thread::sleep(copy);
        ring.device().resume();
    }
    transfer.wait().expect("nothing fails");
    let mut report = Value::Null;
    // A thread may still count the end of its last wait.
    eventually("the table and the report are the same", SOON, || {
        let text = stat(&[]);
        report = own_rings("a simulated device").pop().expect("the ring is there");
        let head = text.lines().skip_while(|line| *line != "rings").nth(1).expect("there are rings");
        let row = text.lines().find(|line| {
            line.trim_start().starts_with(&format!("{} (", std::process::id()))
                && line.contains("a simulated device")
        });
        let row = row.unwrap_or_else(|| panic!("{text}"));
        // The last two columns. A ring without waits has no text in the last one.
        let [bound_by, waits] = ["BOUND BY", "WAITS"].map(|name| head.find(name).expect("a column"));
        row[bound_by..waits].trim() == report["bound"]
            && row.get(waits..).unwrap_or_default().trim() == waits_of(&report)
    });
    report
}

/// Returns the seconds that all threads together have spent for a cause.
fn seconds(report: &Value, cause: &str) -> f64 {
    report["thread_seconds"][cause].as_f64().unwrap_or_else(|| panic!("no {cause} in {report}"))
}

/// Returns what the table shows of the waits in a report.
fn waits_of(report: &Value) -> String {
    let causes = [
        ("reads", "reading"),
        ("writes", "writing"),
        ("device", "waiting_for_device"),
        ("slots", "waiting_for_slot"),
    ];
    let spent = causes.map(|(shown, cause)| (shown, seconds(report, cause)));
    let shown = spent.iter().filter(|(_, seconds)| *seconds > 0.0);
    shown.map(|(shown, seconds)| format!("{shown} {seconds:.1} s")).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_report_names_what_bounds_a_ring_and_where_its_threads_wait() {
    let least = SLOW.as_secs_f64() * (PIECES - 1) as f64;
    let none = Duration::ZERO;
    for (reads, bound, cause, other) in
        [(true, "source", "reading", "writing"), (false, "sink", "writing", "reading")]
    {
        let report = moved(reads, SLOW, none, 1);
        assert_eq!(report["bound"], json!(bound), "{report}");
        assert!(seconds(&report, cause) > least && seconds(&report, other) == 0.0, "{report}");
    }
    for reads in [true, false] {
        let report = moved(reads, none, SLOW, 1);
        assert_eq!(report["bound"], json!("device"), "{report}");
        assert!(seconds(&report, "waiting_for_device") > SLOW.as_secs_f64(), "{report}");
    }
    // While the slot is filled, the device waits, and the other way round.
    let report = moved(true, SLOW, SLOW, 3);
    assert_eq!(report["bound"], json!("slots"), "{report}");
    assert!(seconds(&report, "reading") > least && seconds(&report, "waiting_for_slot") > 0.0, "{report}");
}
