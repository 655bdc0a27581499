//! Voting in the place of a program into which nothing is preloaded.

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::{FrameSocket, Packet, Received};
use hostbuf_protocol::ballot::{self, Holds};
use hostbuf_protocol::frame::{self, FrameError};
use hostbuf_protocol::message::{AddressWindow, Coverage, Message, RefusedCandidate};

use crate::program::Program;

/// Votes for a program that does not vote by itself, with the segments that it will map at fixed
/// addresses and the addresses that are free in this process. `coverage` is the way in which it
/// gets the buffers, and `why` the reason if it does not get them before `main`. Returns the value
/// of [`ENV_REPORT`](hostbuf_protocol::environment::ENV_REPORT) when all ranks may run.
pub(super) fn vote_for(
    program: &Program,
    coverage: Coverage,
    why: &str,
    channel: &FrameSocket,
) -> Result<String, JobError> {
    let gone =
        || JobError::new(ErrorClass::Attach, "the agent of this host ended before the buffer was agreed on");
    let send = |message: &Message<'_>| channel.send(message, &[]).map_err(|_| gone());
    send(&Message::Ready { address_window: AddressWindow::Anywhere, coverage, reason: why.as_bytes() })?;
    let mut report = String::new();
    let mut holds = Holds::new(AddressWindow::Anywhere);
    loop {
        let Ok(Received::Packet(packet)) = channel.receive() else { return Err(gone()) };
        match understood(&packet)? {
            message @ Message::Ballot { length, candidates } => {
                let vote = ballot::answer(&mut holds, &message, |reply| match reply {
                    Message::Votes { mask, refusal } => {
                        let own = remove_covered(program, candidates.as_slice(), length as usize, *mask);
                        let refusal = refusal.or(own.1);
                        send(&Message::Votes { mask: own.0, refusal })
                    }
                    other => send(other),
                });
                vote.unwrap_or_else(|| Err(gone()))?;
            }
            Message::Search { length, from, align } => {
                let hole = search(program, &mut holds, [length, from, align].map(|n| n as usize));
                send(&Message::Hole { address: hole.map(|hole| hole as u64) })?;
            }
            Message::Agreed { report: text, range } => {
                report = String::from_utf8_lossy(text).into_owned();
                // The vote on the address of the GPU sections must not offer this range.
                std::mem::replace(&mut holds, Holds::new(AddressWindow::Anywhere))
                    .reserve(range.address as usize);
                send(&Message::Mapped)?;
            }
            Message::Go { notice } => {
                if !notice.is_empty() {
                    hostbuf_agent::complain!("hostbuf exec: {}", String::from_utf8_lossy(notice));
                }
                return Ok(report);
            }
            Message::Fail { prints, error } => {
                if prints {
                    hostbuf_agent::complain!("hostbuf: {}", error.line);
                }
                std::process::exit(error.class.status().into());
            }
            Message::Refused { error } => {
                hostbuf_agent::complain!("hostbuf: {}", error.line);
                std::process::exit(error.class.status().into());
            }
            _ => {}
        }
    }
}

/// Returns the message in a packet of the agent.
fn understood(packet: &Packet) -> Result<Message<'_>, JobError> {
    packet.message().map_err(|error| {
        let why = match error {
            FrameError::OtherVersion(theirs) => format!(
                "the agent of this host has another version of hostbuf (protocol {theirs}, this program has {}): use one \
                 installation",
                frame::VERSION
            ),
            FrameError::Malformed => "the agent of this host sent an invalid message".to_owned(),
        };
        JobError::new(ErrorClass::Attach, why)
    })
}

/// Returns the votes without those for candidates that the program's own segments will cover, and
/// the first such candidate.
fn remove_covered<'a>(
    program: &'a Program,
    candidates: &[usize],
    length: usize,
    mask: u64,
) -> (u64, Option<RefusedCandidate<'a>>) {
    let (mut rest, mut first) = (mask, None);
    for (i, &address) in candidates.iter().enumerate().filter(|(i, _)| mask & 1 << i != 0) {
        let covered =
            program.segments.iter().find(|&&(start, end)| start < address + length && address < end);
        if let Some(&(start, end)) = covered {
            rest &= !(1 << i);
            first = first.or(Some(RefusedCandidate {
                address: address as u64,
                errno: libc::EEXIST as u64,
                mapping: (start as u64, end as u64),
                path: program.path.as_os_str().as_encoded_bytes(),
            }));
        }
    }
    (rest, first)
}

/// Returns the lowest hole of this length, at or above an address, with an alignment, that also
/// avoids the program's segments.
fn search(program: &Program, holds: &mut Holds, [length, mut from, align]: [usize; 3]) -> Option<usize> {
    let align = align.checked_next_power_of_two()?;
    loop {
        let hole = holds.hole(from, length, align)?;
        match program.segments.iter().find(|&&(start, end)| start < hole + length && hole < end) {
            Some(&(_, end)) => from = end.next_multiple_of(align),
            None => return Some(hole),
        }
    }
}
