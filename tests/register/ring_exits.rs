//! Processes that end with transfers of a ring of the host in flight.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use hostbuf_staging::{Backend, BorrowedMemory, DeviceTarget, FileOptions, HostMemory, Ring};
use hostbuf_tests::Scratch;

use crate::ended_process::{IN_FLIGHT, assert_ends_well};

/// The variable that names how a process ends.
const END: &str = "HOSTBUF_TEST_RING_END";
const NAME: &str = "ring_exits::a_process_ends_while_a_ring_of_the_host_reads";
const BYTES: usize = 64 << 20;

/// Leaves transfers in flight, of a file that stays open without its folder.
fn start_in_flight() {
    let folder = Scratch::new("ring-exits");
    let path = folder.path("file");
    fs::File::create(&path).unwrap().set_len(BYTES as u64).unwrap();
    // Some machines have no io_uring.
    let backends = [Backend::Uring, Backend::Posix];
    let files = backends.map(|backend| FileOptions::new().backend(backend).open(&path));
    drop(folder);
    let ring = Ring::of_host().unwrap();
    let files: Vec<_> = files.into_iter().flatten().collect();
    let memory = || Arc::new(BorrowedMemory::from(HostMemory::new(BYTES)));
    let memories: Vec<_> = (0..8).map(|_| memory()).collect();
    let transfers: Vec<_> = loop {
        let starts = memories.iter().zip(files.iter().cycle());
        let started = starts.map(|(memory, file)| file.pread(&ring, DeviceTarget::new(memory.clone()), 0));
        let transfers: Vec<_> = started.collect();
        // If this thread was held up, all of them have ended.
        if transfers.iter().any(|transfer| !transfer.test()) {
            break transfers;
        }
    };
    println!("{IN_FLIGHT}");
    std::mem::forget((transfers, ring));
}

#[test]
fn a_process_ends_while_a_ring_of_the_host_reads() {
    match std::env::var(END).as_deref() {
        Ok("exit") => {
            start_in_flight();
            std::process::exit(0)
        }
        // The harness returns from main.
        Ok(_) => return start_in_flight(),
        Err(_) => {}
    }
    for end in ["exit", "return", "exit", "return"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture", "--test-threads=1"]).env(END, end);
        assert_ends_well(&mut command);
    }
}
