//! The bytes of segments, of the host's memory and of the GPUs'.

use super::accounts::{Accounts, ExceededLimit};
use super::segment_bytes::{MemoryKind, SegmentBytes};
use super::state::BrokerState;

/// A limit that a segment would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExceededCharge {
    pub(super) kind: MemoryKind,
    /// The requested bytes of this kind.
    pub(super) requested: u64,
    pub(super) limit: ExceededLimit,
}

impl BrokerState {
    /// Returns the accounts of one kind of memory.
    pub(super) fn accounts_of(&self, kind: MemoryKind) -> &Accounts {
        match kind {
            MemoryKind::Host => &self.accounts,
            MemoryKind::Gpu => &self.gpu_accounts,
        }
    }

    /// Counts the bytes of a new segment of a client.
    ///
    /// # Errors
    /// [`ExceededCharge`]; nothing is counted then.
    pub(super) fn charge(&mut self, client: u64, bytes: SegmentBytes) -> Result<(), ExceededCharge> {
        let exceeded =
            |kind: MemoryKind| move |limit| ExceededCharge { kind, requested: bytes.of(kind), limit };
        self.accounts.charge(client, bytes.host).map_err(exceeded(MemoryKind::Host))?;
        if bytes.gpu > 0 {
            let charged = self.gpu_accounts.charge(client, bytes.gpu);
            charged
                .inspect_err(|_| self.accounts.refund(client, bytes.host))
                .map_err(exceeded(MemoryKind::Gpu))?;
        }
        Ok(())
    }

    /// Returns whether the bytes of a segment that exists already can be counted.
    pub(super) fn can_count(&self, bytes: SegmentBytes) -> bool {
        self.accounts.can_count(bytes.host) && self.gpu_accounts.can_count(bytes.gpu)
    }

    /// Counts the bytes of a segment that exists already, whatever the limits are.
    ///
    /// # Panics
    /// Unless they [can be counted](BrokerState::can_count).
    pub(super) fn count(&mut self, client: u64, bytes: SegmentBytes) {
        self.accounts.count(client, bytes.host);
        if bytes.gpu > 0 {
            self.gpu_accounts.count(client, bytes.gpu);
        }
    }

    /// Returns the bytes of a segment of a client.
    pub(super) fn refund(&mut self, client: u64, bytes: SegmentBytes) {
        self.accounts.refund(client, bytes.host);
        if bytes.gpu > 0 {
            self.gpu_accounts.refund(client, bytes.gpu);
        }
    }
}
