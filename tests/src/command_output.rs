//! The result of a command.

use std::process::{Command, Stdio};

/// The status and the output of a command that ended.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit status, or 128 plus the number of the signal.
    pub status: i32,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// Runs a command with an empty standard input.
    ///
    /// # Panics
    /// If it does not start.
    pub fn of(command: &mut Command) -> CommandOutput {
        use std::os::unix::process::ExitStatusExt;
        let output = command.stdin(Stdio::null()).output().expect("the command starts");
        let status = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        CommandOutput { status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Checks that the command succeeded.
    ///
    /// # Panics
    /// With everything that was printed, if not.
    #[track_caller]
    pub fn ok(self) -> CommandOutput {
        assert!(
            self.status == 0,
            "status {}\nstdout:\n{}\nstderr:\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Returns the lines of standard error, except those about progress, which appear on slow
    /// machines.
    pub fn said(&self) -> Vec<&str> {
        const PROGRESS: [&str; 2] = ["hostbuf: allocating memory", "hostbuf: loading files"];
        let is_progress = |line: &str| PROGRESS.iter().any(|start| line.starts_with(start));
        self.stderr.lines().filter(|line| !is_progress(line)).collect()
    }

    /// Returns the lines of standard output that begin with `prefix`, without it.
    pub fn lines(&self, prefix: &str) -> Vec<String> {
        self.stdout.lines().filter_map(|l| l.strip_prefix(prefix)).map(str::to_owned).collect()
    }
}
