//! The order of the frames of a source segment.

use std::collections::HashMap;

use hostbuf_pool::{SegmentKey, Token};

use crate::refusal::MirrorRefusal;
use crate::wire::FrameRequest;

/// The largest number of source segments that a receiver remembers.
const MAX_SOURCES: usize = 4096;

/// The frame of each source segment that was published last. Frames of a segment are published in
/// the order of their sequence numbers, which includes that the generations of each block rise.
#[derive(Debug, Default)]
pub(super) struct SourceOrder {
    sources: HashMap<SegmentKey, PublishedFrame>,
    /// The number of frames that were published.
    published: u64,
}

/// The frame of a source segment that was published last.
#[derive(Clone, Copy, Debug)]
struct PublishedFrame {
    token: Token,
    sequence: u64,
    copy: Token,
    /// The number of frames that the receiver had published before.
    at: u64,
}

impl SourceOrder {
    /// Checks that a frame is newer than those of its segment that were published.
    ///
    /// # Errors
    /// [`MirrorRefusal::NotNewer`].
    pub(super) fn check(&self, request: &FrameRequest) -> Result<(), MirrorRefusal> {
        match self.sources.get(&source(&request.token)) {
            Some(last) if request.header.sequence <= last.sequence => {
                let copy = (request.token == last.token).then(|| Box::new(last.copy));
                Err(MirrorRefusal::NotNewer { published: last.sequence, copy })
            }
            _ => Ok(()),
        }
    }

    /// Notes that a frame was published. The source whose last frame is the oldest is forgotten if
    /// there are too many.
    pub(super) fn note(&mut self, request: &FrameRequest, copy: Token) {
        let key = source(&request.token);
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&key) {
            let oldest = self.sources.iter().min_by_key(|(_, frame)| frame.at).map(|(key, _)| *key);
            oldest.map(|oldest| self.sources.remove(&oldest));
        }
        self.published += 1;
        let frame = PublishedFrame {
            token: request.token,
            sequence: request.header.sequence,
            copy,
            at: self.published,
        };
        self.sources.insert(key, frame);
    }
}

fn source(token: &Token) -> SegmentKey {
    SegmentKey { pool: token.pool, number: token.segment }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_pool::{ArrayLayout, BlockHeader, ElementType, PoolId};
    use std::time::Duration;

    fn frame(segment: u32, block: u32, generation: u64, sequence: u64) -> FrameRequest {
        let token = Token { pool: PoolId::from_bits(1), segment, block, generation, length: 1 };
        let layout = ArrayLayout::contiguous(ElementType::UInt8, &[1]).expect("a layout");
        let mut header = BlockHeader::new(layout);
        (header.generation, header.sequence) = (generation, sequence);
        let source = crate::wire::FrameSource::Stream;
        FrameRequest { number: 1, time_left: Duration::from_secs(1), token, header, source }
    }

    #[test]
    fn older_and_repeated_frames_are_refused() {
        let mut order = SourceOrder::default();
        let copy = Token { segment: 9, ..frame(1, 1, 1, 0).token };
        order.note(&frame(1, 1, 1, 5), copy);
        let refusal = |copy| Err(MirrorRefusal::NotNewer { published: 5, copy });
        assert_eq!(order.check(&frame(1, 1, 1, 5)), refusal(Some(Box::new(copy))));
        assert_eq!(order.check(&frame(1, 0, 7, 4)), refusal(None));
        assert_eq!(order.check(&frame(1, 0, 1, 6)), Ok(()));
        assert_eq!(order.check(&frame(2, 1, 1, 0)), Ok(()), "another segment");
    }

    #[test]
    fn the_number_of_remembered_sources_is_limited() {
        let mut order = SourceOrder::default();
        for segment in 0..=MAX_SOURCES as u32 {
            let request = frame(segment, 0, 1, 0);
            order.note(&request, request.token);
        }
        assert_eq!(order.sources.len(), MAX_SOURCES);
        assert_eq!(order.check(&frame(0, 0, 1, 0)), Ok(()), "the oldest is forgotten");
        assert!(order.check(&frame(1, 0, 1, 0)).is_err());
    }
}
