//! Memory of a GPU that two processes share, also on the fake driver. Each test starts itself as
//! the other process.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use hostbuf_cuda::{
    CudaContext, CudaEvent, Driver, GpuAccess, GpuUuid, MappedMemory, PhysicalMemory, VirtualRange,
};
use hostbuf_os::socket::{self, ReceivedPacket};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::MIB;
use super::streams::{HostCopies, first_gpu};

/// The variable by which the other process gets the GPU, the size and the event.
const OPERANDS: &str = "HOSTBUF_TEST_SHARED_MEMORY";
const BYTES: usize = 16 * MIB;
/// An address at which the importer maps the memory.
const AT: u64 = 0x3000_0000_0000;

/// Starts the test `name` of this file as another process, with `input` as its standard input.
fn start(name: &str, operands: &str, input: Stdio) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--ignored", "--exact", &format!("gpu::shared_memory::{name}"), "--nocapture"]);
    command.env(OPERANDS, operands).stdin(input).stdout(Stdio::piped());
    command.spawn().expect("it starts")
}

/// Maps `memory` at `at`, and gives its GPU access.
fn map(memory: PhysicalMemory, at: Option<u64>) -> MappedMemory {
    let context = memory.context().expect("it has one").clone();
    let range = VirtualRange::reserve(&context, memory.bytes(), at).expect("addresses");
    range.map(memory, &[GpuAccess::read_write(context.gpu())]).expect("mapped")
}

/// Returns the hexadecimal digits of a handle.
fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn memory_and_an_event_go_to_another_process() {
    if let Ok(operands) = std::env::var(OPERANDS) {
        return import(&operands);
    }
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let mapped = map(PhysicalMemory::create(&context, BYTES).expect("memory"), None);
    let mut copies = HostCopies::new(&context, BYTES);
    let written = CudaEvent::interprocess(&context).expect("an event");
    copies.start_write(mapped.address(), 1);
    written.record(&copies.stream).expect("recorded");
    let handle = digits(&written.export().expect("exported"));
    let uuid = context.gpu().uuid().expect("a UUID");
    let descriptor = mapped.memory().export().expect("exported");
    let operands = format!("{uuid} {} {handle}", mapped.bytes());
    let other = start("memory_and_an_event_go_to_another_process", &operands, descriptor.into());
    let output = other.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{text}");
    // The other process has written.
    copies.check(mapped.address(), 2);
}

/// Runs as the other process: checks the memory, and writes to it.
fn import(operands: &str) {
    let words: Vec<&str> = operands.split(' ').collect();
    let [uuid, bytes, handle] = words[..] else { panic!("{operands}") };
    let uuid: GpuUuid = uuid.parse().expect("a UUID");
    let bytes: usize = bytes.parse().expect("a number");
    let handle: [u8; 64] =
        std::array::from_fn(|at| u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).expect("digits"));
    let gpu = Driver::find().and_then(|driver| driver.gpu_with_uuid(&uuid)).expect("the same GPU");
    let context = CudaContext::retain(&gpu).expect("a context");
    let begun = Instant::now();
    let memory = PhysicalMemory::import(&context, std::io::stdin().as_fd(), bytes).expect("imported");
    let mapped = map(memory, Some(AT));
    println!("importing and mapping 16 MiB: {:?}", begun.elapsed());
    assert_eq!(mapped.address(), AT);
    let written = CudaEvent::import(&context, handle).expect("imported");
    let mut copies = HostCopies::new(&context, BYTES);
    copies.stream.wait(&written).expect("it waits");
    copies.check(AT, 1);
    copies.start_write(AT, 2);
    copies.stream.synchronize().expect("it ends");
}

#[test]
#[ignore = "needs a GPU"]
fn memory_outlives_its_killed_exporter() {
    if std::env::var_os(OPERANDS).is_some() {
        return export();
    }
    let (own, others) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("sockets");
    let mut other = start("memory_outlives_its_killed_exporter", "export", others.into());
    let received = socket::receive(own.as_fd(), 64).expect("a packet");
    let ReceivedPacket::Packet(packet, descriptors) = received else { panic!("the exporter has failed") };
    let bytes: usize = String::from_utf8(packet).expect("text").parse().expect("a number");
    let [descriptor] = &descriptors[..] else { panic!("one descriptor") };
    other.kill().expect("it runs");
    let status = other.wait().expect("it ends");
    assert!(!status.success(), "{status}");
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let mapped = map(PhysicalMemory::import(&context, descriptor.as_fd(), bytes).expect("imported"), None);
    HostCopies::new(&context, BYTES).check(mapped.address(), 3);
}

/// Runs as the exporter: sends its memory, and waits until it is killed.
fn export() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let mapped = map(PhysicalMemory::create(&context, BYTES).expect("memory"), None);
    let mut copies = HostCopies::new(&context, BYTES);
    copies.start_write(mapped.address(), 3);
    copies.stream.synchronize().expect("it ends");
    let descriptor = mapped.memory().export().expect("exported");
    let packet = mapped.bytes().to_string();
    socket::send(std::io::stdin().as_fd(), packet.as_bytes(), &[descriptor.as_raw_fd()]).expect("sent");
    let _ = std::io::stdin().read(&mut [0]);
}
