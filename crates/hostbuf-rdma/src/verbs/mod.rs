//! The objects of libibverbs, each with an owner: queue pairs, completion queues, shared receive
//! queues and address handles, and the work requests that are in progress.

pub(crate) mod address_handle;
pub(crate) mod completion_queue;
pub(crate) mod datagram;
pub(crate) mod gid;
pub(crate) mod in_flight;
pub(crate) mod port;
pub(crate) mod queue_pair;
pub(crate) mod shared_receive_queue;
pub(crate) mod work_request;
