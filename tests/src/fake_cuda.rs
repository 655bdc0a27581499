//! Tests in a process with a fake CUDA driver (tests/fixtures/fake_cuda.c), whose memory the CPU
//! reaches, and a fake cuFile (tests/fixtures/fake_cufile.c).

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::{Scratch, fixture};

/// The variable that names the test's folder in the process that loads the driver.
pub const FOLDER: &str = "HOSTBUF_TEST_FAKE_CUDA";
/// The variable of the driver that names the file while which exists no event is complete.
pub const PENDING: &str = "FAKE_CUDA_PENDING";
/// The variable of the driver that names the file while which exists copies of rows are refused.
pub const NO_ROWS: &str = "FAKE_CUDA_NO_ROWS";
/// The variable of the driver that names the file to which it appends freed memory of the GPU.
pub const FREED: &str = "FAKE_CUDA_FREED";
/// The variable of the driver that names the file to which it appends a line for each registration.
pub const LOG: &str = "FAKE_CUDA_LOG";
/// The variable of the driver with the milliseconds that a copy to the GPU takes.
pub const COPY_MS: &str = "FAKE_CUDA_COPY_MS";

/// The variable of the driver that makes copies to its GPU take time, in their streams.
pub const SLOW_COPIES: (&str, &str) = ("FAKE_CUDA_COPY_MS", "1");

/// The variable of the fake cuFile that names the file with the name of the function that fails.
pub const CUFILE_FAILS: &str = "FAKE_CUFILE_FAILS";
/// The variable of the fake cuFile that names the file to which it appends its calls.
pub const CUFILE_LOG: &str = "FAKE_CUFILE_LOG";

/// Installs the driver in a folder, for `LD_LIBRARY_PATH`.
///
/// # Panics
/// If the folder has a driver already, or is not writable.
pub fn install_fake_cuda(folder: &Scratch) {
    let driver =
        fixture("cc", "fake_cuda.c", &["-shared", "-fPIC"]).expect("a C compiler built this test's crate");
    // On a machine with a GPU the second name takes precedence.
    for library in ["libcuda.so.1", "libcuda.so"] {
        symlink(&driver, folder.path(library)).expect("it is new");
    }
}

/// Runs the test `name` of this program, with the path of its modules, in a process with the driver
/// and cuFile. Returns true in that process.
///
/// # Panics
/// If the test fails there.
#[must_use]
#[track_caller]
pub fn with_fake_cuda(name: &str) -> bool {
    with_fake_cuda_and(name, &[])
}

/// Runs a test as [`with_fake_cuda`] does, with more variables of the driver.
///
/// # Panics
/// If the test fails there.
#[must_use]
#[track_caller]
pub fn with_fake_cuda_and(name: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(FOLDER).is_some() {
        return true;
    }
    let folder = Scratch::new(name.rsplit("::").next().unwrap_or(name));
    install_fake_cuda(&folder);
    let cufile = fixture("cc", "fake_cufile.c", &["-shared", "-fPIC"]).expect("as above");
    symlink(&cufile, folder.path("libcufile.so.0")).expect("it is new");
    let mut command = Command::new(std::env::current_exe().expect("this"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", &folder.0).env(FOLDER, &folder.0);
    command.env(CUFILE_FAILS, folder.path("cufile-fails")).env(CUFILE_LOG, folder.path("cufile-log"));
    command.env(NO_ROWS, folder.path("no-rows")).envs(variables.iter().copied());
    let output = command.env(PENDING, folder.path("pending")).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    false
}
