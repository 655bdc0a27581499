//! The server's checks that all ranks of this host have connected, answered and mapped.

use super::super::orders::{Answer, Event};
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
        for (id, hello) in self.ranks() {
            match &self.peers[id].answer {
                None => return,
                Some(RankAnswer::Hole(hole)) => sum.hole = sum.hole.max(hole.unwrap_or(u64::MAX)),
                Some(RankAnswer::Votes(mask, refusal)) => {
                    sum.mask &= mask;
                    let lower = sum.refusal.as_ref().is_none_or(|(rank, _)| hello.rank < *rank as u64);
                    if let Some(why) = refusal.as_ref().filter(|_| lower) {
                        sum.refusal = Some((hello.rank as usize, why.clone()));
                    }
                }
            }
        }
        self.stage = Stage::Waiting;
        let _ = self.events.send(Event::Answered(sum));
    }

    pub(super) fn check_mapped(&mut self) {
        if matches!(self.stage, Stage::Mapping) && self.ranks().all(|(id, _)| self.peers[id].mapped) {
            let _ = self.events.send(Event::Mapped);
        }
    }
}
