//! Processes of this program with a role in a benchmark.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;

/// A process of this program with a role, which takes commands and answers in lines. It is killed
/// when this object is dropped.
pub(crate) struct BenchProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl BenchProcess {
    /// Starts a role of a benchmark.
    pub(crate) fn start(benchmark: &str, arguments: &[&str]) -> Result<BenchProcess, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args(["role", benchmark]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let output = child.stdout.take().ok_or("no pipe")?;
        Ok(BenchProcess { child, lines: BufReader::new(output).lines() })
    }

    /// Returns the number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, command: &str) -> Result<(), String> {
        let input = self.child.stdin.as_mut().ok_or("no pipe")?;
        writeln!(input, "{command}").map_err(|error| error.to_string())
    }

    /// Waits for the next line of the process.
    pub(crate) fn line(&mut self) -> Result<String, String> {
        let line = self.lines.next().ok_or("a process has ended without a word")?;
        line.map_err(|error| error.to_string())
    }

    /// Waits for a line with a number.
    pub(crate) fn number<T: FromStr<Err: Display>>(&mut self) -> Result<T, String> {
        let line = self.line()?;
        line.parse().map_err(|error| format!("\"{line}\": {error}"))
    }

    /// Sends a command, and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<String, String> {
        self.send(command)?;
        self.line()
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the next command of a role, or `None` when the benchmark ends.
pub(crate) fn next_command() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.ok().filter(|bytes| *bytes > 0).map(|_| line.trim_end().to_owned())
}

/// Answers a command.
pub(crate) fn answer(text: impl Display) -> Result<(), String> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(|error| error.to_string())
}
