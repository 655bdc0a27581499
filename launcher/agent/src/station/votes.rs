//! The station's checks that all ranks of this host have connected, answered and mapped.

use hostbuf_protocol::wire::{Frame, Kind};

use super::super::orders::{Answer, Event};
use super::state::{Stage, Station};

impl Station {
    pub(super) fn look_if_present(&mut self) {
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

    pub(super) fn look_if_answered(&mut self) {
        let mut sum = Answer { mask: u64::MAX, hole: 0, refusal: None };
        for (id, hello) in self.ranks() {
            let Some(frame) = &self.peers[id].answer else { return };
            if frame.kind() == Some(Kind::Hole) {
                sum.hole = sum.hole.max(frame.words[0]);
            } else {
                sum.mask &= frame.words[0];
                if frame.words[1] != 0
                    && sum.refusal.as_ref().is_none_or(|(rank, _)| hello.rank < *rank as u64)
                {
                    sum.refusal = Some((hello.rank as usize, refusal(frame, self.asked)));
                }
            }
        }
        self.stage = Stage::Waiting;
        let _ = self.events.send(Event::Answered(sum));
    }

    pub(super) fn look_if_mapped(&mut self) {
        if matches!(self.stage, Stage::Mapping) && self.ranks().all(|(id, _)| self.peers[id].mapped) {
            let _ = self.events.send(Event::Mapped);
        }
    }
}

/// Describes a rank's refusal, from the words of a [`Kind::Votes`] frame.
fn refusal(frame: &Frame, length: usize) -> String {
    let [_, address, errno, start, end] = *frame.words.first_chunk::<5>().expect("a frame has 64 words");
    let mapping = (start as usize, end as usize);
    hostbuf::agree::reason(address as usize, length, errno as i32, mapping, frame.text())
}
