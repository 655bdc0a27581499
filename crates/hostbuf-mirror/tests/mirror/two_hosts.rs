//! Two pools, frames with stamps, and the proof that a copy is whole.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorReceiver, MirrorReceiverOptions, MirrorSender, MirrorSenderOptions};
use hostbuf_pool::{
    ArrayLayout, BlockHeader, ElementType, Pool, PoolMode, PoolOptions, Producer, ProducerOptions, Token,
};

/// The distance of two stamps in bytes.
const STAMP_EVERY: usize = 4096;

/// Returns a deadline that no frame reaches.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Makes a pool, which stands for that of a host.
pub fn pool(name: &str) -> Pool {
    Pool::connect(PoolOptions::new(name).mode(PoolMode::Private)).expect("a private pool")
}

/// Two pools, and a receiver in the second one.
pub struct TwoHosts {
    pub here: Pool,
    pub there: Pool,
    pub receiver: MirrorReceiver,
}

impl TwoHosts {
    pub fn new(options: MirrorReceiverOptions) -> TwoHosts {
        let there = pool("there");
        let receiver = MirrorReceiver::listen(&there, "127.0.0.1:0", options).expect("a free port");
        TwoHosts { here: pool("here"), there, receiver }
    }

    pub fn sender(&self) -> MirrorSender {
        sender_to(self.receiver.address())
    }

    pub fn producer(&self, bytes: u64, blocks: u32) -> Producer {
        let options = ProducerOptions::new(bytes, blocks).retain(blocks - 1).quota(blocks);
        self.here.producer(&options).expect("there is memory")
    }

    /// Checks that the copy of frame `number` is whole.
    pub fn check(&self, copy: &Token, number: u64) {
        check(&self.there, copy, number);
    }
}

pub fn sender_to(address: SocketAddr) -> MirrorSender {
    MirrorSender::connect(address, MirrorSenderOptions::new()).expect("it listens")
}

/// Publishes frame `number` with a stamp in every 4 KiB and at the end.
pub fn publish(producer: &Producer, number: u64) -> Token {
    let mut block = producer.take_timeout(Duration::from_secs(10)).expect("a free block");
    let length = block.len();
    for chunk in block.as_mut_slice().chunks_mut(STAMP_EVERY) {
        chunk[..8].copy_from_slice(&number.to_le_bytes());
    }
    block.as_mut_slice()[length - 8..].copy_from_slice(&number.to_le_bytes());
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[length as u64]).expect("a layout");
    let mut header = BlockHeader::new(layout);
    (header.frame, header.captured_ns) = (number, Some(number));
    header.user_data[..5].copy_from_slice(b"stamp");
    block.publish_with(header).expect("it fits")
}

/// Checks that a copy of frame `number` is whole, and has the header of the frame.
pub fn check(pool: &Pool, copy: &Token, number: u64) {
    let block = pool.acquire(copy).expect("the copy is published");
    let header = block.header();
    assert_eq!((header.frame, header.captured_ns), (number, Some(number)));
    assert!(header.user_data.starts_with(b"stamp"));
    let bytes = block.as_slice();
    let stamp = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    for at in (0..bytes.len()).step_by(STAMP_EVERY).chain([bytes.len() - 8]) {
        assert_eq!(stamp(at), number, "the stamp at byte {at}");
    }
}
