//! A rank that finds the tensors of `hostbuf run --load`: `loaded_tensors MODE`. It prints a line
//! about them, and about what `--register` has registered. With `freeze`, all ranks freeze the
//! buffer before; with `wait`, each rank waits for a signal afterwards.

use std::fs;

use hostbuf::job::Local;
use hostbuf::{FillState, HostBuffer};
use hostbuf_load::Tensors;
use hostbuf_programs::registered::registered;
use nix::unistd::pause;
use xxhash_rust::xxh3::Xxh3;

/// Returns the number of bytes that this process has read by system calls.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("/proc is there");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("the kernel counts reads");
    line.parse().expect("a number")
}

fn main() {
    let mode = std::env::args().nth(1).expect("loaded_tensors MODE");
    let group = Local::from_env().expect("a launcher has started this process");
    let Some(tensors) = Tensors::loaded().expect("the tensors are intact") else {
        println!("no tensors");
        return;
    };
    assert_eq!(tensors.buffer().fill_state().expect("the control page is intact"), FillState::Filled);
    if mode == "freeze" {
        let frozen = tensors.buffer().freeze(&group).expect("no process can write");
        assert!(frozen.bytes().is_some());
    }
    let mut hash = Xxh3::new();
    for tensor in tensors.iter() {
        hash.update(tensor.entry.name.as_bytes());
        hash.update(tensor.bytes);
    }
    let counters = tensors.counters();
    let buffers = HostBuffer::attach_all().expect("there are buffers");
    let registered = registered()
        .iter()
        .map(|entry| format!("{}@{:p}+{}", entry.device().replace(' ', ""), entry.address, entry.length))
        .collect::<Vec<_>>();
    println!(
        "digest {:016x} at {:p} tensors {} read {} counted {} received {} job {} buffers {} address {} \
         length {} registered {}",
        hash.digest(),
        tensors.buffer().as_ptr(),
        tensors.table().tensors().len(),
        bytes_read(),
        counters.bytes_read,
        counters.bytes_received,
        counters.job_bytes_read,
        buffers.iter().map(HostBuffer::name).collect::<Vec<_>>().join(","),
        std::env::var("HOSTBUF_ADDRESS").unwrap_or_default(),
        tensors.buffer().len(),
        registered.join(","),
    );
    if mode == "wait" {
        loop {
            pause();
        }
    }
}
