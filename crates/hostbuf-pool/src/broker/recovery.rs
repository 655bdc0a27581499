//! The wait for the clients of an earlier broker.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use super::broker_tag::BrokerTag;
use super::predecessor::{KnownProcess, is_shortage, process_with_segments, processes_with_segments};

/// The interval between two looks at the processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The processes that have memory of an earlier broker. Until all of it is handed back, or they
/// have closed it or have ended, nothing is granted.
#[derive(Debug)]
pub(super) struct Recovery {
    tag: BrokerTag,
    /// The reason why they are unknown, until all processes have been looked at.
    waits_for: Result<Vec<KnownProcess>, io::Error>,
    next_look: Instant,
}

impl Recovery {
    /// Looks for processes that have memory of an earlier broker with this mark. Returns `None` if
    /// there are none.
    pub(super) fn begin(tag: BrokerTag) -> Option<Recovery> {
        let waits_for = look(tag);
        let is_over = waits_for.as_ref().is_ok_and(Vec::is_empty);
        (!is_over).then(|| Recovery { tag, waits_for, next_look: Instant::now() })
    }

    /// Describes the processes that are waited for.
    pub(super) fn describe(&self) -> String {
        match &self.waits_for {
            Ok(waits_for) => {
                let list: Vec<String> = waits_for.iter().map(KnownProcess::describe).collect();
                format!("{}; continue or end them", list.join(", "))
            }
            Err(error) if is_shortage(error) => {
                format!("the broker cannot look for them ({error}); raise ulimit -n there")
            }
            Err(error) => format!("the broker cannot look for them ({error}); mount /proc there"),
        }
    }

    /// Returns the processes that are waited for, as far as they are known.
    pub(super) fn waits_for(&self) -> &[KnownProcess] {
        self.waits_for.as_deref().unwrap_or_default()
    }

    /// Forgets the processes that have only the data files with the inode numbers `adopted`.
    /// Returns whether none is left.
    pub(super) fn advance(&mut self, adopted: &BTreeSet<u64>) -> bool {
        let now = Instant::now();
        if now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK_INTERVAL;
        let Ok(waits_for) = &mut self.waits_for else {
            self.waits_for = look(self.tag);
            return self.waits_for.as_ref().is_ok_and(Vec::is_empty);
        };
        waits_for.retain_mut(|known| match process_with_segments(known.pid, self.tag) {
            Ok(Some(now)) => {
                *known = now;
                known.has_others_than(adopted)
            }
            Ok(None) => false,
            // It is looked at again.
            Err(_) => true,
        });
        waits_for.is_empty()
    }
}

fn look(tag: BrokerTag) -> io::Result<Vec<KnownProcess>> {
    let found = processes_with_segments(tag);
    found.inspect_err(|error| tracing::warn!(%error, "looking for clients of an earlier broker"))
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "forks a child with a limit of its own")]

    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::super::options::BrokerOptions;
    use super::*;

    #[test]
    fn a_broker_without_free_descriptors_goes_on_waiting() {
        let tag = BrokerTag::of(&BrokerOptions::new().name("no-broker-has-this-name"));
        // SAFETY: the child ends without a return.
        let ForkResult::Parent { child } = (unsafe { fork() }).unwrap() else {
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
            let mut recovery = Recovery::begin(tag);
            let waits = recovery.as_mut().is_some_and(|recovery| !recovery.advance(&BTreeSet::new()));
            let says_why = recovery.as_ref().is_some_and(|waiting| waiting.describe().contains("ulimit -n"));
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
            let is_over = recovery.is_some_and(|mut recovery| {
                recovery.next_look = Instant::now();
                recovery.advance(&BTreeSet::new())
            });
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!(waits && says_why && is_over))) }
        };
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    }
}
