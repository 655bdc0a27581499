//! An open connection to a receiver.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, sendmsg};

use super::frame_offers::FrameOffers;
use super::queue::{FrameQueue, QueuedFrame};
use super::sender_counters::FrameTransport;
use crate::readiness::wait;
use crate::wire::{FrameAnswer, FrameRequest, FrameSource};

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
    /// The frames that the receiver reads by RDMA, if it can.
    offers: Option<FrameOffers>,
}

impl Drop for MirrorConnection {
    fn drop(&mut self) {
        // A forked child of this process may have the descriptor, and would keep the peer waiting.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A frame that is being written to the socket.
#[derive(Debug)]
struct FrameWrite {
    frame: QueuedFrame,
    source: FrameSource,
    request: [u8; FrameRequest::SIZE],
    /// The number of bytes of the request and of the content that are written.
    done: usize,
}

impl MirrorConnection {
    /// Makes the object of a connection whose receiver has answered all frames up to `settled`.
    pub(super) fn new(stream: TcpStream, settled: u64, offers: Option<FrameOffers>) -> MirrorConnection {
        let answer = [0; FrameAnswer::SIZE];
        MirrorConnection { stream, answer, arrived: 0, writing: None, begun: settled, offers }
    }

    /// Returns the number of the last frame of which something was sent.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns whether the receiver could read by RDMA, but has read nothing of what it was
    /// offered.
    pub(super) fn has_failed_to_read(&self) -> bool {
        self.offers.as_ref().is_some_and(FrameOffers::has_failed)
    }

    /// Gives up a frame that was about to be sent and is not in the queue any more.
    pub(super) fn drop_expired(&mut self, queue: &FrameQueue) {
        let expired = self.writing.take_if(|write| {
            let number = write.frame.number;
            let is_queued = queue.state().first_after(number - 1).is_some_and(|first| first.number == number);
            write.done == 0 && !is_queued
        });
        // An offer would hold the block until the next answer, which an idle sender never gets.
        if let (Some(write), Some(offers)) = (expired, &mut self.offers) {
            offers.withdraw(write.frame.number);
        }
    }

    /// Reads answers and writes frames as far as the socket allows, and waits until it allows more,
    /// a frame is added, or `until`.
    ///
    /// # Errors
    /// The reason why the connection is lost.
    pub(super) fn progress(&mut self, queue: &FrameQueue, until: Option<Instant>) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        if self.writing.is_none() {
            let next = queue.state().first_after(self.begun).cloned();
            self.writing = next.map(|frame| self.write_of(frame, queue));
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

    /// Makes the state of writing a frame.
    fn write_of(&mut self, frame: QueuedFrame, queue: &FrameQueue) -> FrameWrite {
        let offered = self.offers.as_mut().map(|offers| offers.offer(&frame));
        let (source, is_copy) = match offered {
            Some(Ok(offered)) => offered,
            Some(Err(why)) => {
                queue.use_tcp(why);
                (FrameSource::Stream, false)
            }
            None => (FrameSource::Stream, false),
        };
        let transport = match source {
            FrameSource::Stream => FrameTransport::Stream,
            FrameSource::Memory { .. } if is_copy => FrameTransport::CopyRead,
            FrameSource::Memory { .. } => FrameTransport::BlockRead,
        };
        queue.set_transport(frame.number, transport);
        FrameWrite { frame, source, request: [0; FrameRequest::SIZE], done: 0 }
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(write) = &mut self.writing else { return Ok(()) };
        if write.done == 0 {
            // The time that is left is that of the moment at which the frame is sent.
            write.request = write.frame.request(write.source).encode();
        }
        let content = match write.source {
            FrameSource::Stream => write.frame.block.as_slice(),
            FrameSource::Memory { .. } => &[],
        };
        let request = &write.request[write.done.min(FrameRequest::SIZE)..];
        let rest = &content[write.done.saturating_sub(FrameRequest::SIZE)..];
        let parts = [IoSlice::new(request), IoSlice::new(rest)];
        // A lost connection is an error, also in programs where SIGPIPE is fatal.
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match sendmsg::<()>(self.stream.as_raw_fd(), &parts, &[], flags, None) {
            Ok(bytes) => {
                write.done += bytes;
                self.begun = write.frame.number;
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_written = write.done == FrameRequest::SIZE + content.len();
        write.frame.outcome.set_sent(match write.source {
            FrameSource::Stream => write.done.saturating_sub(FrameRequest::SIZE) as u64,
            FrameSource::Memory { .. } if is_written => write.frame.token.length,
            FrameSource::Memory { .. } => 0,
        });
        if is_written {
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
                if let Some(offers) = &mut self.offers {
                    offers.end(answer.number);
                }
                queue.answer(answer).map_err(|error| error.to_string())?;
            }
        }
    }
}

impl QueuedFrame {
    /// Returns the record in front of the frame.
    fn request(&self, source: FrameSource) -> FrameRequest {
        let time_left = self.deadline.saturating_duration_since(Instant::now());
        let header = *self.block.header();
        FrameRequest { number: self.number, time_left, token: self.token, header, source }
    }
}
