//! The first image of a rank: it votes, maps the agreed range, and waits for all other ranks.

use hostbuf_protocol::ballot::{Holds, answer};
use hostbuf_protocol::failure::ErrorClass;
use hostbuf_protocol::frame::FrameError;
use hostbuf_protocol::message::{Coverage, Message, Territory};
use hostbuf_raw::syscall as raw;

use crate::connection::{PacketBuffer, mapping_error, send};
use crate::text::Line;

/// The point up to which [`take_part`] goes.
#[derive(PartialEq, Eq)]
pub(crate) enum Until {
    /// This process has mapped the range, and the agent does not know it yet.
    Mapped,
    /// Every rank of every host has mapped the range.
    Go,
}

/// Takes part in the agreement over the connection `fd`. Receives the message with the agreed range
/// into `agreed`, and returns the value of
/// [`ENV_REPORT`](hostbuf_protocol::environment::ENV_REPORT). Ends the process if there can be no
/// buffer.
pub(crate) fn take_part(fd: i32, territory: Territory, until: Until, agreed: &mut PacketBuffer) -> Line {
    if send(fd, &Message::Ready { territory, coverage: Coverage::Preloaded, reason: b"" }).is_err() {
        agent_ended();
    }
    vote(fd, Holds::new(territory), agreed);
    let Ok(Message::Agreed { report, .. }) = agreed.message() else { agent_ended() };
    let report = Line::new(format_args!("")).and(report);
    agreed.close();
    if until == Until::Go {
        // A failure to send shows in the next receive.
        let _ = send(fd, &Message::Mapped);
        wait_for_go(fd);
    }
    report
}

/// Votes until the ranks have agreed, and maps the agreed range, whose message is in `packet` then.
fn vote(fd: i32, mut holds: Holds, packet: &mut PacketBuffer) {
    loop {
        receive(fd, packet);
        let message = understood(packet);
        if answer(&mut holds, &message, |reply| send(fd, reply)).is_some() {
            continue;
        }
        if let Message::Agreed { range, .. } = message {
            let descriptors = packet.descriptors();
            let Err(errno) = holds.map(&range, descriptors) else { return };
            let why = mapping_error(errno, descriptors.len(), range.descriptors());
            let _ = send(fd, &Message::Failed { status: ErrorClass::Os.status(), text: why.bytes() });
            wait_for_go(fd);
            agent_ended()
        }
    }
}

/// Waits until all ranks have mapped the range.
fn wait_for_go(fd: i32) {
    let mut packet = PacketBuffer::new();
    loop {
        receive(fd, &mut packet);
        if let Message::Go { .. } = understood(&packet) {
            return;
        }
    }
}

/// Receives the next packet, or ends the process if there is none.
fn receive(fd: i32, packet: &mut PacketBuffer) {
    if packet.receive(fd).is_err() || packet.is_end() {
        agent_ended();
    }
}

/// Returns the message in a packet. Ends the process if the job has failed, or if the agent speaks
/// another version of the protocol.
fn understood(packet: &PacketBuffer) -> Message<'_> {
    match packet.message() {
        Ok(Message::Fail { status, prints, text }) => {
            if prints {
                Line::new(format_args!("hostbuf: ")).and(text).say();
            }
            raw::exit(i32::from(status))
        }
        Ok(message) => message,
        Err(FrameError::OtherVersion(theirs)) => {
            other_version(theirs).say();
            end(ErrorClass::Attach)
        }
        Err(FrameError::Malformed) => agent_ended(),
    }
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

fn agent_ended() -> ! {
    Line::new(format_args!(
        "hostbuf: the agent of this host ended before the buffer was agreed on (process {})",
        raw::pid()
    ))
    .say();
    end(ErrorClass::Attach)
}

/// Ends the process with the status of an error.
pub(crate) fn end(class: ErrorClass) -> ! {
    raw::exit(i32::from(class.status()))
}
