//! Checks RDMA puts into a section that gets copies, in one job of two ranks that are bound to the
//! nodes 0 and 1 of a machine with an RDMA device: `hostbuf run --launcher local -n 2 --bind node
//! -- rdma_copies`. Rank 0 offers the buffer of the job to puts, and rank 1, which has a buffer of
//! its own beside it, puts. Rank 0 prints one line for each check, `ok NAME ...` or `FAILED NAME
//! ...`, and the ranks exit with status 1 if one failed.

#![allow(unsafe_code, reason = "buffers are accessed by raw pointers while devices write them")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hostbuf::job::{Collective, Local, Reduce, Solo};
use hostbuf::{BufferOptions, Error, Failure, HostBuffer, Pages, Placement, Proof};
use hostbuf_programs::checks::{LocalCheck, Outcome, expect, run_local, text};
use hostbuf_rdma::{Fabric, FabricOptions, HostIndex, PeerId, Pending, TcpBootstrap};
use hostbuf_register::{Access, Verbs};

const PORT: u16 = 17173;
const TIMEOUT: Duration = Duration::from_secs(60);
const SIZE: usize = 4 << 20;
/// The bytes that rank 1 puts.
const REGION: std::ops::Range<usize> = 8192..8192 + 65_536;

fn main() {
    let checks: [LocalCheck; 1] = [("puts-into-copies", puts_into_copies)];
    let group = Local::from_env().map_err(text);
    let well = group.and_then(|group| run_local(&group, &["puts-into-copies".into()], &checks));
    let well = well.unwrap_or_else(|why| {
        println!("FAILED setup {why}");
        false
    });
    std::process::exit(i32::from(!well))
}

/// Checks that a put reaches all ranks before a freeze, and that afterwards a put by the old key is
/// refused and changes neither the original pages nor the copies, which devices may only read.
fn puts_into_copies(group: &Local) -> Outcome {
    let options = BufferOptions::new(SIZE as u64).pages(Pages::Small).numa(Placement::Copies);
    let shared = HostBuffer::allocate(group, options).map_err(text)?;
    shared.initialize(|arena| arena.place(7u64)).map_err(text)?;
    let own = BufferOptions::new(SIZE as u64).pages(Pages::Small);
    let own = HostBuffer::allocate(&Solo, own).map_err(text)?;
    let fabric = connect(group, if group.rank() == 0 { &shared } else { &own })?;
    let put = |byte: u8| {
        // SAFETY: this rank's own memory, which no operation accesses now.
        unsafe { own.as_ptr().as_ptr().add(REGION.start).write_bytes(byte, REGION.len()) };
        fabric.put(REGION, HostIndex(0)).map(Pending::wait)
    };
    if group.rank() == 1 {
        put(1).map_err(text)?.map_err(text)?;
    }
    group.barrier().map_err(text)?;
    expect_everywhere(group, &shared, 1).map_err(|why| format!("before the freeze: {why}"))?;

    let frozen = shared.freeze(group).map_err(text)?;
    expect(*frozen.proof() == Proof::Sealed, format!("{:?}", frozen.proof()))?;
    let nodes: Vec<u32> = frozen.rank_nodes().iter().map(|rank| rank.node.0).collect();
    expect(nodes == [0, 1], format!("the ranks read from the nodes {nodes:?}"))?;
    if group.rank() == 1 {
        let refused = put(2).map_err(text)?;
        let by_device = matches!(refused, Err(Error::Peer { failure: Failure::RemoteAccess, .. }));
        expect(by_device, format!("a put into copies: {refused:?}"))?;
    }
    group.barrier().map_err(text)?;
    expect_everywhere(group, &shared, 1).map_err(|why| format!("after a put into copies: {why}"))?;

    let verbs = Arc::new(Verbs::open(None).map_err(text)?);
    let writable = shared.register(&verbs, .., Access::REMOTE_WRITE);
    let why = writable.err().ok_or("a device may write into copies")?.to_string();
    expect(why.contains("frozen"), &why)?;
    let readable = shared.register(&verbs, .., Access::REMOTE_READ).map_err(text)?;
    drop(readable);
    Ok(format!("copies on the nodes {nodes:?}; {why}"))
}

/// Connects rank 0 with its buffer and rank 1 with its own, as two hosts. The lengths are equal.
fn connect(group: &Local, buffer: &HostBuffer) -> Result<Fabric, String> {
    let root = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let bootstrap = match group.rank() {
        0 => TcpBootstrap::listen(TcpListener::bind(root).map_err(text)?, 2, TIMEOUT),
        rank => TcpBootstrap::join(PeerId(rank), 2, root, TIMEOUT),
    };
    // SAFETY: the region that is put is accessed only through pointers, and not during a put.
    unsafe { Fabric::connect_with(&bootstrap.map_err(text)?, buffer, FabricOptions::default()) }.map_err(text)
}

/// Requires that all ranks read `byte` in the whole region.
fn expect_everywhere(group: &Local, buffer: &HostBuffer, byte: u8) -> Result<(), String> {
    // SAFETY: in the buffer; a device may have written it before.
    let read = |at: usize| unsafe { buffer.as_ptr().as_ptr().add(at).read_volatile() };
    let wrong = REGION.filter(|&at| read(at) != byte).count();
    let mut all = [wrong as u64];
    group.all_reduce(&mut all, Reduce::Max).map_err(text)?;
    expect(all == [0], format!("rank {} reads {wrong} wrong bytes, others at most {}", group.rank(), all[0]))
}
