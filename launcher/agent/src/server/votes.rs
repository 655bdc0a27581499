//! The server's checks that all ranks of this host have connected, answered and mapped.

use super::super::orders::{Answer, Event};
use super::super::rank_refusal::RankRefusal;
use super::state::{RankAnswer, Server, Stage};

impl Server {
    pub(super) fn check_present(&mut self) {
        if !matches!(self.stage, Stage::Gathering) {
            return;
        }
        let ranks: Vec<_> = self.ranks().map(|(id, h)| (*id, h)).collect();
        let ready = ranks.iter().filter(|(id, _)| self.peers[id].ready.is_some()).count();
        let Some((_, first)) = ranks.first() else { return };
        if ready as u64 == first.local_size {
            self.stage = Stage::Waiting;
            let uncovered = self.uncovered();
            let _ = self.events.send(Event::Present { ranks: ready, size: first.size, uncovered });
        }
    }

    pub(super) fn check_answered(&mut self) {
        let mut sum = Answer { mask: u64::MAX, hole: 0, refusal: None };
        let mut refusals = Vec::new();
        for (id, _) in self.ranks() {
            let peer = &self.peers[id];
            match &peer.answer {
                None => return,
                Some(RankAnswer::Hole(hole)) => {
                    sum.hole = sum.hole.max(hole.unwrap_or(u64::MAX));
                    // No address is left for this rank.
                    let refusal = peer.refusal.clone().filter(|_| hole.is_none());
                    refusals.extend(refusal.map(|refusal| RankRefusal { is_final: true, ..refusal }));
                }
                Some(RankAnswer::Votes(mask, refusal)) => {
                    sum.mask &= mask;
                    refusals.extend(refusal.clone());
                }
            }
        }
        refusals.sort_by_key(|refusal| refusal.rank);
        sum.refusal = refusals.into_iter().map(Some).fold(None, RankRefusal::cause);
        self.stage = Stage::Waiting;
        let _ = self.events.send(Event::Answered(sum));
    }

    pub(super) fn check_mapped(&mut self) {
        if matches!(self.stage, Stage::Mapping) && self.ranks().all(|(id, _)| self.peers[id].mapped) {
            let _ = self.events.send(Event::Mapped);
        }
    }
}
