//! The output of a child, read line by line from a pipe.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags};

/// A pipe's output, line by line.
#[derive(Default)]
pub(super) struct Lines {
    pipe: Option<std::fs::File>,
    partial: Vec<u8>,
    pub(super) seen: Vec<String>,
}

impl Lines {
    pub(super) fn of(pipe: Option<OwnedFd>) -> Lines {
        if let Some(fd) = &pipe {
            let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
            let _ = nix::fcntl::fcntl(fd, flags);
        }
        Lines { pipe: pipe.map(Into::into), ..Lines::default() }
    }

    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        Some(PollFd::new(self.pipe.as_ref()?.as_fd(), PollFlags::POLLIN))
    }

    /// Reads the pipe and returns the lines that are complete.
    pub(super) fn read(&mut self) -> Vec<String> {
        let mut buffer = [0u8; 4096];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => self.partial.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(_) => self.pipe = None,
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        // Bounded: the last lines explain a failure, and an engine may print for hours.
        self.seen.extend(lines.iter().cloned());
        let surplus = self.seen.len().saturating_sub(64);
        self.seen.drain(..surplus);
        lines
    }

    /// Returns the rest of the output, including an incomplete line.
    pub(super) fn drain(&mut self) -> Vec<String> {
        let mut lines = self.read();
        if !self.partial.is_empty() {
            let rest = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
            self.seen.push(rest.clone());
            lines.push(rest);
        }
        lines
    }
}
