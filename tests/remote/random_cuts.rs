//! Transfers from a server that cuts at random moments, and that are cancelled and dropped: no byte
//! is wrong, and nothing is left.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hostbuf_programs::process_resources::ProcessResources;
use hostbuf_programs::random::RandomInstants;
use hostbuf_staging::{
    DeviceTarget, HostMemory, RemoteOptions, RequestMode, Ring, RingOptions, SimulatedDevice,
    SimulatedMemory, Transfer, TransferError,
};
use hostbuf_tests::{CommandOutput, rounds};

use super::content;
use super::cutting_server::CuttingServer;

/// The variable of the process that runs nothing else.
const ALONE: &str = "HOSTBUF_TEST_ALONE";
const SLOT: usize = 64 << 10;
const BYTES: usize = 20 * SLOT + 777;

/// Returns the options of a client that tries again at once.
fn options(random: &mut RandomInstants) -> RemoteOptions {
    let mode = if random.below(2) == 0 { RequestMode::Easy } else { RequestMode::reactors(2, 4) };
    let attempts = 1 + random.below(5) as u32;
    RemoteOptions::new().mode(mode).attempts(attempts).backoff(Duration::ZERO)
}

/// A transfer, and the memory of the device to which it reads from an offset on.
struct StartedRead {
    transfer: Transfer,
    memory: Arc<SimulatedMemory>,
    offset: usize,
}

/// Reads ranges of the object by a new client and a new ring. Returns the numbers of transfers that
/// have succeeded and failed.
fn one_round(server: &CuttingServer, content: &[u8], random: &mut RandomInstants) -> (u64, u64) {
    server.cut(false);
    let client = options(random).client().expect("valid options");
    let file = client.open(&server.url()).expect("it is there");
    server.cut(true);
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT / 4);
    let options = options.workers(1 + random.below(4) as usize);
    let memory = HostMemory::new(options.bytes().expect("valid options"));
    let ring = Ring::new(SimulatedDevice::new(), options, memory).expect("a ring");
    let mut started = Vec::new();
    for _ in 0..1 + random.below(4) {
        let offset = random.below(BYTES as u64) as usize;
        let bytes = 1 + random.below((BYTES - offset) as u64) as usize;
        let memory = Arc::new(SimulatedMemory::new(bytes));
        let transfer = file.pread(&ring, DeviceTarget::new(memory.clone()), offset as u64);
        match random.below(6) {
            0 => transfer.cancel(),
            1 => {
                drop(transfer);
                continue;
            }
            _ => {}
        }
        started.push(StartedRead { transfer, memory, offset });
    }
    let mut ring = Some(ring);
    if random.below(4) == 0 {
        ring = None;
    }
    let (mut succeeded, mut failed) = (0, 0);
    for StartedRead { transfer, memory, offset } in started {
        let result = transfer.wait();
        match &result {
            Ok(_) => succeeded += 1,
            Err(TransferError::Io { .. }) => failed += 1,
            Err(TransferError::Cancelled { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let landed = transfer.landed() as usize;
        let found = memory.content();
        assert!(result.is_err() || landed == found.len(), "{landed} of {} bytes", found.len());
        assert!(found[..landed] == content[offset..offset + landed], "{result:?}");
    }
    drop(ring);
    (succeeded, failed)
}

#[test]
fn random_cuts_leave_nothing() {
    // Other tests of this process would change what it has.
    if std::env::var_os(ALONE).is_none() {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "random_cuts::random_cuts_leave_nothing", "--nocapture"]).env(ALONE, "1");
        let outcome = CommandOutput::of(&mut command).ok();
        return assert!(outcome.stdout.contains("1 passed"), "{outcome:?}");
    }
    let mark = format!("remote-cuts-{}", std::process::id());
    let content = content(BYTES);
    let server = CuttingServer::new(content.clone(), 3);
    let before = ProcessResources::count(&mark);
    let (mut succeeded, mut failed) = (0, 0);
    for round in rounds(20, 200, Duration::from_secs(8)) {
        let mut random = RandomInstants::new(round as u64 + 1);
        let (right, cut) = one_round(&server, &content, &mut random);
        (succeeded, failed) = (succeeded + right, failed + cut);
        before.wait_returned(&mark).unwrap_or_else(|why| panic!("round {round}: {why}"));
    }
    assert!(server.cuts() > 0 && succeeded > 0 && failed > 0, "{succeeded} {failed}");
}
