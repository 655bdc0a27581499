//! The output of a program that is asked for its version or its settings.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_os::process;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::process_tree;

/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of bytes that are kept of each stream.
const MAX_LENGTH: usize = 32 << 10;
/// The number of bytes that are read of a stream at a time.
const PART: usize = 4 << 10;

/// Returns the output of `path` with `arguments`: the beginning of its standard output, and then of
/// its standard error. A process that the program leaves behind does not delay the answer.
///
/// # Errors
/// The reason, as a clause, if the program fails or exceeds the time limit.
pub(crate) fn output_of(path: &Path, arguments: &[&str]) -> Result<String, String> {
    output_within(LIMIT, path, arguments)
}

fn output_within(limit: Duration, path: &Path, arguments: &[&str]) -> Result<String, String> {
    let asked = arguments.join(" ");
    let failed = |e: std::io::Error| format!("it does not start: {e}");
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut stdout = Stream::new(child.stdout.take()).map_err(failed)?;
    let mut stderr = Stream::new(child.stderr.take()).map_err(failed)?;
    let deadline = Instant::now() + limit;
    let status = loop {
        let ended = child.try_wait();
        // The pipes contain the whole output of an ended program.
        stdout.read(deadline);
        stderr.read(deadline);
        match ended {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                end(&mut child);
                return Err(format!("{asked} did not answer within {} s", limit.as_secs()));
            }
        }
    };
    let text = format!("{}{}", stdout.text(), stderr.text());
    if status.success() {
        return Ok(text);
    }
    let last = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("nothing").to_owned();
    Err(format!("{asked} fails and says \"{}\"", clip(&last)))
}

/// Returns the first 100 characters of `text` without control characters.
pub(crate) fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// Kills a program and the processes below it.
fn end(child: &mut Child) {
    let below = process_tree::below(child.id() as i32, &[]);
    let _ = child.kill();
    let _ = child.wait();
    for pid in below {
        if let Ok(process) = process::pidfd(pid) {
            let _ = process::signal(process.as_fd(), libc::SIGKILL);
        }
    }
}

/// A pipe that is read without waiting, and what was read.
struct Stream<R> {
    pipe: Option<R>,
    kept: Vec<u8>,
}

impl<R: Read + AsFd> Stream<R> {
    fn new(pipe: Option<R>) -> std::io::Result<Stream<R>> {
        if let Some(pipe) = &pipe {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Stream { pipe, kept: Vec::new() })
    }

    /// Reads what is in the pipe, until `deadline` if there is always more.
    fn read(&mut self, deadline: Instant) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut part = [0; PART];
        while Instant::now() < deadline {
            match pipe.read(&mut part) {
                Ok(0) => break,
                Ok(length) => {
                    let rest = MAX_LENGTH - self.kept.len();
                    self.kept.extend_from_slice(&part[..length.min(rest)]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String, String> {
        output_within(limit, Path::new("/bin/sh"), &["-c", script])
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn both_streams_are_kept_up_to_a_length() {
        assert_eq!(shell("echo a; echo b >&2", LONG).unwrap(), "a\nb\n");
        let long = shell("head -c 1000000 /dev/zero | tr '\\0' x; echo end >&2", LONG).unwrap();
        assert_eq!(long.len(), MAX_LENGTH + 4);
        assert!(long.ends_with("xend\n"));
        let failed = shell("echo a; echo why >&2; exit 3", LONG).unwrap_err();
        assert!(failed.ends_with("fails and says \"why\""), "{failed}");
        assert!(output_of(Path::new("/nonexistent"), &[]).unwrap_err().starts_with("it does not start"));
    }

    #[test]
    fn a_process_that_is_left_behind_does_not_delay_the_answer() {
        let begun = Instant::now();
        let text = shell("sleep 600 & echo $!", LONG).unwrap();
        let left: i32 = text.trim().parse().expect("its number");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), nix::sys::signal::Signal::SIGKILL).unwrap();
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        let folder = std::env::temp_dir().join(format!("hostbuf-output-{}", std::process::id()));
        let script = format!("sleep 600 & echo $! >{}; wait", folder.display());
        let error = shell(&script, Duration::from_secs(1)).unwrap_err();
        assert!(error.ends_with("did not answer within 1 s"), "{error}");
        let left: i32 = std::fs::read_to_string(&folder).unwrap().trim().parse().expect("its number");
        std::fs::remove_file(&folder).unwrap();
        // An orphan remains a zombie until its new parent collects it.
        while process::state(left).is_some_and(|state| state != 'Z') {
            std::thread::yield_now();
        }
        let endless = shell("yes", Duration::from_secs(1)).unwrap_err();
        assert!(endless.contains("did not answer"), "{endless}");
    }
}
