//! Queue pairs, completion queues and the other objects of libibverbs, each with an owner.

pub(crate) mod completion_queue;
pub(crate) mod datagram;
pub(crate) mod in_flight;
pub(crate) mod port;
pub(crate) mod queue_pair;
pub(crate) mod shared_receive_queue;
