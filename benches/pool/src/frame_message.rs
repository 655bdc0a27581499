//! The message of a frame, from the producer to the consumer.

use hostbuf_pool::Token;

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
