//! An open connection to a receiver.

use std::io::{self, IoSlice, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, sendmsg};

use super::queue::{FrameQueue, QueuedFrame};
use crate::readiness::wait;
use crate::wire::{FrameAnswer, FrameRequest};

/// An open connection to a receiver.
#[derive(Debug)]
pub(super) struct MirrorConnection {
    stream: TcpStream,
    /// The bytes of the next answer that have arrived.
    answer: [u8; FrameAnswer::SIZE],
    arrived: usize,
    /// The frame that is being written.
    writing: Option<FrameWrite>,
    /// The number of the last frame that was begun, or that the receiver had before.
    begun: u64,
}

/// A frame that is being written to the socket.
#[derive(Debug)]
struct FrameWrite {
    frame: QueuedFrame,
    request: [u8; FrameRequest::SIZE],
    /// The number of bytes of the request and of the content that are written.
    done: usize,
}

impl MirrorConnection {
    /// Makes the object of a connection whose receiver has answered all frames up to `settled`.
    pub(super) fn new(stream: TcpStream, settled: u64) -> MirrorConnection {
        let answer = [0; FrameAnswer::SIZE];
        MirrorConnection { stream, answer, arrived: 0, writing: None, begun: settled }
    }

    /// Returns the number of the last frame of which something was sent.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Reads answers and writes frames as far as the socket allows, and waits until it allows more,
    /// a frame is added, or `until`.
    ///
    /// # Errors
    /// The reason why the connection is lost.
    pub(super) fn progress(&mut self, queue: &FrameQueue, until: Option<Instant>) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        if self.writing.is_none() {
            self.writing = queue.state().first_after(self.begun).map(FrameWrite::new);
        }
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, self.writing.is_some());
        let found = wait(Some((self.stream.as_fd(), events)), &queue.wake, until).map_err(text)?;
        queue.wake.clear();
        if found.intersects(PollFlags::POLLOUT) {
            self.write().map_err(text)?;
        }
        if found.intersects(PollFlags::POLLIN | PollFlags::POLLERR | PollFlags::POLLHUP) {
            self.read(queue)?;
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(write) = &mut self.writing else { return Ok(()) };
        self.begun = write.frame.number;
        if write.done == 0 {
            // The time that is left is that of the moment at which the frame is sent.
            write.request = write.frame.request().encode();
        }
        let content = write.frame.block.as_slice();
        let request = &write.request[write.done.min(FrameRequest::SIZE)..];
        let rest = &content[write.done.saturating_sub(FrameRequest::SIZE)..];
        let parts = [IoSlice::new(request), IoSlice::new(rest)];
        // A lost connection is an error, also in programs where SIGPIPE is fatal.
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match sendmsg::<()>(self.stream.as_raw_fd(), &parts, &[], flags, None) {
            Ok(bytes) => write.done += bytes,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        write.frame.outcome.set_sent(write.done.saturating_sub(FrameRequest::SIZE) as u64);
        if write.done == FrameRequest::SIZE + content.len() {
            self.writing = None;
        }
        Ok(())
    }

    fn read(&mut self, queue: &FrameQueue) -> Result<(), String> {
        loop {
            match (&self.stream).read(&mut self.answer[self.arrived..]) {
                Ok(0) => return Err("the mirror there has ended the connection".into()),
                Ok(bytes) => self.arrived += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            if self.arrived == FrameAnswer::SIZE {
                self.arrived = 0;
                let answer = FrameAnswer::decode(&self.answer).map_err(|error| error.to_string())?;
                let is_written = self.writing.as_ref().is_none_or(|write| answer.number < write.frame.number);
                if !is_written || answer.number > self.begun {
                    return Err("the mirror there has answered a frame that it does not have".into());
                }
                queue.answer(answer).map_err(|error| error.to_string())?;
            }
        }
    }
}

impl FrameWrite {
    fn new(frame: &QueuedFrame) -> FrameWrite {
        FrameWrite { frame: frame.clone(), request: [0; FrameRequest::SIZE], done: 0 }
    }
}

impl QueuedFrame {
    /// Returns the record in front of the frame.
    fn request(&self) -> FrameRequest {
        let time_left = self.deadline.saturating_duration_since(Instant::now());
        FrameRequest { number: self.number, time_left, token: self.token, header: *self.block.header() }
    }
}
