//! Programs in C that end with transfers in flight, of a ring of the host and of a ring of the fake
//! driver, also with the sanitizers.

use std::fs;
use std::process::Command;

use hostbuf_tests::CommandOutput;

use crate::gpu_blocks::fake_driver;
use crate::interface::{SANITIZERS, built};

/// The calls by which the objects of a ring end. A driver that shuts down has ended them before.
const ENDINGS: [&str; 4] = ["cuMemHostUnregister", "cuStreamDestroy_v2", "cuEventDestroy_v2", "release"];

/// The most calls after the driver has shut down: some of each thread of the ring.
const LATE: usize = 32;

/// Builds the program, and lets it end in all ways.
fn end_in_flight(flags: &[&str]) {
    let Some(program) = built("gcc", flags, "c_end_in_flight.c") else { return };
    for device in ["host", "gpu"] {
        for end in ["return", "exit", "wait"].into_iter().cycle().take(6) {
            let folder = fake_driver("ends-in-flight");
            let late = folder.path("late");
            let mut command = Command::new(&program.0);
            command.args([device, end]).env("LD_LIBRARY_PATH", &folder.0);
            command.env("FAKE_CUDA_COPY_MS", "5").env("FAKE_CUDA_LATE", &late);
            let said = CommandOutput::of(command.env("ASAN_OPTIONS", "detect_leaks=1")).ok();
            assert!(said.stdout == "in flight\n" && said.stderr.is_empty(), "{device}, {end}: {said:?}");
            // The threads of the ring learn from the first refused calls that the driver has ended.
            let calls = fs::read_to_string(&late).unwrap_or_default();
            let ended = calls.lines().find(|call| ENDINGS.contains(call));
            assert!(ended.is_none() && calls.lines().count() <= LATE, "{device}, {end}: {calls}");
            assert!(!calls.is_empty() || device == "host" || end != "wait", "no call was refused");
        }
    }
}

#[test]
fn c_ends_with_transfers_in_flight() {
    end_in_flight(&["-std=c11"]);
}

#[test]
fn c_ends_with_transfers_in_flight_under_sanitizers() {
    end_in_flight(&[&["-std=c11"][..], &SANITIZERS].concat());
}
