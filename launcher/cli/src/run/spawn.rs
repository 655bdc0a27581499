//! Starts the processes of a job as children that end with the launcher.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use hostbuf::{Error, Result};
use hostbuf_os::process;
use nix::sys::signal::SigSet;

use crate::engines::Invocation;

/// The standard streams and process group of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// The launcher's own streams.
    Inherited,
    /// The launcher's output streams, and no input.
    NoInput,
    /// No input, pipes for the output, and a separate process group, so that Ctrl-C reaches only
    /// the program.
    Piped,
}

/// Starts `line` with the signal mask `mask`.
///
/// # Errors
/// [`Error::Os`].
#[allow(unsafe_code, reason = "a closure runs between fork and exec")]
pub(super) fn spawn(line: &Invocation, streams: Streams, mask: SigSet) -> Result<Child> {
    let mut words = line.words.clone();
    let script = match &line.script {
        None => None,
        Some((text, place)) => {
            let file = script(text)?;
            words[*place] = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
            Some(file)
        }
    };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).envs(line.variables.iter().cloned());
    if streams != Streams::Inherited {
        command.stdin(Stdio::null());
    }
    if streams == Streams::Piped {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    }
    let parent = nix::unistd::getpid();
    let kept = script.as_ref().map(AsRawFd::as_raw_fd);
    // SAFETY: the closure makes only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            mask.thread_set_mask()?;
            // Both jobs end with a killed launcher. The kernel sends the signal when the forking
            // thread ends, which is the command's and lives as long as the process.
            process::die_with_parent(libc::SIGTERM)?;
            if nix::unistd::getppid() != parent {
                return Err(std::io::Error::other("the launcher has ended"));
            }
            if let Some(fd) = kept
                && libc::fcntl(fd, libc::F_SETFD, 0) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let program = words[0].to_string_lossy().into_owned();
    command.spawn().map_err(|source| Error::Os {
        doing: format!("starting {program}{}", process::start_remedy(&source)),
        source,
    })
}

/// Returns a memory file that contains `text`.
fn script(text: &str) -> Result<OwnedFd> {
    let doing =
        |e: std::io::Error| Error::Os { doing: "writing a list for the launch command".into(), source: e };
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let fd = nix::sys::memfd::memfd_create(c"hostbuf-list", flags).map_err(|e| doing(e.into()))?;
    nix::unistd::write(&fd, text.as_bytes()).map_err(|e| doing(e.into()))?;
    Ok(fd)
}
