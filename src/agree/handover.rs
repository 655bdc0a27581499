//! From the leader that allocates to the other ranks of its host: the word that the pages are
//! taken, and then the descriptors, over a socket that lives as long as this takes.
//!
//! Who waits for the word sleeps. Waiting inside MPI spins, and would take the cores from those
//! that take the pages.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};
use crate::job::{Collective, all_or_none};
use crate::segment::files::Segments;
use hostbuf_os::socket;
use hostbuf_os::{Channel, Message};
use hostbuf_protocol::wire::{Frame, Kind, Winner};

/// How long a rank that is there already may take to connect, or its leader to send what it has.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a rank that waits lets its MPI go on, milliseconds.
const PACE: u8 = 10;

/// One rank's end.
pub enum Handover {
    /// The leader's, with a connection to each other rank of the host: none when it is alone.
    Leader(Vec<Channel>),
    /// Another rank's, to its leader.
    Rank(Channel),
}

impl Handover {
    /// Connects the ranks of a host with the first of them. Collective over `local`.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Collective`]; on all ranks alike.
    pub fn open(local: &dyn Collective, job: u128) -> Result<Handover> {
        let others = local.size() - 1;
        if others == 0 {
            return Ok(Handover::Leader(Vec::new()));
        }
        let name = format!("hostbuf/allocate/{job:032x}");
        let leads = local.rank() == 0;
        let listener = leads.then(|| socket::listen_on(&name)).transpose();
        let listener = all_or_none(local, listener.map_err(Error::os("listening on a socket")))?;
        let opened = match listener {
            Some(listener) => accept(&listener, others).map(Handover::Leader),
            None => Channel::connect(&name)
                .map(Handover::Rank)
                .map_err(|e| failed(format!("the leader of this host does not answer: {e}"))),
        };
        all_or_none(local, opened)
    }

    /// The leader does its part by `work`; the others of `group` sleep until it has, and get
    /// `None`.
    ///
    /// # Errors
    /// What `work` returned; [`Error::Collective`] on a rank whose leader has gone.
    pub fn lead<T>(&self, group: &dyn Collective, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        match self {
            Handover::Leader(ranks) => {
                let done = work();
                // A rank that has gone meanwhile shows in the next collective step.
                for rank in ranks {
                    let _ = rank.send(&Frame::new(Kind::Taken), &[]);
                }
                done.map(Some)
            }
            Handover::Rank(leader) => {
                // Others may still wait for a message that this rank's MPI has not got rid of: it
                // moves only when called.
                while !is_readable(leader, PACE.into())? {
                    group.progress();
                }
                expect(leader, Kind::Taken).map(|_| None)
            }
        }
    }

    /// The descriptors of the leader's `segments` on every rank.
    ///
    /// # Errors
    /// [`Error::Collective`] when the other side has gone.
    pub fn descriptors(self, winner: &Winner, segments: Option<Segments>) -> Result<Vec<OwnedFd>> {
        match (self, segments) {
            (Handover::Leader(ranks), Some(segments)) => {
                for rank in ranks {
                    rank.send(&winner.frame(), &segments.descriptors())
                        .map_err(|e| failed(format!("a rank of this host cannot be reached: {e}")))?;
                }
                Ok(segments.into_descriptors())
            }
            (Handover::Rank(leader), None) => {
                let limited = socket::set_receive_timeout(leader.as_fd(), Some(PATIENCE));
                limited.map_err(Error::os("setting a timeout"))?;
                expect(&leader, Kind::Winner)
            }
            _ => Err(failed("only the leader of a host makes its memory".into())),
        }
    }
}

fn failed(why: String) -> Error {
    Error::Collective { operation: "hand_over", why }
}

/// `others` connections of this user; anybody else is turned away.
fn accept(listener: &OwnedFd, others: usize) -> Result<Vec<Channel>> {
    let deadline = Instant::now() + PATIENCE;
    let mut ranks = Vec::with_capacity(others);
    while ranks.len() < others {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(format!("{} of {others} ranks did not connect", others - ranks.len())));
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(Error::os("waiting for the ranks of this host")(e)),
        }
        while let Some(fd) = socket::accept(listener.as_fd()).map_err(Error::os("accepting a rank"))? {
            ranks.extend(Channel::of(fd).ok());
        }
    }
    Ok(ranks)
}

fn is_readable(channel: &Channel, timeout: PollTimeout) -> Result<bool> {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::Error::EINTR) => Ok(false),
        Err(e) => Err(Error::os("waiting for the leader of this host")(e)),
    }
}

/// The descriptors that come with the next frame, which must be of `kind`.
fn expect(leader: &Channel, kind: Kind) -> Result<Vec<OwnedFd>> {
    match leader.receive().map_err(|e| failed(format!("the leader of this host: {e}")))? {
        Message::Frame(frame, descriptors) if frame.kind() == Some(kind) => Ok(descriptors),
        Message::Frame(frame, _) => Err(failed(format!("the leader of this host sent {:?}", frame.kind()))),
        _ => Err(failed("the leader of this host has gone".into())),
    }
}
