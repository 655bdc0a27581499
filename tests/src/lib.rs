//! The parts that the tests share: the repository's folder, programs that are built beforehand or
//! on demand, jobs, temporary folders, and tests that are skipped.

mod command_output;
pub mod fake_cuda;
mod fixture;
mod jobs;
mod processes;
mod rounds;
mod scratch;

pub use command_output::CommandOutput;
pub use fixture::fixture;
pub use jobs::{agent_of, can_simulate, flavours, hostbuf, local, run, simulated, simulated_command};
pub use processes::{eventually, processes_with};
pub use rounds::rounds;
pub use scratch::Scratch;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the repository's folder.
///
/// # Panics
/// Never: this package is a folder of the repository.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is a folder of the repository")
}

/// Returns the folder of the programs that cargo built in the profile of this test: `target/debug`
/// or the like.
///
/// # Panics
/// If the test does not lie where cargo puts it.
#[must_use]
pub fn profile() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its path");
    own.parent().and_then(Path::parent).expect("target/PROFILE/deps").to_owned()
}

/// Returns the path of a program of the workspace: the command `hostbuf`, one of tests/programs or
/// one of examples.
///
/// # Panics
/// If it is not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    built(&profile().join(name))
}

fn built(path: &Path) -> PathBuf {
    assert!(path.exists(), "{} is not there: run scripts/build-programs", path.display());
    path.to_owned()
}

/// Reports that this machine lacks what a test needs. `scripts/test` lists the reasons at its end.
///
/// # Panics
/// If the list cannot be written.
pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("HOSTBUF_SKIPPED") {
        let list = File::options().append(true).create(true).open(path);
        writeln!(list.expect("the list is writable"), "{why}").expect("the list is writable");
    }
}

/// Returns true if `program` can be started here, and records a skip if not.
#[must_use]
pub fn have(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let there = there.is_ok_and(|o| o.status.success());
    if !there {
        skip(&format!("{program} is not installed"));
    }
    there
}
