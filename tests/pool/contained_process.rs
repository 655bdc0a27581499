//! Processes in containers of bubblewrap.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hostbuf_tests::program;

/// The limit of locked memory in KiB.
pub(crate) const LOCKED_KIB: u64 = 64;
/// The size of `/dev/shm` in KiB.
pub(crate) const SHM_KIB: u64 = 64 << 10;

/// A process with namespaces of its own, which can write to the folder of the broker's socket only.
pub(crate) struct ContainedProcess {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// The identities of its namespaces.
    pub(crate) namespaces: String,
}

/// Makes the start of a command in a container, with the socket of `folder`.
pub(crate) fn bubblewrap(folder: &Path) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--die-with-parent"]);
    command.args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
    command.args(["--size", &(SHM_KIB << 10).to_string(), "--tmpfs", "/dev/shm", "--tmpfs", "/tmp"]);
    // The folders of tests lie in /tmp, and of the broker's only the socket is shown.
    let socket = folder.join("pool.socket");
    command.arg("--bind").arg(&socket).arg(&socket);
    command.args(["--", "sh", "-c", &format!("ulimit -l {LOCKED_KIB} && exec \"$@\""), "sh"]);
    command
}

impl ContainedProcess {
    /// Starts `pool_frames` with a role, and checks its limits.
    pub(crate) fn start(folder: &Path, role: &str, count: u32) -> ContainedProcess {
        let mut command = bubblewrap(folder);
        command.arg(program("pool_frames")).arg(role).arg(folder.join("pool.socket")).arg(count.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("bubblewrap starts");
        let input = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let mut process = ContainedProcess {
            child,
            input,
            lines: BufReader::new(output).lines(),
            namespaces: String::new(),
        };
        let first = process.next_line();
        let words: Vec<&str> = first.split(' ').collect();
        assert_eq!(words[..2], [LOCKED_KIB.to_string(), SHM_KIB.to_string()], "{first}");
        process.namespaces = words[2].to_owned();
        process
    }

    /// Returns the next line of its output.
    pub(crate) fn next_line(&mut self) -> String {
        self.lines.next().expect("it goes on").expect("a text")
    }

    /// Writes a line to its input.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    /// Kills the container with all its processes by SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ContainedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
