//! The ranks of one host without MPI, which communicate through the host's agent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Collective, Reduce};
use crate::error::{AttachError, Error, Result};
use hostbuf_os::session::Session;
use hostbuf_os::{FrameSocket, Received};
use hostbuf_protocol::environment::{ENV_JOB, ENV_LOCAL_RANK, ENV_LOCAL_SIZE};
use hostbuf_protocol::frame::FrameError;
use hostbuf_protocol::limits::TEXT_MAX;
use hostbuf_protocol::message::{Hello, Message, Role};

/// The ranks that `hostbuf run` or `hostbuf exec` started on this host, as a [`Collective`]. It is
/// meant for setting up a buffer, not for moving data: every operation goes through the agent, in
/// parts of 1024 bytes.
///
/// A rank may make it again after it has dropped the one before, also in another program. The first
/// ones of all ranks form a group, the second ones form the next, and so on. An operation whose
/// group a rank has left fails on the other ranks.
///
/// Every rank has to make it. Under `hostbuf run`, an operation fails if the process of a rank has
/// ended without making its group. Under `hostbuf exec` alone it waits, since a further `hostbuf
/// exec` may continue as that rank.
pub struct Local {
    connection: Rc<Connection>,
    /// The members of this group, as ranks among all ranks of the host, ascending.
    members: Vec<usize>,
    /// A number that is common to the members of this group and different in their other groups.
    group: u64,
    /// The number of gather operations of this group so far.
    sequence: Cell<u64>,
}

struct Connection {
    channel: FrameSocket,
    rank: usize,
    /// The process that has made the connection. A forked child does not leave in its name.
    process: u32,
    /// The ranks of this host that take no part any more, and why.
    left: RefCell<BTreeMap<usize, String>>,
    /// The reason why the agent has refused this member.
    refusal: RefCell<Option<String>>,
}

impl Connection {
    /// Records that a rank of this host has left.
    fn has_left(&self, local_rank: u64, ended: bool) {
        let why = if ended {
            format!("local rank {local_rank} has ended")
        } else {
            format!(
                "local rank {local_rank} has left the group: every rank has to make the same number of job::Local, and to keep \
                 each until its last operation"
            )
        };
        let rank = usize::try_from(local_rank).unwrap_or(usize::MAX);
        self.left.borrow_mut().entry(rank).or_insert(why);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let left = Message::Left { local_rank: self.rank as u64, ended: false };
            // An agent that has ended tells nobody.
            let _ = self.channel.send(&left, &[]);
        }
    }
}

impl Local {
    /// Returns the group of the ranks of this host in the job that started this process.
    ///
    /// # Errors
    /// [`Error::Attach`] if this process was not started by `hostbuf run` or `hostbuf exec`, or if
    /// the agent has ended.
    pub fn from_env() -> Result<Local> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| AttachError::NotLaunched {
                why: format!("{name} is not set: start the program with `hostbuf run` or `hostbuf exec`"),
            })
        };
        let number = |name: &str| -> Result<usize> {
            variable(name)?
                .parse()
                .map_err(|_| AttachError::NotLaunched { why: format!("{name} is not a number") }.into())
        };
        let (rank, size) = (number(ENV_LOCAL_RANK)?, number(ENV_LOCAL_SIZE)?);
        let hello = Hello {
            role: Role::Member,
            rank: rank as u64,
            size: size as u64,
            local_rank: rank as u64,
            local_size: size as u64,
            request: 0,
        };
        let hello = Message::Hello { hello, command: b"" };
        let session = Session::open(&variable(ENV_JOB)?, None, &hello).map_err(AttachError::from)?;
        let connection = Rc::new(Connection {
            channel: session.into_connection(),
            rank,
            process: std::process::id(),
            left: RefCell::default(),
            refusal: RefCell::default(),
        });
        Ok(Local { connection, members: (0..size).collect(), group: 0, sequence: Cell::new(0) })
    }
}

impl Local {
    /// Returns the reason if the members of this group cannot complete an operation any more.
    fn check(&self) -> std::result::Result<(), String> {
        if let Some(why) = &*self.connection.refusal.borrow() {
            return Err(why.clone());
        }
        let left = self.connection.left.borrow();
        let gone = self.members.iter().find_map(|member| left.get(member));
        gone.map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Runs the group's next gather operation and returns the parts of all members, in their order.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let failed = |why: String| Error::Collective { operation: "gather", why };
        let connection = &*self.connection;
        let channel = &connection.channel;
        self.check().map_err(failed)?;
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        let gather =
            Message::Gather { sequence, group: self.group, size: self.members.len() as u64, part: mine };
        channel.send(&gather, &[]).map_err(|e| failed(format!("the agent of this host has ended: {e}")))?;
        let mut parts = vec![None; self.members.len()];
        while parts.iter().any(Option::is_none) {
            let Received::Packet(packet) = channel.receive().map_err(|e| failed(e.to_string()))? else {
                return Err(failed("the agent or a rank of this host has ended".into()));
            };
            match packet.message() {
                Ok(Message::Gathered { sequence: theirs, group, rank, part })
                    if (group, theirs) == (self.group, sequence) =>
                {
                    let whose = usize::try_from(rank).unwrap_or(usize::MAX);
                    let index = self.members.binary_search(&whose);
                    let index = index.map_err(|_| {
                        failed("the agent sent the part of a rank that is not in the group".into())
                    })?;
                    parts[index] = Some(part.to_vec());
                }
                Ok(Message::Left { local_rank, ended }) => {
                    connection.has_left(local_rank, ended);
                    self.check().map_err(failed)?;
                }
                Ok(Message::Fail { error, .. } | Message::Refused { error }) => {
                    *connection.refusal.borrow_mut() = Some(error.line.to_owned());
                    self.check().map_err(failed)?;
                }
                Ok(_) => {}
                Err(FrameError::OtherVersion(theirs)) => {
                    return Err(AttachError::other_protocol(theirs).into());
                }
                Err(FrameError::Malformed) => {
                    return Err(failed("the agent of this host sent an invalid message".into()));
                }
            }
        }
        Ok(parts.into_iter().flatten().collect())
    }
}

impl Collective for Local {
    fn rank(&self) -> usize {
        self.members.iter().position(|&m| m == self.connection.rank).expect("a group contains its own rank")
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        if self.members.len() == 1 {
            all.copy_from_slice(mine);
            return Ok(());
        }
        let mut done = 0;
        while done < mine.len() {
            let part = &mine[done..mine.len().min(done + TEXT_MAX)];
            let parts = self.exchange(part)?;
            for (i, &member) in self.members.iter().enumerate() {
                let to = &mut all[i * mine.len() + done..][..part.len()];
                if parts[i].len() != to.len() {
                    let why = format!("rank {member} sent {} bytes instead of {}", parts[i].len(), to.len());
                    return Err(Error::Collective { operation: "gather", why });
                }
                to.copy_from_slice(&parts[i]);
            }
            done += part.len();
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        if self.members.len() == 1 {
            return Ok(());
        }
        for part in bytes.chunks_mut(TEXT_MAX) {
            let mine: &[u8] = if self.rank() == root { part } else { &[] };
            let parts = self.exchange(mine)?;
            let from = &parts[root];
            if from.len() != part.len() {
                let why = format!("rank {root} sent {} bytes instead of {}", from.len(), part.len());
                return Err(Error::Collective { operation: "broadcast", why });
            }
            part.copy_from_slice(from);
        }
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let mut colors = vec![0; self.size()];
        colors[self.rank()] = color as u64;
        self.all_reduce(&mut colors, Reduce::Max)?;
        let chosen = self.members.iter().zip(&colors).filter(|(_, c)| **c == color as u64).map(|(&m, _)| m);
        // All members have done the same number of gather operations, and those that choose one
        // color form one group.
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        [self.group, self.sequence.get(), color as u64].iter().for_each(|w| hash.update(&w.to_ne_bytes()));
        Ok(Box::new(Local {
            connection: self.connection.clone(),
            members: chosen.collect(),
            group: hash.digest(),
            sequence: Cell::new(0),
        }))
    }
}
