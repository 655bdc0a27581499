//! The events of this process's own blocks, which no driver imports into the process that made
//! them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use hostbuf_cuda::CudaEvent;
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;

use crate::wire::SegmentKey;

/// The events of segments that this process writes.
type EventsBySegment = Option<HashMap<SegmentKey, Weak<[CudaEvent]>>>;

static OWN_EVENTS: Mutex<EventsBySegment> = Mutex::new(None);

/// Adds the events of a segment.
pub(super) fn add(key: SegmentKey, events: &Arc<[CudaEvent]>) {
    hold_around_fork!(OWN_EVENTS: EventsBySegment);
    let mut own = OWN_EVENTS.lock().ignore_poison();
    let own = own.get_or_insert_default();
    own.retain(|_, events| events.strong_count() > 0);
    own.insert(key, Arc::downgrade(events));
}

/// Returns the events of a segment that this process writes.
pub(super) fn find(key: SegmentKey) -> Option<Arc<[CudaEvent]>> {
    OWN_EVENTS.lock().ignore_poison().as_ref()?.get(&key)?.upgrade()
}
