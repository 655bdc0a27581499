//! Telling the ranks of a host that the job has failed, so that one of them prints it.

use hostbuf::internal::wire::{Frame, Kind};

use super::{Peer, Station};

/// The one of the host's ranks that prints why the job has failed.
#[derive(PartialEq, Eq)]
pub(super) enum Speaker {
    /// Nobody has been told to.
    None,
    /// This one, which lives.
    Rank(u64),
    /// It has.
    Done,
}

impl Station {
    /// Tells the peers that the job has failed. With no launcher to say why, one rank of the host prints it; the others
    /// hear of it only when that one has ended, since an engine that sees a rank fail ends the rest at once.
    pub(super) fn refuse(&mut self) {
        if self.print_failures && self.speaker == Speaker::None {
            let able = self.ranks().filter(|(id, _)| self.peers[id].channel.is_some());
            if let Some(id) = able.min_by_key(|(_, h)| h.local_rank).map(|(&id, _)| id) {
                self.speaker = Speaker::Rank(id);
                return self.say_failed(id, true);
            }
        }
        if matches!(self.speaker, Speaker::Rank(_)) {
            return;
        }
        let open = |p: &Peer| p.hello.is_some() && !p.refused;
        let rest: Vec<u64> = self.peers.iter().filter(|(_, p)| open(p)).map(|(&id, _)| id).collect();
        for id in rest {
            self.say_failed(id, false);
        }
    }

    fn say_failed(&mut self, id: u64, prints: bool) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.refused = true;
        }
        let frame = Frame::new(Kind::Fail).with(&[1, u64::from(prints)]).saying(self.failure.as_bytes());
        self.send(id, frame, false);
    }

    /// The rank that was to print has gone.
    pub(super) fn heard_out(&mut self, id: u64) {
        if self.speaker == Speaker::Rank(id) {
            self.speaker = Speaker::Done;
            self.refuse();
        }
    }
}
