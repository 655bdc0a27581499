//! The side of a mirror that publishes copies.

mod block_supply;
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
