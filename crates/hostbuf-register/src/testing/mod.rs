//! Devices for tests: a registrar that fails and waits as it is told, and queue pairs that write
//! through a registration.

pub mod fake;
#[cfg(feature = "rdma")]
pub mod loopback;
#[cfg(feature = "rdma")]
pub mod queue;
