//! The program that `hostbuf mirror --rdma` becomes: this command, built with the feature `rdma`.
//!
//! libibverbs must be there for it to start, and the installed command must start without it. So
//! they are two files: an installation has the other one in `libexec/hostbuf/`.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use hostbuf::register::DeviceName;
use hostbuf::{Error, Result};

use crate::installation;
use crate::register_file::expect_library;

/// Replaces this process by the command with RDMA and the same arguments. Returns only if it
/// cannot.
///
/// # Errors
/// [`Error::Unsupported`] with the remedy if the program or libibverbs is missing; [`Error::Os`].
pub(super) fn exec() -> Result<Infallible> {
    let program = place();
    let library = "rdma".parse::<DeviceName>().ok().and_then(|device| device.library());
    if !program.is_file() {
        let headers = library.map_or("", |library| library.headers);
        let why = format!(
            "this command was built without RDMA, and {} does not exist: build it with `{}` in hostbuf's sources, which needs the headers of libibverbs ({headers}), or leave out --rdma to use TCP",
            program.display(),
            installation::mend("")
        );
        return Err(Error::Unsupported { what: "--rdma".into(), why });
    }
    library.map_or(Ok(()), |library| expect_library("--rdma", &library))?;
    let source = Command::new(&program).arg0("hostbuf").args(std::env::args_os().skip(1)).exec();
    Err(Error::Os { doing: format!("--rdma: starting {}", program.display()), source })
}

/// Returns the path of the program: `libexec/hostbuf/` next to the `bin/` of this command.
fn place() -> PathBuf {
    let command = std::env::current_exe().unwrap_or_default();
    let prefix = command.parent().and_then(|bin| bin.parent());
    prefix.map(|prefix| prefix.join("libexec/hostbuf/hostbuf-rdma")).unwrap_or_default()
}
