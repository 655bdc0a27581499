//! The side of a mirror that publishes copies.

mod block_supply;
#[cfg(feature = "rdma")]
mod frame_reads;
#[cfg(not(feature = "rdma"))]
#[path = "no_frame_reads.rs"]
mod frame_reads;
mod mirror_receiver;
mod options;
mod peer_link;
mod receiver_state;
mod service;
mod session;
mod source_order;
mod timed_stream;

pub use mirror_receiver::MirrorReceiver;
pub use options::MirrorReceiverOptions;
pub use receiver_state::ReceiverCounters;
