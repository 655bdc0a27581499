//! Memory of another process by a legacy handle, also on the fake driver. The test starts itself as
//! the exporter, which calls the driver itself, since hostbuf makes no such handles.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use cudarc::driver::sys;
use hostbuf_cuda::{CudaContext, DeviceMemory, IpcMemory};

use super::MIB;
use super::copies::ok;
use super::streams::{HostCopies, first_gpu};

/// The variable that names the exporter.
const EXPORTER: &str = "HOSTBUF_TEST_LEGACY_EXPORTER";
const BYTES: usize = 4 * MIB;
/// The word before the handle in the exporter's output.
const HANDLE: &str = "legacy handle ";

#[test]
#[ignore = "needs a GPU"]
fn a_legacy_handle_of_another_process_is_opened_and_closed() {
    if std::env::var_os(EXPORTER).is_some() {
        return export();
    }
    let mut exporter = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("gpu::legacy_handles::a_legacy_handle_of_another_process_is_opened_and_closed")
        .env(EXPORTER, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(exporter.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let line = lines.find_map(|line| Some(line.split_once(HANDLE)?.1.to_owned()));
    let digits = line.expect("the exporter has printed the handle");
    let handle: [u8; 64] =
        std::array::from_fn(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits"));
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let mut copies = HostCopies::new(&context, BYTES);
    // It can be opened again after it was closed.
    for _ in 0..2 {
        let memory = IpcMemory::open(&context, handle).expect("opened");
        assert!(memory.bytes() >= BYTES, "{memory:?}");
        copies.check(memory.address(), 4);
    }
    drop(exporter.stdin.take());
    lines.for_each(drop);
    assert!(exporter.wait().expect("it ends").success());
    // The driver leaves open what happens now.
    println!(
        "after the exporter's end: {:?}",
        IpcMemory::open(&context, handle).map_err(|error| error.to_string())
    );
}

/// Runs as the exporter: prints a handle, and keeps the memory until its standard input ends.
fn export() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let memory = DeviceMemory::new(&context, BYTES).expect("memory");
    let mut copies = HostCopies::new(&context, BYTES);
    copies.start_write(memory.address(), 4);
    copies.stream.synchronize().expect("it ends");
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    let current = context.make_current().expect("a context");
    // SAFETY: `handle` is a local variable, and the context is current.
    ok(unsafe { sys::cuIpcGetMemHandle(&raw mut handle, memory.address()) });
    drop(current);
    let digits: String =
        handle.reserved.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect();
    println!("{HANDLE}{digits}");
    let rest = std::io::stdin().read_to_end(&mut Vec::new());
    assert_eq!(rest.expect("a pipe"), 0);
}
