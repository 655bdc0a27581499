//! A client's connection, and what the client has from its brokers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, RwLock, Weak};

use hostbuf_os::poison::IgnorePoison;

use super::attached_segment::AttachedSegment;
use super::broker_link::BrokerLink;
use super::connect::describe_socket;
use super::pool_options::{PoolMode, PoolOptions};
use super::private_broker::PrivateBroker;
use super::producer_segment::ProducerSegment;
use crate::segment::SpaceEvent;
use crate::wire::SegmentKey;

/// The state of a client's connection.
#[derive(Debug)]
pub(super) struct PoolConnection {
    pub(super) options: PoolOptions,
    /// The random number that identifies this client for every broker.
    pub(super) identity: u64,
    pub(super) link: Arc<BrokerLink>,
    held: Mutex<HeldSegments>,
    /// The lock of a thread that attaches a segment, so that no other one attaches it too.
    pub(super) attaching: Mutex<()>,
    /// The lock of threads that get a segment from a broker. The segments are handed to the next
    /// broker while no thread has it.
    pub(super) changing: RwLock<()>,
    /// The event that ends the service thread.
    pub(super) stop: SpaceEvent,
    /// The broker of this process, if there is no other.
    pub(super) private: Option<PrivateBroker>,
}

/// The segments that a client has.
#[derive(Debug, Default)]
struct HeldSegments {
    produced: HashMap<SegmentKey, Weak<ProducerSegment>>,
    attached: HashMap<SegmentKey, Arc<AttachedSegment>>,
    /// The number of threads that attach segments.
    attaching: usize,
    /// The segments that ended while a thread attached one of them or another one.
    ended: HashSet<SegmentKey>,
}

impl PoolConnection {
    pub(super) fn new(
        options: PoolOptions,
        identity: u64,
        link: Arc<BrokerLink>,
        stop: SpaceEvent,
        private: Option<PrivateBroker>,
    ) -> PoolConnection {
        PoolConnection {
            options,
            identity,
            link,
            held: Mutex::new(HeldSegments::default()),
            attaching: Mutex::new(()),
            changing: RwLock::new(()),
            stop,
            private,
        }
    }

    /// Describes the pool, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.private {
            Some(_) if self.options.mode == PoolMode::Private => "private, as it has requested".to_owned(),
            Some(broker) => format!(
                "private, since there was no broker when it connected (start one before its clients: {})",
                broker.shared_command()
            ),
            None => format!("that of the broker at {}", describe_socket(&self.options)),
        }
    }

    /// Adds a segment that this client writes.
    pub(super) fn add_produced(&self, segment: &Arc<ProducerSegment>) {
        let mut held = self.held.lock().ignore_poison();
        held.produced.retain(|_, segment| segment.strong_count() > 0);
        held.produced.insert(segment.key(), Arc::downgrade(segment));
    }

    /// Returns a segment that this client writes.
    pub(super) fn produced(&self, key: SegmentKey) -> Option<Arc<ProducerSegment>> {
        self.held.lock().ignore_poison().produced.get(&key)?.upgrade()
    }

    /// Returns all segments that this client writes.
    pub(super) fn all_produced(&self) -> Vec<Arc<ProducerSegment>> {
        self.held.lock().ignore_poison().produced.values().filter_map(Weak::upgrade).collect()
    }

    /// Notes that a thread attaches a segment, until the result is dropped.
    pub(super) fn begin_attaching(&self) -> AttachingThread<'_> {
        self.held.lock().ignore_poison().attaching += 1;
        AttachingThread(self)
    }

    /// Adds a segment that this client reads. If the segment has ended meanwhile, it ends here,
    /// too.
    pub(super) fn add_attached(&self, key: SegmentKey, segment: Arc<AttachedSegment>) {
        let mut held = self.held.lock().ignore_poison();
        if held.ended.contains(&key) {
            segment.set_ended();
        } else {
            held.attached.insert(key, segment);
        }
    }

    /// Returns a segment that this client reads.
    pub(super) fn attached(&self, key: SegmentKey) -> Option<Arc<AttachedSegment>> {
        self.held.lock().ignore_poison().attached.get(&key).cloned()
    }

    /// Returns all segments that this client reads.
    pub(super) fn all_attached(&self) -> Vec<Arc<AttachedSegment>> {
        self.held.lock().ignore_poison().attached.values().cloned().collect()
    }

    /// Gives up a segment that this client reads. It is unmapped with its last hold.
    pub(super) fn detach(&self, key: SegmentKey) {
        let mut held = self.held.lock().ignore_poison();
        let segment = held.attached.remove(&key);
        if segment.is_none() && held.attaching > 0 {
            // The thread that attaches it has the broker's answer, but has not mapped it yet.
            held.ended.insert(key);
        }
        drop(held);
        // Outside the lock.
        if let Some(segment) = segment {
            segment.set_ended();
        }
    }

    /// Gives up all segments that this client reads.
    pub(super) fn detach_all(&self) {
        let attached = std::mem::take(&mut self.held.lock().ignore_poison().attached);
        // Outside the lock.
        attached.into_values().for_each(|segment| segment.set_ended());
    }
}

/// A thread that attaches a segment.
pub(super) struct AttachingThread<'c>(&'c PoolConnection);

impl Drop for AttachingThread<'_> {
    fn drop(&mut self) {
        let mut held = self.0.held.lock().ignore_poison();
        held.attaching -= 1;
        if held.attaching == 0 {
            held.ended.clear();
        }
    }
}
