//! `hostbuf.dma` in Python with a fake driver of a GPU, whose addresses are those of the host.

use hostbuf_tests::CommandOutput;

use crate::gpu_blocks::fake_driver;
use crate::python::{python, strict};

/// A script that prints the layout of an array in shared memory, adopted for reading and for
/// writing, between two lines that state whether the driver is loaded.
const FRAMES: &str = r#"
import ctypes, hostbuf, numpy as np
from multiprocessing.shared_memory import SharedMemory

def driver_is_loaded():
    with open("/proc/self/maps") as maps:
        return "cuda" in maps.read()

shared = SharedMemory(create=True, size=65536)
try:
    frame = np.ndarray((64, 64), "f4", shared.buf, offset=4096)
    frame[:] = np.arange(4096).reshape(64, 64)
    hostbuf.dma(frame, "mlock").release()
    print("loaded" if driver_is_loaded() else "not loaded")
    for writable in [False, True]:
        with hostbuf.dma(frame[1:, ::2], writable=writable) as adopted:
            if adopted.direct:
                described = adopted.__cuda_array_interface__
                address, readonly = described["data"]
                first = ctypes.c_float.from_address(address).value
                print(first, readonly, described["shape"], described["strides"], described["typestr"])
            else:
                print(adopted.why)
    print("loaded" if driver_is_loaded() else "not loaded")
    del frame
finally:
    shared.close()
    shared.unlink()
"#;

/// Runs the script with the fake driver, and returns the lines of its output.
fn frames(registers_read_only: &str) -> Option<Vec<String>> {
    let python = python()?;
    let folder = fake_driver("adopted-arrays");
    let mut command = strict(&python);
    command.args(["-c", FRAMES]).env("LD_LIBRARY_PATH", &folder.0);
    let outcome = CommandOutput::of(command.env("FAKE_CUDA_READ_ONLY", registers_read_only)).ok();
    assert_eq!(outcome.stderr, "", "it said something");
    Some(outcome.stdout.lines().map(str::to_owned).collect())
}

#[test]
fn an_array_has_a_device_address_and_loads_the_driver_only_then() {
    let Some(lines) = frames("1") else { return };
    let expected =
        ["not loaded", "64.0 True (63, 32) (256, 8) <f4", "64.0 False (63, 32) (256, 8) <f4", "loaded"];
    assert_eq!(lines, expected);
}

#[test]
fn a_driver_that_refuses_read_only_memory_is_the_reason_for_a_copy() {
    let Some(lines) = frames("0") else { return };
    assert!(lines[1].contains("cannot register read-only memory"), "{lines:?}");
    assert!(lines[1].ends_with("or adopt it for writing if only read-only memory is refused"), "{lines:?}");
    assert!(lines[2].starts_with("64.0 False"), "{lines:?}");
}
