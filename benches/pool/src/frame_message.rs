//! The message of a frame, from the producer to the consumer.

use hostbuf_pool::Token;

/// The size of a 1080p frame in RGBA.
pub(crate) const FRAME: usize = 1920 * 1080 * 4;
/// The distance of the stamps in a frame.
pub(crate) const PAGE: usize = 4096;
/// The size of an encoded message.
pub(crate) const SIZE: usize = Token::SIZE + 16;

/// The message of a frame: its token, or its slot in the shared ring; its stamp; and the time at
/// which it was ready.
pub(crate) struct FrameMessage {
    pub(crate) name: [u8; Token::SIZE],
    pub(crate) stamp: u64,
    pub(crate) ready_ns: u64,
}

impl FrameMessage {
    pub(crate) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..Token::SIZE].copy_from_slice(&self.name);
        bytes[Token::SIZE..][..8].copy_from_slice(&self.stamp.to_ne_bytes());
        bytes[Token::SIZE + 8..].copy_from_slice(&self.ready_ns.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; SIZE]) -> FrameMessage {
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        FrameMessage {
            name: bytes[..Token::SIZE].try_into().expect("a token"),
            stamp: number(Token::SIZE),
            ready_ns: number(Token::SIZE + 8),
        }
    }
}

/// Writes a frame: every byte, with a stamp in each page.
pub(crate) fn fill(frame: &mut [u8], stamp: u64) {
    frame.fill(stamp as u8);
    for page in frame.chunks_mut(PAGE) {
        page[..8].copy_from_slice(&stamp.to_ne_bytes());
    }
}

/// Returns whether every page of a frame has the stamp.
pub(crate) fn is_whole(frame: &[u8], stamp: u64) -> bool {
    frame.chunks(PAGE).all(|page| page[..8] == stamp.to_ne_bytes())
}
