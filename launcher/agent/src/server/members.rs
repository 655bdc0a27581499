//! The members of the groups that the ranks of a host make for collective operations: they join,
//! leave, and learn which ranks of their generation have left.

use hostbuf::ErrorClass;
use hostbuf_protocol::failure::ErrorRecord;
use hostbuf_protocol::message::{Hello, Message};

use super::member_ranks::MemberPlace;
use super::serve::MAX_FRAMES;
use super::state::Server;

impl Server {
    /// Adds a member, and tells it which ranks have left its generation already.
    pub(super) fn join(&mut self, id: u64, hello: Hello) {
        let place = (hello.local_size, hello.local_rank);
        // The rank may have dropped its last group a moment ago.
        if let Some(before) = self.members.ranks.get(&place).and_then(|rank| rank.current) {
            self.read(before, MAX_FRAMES);
        }
        match self.members.join(id, place) {
            Ok(generation) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.generation = Some(generation);
                }
                for (local_rank, ended) in self.members.left(place, generation) {
                    self.send(id, &Message::Left { local_rank, ended });
                }
            }
            Err(why) => {
                let error = ErrorRecord::new(ErrorClass::General, &why);
                self.send(id, &Message::Refused { error });
            }
        }
    }

    /// Removes a member, and tells the others of its generation. `ended` is false if it has said
    /// that it leaves.
    pub(super) fn member_left(&mut self, id: u64, hello: Hello, ended: bool) {
        self.withdraw_part(id);
        let Some(generation) = self.peers.remove(&id).and_then(|peer| peer.generation) else { return };
        let place = (hello.local_size, hello.local_rank);
        if let Some(rank) = self.members.ranks.get_mut(&place) {
            (rank.current, rank.ended) = (None, ended);
        }
        self.tell_members(place, |theirs| theirs == generation, ended);
    }

    /// Records the process of a rank. Under a launcher, the rank ends with it.
    pub(super) fn rank_runs(&mut self, pid: i32, hello: Hello) {
        // The processes of another PID namespace all have the number 0. Without a launcher, another
        // `hostbuf exec` may continue as the same rank.
        if pid != 0 && !self.print_failures {
            self.members.processes.insert(pid, (hello.local_size, hello.local_rank));
        }
    }

    /// Tells the members that wait for the next group of a rank that its process has ended.
    pub(super) fn rank_ended(&mut self, pid: i32) {
        let Some(place) = self.members.processes.remove(&pid) else { return };
        let rank = self.members.ranks.entry(place).or_default();
        rank.finished = true;
        let made = rank.made;
        self.tell_members(place, |generation| generation >= made, true);
    }

    /// Tells the members of some generations that the rank at `place` takes no part.
    fn tell_members(&mut self, place: MemberPlace, of: impl Fn(u64) -> bool, ended: bool) {
        let (local_size, local_rank) = place;
        let waiting = self.peers.iter().filter(|(_, peer)| {
            peer.hello.local_size == local_size
                && peer.hello.local_rank != local_rank
                && peer.generation.is_some_and(&of)
        });
        let waiting: Vec<u64> = waiting.map(|(&id, _)| id).collect();
        for id in waiting {
            self.send(id, &Message::Left { local_rank, ended });
        }
    }
}
