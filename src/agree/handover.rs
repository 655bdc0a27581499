//! The connection from a host's leader, which allocates, to the other ranks of its host: the
//! message that the pages are populated, and then the descriptors, over a socket that exists only
//! during the allocation.
//!
//! The other ranks sleep until the message arrives. A wait inside MPI spins, and would take the
//! cores from the threads that populate the pages.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::watched_rank::{WatchedRank, watch};
use crate::error::{AttachError, Error, Result};
use crate::job::{Collective, all_or_none};
use hostbuf_os::session::{AcceptedClient, Acceptor, Session};
use hostbuf_os::socket;
use hostbuf_os::{FrameSocket, Received};
use hostbuf_protocol::frame::FrameError;
use hostbuf_protocol::message::{Hello, Message, Role};
use hostbuf_protocol::range::AgreedRange;

/// The time within which a rank must connect, or its leader must send the descriptors.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which a waiting rank drives its MPI progress, in milliseconds.
const PROGRESS_INTERVAL: u8 = 10;

/// One rank's end of the connections.
#[non_exhaustive]
pub enum Handover {
    /// The leader's end: a connection to each other rank of the host, none if the leader is alone.
    Leader(Vec<FrameSocket>),
    /// The end of another rank: the connection to its leader.
    Rank(FrameSocket),
}

impl Handover {
    /// Connects the ranks of a host with the first of them. Collective over `local`.
    ///
    /// # Errors
    /// [`Error::Os`] or [`Error::Collective`], which other ranks may not have: the caller brings
    /// the ranks to one result, and knows the number of the rank that failed in its own group.
    pub fn open(local: &dyn Collective, job: u128) -> Result<Handover> {
        let others = local.size() - 1;
        if others == 0 {
            return Ok(Handover::Leader(Vec::new()));
        }
        let name = format!("hostbuf/allocate/{job:032x}");
        let leads = local.rank() == 0;
        let watched = watch(local)?;
        let listener = leads.then(|| socket::listen_on(&name)).transpose();
        let listener = all_or_none(local, listener.map_err(Error::os("listening on a socket")))?;
        match listener {
            Some(listener) => accept(listener, others, &watched).map(Handover::Leader),
            None => Session::open(&name, None, &hello(local))
                .map(|session| Handover::Rank(session.into_connection()))
                .map_err(|e| failed(format!("the leader rank of this host does not answer: {e}"))),
        }
    }

    /// Runs `work` on the leader. The other ranks of `group` sleep until it has returned, and get
    /// `None`.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Collective`] on a rank whose leader has ended.
    pub fn lead<T>(&self, group: &dyn Collective, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        match self {
            Handover::Leader(ranks) => {
                let done = work();
                // The next collective operation detects a rank that has ended meanwhile.
                for rank in ranks {
                    let _ = rank.send(&Message::Populated, &[]);
                }
                done.map(Some)
            }
            Handover::Rank(leader) => wait_for_leader(leader, group).map(|_| None),
        }
    }

    /// Runs `work` on the leader, and sends its descriptors to all ranks. If `work` fails, the
    /// leader returns the error, and the other ranks get no descriptors. The other ranks of `group`
    /// sleep meanwhile.
    ///
    /// # Errors
    /// Those of `work` on the leader; [`Error::Collective`] if the leader or a rank has ended.
    pub fn lead_files(
        self,
        group: &dyn Collective,
        work: impl FnOnce() -> Result<Vec<OwnedFd>>,
    ) -> Result<Vec<OwnedFd>> {
        match self {
            Handover::Leader(ranks) => {
                let made = work();
                let raw: Vec<_> = made.iter().flatten().map(AsRawFd::as_raw_fd).collect();
                let sent = ranks.iter().try_for_each(|rank| send(rank, &Message::Populated, &raw));
                made.and_then(|files| sent.map(|()| files))
            }
            Handover::Rank(leader) => wait_for_leader(&leader, group),
        }
    }

    /// Returns the leader's `descriptors`, which belong to `range`, on every rank.
    ///
    /// # Errors
    /// [`Error::Collective`] if the other side has ended.
    pub fn descriptors(
        self,
        range: &AgreedRange<'_>,
        descriptors: Option<Vec<OwnedFd>>,
    ) -> Result<Vec<OwnedFd>> {
        match (self, descriptors) {
            (Handover::Leader(ranks), Some(descriptors)) => {
                let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
                for rank in ranks {
                    send(&rank, &Message::Agreed { range: *range, report: b"" }, &raw)?;
                }
                Ok(descriptors)
            }
            (Handover::Rank(leader), None) => {
                let limited = socket::set_receive_timeout(leader.as_fd(), Some(HANDOVER_TIMEOUT));
                limited.map_err(Error::os("setting a timeout"))?;
                expect(&leader, |message| matches!(message, Message::Agreed { .. }))
            }
            _ => Err(failed("only the leader rank of a host creates its memory".into())),
        }
    }
}

/// Sends a message with descriptors. The kernel limits how many descriptors of a user may be on
/// their way, to his limit of open files; it makes room when the other ranks receive theirs.
fn send(rank: &FrameSocket, message: &Message<'_>, descriptors: &[RawFd]) -> Result<()> {
    let deadline = Instant::now() + HANDOVER_TIMEOUT;
    loop {
        match rank.send(message, descriptors) {
            Err(e) if e.raw_os_error() == Some(libc::ETOOMANYREFS) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            sent => {
                return sent
                    .map_err(|e| failed(format!("a rank of this host does not receive the buffer: {e}")));
            }
        }
    }
}

/// Sleeps until the leader has done its work. Returns the descriptors that it sends.
fn wait_for_leader(leader: &FrameSocket, group: &dyn Collective) -> Result<Vec<OwnedFd>> {
    // Other ranks may still wait for a message that this rank's MPI has not sent: MPI makes
    // progress only when it is called.
    while !is_readable(leader, PROGRESS_INTERVAL.into())? {
        group.progress();
    }
    expect(leader, |message| matches!(message, Message::Populated))
}

fn failed(why: String) -> Error {
    Error::Collective { operation: "hand_over", why }
}

/// Returns the identification of a rank among the ranks of its host.
fn hello(local: &dyn Collective) -> Message<'static> {
    let (rank, size) = (local.rank() as u64, local.size() as u64);
    let hello = Hello { role: Role::Member, rank, size, local_rank: rank, local_size: size, request: 0 };
    Message::Hello { hello, command: b"" }
}

/// Accepts the local ranks 1 to `others`, and rejects other processes. A rank's first connection
/// stays. A rank of `watched` that ends before it has connected is an error at once.
fn accept(listener: OwnedFd, others: usize, watched: &[WatchedRank]) -> Result<Vec<FrameSocket>> {
    let deadline = Instant::now() + HANDOVER_TIMEOUT;
    let mut acceptor = Acceptor::new(listener);
    let mut ranks = BTreeMap::new();
    while ranks.len() < others {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(format!("{} of {others} ranks did not connect", others - ranks.len())));
        }
        let missing: Vec<_> = watched.iter().filter(|rank| !ranks.contains_key(&rank.local_rank)).collect();
        let left = acceptor.retry_after().map_or(left, |pace| left.min(pace));
        let ended = wait(&acceptor, &missing, left)?;
        for AcceptedClient { connection, hello, .. } in acceptor.advance() {
            if let Ok(Message::Hello { hello: Hello { role: Role::Member, local_rank, .. }, .. }) =
                hello.message()
                && (1..=others as u64).contains(&local_rank)
            {
                ranks.entry(local_rank).or_insert(connection);
            }
        }
        if let Some(rank) = ended.filter(|rank| !ranks.contains_key(&rank.local_rank)) {
            return Err(failed(format!(
                "rank {} of this host (process {}) has ended before it connected to the leader rank: look for its own error \
                 message, and start the job again",
                rank.local_rank, rank.pid
            )));
        }
    }
    Ok(ranks.into_values().collect())
}

/// Waits until a connection has input, one of `missing` has ended, or `limit` is over. Returns the
/// first rank that has ended.
fn wait<'r>(
    acceptor: &Acceptor,
    missing: &[&'r WatchedRank],
    limit: Duration,
) -> Result<Option<&'r WatchedRank>> {
    let gone = missing.iter().find(|rank| rank.end.is_none()).copied();
    let timeout = if gone.is_some() { Duration::ZERO } else { limit };
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds: Vec<_> = acceptor.descriptors().map(watch).collect();
    let connections = fds.len();
    let running = missing.iter().filter_map(|rank| rank.end.as_ref().map(|end| (*rank, end.as_fd())));
    let running: Vec<_> = running.collect();
    fds.extend(running.iter().map(|(_, end)| watch(*end)));
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(e) => return Err(Error::os("waiting for the ranks of this host")(e)),
    }
    let has_ended = |fd: &PollFd<'_>| fd.any() == Some(true);
    let ended = running.iter().zip(&fds[connections..]).find(|(_, fd)| has_ended(fd));
    Ok(gone.or(ended.map(|((rank, _), _)| *rank)))
}

fn is_readable(channel: &FrameSocket, timeout: PollTimeout) -> Result<bool> {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::Error::EINTR) => Ok(false),
        Err(e) => Err(Error::os("waiting for the leader of this host")(e)),
    }
}

/// Returns the descriptors that come with the next message, which must be as `is_expected` demands.
fn expect(leader: &FrameSocket, is_expected: fn(&Message<'_>) -> bool) -> Result<Vec<OwnedFd>> {
    let received = leader
        .receive()
        .map_err(|e| failed(format!("receiving from the leader rank of this host failed: {e}")))?;
    let Received::Packet(packet) = received else {
        return Err(failed("the leader rank of this host has ended".into()));
    };
    match packet.message() {
        Ok(message) if is_expected(&message) => Ok(packet.descriptors),
        Ok(Message::Refused { error } | Message::Fail { error, .. }) => {
            Err(failed(format!("the leader rank of this host has refused this rank: {}", error.line)))
        }
        Ok(message) => {
            Err(failed(format!("the leader rank of this host sent an unexpected message ({message:?})")))
        }
        Err(FrameError::OtherVersion(theirs)) => Err(AttachError::other_protocol(theirs).into()),
        Err(FrameError::Malformed) => Err(failed("the leader rank of this host sent no message".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::watched_rank::identity;
    use super::*;

    #[test]
    fn another_process_does_not_take_the_place_of_a_rank() {
        let name = format!("hostbuf/allocate/stray/{}", std::process::id());
        let listener = socket::listen_on(&name).unwrap();
        let silent = socket::connect(&name, None).unwrap();
        let garbage = socket::connect(&name, None).unwrap();
        socket::send(garbage.as_fd(), b"garbage", &[]).unwrap();
        let hello = Hello { local_rank: 1, local_size: 2, rank: 1, size: 2, ..Hello::of(Role::Member) };
        let session = Session::open(&name, None, &Message::Hello { hello, command: b"" }).unwrap();
        let ranks = accept(listener, 1, &[]).unwrap();
        ranks[0].send(&Message::Populated, &[]).unwrap();
        let answer = session.first_answer(HANDOVER_TIMEOUT).unwrap();
        assert_eq!(answer.message(), Ok(Message::Populated));
        drop(silent);
    }

    #[test]
    fn only_the_ranks_of_the_host_are_accepted_and_each_once() {
        let name = format!("hostbuf/allocate/ranks/{}", std::process::id());
        let listener = socket::listen_on(&name).unwrap();
        let open = |local_rank| {
            let hello = Hello { local_rank, local_size: 100, rank: 1, size: 100, ..Hello::of(Role::Member) };
            Session::open(&name, None, &Message::Hello { hello, command: b"" }).unwrap()
        };
        // The acceptor takes them in the order in which they connect.
        let [leader, first, second, beyond, last] = [0, 1, 1, 99, 2].map(open);
        let ranks = accept(listener, 2, &[]).unwrap();
        assert_eq!(ranks.len(), 2);
        for rank in &ranks {
            rank.send(&Message::Populated, &[]).unwrap();
        }
        drop(ranks);
        for (session, is_accepted) in
            [(first, true), (last, true), (leader, false), (second, false), (beyond, false)]
        {
            let answer = session.first_answer(HANDOVER_TIMEOUT);
            assert_eq!(answer.is_ok_and(|answer| answer.message() == Ok(Message::Populated)), is_accepted);
        }
    }

    #[test]
    fn a_rank_that_ends_before_it_connects_is_an_error_at_once() {
        for (number, ends_early) in [false, true].into_iter().enumerate() {
            let name = format!("hostbuf/allocate/ended/{number}/{}", std::process::id());
            let listener = socket::listen_on(&name).unwrap();
            let mut rank = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let identity = identity(rank.id() as i32);
            let open = || WatchedRank::open(2, &identity, identity[2]);
            let running = (!ends_early).then(open);
            rank.kill().unwrap();
            rank.wait().unwrap();
            let Some(watched) = running.unwrap_or_else(open) else {
                eprintln!("skipped: the kernel has no pidfd");
                return;
            };
            assert_eq!(watched.end.is_none(), ends_early);
            // The rank 1 has connected, and the rank 2 has ended.
            let hello = Hello { local_rank: 1, local_size: 3, rank: 1, size: 3, ..Hello::of(Role::Member) };
            let session = Session::open(&name, None, &Message::Hello { hello, command: b"" }).unwrap();
            let error = accept(listener, 2, &[watched]).unwrap_err().to_string();
            assert!(
                error.contains("rank 2 of this host (process ") && error.contains("has ended"),
                "{error}"
            );
            drop(session);
        }
    }
}
