//! The wait for the clients of an earlier broker.

use std::collections::BTreeSet;

use super::broker_tag::BrokerTag;
use super::predecessor::{KnownProcess, process_with_segments, processes_with_segments};

/// The processes that have memory of an earlier broker. Until all of it is handed back, or they
/// have closed it or have ended, nothing is granted.
#[derive(Debug)]
pub(super) struct Recovery {
    tag: BrokerTag,
    waits_for: Vec<KnownProcess>,
}

impl Recovery {
    /// Looks for processes that have memory of an earlier broker with this mark. Returns `None` if
    /// there are none.
    pub(super) fn begin(tag: BrokerTag) -> Option<Recovery> {
        let waits_for = processes_with_segments(tag);
        (!waits_for.is_empty()).then_some(Recovery { tag, waits_for })
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

    /// Forgets the processes that have only the data files with the inode numbers `adopted`.
    /// Returns whether none is left.
    pub(super) fn advance(&mut self, adopted: &BTreeSet<u64>) -> bool {
        let now = self.waits_for.iter().filter_map(|known| process_with_segments(known.pid, self.tag));
        self.waits_for = now.filter(|known| known.has_others_than(adopted)).collect();
        self.waits_for.is_empty()
    }
}
