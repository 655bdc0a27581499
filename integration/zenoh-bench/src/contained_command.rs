//! Commands in a container.

use std::path::Path;
use std::process::Command;

/// The limit of locked memory in the container, in KiB.
const LOCKED_KIB: u32 = 64;
/// The size of the container's `/dev/shm` in bytes.
const SHM_BYTES: u32 = 64 << 20;

/// Makes a command that starts `program` in a container of bubblewrap: user, process, network, IPC
/// and mount namespaces of its own, 64 KiB of locked memory, 64 MiB in `/dev/shm`. Of the host's
/// files it can write to `folder` only.
pub(crate) fn contained_command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]);
    command.args(["--proc", "/proc", "--size", &SHM_BYTES.to_string(), "--tmpfs", "/dev/shm"]);
    command.arg("--bind").arg(folder).arg(folder);
    command.args(["--", "sh", "-c", &format!("ulimit -l {LOCKED_KIB} && exec \"$@\""), "sh"]).arg(program);
    command
}
