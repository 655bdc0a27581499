//! The segments of which a sender has acquired a block.

use std::collections::VecDeque;
use std::sync::Mutex;

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::{SegmentKey, Token};

/// The largest number of segments that are remembered.
const MOST: usize = 64;

/// The segments of which a sender has acquired a block last. Their further blocks are acquired
/// without the broker.
#[derive(Debug, Default)]
pub(super) struct KnownSegments(Mutex<VecDeque<SegmentKey>>);

impl KnownSegments {
    /// Returns whether the segment of a token is known.
    pub(super) fn contains(&self, token: &Token) -> bool {
        self.0.lock().ignore_poison().contains(&key(token))
    }

    /// Adds the segment of a token. The oldest one is forgotten.
    pub(super) fn add(&self, token: &Token) {
        let mut known = self.0.lock().ignore_poison();
        if !known.contains(&key(token)) {
            known.truncate(MOST - 1);
            known.push_front(key(token));
        }
    }
}

fn key(token: &Token) -> SegmentKey {
    SegmentKey { pool: token.pool, number: token.segment }
}
