//! A file with its transfers.

use std::sync::{Arc, Mutex, Weak};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::File;

use crate::running_transfer::{RunningTransfer, UnaskedError};

/// A file with its transfers.
pub struct TransferFile {
    pub file: File,
    running: Mutex<Vec<Weak<RunningTransfer>>>,
    pub failure: Arc<UnaskedError>,
}

impl TransferFile {
    pub fn new(file: File) -> Arc<TransferFile> {
        Arc::new(TransferFile { file, running: Mutex::default(), failure: Arc::default() })
    }

    /// Adds a transfer, which [`running`](TransferFile::running) returns until it has ended.
    pub fn add(&self, transfer: &Arc<RunningTransfer>) {
        let mut running = self.running.lock().ignore_poison();
        if running.len() == running.capacity() {
            running.retain(|one| one.upgrade().is_some_and(|one| !one.has_ended()));
        }
        running.push(Arc::downgrade(transfer));
    }

    /// Returns the transfers that this process has started and that have not ended.
    pub fn running(&self) -> Vec<Arc<RunningTransfer>> {
        let running = self.running.lock().ignore_poison();
        let known = running.iter().filter_map(Weak::upgrade);
        known.filter(|one| one.is_own() && !one.has_ended()).collect()
    }
}
