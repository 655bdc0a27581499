//! The requests of clients.

use std::time::{Duration, Instant};

use hostbuf_os::{Bytes, PrivateFd};

use super::accounts::ExceededLimit;
use super::charges::ExceededCharge;
use super::client_record::ClientRecord;
use super::pending_attach::PendingAttach;
use super::pending_create::PendingCreate;
use super::segment_bytes::MemoryKind;
use super::segment_maker::demanded_bytes;
use super::segment_record::{SegmentRecord, SegmentStage};
use super::state::{BrokerState, MakingSegment};
use crate::wire::{PoolMessage, RefusalKind};

/// The largest number of segments that are charged to one client. Each of them takes descriptors of
/// the broker.
pub(super) const MAX_SEGMENTS: usize = 1024;
/// The largest number of requests of one client that wait.
const MAX_PENDING: usize = 1024;
/// The time for which a request waits for segments that are about to end.
const PENDING_TIMEOUT: Duration = Duration::from_secs(1);

impl BrokerState {
    /// Handles a message of a client. Returns false if the client breaks the protocol.
    pub(super) fn handle(
        &mut self,
        client: u64,
        message: &PoolMessage<'_>,
        descriptors: Vec<PrivateFd>,
    ) -> bool {
        match *message {
            PoolMessage::Create { .. } | PoolMessage::Attach { .. } if self.has_too_many_pending(client) => {
                return false;
            }
            PoolMessage::Create { request, terms, stream } => {
                let stream = stream.to_owned();
                let pending = PendingCreate { client, request, terms, stream, since: Instant::now() };
                self.create(pending);
            }
            PoolMessage::Mapped { key } => return self.mapped(client, key, descriptors),
            PoolMessage::Close { key } => self.close(client, key),
            PoolMessage::Attach { request, key } => {
                self.attach(PendingAttach { client, request, key, since: Instant::now() });
            }
            PoolMessage::Detached { key, row } => self.detached(client, key, row),
            PoolMessage::HandBack { key, terms, row, stream } => {
                return self.hand_back(client, key, terms, row, stream, descriptors);
            }
            PoolMessage::HandedBack => self.handed_back(client),
            PoolMessage::Status { request } => self.send_status(client, request),
            _ => return false,
        }
        true
    }

    /// Returns whether more requests of a client wait than it has threads.
    fn has_too_many_pending(&self, client: u64) -> bool {
        let creates = self.pending.iter().filter(|pending| pending.client == client).count();
        let attaches = self.pending_attaches.iter().filter(|pending| pending.client == client).count();
        creates + attaches >= MAX_PENDING
    }

    /// Makes a segment, or keeps the request until it can be granted or refused.
    fn create(&mut self, create: PendingCreate) {
        if self.recovery.is_some() {
            return self.pending.push(create);
        }
        let PendingCreate { client, request, terms, .. } = create;
        if self.segments_of(client) >= MAX_SEGMENTS {
            let text = format!(
                "this client has {MAX_SEGMENTS} segments, the largest number for one client: drop producers that are not used, or make larger segments"
            );
            return self.refuse(client, request, RefusalKind::Invalid, (0, 0), &text);
        }
        let bytes = demanded_bytes(terms);
        match self.charge(client, bytes) {
            Ok(()) => {}
            Err(exceeded)
                if self.can_reclaim(client, exceeded) && create.since.elapsed() < PENDING_TIMEOUT =>
            {
                self.reclaim_unheld();
                return self.pending.push(create);
            }
            Err(exceeded) => return self.refuse_space(client, request, exceeded),
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let stream = create.stream;
        self.making.insert(ticket, MakingSegment { client, request, terms, stream, bytes });
        self.maker.start(ticket, terms);
    }

    /// Returns the number of segments that a client has or has requested.
    pub(super) fn segments_of(&self, client: u64) -> usize {
        self.segments.values().filter(|segment| segment.charged == client).count()
            + self.making.values().filter(|making| making.client == client).count()
    }

    /// Tries the waiting requests again.
    pub(super) fn retry_pending(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            if !self.is_connected(pending.client) {
                continue;
            }
            match &self.recovery {
                Some(recovery) if pending.since.elapsed() > PENDING_TIMEOUT => {
                    let text = recovery.describe();
                    let demanded = demanded_bytes(pending.terms);
                    let bytes = (demanded.host.max(demanded.gpu), 0);
                    self.refuse(pending.client, pending.request, RefusalKind::Recovering, bytes, &text);
                }
                _ => self.create(pending),
            }
        }
        for pending in std::mem::take(&mut self.pending_attaches) {
            if self.is_connected(pending.client) {
                self.attach(pending);
            }
        }
    }

    /// Returns whether segments without producers and holds have enough bytes for a request.
    fn can_reclaim(&self, client: u64, exceeded: ExceededCharge) -> bool {
        let (free, only) = match exceeded.limit {
            ExceededLimit::Pool(free) => (free, None),
            ExceededLimit::Client(free) => (free, Some(client)),
        };
        let ending = |segment: &&SegmentRecord| match segment.stage {
            SegmentStage::Orphaned(_) | SegmentStage::Retired => !segment.is_in_use(),
            SegmentStage::Ending => true,
            SegmentStage::Granted | SegmentStage::Live | SegmentStage::Adopted => false,
        };
        let counts = |segment: &&SegmentRecord| only.is_none_or(|client| segment.charged == client);
        let ending = self.segments.values().filter(ending).filter(counts);
        ending.fold(free, |sum, segment| sum.saturating_add(segment.bytes.of(exceeded.kind)))
            >= exceeded.requested
    }

    fn refuse_space(&mut self, client: u64, request: u64, exceeded: ExceededCharge) {
        let ExceededCharge { kind, requested, limit } = exceeded;
        let (of_pool, of_client) = kind.options();
        let what = if kind == MemoryKind::Gpu { " of GPU memory" } else { "" };
        let (available, text) = match limit {
            ExceededLimit::Client(free) => {
                let most = self.accounts_of(kind).per_client();
                let text = format!(
                    "the limit{what} for one client is {} ({of_client}), and this one has {}: use fewer or smaller blocks, or start the broker with a larger limit",
                    Bytes(most),
                    Bytes(self.accounts_of(kind).of_client(client))
                );
                (free, text)
            }
            ExceededLimit::Pool(free) => {
                let text = format!(
                    "the limit{what} of the pool is {} ({of_pool}), and these clients have the rest: {}; end some of them, or start the broker with a larger limit",
                    Bytes(self.accounts_of(kind).limit()),
                    self.describe_holders(kind)
                );
                (free, text)
            }
        };
        self.refuse(client, request, RefusalKind::NoSpace, (requested, available), &text);
    }

    /// Lists the clients that have memory: `camera (process 41) 64 MiB, ...`.
    fn describe_holders(&self, kind: MemoryKind) -> String {
        /// The largest number of segments that are listed.
        const LISTED: usize = 8;
        let segments = self.segments.values().filter(|segment| segment.bytes.of(kind) > 0);
        let mut segments: Vec<_> = segments.collect();
        segments.sort_by_key(|segment| std::cmp::Reverse(segment.bytes.of(kind)));
        let mut list: Vec<String> = Vec::new();
        for segment in segments.iter().take(LISTED) {
            let mut text = format!("{} {}", segment.producer_name, Bytes(segment.bytes.of(kind)));
            if segment.producer.is_none() {
                let readers = segment.mapped_by.iter().filter_map(|(id, _)| self.clients.get(id));
                let readers: Vec<String> = readers.map(ClientRecord::describe).collect();
                text += ", closed";
                if !readers.is_empty() {
                    text += &format!(" and read by {}", readers.join(" and "));
                }
            }
            list.push(text);
        }
        if segments.len() > LISTED {
            list.push(format!("{} more segments", segments.len() - LISTED));
        }
        let making: u64 = self.making.values().map(|making| making.bytes.of(kind)).sum();
        if making > 0 {
            list.push(format!("segments that are being made {}", Bytes(making)));
        }
        let unclaimed: u64 = self.unclaimed.values().map(|segment| segment.bytes).sum();
        if kind == MemoryKind::Host && unclaimed > 0 {
            list.push(format!("clients of an earlier broker that have not connected {}", Bytes(unclaimed)));
        }
        list.join("; ")
    }

    /// Gives a reader a row of a segment.
    fn attach(&mut self, attach: PendingAttach) {
        let PendingAttach { client, request, key, since } = attach;
        if self.recovery.is_some() && !self.segments.contains_key(&key) && since.elapsed() < PENDING_TIMEOUT {
            return self.pending_attaches.push(attach);
        }
        let Some(entry) = self.clients.get(&client).map(ClientRecord::to_entry) else { return };
        let Some(segment) = self.segments.get_mut(&key) else {
            return match &self.recovery {
                None => self.refuse(client, request, RefusalKind::UnknownSegment, (0, 0), ""),
                Some(recovery) => {
                    let text = recovery.describe();
                    self.refuse(client, request, RefusalKind::Recovering, (0, 0), &text);
                }
            };
        };
        let is_there = segment.files.data.is_there();
        if !is_there
            || !matches!(
                segment.stage,
                SegmentStage::Live | SegmentStage::Adopted | SegmentStage::Orphaned(_)
            )
        {
            return self.refuse(client, request, RefusalKind::UnknownSegment, (0, 0), "");
        }
        let free = segment
            .rows
            .iter()
            .position(|row| row.as_ref().is_some_and(|row| row.reader.is_none() && !row.is_awaited));
        let Some(number) = free else {
            // The producer has the files of all rows, and may be about to hand them back.
            let lacks_rows =
                segment.stage == SegmentStage::Adopted && segment.rows.iter().any(Option::is_none);
            if lacks_rows && since.elapsed() < PENDING_TIMEOUT {
                return self.pending_attaches.push(attach);
            }
            let readers = u64::from(segment.terms.geometry.readers());
            return self.refuse(client, request, RefusalKind::NoRow, (readers + 1, readers), "");
        };
        let row = segment.rows[number].as_mut().expect("it is there");
        row.view.reset();
        row.reader = Some(client);
        let row = segment.rows[number].as_ref().expect("it is there");
        match segment.reader_descriptors(number as u32, row) {
            Ok(descriptors) => {
                // Before the reader can count anything.
                segment.set_client(Some(number as u32), entry);
                segment.mapped_by.insert((client, Some(number as u32)));
                let message =
                    PoolMessage::Attached { request, key, terms: segment.terms, row: number as u32 };
                self.send(client, &message, descriptors);
            }
            Err(error) => {
                segment.rows[number].as_mut().expect("it is there").reader = None;
                let text = format!("the broker has no free descriptors (raise ulimit -n there): {error}");
                self.refuse(client, request, RefusalKind::Os, (0, 0), &text);
            }
        }
    }
}
