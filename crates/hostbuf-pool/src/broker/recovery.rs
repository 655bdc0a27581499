//! The wait for the clients of an earlier broker.

use std::collections::BTreeSet;

use super::predecessor::{KnownProcess, processes_with_segments};

/// The processes that have memory of an earlier broker. Until all of them have handed it back or
/// have ended, nothing is granted.
#[derive(Debug)]
pub(super) struct Recovery {
    waits_for: Vec<KnownProcess>,
}

impl Recovery {
    /// Looks for processes that have memory of an earlier broker. Returns `None` if there are none.
    pub(super) fn begin() -> Option<Recovery> {
        let waits_for = processes_with_segments();
        (!waits_for.is_empty()).then_some(Recovery { waits_for })
    }

    /// Describes the processes that are waited for.
    pub(super) fn describe(&self) -> String {
        let list: Vec<String> = self.waits_for.iter().map(KnownProcess::describe).collect();
        format!("{}; continue or end them", list.join(", "))
    }

    /// Returns the processes that are waited for.
    pub(super) fn waits_for(&self) -> &[KnownProcess] {
        &self.waits_for
    }

    /// Forgets the processes that have ended or are in `handed_back`. Returns whether none is left.
    pub(super) fn advance(&mut self, handed_back: &BTreeSet<i32>) -> bool {
        self.waits_for.retain(|known| known.is_running() && !handed_back.contains(&known.pid));
        self.waits_for.is_empty()
    }
}
