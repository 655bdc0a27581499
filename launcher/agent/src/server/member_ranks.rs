//! The ranks of a host that have made groups for collective operations.
//!
//! A rank may make its group again, and its programs may make one each. The groups that the ranks
//! of a host make as their first, their second and so on belong together: they form a generation. A
//! member gets the parts of its own generation only, and learns which ranks have left it.

use std::collections::BTreeMap;

/// The largest number of ranks whose groups the agent counts: more than any host has.
const MAX_RANKS: usize = 1 << 14;

/// A rank of the host: the number of ranks of its world on the host, and its local rank.
pub(super) type MemberPlace = (u64, u64);

/// The groups that the ranks of the host have made.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) ranks: BTreeMap<MemberPlace, MemberRank>,
    /// The ranks whose processes run, by process.
    pub(super) processes: BTreeMap<i32, MemberPlace>,
}

/// The groups that one rank has made.
#[derive(Debug, Default)]
pub(super) struct MemberRank {
    /// The number of groups that it has made.
    pub(super) made: u64,
    /// The peer that has the last of them, until it leaves.
    pub(super) current: Option<u64>,
    /// True if the last member ended without saying that it leaves.
    pub(super) ended: bool,
    /// True if the rank makes no further group, since its process has ended.
    pub(super) finished: bool,
}

impl MemberRank {
    /// Returns whether this rank has left a generation, or will never join it, and whether that is
    /// because its process or connection has ended.
    fn has_left(&self, generation: u64) -> Option<bool> {
        if self.made > generation + 1 {
            return Some(false);
        }
        if self.made == generation + 1 {
            return self.current.is_none().then_some(self.ended);
        }
        self.finished.then_some(true)
    }
}

impl Members {
    /// Counts the group that peer `id` has made in this place. Returns its generation, or the
    /// reason why it cannot be a member.
    pub(super) fn join(&mut self, id: u64, place: MemberPlace) -> Result<u64, String> {
        let count = self.ranks.len();
        if count >= MAX_RANKS && !self.ranks.contains_key(&place) {
            return Err(format!("{count} ranks of this host have a group already"));
        }
        let rank = self.ranks.entry(place).or_default();
        // Two members of one rank would receive each other's parts.
        if rank.current.is_some() {
            let local_rank = place.1;
            return Err(format!(
                "local rank {local_rank} has a group already: create job::Local once, and split it"
            ));
        }
        rank.made += 1;
        rank.current = Some(id);
        Ok(rank.made - 1)
    }

    /// Returns the ranks that will take no part in a generation of a world, and whether each has
    /// ended.
    pub(super) fn left(&self, (local_size, own): MemberPlace, generation: u64) -> Vec<(u64, bool)> {
        let world = self.ranks.range((local_size, 0)..(local_size + 1, 0));
        let others = world.filter(|((_, rank), _)| *rank != own);
        others.filter_map(|((_, rank), state)| Some((*rank, state.has_left(generation)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_belongs_to_the_generation_with_the_number_of_its_groups() {
        let mut members = Members::default();
        assert_eq!((members.join(1, (2, 0)), members.join(2, (2, 1))), (Ok(0), Ok(0)));
        assert!(members.join(3, (2, 0)).unwrap_err().contains("local rank 0 has a group already"));
        // Ranks of another world are independent.
        assert_eq!(members.join(4, (3, 0)), Ok(0));
        assert_eq!(members.left((2, 1), 0), []);
        members.ranks.get_mut(&(2, 0)).unwrap().current = None;
        assert_eq!(members.left((2, 1), 0), [(0, false)]);
        assert_eq!(members.join(5, (2, 0)), Ok(1));
        assert_eq!((members.left((2, 1), 0), members.left((2, 1), 1)), (vec![(0, false)], vec![]));
    }

    #[test]
    fn a_rank_whose_process_has_ended_joins_no_later_generation() {
        let mut members = Members::default();
        members.ranks.entry((2, 1)).or_default().finished = true;
        assert_eq!(members.left((2, 0), 0), [(1, true)]);
    }
}
