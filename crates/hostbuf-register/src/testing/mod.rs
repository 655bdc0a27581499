//! Parts for tests: a registrar whose calls fail or wait on request, delays inside the monitor, and
//! queue pairs that write through a registration.

pub mod contract;
pub mod fake;
#[cfg(feature = "rdma")]
pub mod loopback;
#[cfg(feature = "rdma")]
pub mod queue;

pub use crate::monitor::delays;
