//! The state of a broker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hostbuf_os::PrivateFd;

use hostbuf_memory::Seals;
use hostbuf_memory::memfd;

use super::accounts::Accounts;
use super::client_record::ClientRecord;
use super::options::BrokerOptions;
use super::pending_attach::PendingAttach;
use super::pending_create::PendingCreate;
use super::recovery::Recovery;
use super::segment_bytes::SegmentBytes;
use super::segment_data::SegmentData;
use super::segment_maker::{MakerResult, SegmentMaker};
use super::segment_record::{SegmentRecord, SegmentStage};
use super::stored_segment::StoredSegment;
use crate::pool_id::PoolId;
use crate::wire::{PoolMessage, RefusalKind, RefusalRecord, SegmentKey, SegmentTerms};

/// The longest linger time: an instant cannot be arbitrarily late.
const MAX_LINGER: Duration = Duration::from_secs(1 << 30);

/// A segment whose files are being made.
#[derive(Debug)]
pub(super) struct MakingSegment {
    pub(super) client: u64,
    pub(super) request: u64,
    pub(super) terms: SegmentTerms,
    pub(super) stream: String,
    pub(super) bytes: SegmentBytes,
}

/// The state of a broker.
#[derive(Debug)]
pub(super) struct BrokerState {
    pub(super) pool: PoolId,
    pub(super) linger: Duration,
    /// The bytes of memory files.
    pub(super) accounts: Accounts,
    /// The bytes of GPU memory.
    pub(super) gpu_accounts: Accounts,
    pub(super) clients: BTreeMap<u64, ClientRecord>,
    pub(super) next_client: u64,
    pub(super) segments: BTreeMap<SegmentKey, SegmentRecord>,
    /// The number of the next segment, `None` if all have been given.
    pub(super) next_segment: Option<u32>,
    pub(super) maker: SegmentMaker,
    pub(super) making: BTreeMap<u64, MakingSegment>,
    pub(super) next_ticket: u64,
    /// The requests that wait for segments that are about to end, or for clients of a predecessor.
    pub(super) pending: Vec<PendingCreate>,
    /// The requests for segments that a client of a predecessor may still hand back.
    pub(super) pending_attaches: Vec<PendingAttach>,
    pub(super) recovery: Option<Recovery>,
    /// The segments of the descriptor store that no client has handed back.
    pub(super) unclaimed: BTreeMap<SegmentKey, StoredSegment>,
}

impl BrokerState {
    pub(super) fn new(
        pool: PoolId,
        options: &BrokerOptions,
        maker: SegmentMaker,
        recovery: Option<Recovery>,
    ) -> BrokerState {
        BrokerState {
            pool,
            linger: options.linger.min(MAX_LINGER),
            accounts: Accounts::new(options.limit, options.per_client),
            gpu_accounts: Accounts::new(options.gpu_limit, options.gpu_per_client),
            clients: BTreeMap::new(),
            next_client: 1,
            segments: BTreeMap::new(),
            next_segment: Some(1),
            maker,
            making: BTreeMap::new(),
            next_ticket: 1,
            pending: Vec::new(),
            pending_attaches: Vec::new(),
            recovery,
            unclaimed: BTreeMap::new(),
        }
    }

    /// Takes in the segments that have been made.
    pub(super) fn collect_made(&mut self) {
        while let Some(MakerResult { ticket, made }) = self.maker.next() {
            let Some(making) = self.making.remove(&ticket) else { continue };
            let MakingSegment { client, request, terms, stream, bytes } = making;
            let made = match made {
                Ok(made) if self.is_connected(client) => made,
                Ok(_) => {
                    self.refund(client, bytes);
                    continue;
                }
                Err(error) => {
                    self.refund(client, bytes);
                    self.refuse_memory(client, request, &error);
                    continue;
                }
            };
            let Some(number) = self.next_segment else {
                self.refund(client, bytes);
                let text = "the broker has given all 4294967295 numbers of segments: start it again";
                self.refuse(client, request, RefusalKind::Os, (0, 0), text);
                continue;
            };
            let key = SegmentKey { pool: self.pool, number };
            self.next_segment = number.checked_add(1);
            let record = SegmentRecord {
                terms,
                stream,
                stage: SegmentStage::Granted,
                charged: client,
                producer_name: self.clients[&client].describe(),
                producer: Some(client),
                bytes,
                files: made.files,
                table: made.table,
                rows: made.rows,
                mapped_by: [(client, None)].into(),
                unlocked: BTreeMap::new(),
            };
            match record.producer_descriptors() {
                Ok(descriptors) => {
                    record.set_client(None, self.clients[&client].to_entry());
                    self.segments.insert(key, record);
                    self.send(client, &PoolMessage::Granted { request, key }, descriptors);
                }
                Err(error) => {
                    self.refund(client, bytes);
                    let text = format!("the broker has no free descriptors (raise ulimit -n there): {error}");
                    self.refuse(client, request, RefusalKind::Os, (0, 0), &text);
                }
            }
        }
    }

    /// Makes a segment ready that its producer has mapped. The memory of a GPU comes with the
    /// message. Returns false if the client breaks the protocol.
    pub(super) fn mapped(&mut self, client: u64, key: SegmentKey, descriptors: Vec<PrivateFd>) -> bool {
        let Some(segment) = self.segments.get_mut(&key) else { return true };
        if segment.producer != Some(client) || segment.stage != SegmentStage::Granted {
            return true;
        }
        if segment.terms.gpu.is_some() {
            match SegmentData::check(true, descriptors, segment.terms.geometry) {
                Ok(data) => segment.files.data = data,
                Err(why) => {
                    tracing::warn!(%key, why, "the memory of a GPU is refused");
                    return false;
                }
            }
        }
        self.make_ready(client, key);
        true
    }

    /// Seals the data file of a segment, unless it is sealed, and lets readers attach.
    pub(super) fn make_ready(&mut self, client: u64, key: SegmentKey) {
        let segment = self.segments.get_mut(&key).filter(|segment| segment.files.data.is_there());
        let Some(segment) = segment else { return };
        let seals = Seals::FUTURE_WRITE | Seals::SEAL;
        if let Some(data) = segment.files.data.host() {
            let is_sealed = memfd::seals(data).is_ok_and(|found| found.contains(seals));
            if let (false, Err(error)) = (is_sealed, memfd::seal(data, seals)) {
                // Before Linux 5.1, and on huge pages before 5.6.
                tracing::warn!(%key, %error, "other processes of this user can write to this segment");
            }
        }
        segment.stage = SegmentStage::Live;
        self.send(client, &PoolMessage::Ready { key }, Vec::new());
    }

    /// Answers a request with a refusal.
    pub(super) fn refuse(
        &mut self,
        client: u64,
        request: u64,
        kind: RefusalKind,
        (requested, available): (u64, u64),
        text: &str,
    ) {
        let refusal = RefusalRecord { kind, requested, available, text };
        self.send(client, &PoolMessage::Refused { request, refusal }, Vec::new());
    }

    fn refuse_memory(&mut self, client: u64, request: u64, error: &hostbuf_memory::Error) {
        match error {
            hostbuf_memory::Error::NoSpace(no_space) => {
                let text = format!("limited by {}: {}", no_space.limit, no_space.remedy);
                let bytes = (no_space.requested, no_space.available);
                self.refuse(client, request, RefusalKind::NoSpace, bytes, &text);
            }
            other => self.refuse(client, request, RefusalKind::Os, (0, 0), &other.to_string()),
        }
    }

    /// Returns whether a client has a connection.
    pub(super) fn is_connected(&self, client: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| client.connection.is_some())
    }

    /// Returns whether the broker has neither clients nor segments.
    pub(super) fn is_unused(&self) -> bool {
        self.clients.is_empty()
            && self.segments.is_empty()
            && self.making.is_empty()
            && self.unclaimed.is_empty()
    }

    /// Returns the time after which something is to be done without any message.
    pub(super) fn next_turn(&self) -> Option<Duration> {
        /// The interval at which the counts of readers are read.
        const HOLDS: Duration = Duration::from_millis(20);
        let ending = self.segments.values().any(|segment| segment.stage == SegmentStage::Retired);
        let now = Instant::now();
        let orphaned = self.segments.values().filter_map(|segment| match segment.stage {
            SegmentStage::Orphaned(since) => Some((since + self.linger).saturating_duration_since(now)),
            _ => None,
        });
        let waiting =
            (ending || !self.pending.is_empty() || self.recovery.is_some() || self.awaits_clients())
                .then_some(HOLDS);
        let grace = self.clients.values().any(|client| client.disconnected.is_some()).then_some(HOLDS);
        orphaned.chain(waiting).chain(grace).min()
    }
}
