//! The first image of a rank: it votes, maps the agreed range, and waits for all other ranks.

use hostbuf_protocol::ballot::{Holds, answer};
use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};
use hostbuf_protocol::frame::FrameError;
use hostbuf_protocol::message::{AddressWindow, Coverage, Message};
use hostbuf_raw::syscall::{self as raw, Errno};

use crate::connection::{PacketBuffer, mapping_error, send};
use crate::refusal::describe;
use crate::text::{Line, ShortText};

/// The point up to which [`Rank::take_part`] goes.
#[derive(PartialEq, Eq)]
pub(crate) enum Until {
    /// This process has mapped the range, and the agent does not know it yet.
    Mapped,
    /// Every rank of every host has mapped the range.
    Go,
}

/// A rank, which is connected to the agent of its host.
pub(crate) struct Rank {
    /// The connection.
    pub(crate) fd: i32,
    /// True if the launcher or another rank reports the end of the agent.
    pub(crate) silent: bool,
}

impl Rank {
    /// Takes part in the agreement. Receives the message with the agreed range into `agreed`, and
    /// returns the value of [`ENV_REPORT`](hostbuf_protocol::environment::ENV_REPORT). Ends the
    /// process if there can be no buffer.
    pub(crate) fn take_part(
        &self,
        address_window: AddressWindow,
        until: Until,
        agreed: &mut PacketBuffer,
    ) -> ShortText {
        let ready = Message::Ready { address_window, coverage: Coverage::Preloaded, reason: b"" };
        self.send(&ready);
        self.vote(address_window, agreed);
        let Ok(Message::Agreed { report, .. }) = agreed.message() else { self.agent_ended() };
        let report = ShortText::new(format_args!("")).and(report);
        agreed.close();
        if until == Until::Go {
            self.send(&Message::Mapped);
            self.wait_for_go(address_window);
        }
        report
    }

    /// Votes until the ranks have agreed, and maps the agreed range, whose message is in `packet`
    /// then.
    fn vote(&self, address_window: AddressWindow, packet: &mut PacketBuffer) {
        let (mut holds, mut has_voted) = (Holds::new(address_window), false);
        loop {
            self.receive(packet);
            let message = self.understood(packet);
            if answer(&mut holds, &message, |reply| self.send(reply)).is_some() {
                has_voted = true;
                continue;
            }
            if let Message::Agreed { range, .. } = message {
                // A further program of a rank of a job that runs is not asked.
                if !has_voted && let Err(refusal) = holds.take(&range) {
                    describe(&refusal, &range)
                        .and(
                            b". The ranks agreed on the address before this program: run it as a job of its own.",
                        )
                        .say();
                    end(ErrorClass::Attach);
                }
                let descriptors = packet.descriptors();
                let Err(errno) = holds.map(&range, descriptors) else { return };
                let why = mapping_error(errno, descriptors.len(), range.descriptors());
                let error = ErrorRecord::new(ErrorClass::Os, why.text());
                // The agent of a rank that has voted reports the error, if it can be sent.
                if !has_voted || !self.try_send(&Message::Failed { error }) {
                    Line::new(format_args!("hostbuf: process {}: ", raw::pid())).and(why.bytes()).say();
                    end(ErrorClass::Os);
                }
                self.wait_for_go(address_window);
                self.agent_ended()
            }
        }
    }

    /// Waits until all ranks have mapped the range. Takes part in the vote on the address of the
    /// GPU sections meanwhile, and keeps that range reserved: this rank does not use GPUs.
    fn wait_for_go(&self, address_window: AddressWindow) {
        let mut packet = PacketBuffer::new();
        let mut holds = Holds::new(address_window);
        loop {
            self.receive(&mut packet);
            let message = self.understood(&packet);
            if answer(&mut holds, &message, |reply| self.send(reply)).is_some() {
                continue;
            }
            match message {
                Message::GpuRange { address, .. } => {
                    core::mem::replace(&mut holds, Holds::new(address_window)).reserve(address as usize);
                }
                Message::Go { .. } => return,
                _ => {}
            }
        }
    }

    /// Sends a message, or ends the process if this fails for a reason of its own. If the agent has
    /// closed the connection, the next receive returns its last message, or the end.
    fn send(&self, message: &Message<'_>) {
        match send(self.fd, message) {
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(errno) => connection_failed("sending a message to", errno),
        }
    }

    /// Sends a message, and returns whether the agent has received it or has ended.
    fn try_send(&self, message: &Message<'_>) -> bool {
        matches!(send(self.fd, message), Ok(()) | Err(Errno::PIPE | Errno::CONNRESET))
    }

    /// Receives the next packet, or ends the process if there is none.
    fn receive(&self, packet: &mut PacketBuffer) {
        match packet.receive(self.fd) {
            Ok(()) if !packet.is_end() => {}
            Ok(()) | Err(Errno::CONNRESET) => self.agent_ended(),
            Err(errno) => connection_failed("receiving a message from", errno),
        }
    }

    /// Returns the message in a packet. Ends the process if the job has failed, or if the agent
    /// refuses this process or speaks another version of the protocol.
    fn understood<'a>(&self, packet: &'a PacketBuffer) -> Message<'a> {
        match packet.message() {
            Ok(Message::Fail { prints, error }) => {
                if prints {
                    Line::new(format_args!("hostbuf: {}", error.line)).say();
                }
                end(error.class)
            }
            Ok(Message::Refused { error }) => {
                Line::new(format_args!("hostbuf: {}", error.line)).say();
                end(error.class)
            }
            Ok(message) => message,
            Err(FrameError::OtherVersion(theirs)) => {
                other_version(theirs).say();
                end(ErrorClass::Attach)
            }
            Err(FrameError::Malformed) => self.agent_ended(),
        }
    }

    /// Ends the process, which prints the reason unless it is [silent](Rank::silent).
    fn agent_ended(&self) -> ! {
        if !self.silent {
            Line::new(format_args!(
                "hostbuf: the agent of this host ended before the buffer was agreed on (process {})",
                raw::pid()
            ))
            .say();
        }
        end(ErrorClass::Attach)
    }
}

/// Ends the process, which cannot use its connection to the agent.
fn connection_failed(doing: &str, errno: Errno) -> ! {
    Line::new(format_args!(
        "hostbuf: {doing} the agent of this host failed, error {} (process {})",
        errno.0,
        raw::pid()
    ))
    .say();
    end(ErrorClass::Os)
}

/// Describes an agent with another version of the protocol.
pub(crate) fn other_version(theirs: u16) -> Line {
    Line::new(format_args!(
        "hostbuf: the agent of this host has another version of hostbuf (protocol {theirs}, the preloaded object of \
         process {} has {}): use one installation",
        raw::pid(),
        hostbuf_protocol::frame::VERSION
    ))
}

/// Ends the process with the status of an error.
pub(crate) fn end(class: ErrorClass) -> ! {
    raw::exit(i32::from(class.status()))
}
