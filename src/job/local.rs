//! The ranks of one host without MPI: they meet at the host's agent.

use std::cell::Cell;
use std::rc::Rc;

use super::{Collective, Reduce};
use crate::channel::{Channel, Message};
use crate::error::{Error, Result};
use crate::wire::{ENV_JOB, ENV_LOCAL_RANK, ENV_LOCAL_SIZE, Frame, Hello, Kind, Role};

/// The ranks that `hostbuf run` or `hostbuf exec` started on this host, as a [`Collective`]. Meant for setting a
/// buffer up, not for moving data: every operation goes through the agent, [`Frame::TEXT_MAX`] bytes at a time.
pub struct Local {
    connection: Rc<Connection>,
    /// The members of this group, as ranks among all ranks of the host, ascending.
    members: Vec<usize>,
}

struct Connection {
    channel: Channel,
    rank: usize,
    size: usize,
    sequence: Cell<u64>,
}

impl Local {
    /// The ranks of this host in the job that this process was started in.
    ///
    /// # Errors
    /// [`Error::Attach`] when it was not started by `hostbuf run` or `hostbuf exec`, or the agent has gone.
    pub fn from_env() -> Result<Local> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| Error::Attach {
                why: format!("{name} is not set: start the program with `hostbuf run` or `hostbuf exec`"),
            })
        };
        let number = |name: &str| -> Result<usize> {
            variable(name)?.parse().map_err(|_| Error::Attach { why: format!("{name} is not a number") })
        };
        let (rank, size) = (number(ENV_LOCAL_RANK)?, number(ENV_LOCAL_SIZE)?);
        let channel = Channel::connect(&variable(ENV_JOB)?)
            .map_err(|e| Error::Attach { why: format!("the agent of this host does not answer: {e}") })?;
        let hello = Hello {
            role: Role::Member,
            rank: rank as u64,
            size: size as u64,
            local_rank: rank as u64,
            local_size: size as u64,
            request: 0,
        };
        channel.send(&hello.frame(), &[]).map_err(Error::os("greeting the agent of this host"))?;
        let connection = Rc::new(Connection { channel, rank, size, sequence: Cell::new(0) });
        Ok(Local { connection, members: (0..size).collect() })
    }
}

impl Connection {
    /// Everybody's part of gathering number `sequence`, by rank.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let failed = |why: String| Error::Collective { operation: "gather", why };
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        self.channel
            .send(&Frame::new(Kind::Gather).with(&[sequence]).saying(mine), &[])
            .map_err(|e| failed(format!("the agent of this host has gone: {e}")))?;
        let mut parts = vec![None; self.size];
        while parts.iter().any(Option::is_none) {
            match self.channel.receive().map_err(|e| failed(e.to_string()))? {
                Message::Frame(frame, _)
                    if frame.kind() == Some(Kind::Gathered) && frame.words[0] == sequence =>
                {
                    let whose = usize::try_from(frame.words[1]).unwrap_or(usize::MAX);
                    *parts
                        .get_mut(whose)
                        .ok_or_else(|| failed("the agent named a rank that is none".into()))? =
                        Some(frame.text().to_vec());
                }
                Message::Frame(frame, _) if frame.kind() == Some(Kind::Fail) => {
                    return Err(failed(String::from_utf8_lossy(frame.text()).into_owned()));
                }
                Message::Frame(..) => {}
                _ => return Err(failed("the agent of this host has gone, or a rank has".into())),
            }
        }
        Ok(parts.into_iter().flatten().collect())
    }
}

impl Collective for Local {
    fn rank(&self) -> usize {
        self.members.iter().position(|&m| m == self.connection.rank).expect("a group holds its own rank")
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    // The agent gathers from all ranks of the host, so the groups that one split() makes advance together; a group
    // of one needs nobody.
    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        if self.members.len() == 1 {
            all.copy_from_slice(mine);
            return Ok(());
        }
        let mut done = 0;
        while done < mine.len() {
            let part = &mine[done..mine.len().min(done + Frame::TEXT_MAX)];
            let parts = self.connection.exchange(part)?;
            for (i, &member) in self.members.iter().enumerate() {
                let to = &mut all[i * mine.len() + done..][..part.len()];
                if parts[member].len() != to.len() {
                    let why = format!(
                        "rank {member} brought {} bytes, and {} are wanted",
                        parts[member].len(),
                        to.len()
                    );
                    return Err(Error::Collective { operation: "gather", why });
                }
                to.copy_from_slice(&parts[member]);
            }
            done += part.len();
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        if self.members.len() == 1 {
            return Ok(());
        }
        for part in bytes.chunks_mut(Frame::TEXT_MAX) {
            let mine: &[u8] = if self.rank() == root { part } else { &[] };
            let parts = self.connection.exchange(mine)?;
            let from = &parts[self.members[root]];
            if from.len() != part.len() {
                let why = format!("rank {root} sent {} bytes, and {} are wanted", from.len(), part.len());
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
        Ok(Box::new(Local { connection: self.connection.clone(), members: chosen.collect() }))
    }
}
