//! The output of a program that is asked for its version or its settings.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of bytes that are read. A pipe holds more, so that the program ends before its output
/// is read.
const MAX_LENGTH: u64 = 32 << 10;

/// Returns the output of `path` with `arguments`.
///
/// # Errors
/// The reason, as a clause, if the program fails or exceeds the time limit.
pub(super) fn output_of(path: &Path, arguments: &[&str]) -> Result<String, String> {
    let asked = arguments.join(" ");
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("it does not start: {e}"))?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{asked} did not answer within {} s", LIMIT.as_secs()));
            }
        }
    };
    let mut text = String::new();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    for pipe in [stdout.map(|p| Box::new(p) as Box<dyn Read>), stderr.map(|p| Box::new(p) as Box<dyn Read>)] {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(MAX_LENGTH).read_to_end(&mut bytes);
        }
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    if status.success() {
        return Ok(text);
    }
    let last = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("nothing").to_owned();
    Err(format!("{asked} fails and says \"{}\"", clip(&last)))
}

/// Returns the first 100 characters of `text` without control characters.
pub(super) fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}
