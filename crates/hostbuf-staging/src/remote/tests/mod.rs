//! Tests of remote objects, with a test server that can lie, stall and cut.

mod addresses;
mod chunked_bodies;
mod forks;
mod idle_connections;
mod lies;
mod modes;
mod proxies;
mod ranges;
mod redirects;
mod spans;
mod temporary_failures;
mod test_server;
mod test_transport;
mod tls;
mod web_hdfs;

use std::sync::Arc;
use std::time::Duration;

use super::{RemoteError, RemoteFile, RemoteOptions, RemoteProblem, RequestMode};
use crate::{DeviceTarget, HostMemory, Ring, RingOptions, SimulatedDevice, SimulatedMemory, TransferError};

/// The length of the pieces of the rings, and so of the requests.
const PIECE: usize = 64 << 10;

/// Returns bytes that differ from one place to the next.
fn content(bytes: usize) -> Vec<u8> {
    let word = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// Returns options that waste no time between attempts.
fn options() -> RemoteOptions {
    RemoteOptions::new().backoff(Duration::ZERO).timeout(Duration::from_secs(20))
}

/// Returns options for requests by each of the two clients: a header of the connection leaves the
/// requests to the library.
fn both_clients() -> [RemoteOptions; 2] {
    [options(), options().header("Connection", "keep-alive")]
}

fn reactors(threads: usize, requests: usize) -> RequestMode {
    RequestMode::Reactors { threads, requests }
}

/// Reads a whole object by a ring to a device.
fn read_by_ring(file: &RemoteFile, workers: usize) -> Result<Vec<u8>, TransferError> {
    let options = RingOptions::new().slots(2).slot_bytes(4 * PIECE).piece_bytes(PIECE).workers(workers);
    let ring = Ring::new(SimulatedDevice::new(), options, HostMemory::new(8 * PIECE)).expect("valid options");
    let memory = Arc::new(SimulatedMemory::new(file.bytes() as usize));
    file.pread(&ring, DeviceTarget::new(memory.clone()), 0).wait()?;
    Ok(memory.content())
}

/// Reads a range, which fails.
#[track_caller]
fn read_error(file: &RemoteFile, offset: u64, bytes: usize) -> RemoteError {
    file.read(&mut vec![0; bytes], offset).expect_err("the server does not send it")
}

/// Returns whether a problem is one that another attempt may end.
fn is_exhausted(error: &RemoteError, attempts: u32) -> bool {
    error.problem.is_temporary() && error.attempts == attempts
}

/// Returns the text of a problem that is a cut.
fn cut_after(error: &RemoteError) -> Option<u64> {
    match &error.problem {
        RemoteProblem::Cut { received, .. } => Some(*received),
        _ => None,
    }
}
