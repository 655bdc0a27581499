//! The descriptor store of the service manager (`sd_pid_notify_with_fds(3)`).
//!
//! The service manager keeps a descriptor of the data file of each segment. A broker that it starts
//! again gets them, so all memory that an earlier broker has made is counted from the start, also
//! that of processes which this broker cannot see.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::service_manager::{self, ServiceManager};
use super::state::BrokerState;
use super::stored_segment::{StoredSegment, store_name};
use crate::wire::SegmentKey;

/// The number of no client. The bytes of segments that no client has handed back are charged to it.
const NOBODY: u64 = 0;
/// The interval between two looks for processes that have a segment.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The descriptor store of the service manager.
#[derive(Debug)]
pub(super) struct DescriptorStore {
    manager: Option<ServiceManager>,
    /// The segments in the store, with their bytes.
    stored: BTreeMap<SegmentKey, u64>,
    /// The time before which no segment is given up.
    next_look: Instant,
}

impl DescriptorStore {
    /// Makes a store that nobody has.
    pub(super) fn absent() -> DescriptorStore {
        DescriptorStore { manager: None, stored: BTreeMap::new(), next_look: Instant::now() }
    }

    /// Finds the store, counts the segments that were in it, and reports that the broker listens.
    pub(super) fn open(state: &mut BrokerState, segments: Vec<StoredSegment>) -> DescriptorStore {
        let mut store = DescriptorStore { manager: ServiceManager::find(), ..DescriptorStore::absent() };
        // Clients connect again within this time, if they can.
        store.next_look += state.linger;
        for segment in segments {
            if !state.accounts.can_count(segment.bytes) {
                tracing::warn!(key = %segment.key, "the name of a stored segment contains an impossible size");
                continue;
            }
            store.stored.insert(segment.key, segment.bytes);
            state.accounts.count(NOBODY, segment.bytes);
            state.unclaimed.insert(segment.key, segment);
        }
        store.report("READY=1");
        store
    }

    /// Reports that the broker ends.
    pub(super) fn close(&self) {
        self.report("STOPPING=1");
    }

    fn report(&self, message: &str) {
        if let Some(Err(error)) = self.manager.as_ref().map(|manager| manager.send(message, None)) {
            tracing::warn!(%error, message, "telling the service manager");
        }
    }

    /// Returns the time after which [`update`](DescriptorStore::update) is to be called again.
    pub(super) fn next_turn(&self, state: &BrokerState) -> Option<Duration> {
        let now = Instant::now();
        (!state.unclaimed.is_empty()).then(|| self.next_look.saturating_duration_since(now))
    }

    /// Makes the store contain exactly the segments that exist. A broker that is killed between its
    /// answer to a client and this call leaves a segment that only the client knows.
    pub(super) fn update(&mut self, state: &mut BrokerState) {
        let BrokerState { unclaimed, segments, accounts, .. } = state;
        unclaimed.retain(|key, segment| {
            let is_claimed = segments.contains_key(key);
            if is_claimed {
                // The client that has handed it back is charged.
                accounts.refund(NOBODY, segment.bytes);
            }
            !is_claimed
        });
        self.give_up_unused(state);
        let Some(manager) = &self.manager else { return };
        for (&key, segment) in &state.segments {
            // The producer and the readers keep memory of a GPU, and hand it back.
            let Some(data) = segment.files.data.host() else { continue };
            if self.stored.contains_key(&key) {
                continue;
            }
            let bytes = segment.bytes.host;
            let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}", store_name(key, bytes));
            match manager.send(&message, Some(data)) {
                Ok(()) => drop(self.stored.insert(key, bytes)),
                // The next call tries again.
                Err(error) => tracing::warn!(%key, %error, "storing the descriptor of a segment"),
            }
        }
        self.stored.retain(|key, bytes| {
            let exists = state.segments.contains_key(key) || state.unclaimed.contains_key(key);
            let remove =
                || manager.send(&format!("FDSTOREREMOVE=1\nFDNAME={}", store_name(*key, *bytes)), None);
            exists || remove().is_err()
        });
    }

    /// Gives up segments that no client has handed back and that no process has open. Processes
    /// which this broker cannot see have connected by now, or cannot.
    fn give_up_unused(&mut self, state: &mut BrokerState) {
        if state.unclaimed.is_empty() || state.recovery.is_some() || Instant::now() < self.next_look {
            return;
        }
        self.next_look = Instant::now() + LOOK_INTERVAL;
        let open = inodes_of_others();
        let BrokerState { unclaimed, accounts, .. } = state;
        unclaimed.retain(|key, segment| {
            let file = nix::sys::stat::fstat(&segment.data);
            let is_open = file.is_ok_and(|file| open.contains(&(file.st_dev, file.st_ino)));
            if !is_open {
                tracing::debug!(%key, "no process has this segment of an earlier broker");
                accounts.refund(NOBODY, segment.bytes);
            }
            is_open
        });
    }
}

/// Returns device and inode of the memory files that other processes of this user have open, apart
/// from the service manager.
fn inodes_of_others() -> Vec<(u64, u64)> {
    let own = [Some(std::process::id() as i32), service_manager::process()];
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let files = pids.filter(|pid| !own.contains(&Some(*pid))).flat_map(|pid| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.filter(|entry| {
            fs::read_link(entry.path())
                .is_ok_and(|target| target.as_os_str().to_string_lossy().starts_with("/memfd:"))
        })
    });
    files.filter_map(|entry| fs::metadata(entry.path()).ok()).map(|file| (file.dev(), file.ino())).collect()
}
