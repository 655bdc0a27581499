//! The messages of the peers, and the end of their connections and processes.

use hostbuf_os::Message;
use hostbuf_os::process;
use hostbuf_protocol::wire::{Coverage, Frame, Hello, Kind, Role, Territory};

use super::super::exit_class::ExitClass;
use super::outbox::MAX_BACKLOG;
use super::state::{Stage, Station};

impl Station {
    /// Reads and handles at most `most` frames of a peer.
    pub(super) fn read(&mut self, id: u64, most: usize) {
        for _ in 0..most {
            let Some(channel) = self.peers.get(&id).and_then(|p| p.channel.as_ref()) else { return };
            match channel.receive() {
                Ok(Message::Frame(frame, _)) => self.hear(id, &frame),
                Ok(Message::Nothing) => return,
                Ok(Message::Nonsense) => {
                    tracing::warn!(pid = self.peers[&id].pid, "a peer sent an invalid frame");
                    return self.hung_up(id);
                }
                Ok(Message::End) | Err(_) => return self.hung_up(id),
            }
        }
    }

    fn hear(&mut self, id: u64, frame: &Frame) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match (frame.kind(), peer.hello) {
            (Some(Kind::Hello), None) => match Hello::parse(frame) {
                Some(hello) => {
                    peer.command = String::from_utf8_lossy(frame.text()).into_owned();
                    self.greet(id, hello);
                }
                None => self.hung_up(id),
            },
            (Some(Kind::Ready), Some(Hello { role: Role::Rank, .. })) => {
                let sanitized = frame.words[0] == Territory::Sanitized as u64;
                self.deadline.progress();
                peer.ready = Some(if sanitized { Territory::Sanitized } else { Territory::Anywhere });
                let why = String::from_utf8_lossy(frame.text()).into_owned();
                peer.coverage = (Coverage::from_word(frame.words[1]), why);
                self.look_if_present();
            }
            (Some(kind @ (Kind::Votes | Kind::Hole)), Some(Hello { role: Role::Rank, .. })) => {
                let asked = matches!(self.stage, Stage::Asking(k) if k == kind);
                if asked {
                    self.deadline.progress();
                    peer.answer = Some(frame.clone());
                    self.look_if_answered();
                }
            }
            (Some(Kind::Mapped), Some(hello)) => {
                peer.mapped = true;
                self.deadline.progress();
                if hello.role == Role::Rank {
                    self.look_if_mapped();
                }
            }
            (Some(Kind::Failed), Some(hello)) => {
                let why = String::from_utf8_lossy(frame.text()).into_owned();
                if hello.role == Role::Rank && peer.counted {
                    let class = u8::try_from(frame.words[0]).ok().and_then(ExitClass::from_status);
                    self.lost_with(id, class.unwrap_or(ExitClass::Lost), why);
                }
            }
            (Some(Kind::Gather), Some(hello)) if hello.role == Role::Member => self.gather(id, hello, frame),
            _ => {
                tracing::warn!(pid = peer.pid, kind = ?frame.kind(), "a peer sent an unexpected frame");
                self.hung_up(id);
            }
        }
    }

    fn greet(&mut self, id: u64, hello: Hello) {
        let differs = |h: &Hello| {
            h.local_rank == hello.local_rank || h.local_size != hello.local_size || h.request != hello.request
        };
        let other = self.ranks().find(|(_, h)| differs(h));
        let other = other.map(|(_, h)| h);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.hello = Some(hello);
        if hello.role == Role::Rank {
            self.seen.0.insert(hello.local_rank);
            self.seen.1 = hello.local_size;
        }
        // A process may outlive its connection, so the process itself is watched.
        peer.process = process::pidfd(peer.pid).ok();
        if matches!(self.stage, Stage::Failed) {
            return self.refuse();
        }
        match hello.role {
            Role::Rank if matches!(self.stage, Stage::Gathering) => {
                peer.counted = true;
                self.deadline.rank_has_come();
                self.request = hello.request;
                if let Some(other) = other.filter(|o| o.request != hello.request) {
                    let why = format!("it asks for other buffers than rank {} of the same job", other.rank);
                    self.lost_with(id, ExitClass::Disagreed, why);
                } else if let Some(other) = other {
                    let why = format!(
                        "it says that it is local rank {} of {}, and another said {} of {}: are these two jobs under one name?",
                        hello.local_rank, hello.local_size, other.local_rank, other.local_size
                    );
                    self.lost(id, why);
                }
            }
            Role::Rank if hello.request != self.request => {
                let why = "this job has its buffers already, and this rank asks for others: one `hostbuf exec` after \
                           another in one job must ask for the same";
                let words = [u64::from(ExitClass::Disagreed.status()), 1];
                self.send(id, Frame::new(Kind::Fail).with_words(&words).with_text(why.as_bytes()), false);
            }
            // The engine may start processes later (MPI_Comm_spawn). They attach, and are not
            // counted.
            Role::Rank | Role::Late | Role::Library => {
                self.supply(id);
            }
            Role::Member => self.join(id, hello),
        }
    }

    /// Handles the end of a connection. The process may live on without it.
    pub(super) fn hung_up(&mut self, id: u64) {
        let running = matches!(self.stage, Stage::Running | Stage::Failed);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.channel = None;
        peer.outbox.clear();
        if peer.process.is_none() {
            self.heard_out(id);
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let Some(hello) = peer.hello else {
            self.peers.remove(&id);
            return;
        };
        match hello.role {
            Role::Rank if !running && peer.counted => {
                self.lost(id, "it ended before it had the buffer".into());
            }
            Role::Member => self.member_left(id, hello),
            _ => {}
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let mut others = self.peers.iter().filter(|(other, p)| **other != id && p.pid == peer.pid);
        // One pidfd is enough for a process, even with several connections.
        let watched = running && others.any(|(_, p)| p.process.is_some());
        if watched || peer.process.is_none() {
            self.peers.remove(&id);
        }
    }

    /// Handles the end of a process.
    pub(super) fn departed(&mut self, id: u64) {
        // Frames from before its end are still valid.
        self.read(id, MAX_BACKLOG);
        self.hung_up(id);
        self.peers.remove(&id);
        self.heard_out(id);
        if matches!(self.stage, Stage::Asking(_)) {
            self.look_if_answered();
        }
    }
}
